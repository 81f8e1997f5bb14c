//! Finds threads that wait for a GPU that never answers, so that neither the consumer nor the destructor waits forever.

use crate::error::{Context, Error, GpuWork};

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The GPU work that one thread waits for, if it waits for the GPU.
#[derive(Debug, Default)]
pub struct Watchdog(Mutex<Option<Busy>>);

#[derive(Debug)]
struct Busy {
    since: Instant,
    work: GpuWork,
    first: Option<Context>,
    chunks: usize,
}

impl Watchdog {
    /// A wait longer than this is taken for a GPU that does not answer. A call of nvCOMP with 48 chunks of 3.28 MB took 0.03 s
    /// (H200, 2026-11-20).
    const LIMIT: Duration = Duration::from_secs(60);
    /// Once one thread is stuck, [`join`] gives the others this time to end.
    const GRACE: Duration = Duration::from_secs(2);
    /// [`join`] looks for ended threads once in this time.
    const POLL: Duration = Duration::from_micros(200);

    /// Notes that the thread waits for the GPU until the returned value is dropped. It waits for `chunks` chunks, the first of which
    /// is `first`.
    pub fn waits(&self, work: GpuWork, first: Option<&Context>, chunks: usize) -> Waiting<'_> {
        *self.lock() = Some(Busy { since: Instant::now(), work, first: first.cloned(), chunks });
        Waiting(self)
    }

    /// An error if the thread has waited for longer than the limit.
    pub fn stuck(&self) -> Option<Error> {
        let busy = self.lock();
        let busy = busy.as_ref().filter(|busy| busy.since.elapsed() > Self::LIMIT)?;
        Some(Error::GpuStuck {
            at: busy.first.clone(),
            work: busy.work,
            chunks: busy.chunks,
            seconds: busy.since.elapsed().as_secs(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Busy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for the GPU. Dropping it ends the wait.
pub struct Waiting<'a>(&'a Watchdog);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Waits for threads to end, and returns whether all did. Panics of threads are not passed on.
///
/// Once a thread is stuck, the others get a short time to end: they may be stuck in a call that no watchdog watches.
pub fn join<'a>(threads: impl IntoIterator<Item = (&'a Watchdog, JoinHandle<()>)>) -> bool {
    let mut threads: Vec<_> = threads.into_iter().collect();
    let mut until: Option<Instant> = None;
    loop {
        for (_, thread) in threads.extract_if(.., |(_, thread)| thread.is_finished()) {
            let _ = thread.join();
        }
        if threads.is_empty() {
            return true;
        }
        if until.is_none() && threads.iter().any(|(watchdog, _)| watchdog.stuck().is_some()) {
            until = Some(Instant::now() + Watchdog::GRACE);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        std::thread::sleep(Watchdog::POLL);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes `watchdog` look as if its thread had waited for longer than the limit.
    pub(crate) fn set_stuck(watchdog: &Watchdog) {
        let since = Instant::now().checked_sub(Watchdog::LIMIT + Duration::from_secs(1)).unwrap();
        *watchdog.lock() = Some(Busy { since, work: GpuWork::Copying, first: None, chunks: 1 });
    }

    #[test]
    fn a_wait_is_stuck_after_the_limit_only_and_while_it_lasts() {
        let watchdog = Watchdog::default();
        assert!(watchdog.stuck().is_none());
        let waiting = watchdog.waits(GpuWork::Decoding, None, 3);
        assert!(watchdog.stuck().is_none());
        drop(waiting);
        set_stuck(&watchdog);
        assert!(watchdog.stuck().is_some_and(|error| error.to_string().contains("copying")));
        drop(watchdog.waits(GpuWork::Decoding, None, 3));
        assert!(watchdog.stuck().is_none());
    }

    #[test]
    fn threads_that_end_are_joined_and_stuck_threads_are_left() {
        let (stuck, sound) = (Watchdog::default(), Watchdog::default());
        set_stuck(&stuck);
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Arc::new(Mutex::new(held));
        let hangs = || {
            let held = held.clone();
            std::thread::spawn(move || _ = held.lock().unwrap().recv())
        };
        let ends = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(20)));
        // A thread whose watchdog says nothing may hang as well.
        assert!(!join([(&stuck, hangs()), (&sound, hangs()), (&sound, ends)]));
        drop(release);
        assert!(join([(&sound, std::thread::spawn(|| ()))]));
    }
}
