//! What a store gives to a client that does nothing with the bytes: objects are requested, and dropped as they come.

use super::buffers::Buffers;
use super::connections::Connections;
use super::contract::{Extent, Store};
use super::session::Session;

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::try_join_all;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime;

/// What came of bare reading.
#[derive(Clone, Copy, Debug)]
pub struct Bare {
    /// Bytes of bodies.
    pub bytes: u64,
    /// Answers that began.
    pub requests: u64,
    /// The time in which they came.
    pub seconds: f64,
    /// The share of that time in which the threads that receive had work, of all of them.
    pub busy: f64,
    /// The median time until an answer began.
    pub ms_to_first_byte: f64,
}

/// How a store is read.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Requests at once.
    pub requests: usize,
    /// Threads that poll them.
    pub threads: usize,
    /// The time that counts; half as long goes by before, in which connections are opened.
    pub time: Duration,
}

/// What all requests have in common.
struct Reading<'a> {
    store: &'a Arc<dyn Store>,
    keys: &'a [String],
    next: AtomicUsize,
    bytes: AtomicU64,
    counts_from: Instant,
    end: Instant,
    times: Mutex<Vec<Duration>>,
}

/// Reads these objects over and over.
///
/// # Errors
/// What the store says, clients and threads that cannot be had; `NotFound` if no object is there.
pub fn read_bare(store: &Arc<dyn Store>, keys: &[String], how: How) -> io::Result<Bare> {
    let threads = how.threads.clamp(1, how.requests.max(1));
    let counts_from = Instant::now() + how.time / 2;
    let reading = Reading {
        store,
        keys,
        next: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        counts_from,
        end: counts_from + how.time,
        times: Mutex::default(),
    };
    let reading_all = &reading;
    let busy = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let requests = how.requests / threads + usize::from(thread < how.requests % threads);
                scope.spawn(move || reading_all.on_this_thread(requests))
            })
            .collect();
        let joined = started.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that receives panicked")))
        });
        joined.collect::<io::Result<Vec<Duration>>>()
    })?;
    let mut times = reading.times.into_inner().unwrap_or_else(PoisonError::into_inner);
    if times.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no object answered in time"));
    }
    times.sort_unstable();
    let seconds = how.time.as_secs_f64();
    let busy: f64 = busy.iter().map(Duration::as_secs_f64).sum();
    Ok(Bare {
        bytes: reading.bytes.load(Ordering::Relaxed),
        requests: times.len() as u64,
        seconds,
        busy: busy / (seconds * threads as f64),
        ms_to_first_byte: times[times.len() / 2].as_secs_f64() * 1e3,
    })
}

impl Reading<'_> {
    /// Memory that is used again, for each request.
    const BUFFER_BYTES: u64 = 16 << 20;

    /// Polls so many requests at once to the end. Returns the CPU time of the part that counts.
    fn on_this_thread(&self, requests: usize) -> io::Result<Duration> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let connections = Connections::new(
            Session::WHILE_OPENING,
            Arc::default(),
            Buffers::new(requests as u64 * Self::BUFFER_BYTES),
        );
        let connected = self.store.connect(&connections)?;
        let store = connected.as_ref().unwrap_or(self.store);
        runtime.block_on(async {
            let all = try_join_all((0..requests).map(|_| self.read(store)));
            let mut all = std::pin::pin!(all);
            let wait = tokio::time::timeout_at(self.counts_from.into(), &mut all).await;
            wait.unwrap_or_else(|_| Ok(vec![]))?;
            let before = thread_time();
            let wait = tokio::time::timeout_at(self.end.into(), &mut all).await;
            wait.unwrap_or_else(|_| Ok(vec![]))?;
            Ok(thread_time().saturating_sub(before))
        })
    }

    /// One request after the other.
    async fn read(&self, store: &Arc<dyn Store>) -> io::Result<()> {
        loop {
            let Some(key) = self.keys.get(self.next.fetch_add(1, Ordering::Relaxed) % self.keys.len().max(1))
            else {
                return Ok(());
            };
            let asked = Instant::now();
            let answer = store.get(key, Extent::Whole, None).await?;
            let Some(mut body) = answer else {
                tokio::task::yield_now().await;
                continue;
            };
            if self.counts() {
                self.times.lock().unwrap_or_else(PoisonError::into_inner).push(asked.elapsed());
            }
            while let Some(part) = body.stream.next().await {
                let bytes = part?.len() as u64;
                if self.counts() {
                    self.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
            }
            // An answer that is there at once would keep the others from their turn.
            tokio::task::yield_now().await;
        }
    }

    fn counts(&self) -> bool {
        let now = Instant::now();
        self.counts_from <= now && now < self.end
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn bytes_are_counted_for_as_long_as_was_asked() {
        let objects = MemoryStore::default();
        objects.put("a", vec![0; 1000]);
        objects.put("b", vec![0; 3000]);
        let store: Arc<dyn Store> = Arc::new(objects);
        let keys = ["a".to_string(), "b".to_string()];
        let how = How { requests: 3, threads: 2, time: Duration::from_millis(60) };
        let found = read_bare(&store, &keys, how).unwrap();
        // Both in turns: 2,000 bytes on average, apart from those that the clock cut off.
        assert!(found.requests > 10);
        let mean = found.bytes as f64 / found.requests as f64;
        assert!((1000.0..3000.0).contains(&mean), "{found:?}");
        assert!(found.busy > 0.0 && found.seconds == 0.06);
        assert!(read_bare(&store, &[], how).is_err());
        let absent: Arc<dyn Store> = Arc::new(MemoryStore::default());
        assert_eq!(read_bare(&absent, &keys, how).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
