//! The chunks that are to be read, and who takes which.
//!
//! Two kinds of threads take them: feeders, which read for the GPU, and decoders, which read and decode on the CPU.

use super::policy::{Backlog, Policy};
use super::worker::Job;
use crate::batch::Progress;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who can take the chunks of a part of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is nothing to decode: they are only read, by feeders.
    Plain,
    /// The GPU decodes them, or the CPU: the policy says.
    Either,
    /// Only the CPU decodes them.
    Cpu,
}

/// Work for both kinds of threads.
pub struct Jobs {
    /// Kind and decoded bytes of the chunks of each part of each array.
    kinds: Vec<Vec<(Kind, u64)>>,
    /// There are no decoders.
    alone: bool,
    progress: Arc<Progress>,
    origin: Instant,
    state: Mutex<State>,
    feeders: Condvar,
    decoders: Condvar,
}

#[derive(Default)]
struct State {
    plain: VecDeque<Job>,
    either: Backlog<Job>,
    cpu: VecDeque<Job>,
    policy: Policy,
    closed: bool,
}

impl Jobs {
    /// What the policy says may change while nothing happens, so that who waits for it looks again so often.
    const LOOK_AGAIN: Duration = Duration::from_millis(10);

    /// No work yet.
    pub fn new(kinds: Vec<Vec<(Kind, u64)>>, decoders: usize, progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self {
            kinds,
            alone: decoders == 0,
            progress,
            origin: Instant::now(),
            state: Mutex::default(),
            feeders: Condvar::new(),
            decoders: Condvar::new(),
        })
    }

    /// Adds work behind all other. It is dropped once this is closed.
    pub fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        for job in jobs {
            let (array, part) = job.chunk().place();
            let (kind, bytes) = self.kinds[array][part];
            match (kind, &job) {
                (Kind::Cpu, _) | (_, Job::Assemble(..)) => state.cpu.push_back(job),
                (Kind::Plain, _) => state.plain.push_back(job),
                (Kind::Either, _) => state.either.push(job, bytes),
            }
        }
        drop(state);
        self.feeders.notify_all();
        self.decoders.notify_all();
    }

    /// The next job of a feeder. Calls `before_waiting` before it waits for one. `None` once this is closed.
    pub fn feed(&self, before_waiting: impl FnMut()) -> Option<Job> {
        self.next(&self.feeders, before_waiting, |state| {
            let plain = state.plain.pop_front();
            plain.or_else(|| state.either.for_gpu(&mut state.policy, self.now(), self.alone))
        })
    }

    /// The next job of a decoder, which tells [`Jobs::decoded`] when it is done.
    pub fn decode(&self, before_waiting: impl FnMut()) -> Option<Job> {
        self.next(&self.decoders, before_waiting, |state| {
            let job = state.cpu.pop_front().or_else(|| state.either.for_cpu(&state.policy))?;
            state.policy.cpu_begins(self.now());
            Some(job)
        })
    }

    /// A decoder is done with a job on which it began at `since`.
    pub fn decoded(&self, array: usize, part: usize, since: Instant) {
        let bytes = self.kinds[array][part].1;
        self.lock().policy.cpu_ends(bytes, since.elapsed().as_secs_f64(), self.now());
    }

    /// The GPU is done with chunks of which the first arrived at `since`.
    pub fn decoded_on_gpu(&self, since: Instant) {
        self.lock().policy.gpu_ends(since.elapsed().as_secs_f64());
    }

    /// The consumer wants a batch, and has to wait for it or not.
    pub fn wanted(&self, waits: bool) {
        let mut state = self.lock();
        state.policy.wanted(waits);
        drop(state);
        self.feeders.notify_all();
        self.decoders.notify_all();
    }

    /// Ends all waiting and drops what is left.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let left: Vec<Job> = std::mem::take(&mut state.either).take().collect();
        let more = (std::mem::take(&mut state.plain), std::mem::take(&mut state.cpu));
        drop(state);
        self.feeders.notify_all();
        self.decoders.notify_all();
        drop((left, more));
    }

    fn next(
        &self,
        changed: &Condvar,
        mut before_waiting: impl FnMut(),
        mut take: impl FnMut(&mut State) -> Option<Job>,
    ) -> Option<Job> {
        let mut state = self.lock();
        let mut prepared = false;
        loop {
            if state.closed {
                return None;
            }
            let (ready, submitted) = self.progress.fill();
            state.policy.fill(ready, submitted);
            if let Some(job) = take(&mut state) {
                return Some(job);
            }
            if !prepared {
                prepared = true;
                drop(state);
                before_waiting();
                state = self.lock();
                continue;
            }
            state = match state.either.is_empty() {
                true => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                false => {
                    let waited = changed.wait_timeout(state, Self::LOOK_AGAIN);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
