//! Memory in which decoded chunks stay for later batches.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use range_alloc::RangeAllocator;

/// Hands out ranges of so many bytes. On the GPU backend they are addresses of device memory; on the CPU backend they
/// only count, and each chunk is an allocation of its own.
pub struct DevicePool {
    base: u64,
    bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: RangeAllocator<u64>,
    used: u64,
    peak: u64,
    closed: bool,
}

/// A range, given back when dropped.
pub struct Allocation {
    pool: Arc<DevicePool>,
    range: Range<u64>,
}

impl DevicePool {
    /// Rooms start at multiples of this.
    const ALIGNMENT: u64 = 256;

    /// Rooms in `bytes` bytes from address `base` on.
    pub fn new(base: u64, bytes: u64) -> Arc<Self> {
        // The allocator has no empty range.
        let free = RangeAllocator::new(0..bytes.max(1));
        let state = State { free, used: 0, peak: 0, closed: bytes == 0 };
        Arc::new(Self { base, bytes, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// What a chunk of that size takes.
    pub fn padded(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(Self::ALIGNMENT)
    }

    /// Takes a room. Waits for one as long as more than `kept` bytes are in use, since those will be given back; `None`
    /// if there is none even then, or once the rooms are closed. Calls `before_waiting` first.
    pub fn take(
        self: &Arc<Self>,
        bytes: u64,
        kept: u64,
        before_waiting: impl FnOnce(),
    ) -> Option<Allocation> {
        let mut before_waiting = Some(before_waiting);
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Ok(range) = state.free.allocate_range(Self::padded(bytes)) {
                state.used += range.end - range.start;
                state.peak = state.peak.max(state.used);
                return Some(Allocation { pool: self.clone(), range });
            }
            if state.used <= kept {
                return None;
            }
            if let Some(before_waiting) = before_waiting.take() {
                drop(state);
                before_waiting();
                state = self.lock();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all waiting, now and later.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether nothing is handed out any more.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Bytes that there are.
    pub fn capacity_bytes(&self) -> u64 {
        self.bytes
    }

    /// The most bytes that were ever in use.
    pub fn peak_bytes(&self) -> u64 {
        self.lock().peak
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocation {
    /// Its address.
    pub fn address(&self) -> u64 {
        self.pool.base + self.range.start
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.free.free_range(self.range.clone());
        state.used -= self.range.end - self.range.start;
        drop(state);
        self.pool.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_room_waits_only_for_what_will_be_given_back() {
        let pool = DevicePool::new(1000, 600);
        let kept = pool.take(256, 0, || ()).unwrap();
        let going = pool.take(10, 0, || ()).unwrap();
        assert_eq!((kept.address(), going.address(), going.bytes()), (1000, 1256, 256));
        assert!(pool.take(256, 512, || ()).is_none());
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take(256, 256, || drop(going)).map(|allocation| allocation.address())
        });
        assert_eq!(waiting.join().unwrap(), Some(1256));
        assert_eq!(pool.peak_bytes(), 512);
        pool.close();
        assert!(pool.take(1, 0, || ()).is_none());
    }
}
