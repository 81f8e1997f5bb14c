//! A bounded pool of device memory.

use super::flush::Flush;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use range_alloc::RangeAllocator;

/// Hands out ranges of one block of device memory: for the chunk cache, and for chunks on their way to a GPU worker.
///
/// On the CPU backend the ranges only count against the budget of the chunk cache; the chunks themselves are in host memory.
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

/// A range of a pool. Dropping it gives the range back.
pub struct Allocation {
    pool: Arc<DevicePool>,
    range: Range<u64>,
}

impl DevicePool {
    /// Allocations start at multiples of this many bytes.
    const ALIGNMENT: u64 = 256;

    /// A pool of `bytes` bytes from address `base` on.
    pub fn new(base: u64, bytes: u64) -> Arc<Self> {
        // The allocator has no empty range.
        let free = RangeAllocator::new(0..bytes.max(1));
        let state = State { free, used: 0, peak: 0, closed: bytes == 0 };
        Arc::new(Self { base, bytes, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Size of an allocation for `bytes` bytes.
    pub fn padded(bytes: u64) -> u64 {
        bytes.max(1).next_multiple_of(Self::ALIGNMENT)
    }

    /// Allocates `bytes` bytes. If the pool is full, calls `holder.flush()` once and waits.
    ///
    /// `kept` is the number of bytes in use that nobody will give back: it only waits while more than that is in use. Returns
    /// `None` if there is no space even then, or once the pool is closed.
    pub fn take(self: &Arc<Self>, bytes: u64, kept: u64, holder: &mut impl Flush) -> Option<Allocation> {
        let mut flushed = false;
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
            if !flushed {
                flushed = true;
                drop(state);
                holder.flush();
                state = self.lock();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all waiting. Nothing is allocated from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether the pool was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Size of the pool in bytes.
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
    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.pool.base + self.range.start
    }

    /// Size in bytes.
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

    /// Holds an allocation until it is flushed.
    struct Holder(Option<Allocation>);

    impl Flush for Holder {
        fn flush(&mut self) {
            self.0 = None;
        }
    }

    #[test]
    fn take_waits_only_for_bytes_that_will_be_given_back() {
        let pool = DevicePool::new(1000, 600);
        let kept = pool.take(256, 0, &mut ()).unwrap();
        let held = pool.take(10, 0, &mut ()).unwrap();
        assert_eq!((kept.address(), held.address(), held.bytes()), (1000, 1256, 256));
        assert!(pool.take(256, 512, &mut ()).is_none());
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take(256, 256, &mut Holder(Some(held))).map(|allocation| allocation.address())
        });
        assert_eq!(waiting.join().unwrap(), Some(1256));
        assert_eq!(pool.peak_bytes(), 512);
        pool.close();
        assert!(pool.take(1, 0, &mut ()).is_none());
    }
}
