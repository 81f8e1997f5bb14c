//! The chunks that are to be read, and who takes which.
//!
//! Two kinds of threads take them: feeders, which read for the GPU, and decoders, which read and decode on the CPU.

use super::chunk::Chunk;
use super::part::{Kind, PartPlans};
use super::policy::{Backlog, Policy};
use super::prefetch::Prefetcher;
use super::worker::Job;
use crate::batch::Progress;
use crate::error::{Context, Result};
use crate::fetch::{Arrive, Located};

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Work for both kinds of threads.
pub struct Jobs {
    parts: Arc<PartPlans>,
    /// There are no decoders.
    alone: bool,
    progress: Arc<Progress>,
    /// Told of what will be read.
    prefetcher: Arc<Prefetcher>,
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
    /// Threads that wait.
    waiting: [usize; 2],
    closed: bool,
}

const FEEDERS: usize = 0;
const DECODERS: usize = 1;

impl Jobs {
    /// Who waits for what the CPU keeps back looks again so often.
    const LOOK_AGAIN: Duration = Duration::from_millis(20);

    /// No work yet.
    pub fn new(
        parts: Arc<PartPlans>,
        decoders: usize,
        progress: Arc<Progress>,
        prefetcher: Arc<Prefetcher>,
    ) -> Arc<Self> {
        Arc::new(Self {
            parts,
            alone: decoders == 0,
            progress,
            prefetcher,
            origin: Instant::now(),
            state: Mutex::new(State { policy: Policy::new(decoders as u64), ..State::default() }),
            feeders: Condvar::new(),
            decoders: Condvar::new(),
        })
    }

    /// Adds work behind all other. It is dropped once this is closed.
    pub fn push(&self, jobs: Vec<Job>) {
        self.prefetcher.push(jobs.iter().filter_map(Job::read));
        let mut state = self.lock();
        if state.closed {
            return;
        }
        self.look_at_fill(&mut state);
        let (mut for_feeders, mut for_decoders) = (0, 0);
        for job in jobs {
            let plan = &self.parts[job.chunk().place()];
            match (plan.kind, &job) {
                (Kind::Cpu, _) | (_, Job::Assemble(..)) => {
                    for_decoders += 1;
                    state.cpu.push_back(job);
                }
                (Kind::Plain, _) => {
                    for_feeders += 1;
                    state.plain.push_back(job);
                }
                (Kind::Either, _) => {
                    for_feeders += usize::from(self.alone || state.policy.gpu_helps());
                    for_decoders += usize::from(state.policy.cpu_helps());
                    state.either.push(job, plan.chunk_bytes);
                }
            }
        }
        let wake = [
            (&self.feeders, for_feeders.min(state.waiting[FEEDERS])),
            (&self.decoders, for_decoders.min(state.waiting[DECODERS])),
        ];
        drop(state);
        for (side, count) in wake {
            (0..count).for_each(|_| side.notify_one());
        }
    }

    /// The next job of a feeder. Calls `before_waiting` before it waits for one. `None` once this is closed.
    pub fn feed(&self, before_waiting: impl FnMut()) -> Option<Job> {
        self.next(FEEDERS, before_waiting, |state| {
            let plain = state.plain.pop_front();
            plain.or_else(|| state.either.for_gpu(&mut state.policy, self.now(), self.alone))
        })
    }

    /// The next job of a decoder, which tells [`Jobs::decoder_done`] when it is done.
    pub fn decode(&self, before_waiting: impl FnMut()) -> Option<Job> {
        self.next(DECODERS, before_waiting, |state| {
            let job = state.cpu.pop_front().or_else(|| state.either.for_cpu(&state.policy))?;
            state.policy.cpu_begins(self.now());
            Some(job)
        })
    }

    /// A decoder is done with a job on which it began at `since`: it decoded a chunk of this array and part, or there was
    /// nothing to decode.
    pub fn decoder_done(&self, decoded: Option<(usize, usize)>, since: Instant) {
        let (seconds, now) = (since.elapsed().as_secs_f64(), self.now());
        match decoded {
            Some(place) => self.lock().policy.cpu_ends(self.parts[place].chunk_bytes, seconds, now),
            None => self.lock().policy.cpu_gives_up(),
        }
    }

    /// The GPU is done with chunks of so many decoded bytes, of which the first arrived at `since`.
    pub fn decoded_on_gpu(&self, bytes: u64, since: Instant) {
        self.lock().policy.gpu_ends(bytes, since.elapsed().as_secs_f64());
    }

    /// The consumer wants a batch, and has to wait for it or not.
    pub fn wanted(&self, waits: bool) {
        let (ready, submitted) = self.progress.fill();
        let mut state = self.lock();
        let helps = state.policy.gpu_helps();
        let changed = state.policy.wanted(waits, ready, submitted, self.now());
        state.policy.fill(ready, submitted);
        let changed = changed || helps != state.policy.gpu_helps();
        drop(state);
        if changed {
            self.feeders.notify_all();
            self.decoders.notify_all();
        }
    }

    /// The consumer got a batch for which it had waited.
    pub fn handed_over(&self) {
        let mut state = self.lock();
        state.policy.handed_over(self.now());
    }

    /// Whether chunks, the first of which has waited so long, may go on waiting for others to go to the GPU with them.
    pub fn has_time(&self, waited: Duration) -> bool {
        if waited.as_secs_f64() >= Policy::PATIENCE {
            return false;
        }
        let (ready, submitted) = self.progress.fill();
        // Without the lock where there is most to do.
        ready > 0 && self.lock().policy.has_time(ready, submitted)
    }

    /// Whether the GPU should keep to few multiprocessors with its next chunks, and leave the others to the model.
    pub fn keeps_to_few(&self, decodes: bool) -> bool {
        let (ready, submitted) = self.progress.fill();
        self.lock().policy.keeps_to_few(decodes, ready, submitted)
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
        side: usize,
        mut before_waiting: impl FnMut(),
        mut take: impl FnMut(&mut State) -> Option<Job>,
    ) -> Option<Job> {
        let changed = if side == FEEDERS { &self.feeders } else { &self.decoders };
        let mut state = self.lock();
        let mut prepared = false;
        loop {
            if state.closed {
                return None;
            }
            if !state.either.is_empty() {
                self.look_at_fill(&mut state);
            }
            if let Some(job) = take(&mut state) {
                job.chunk().begin();
                return Some(job);
            }
            if !prepared {
                prepared = true;
                drop(state);
                before_waiting();
                state = self.lock();
                continue;
            }
            // What the CPU keeps back for itself may change while nothing happens.
            let looks_again = side == FEEDERS && !state.either.is_empty() && state.policy.gpu_helps();
            state.waiting[side] += 1;
            state = match looks_again {
                false => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                true => {
                    let waited = changed.wait_timeout(state, Self::LOOK_AGAIN);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiting[side] -= 1;
        }
    }

    /// Tells the policy how many batches are complete, and those who sleep if the GPU helps from now on.
    fn look_at_fill(&self, state: &mut State) {
        let helped = state.policy.gpu_helps();
        let (ready, submitted) = self.progress.fill();
        state.policy.fill(ready, submitted);
        if !helped && state.policy.gpu_helps() {
            self.feeders.notify_all();
        }
    }

    fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrive<Arc<Chunk>> for Jobs {
    fn arrived(&self, chunk: Arc<Chunk>, found: Result<(Located, Context)>) {
        match found {
            Ok(place) => {
                chunk.keep_place(place);
                self.push(vec![Job::Read(chunk)]);
            }
            Err(error) => chunk.fail(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::decode::part::tests::plans;
    use crate::plan::{Boxes, ChunkKey, Dims};

    /// Jobs of three arrays, one of each kind, and a batch with a unit for each of so many chunks.
    fn jobs(decoders: usize, arrays: &[usize]) -> (Arc<Jobs>, Arc<Batch>) {
        let progress = Progress::new(Arc::default());
        let parts = plans(&[Kind::Plain, Kind::Either, Kind::Cpu], 100);
        let jobs = Jobs::new(Arc::new(parts), decoders, progress.clone(), Arc::default());
        let batch = Batch::new(0, vec![], vec![], None, progress);
        let chunk = |(number, &array): (usize, &usize)| {
            let key = ChunkKey { array, part: 0, number: number as u128 };
            Job::Read(Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new())))
        };
        jobs.push(arrays.iter().enumerate().map(chunk).collect());
        batch.planned();
        (jobs, batch)
    }

    fn taken(job: Option<Job>) -> Option<(usize, u128)> {
        job.map(|job| (job.chunk().key.array, job.chunk().key.number))
    }

    #[test]
    fn each_kind_of_chunk_goes_to_those_who_can_take_it() {
        let (jobs, _batch) = jobs(2, &[1, 0, 2, 1]);
        // Nothing is ready, so that the GPU helps, but what both can do comes behind what only one can.
        assert_eq!(taken(jobs.decode(|| ())), Some((2, 2)));
        assert_eq!(taken(jobs.decode(|| ())), Some((1, 0)));
        assert_eq!(taken(jobs.feed(|| ())), Some((0, 1)));
        assert_eq!(taken(jobs.feed(|| ())), Some((1, 3)));
    }

    #[test]
    fn without_decoders_feeders_take_everything() {
        let (jobs, _batch) = jobs(0, &[1, 1]);
        jobs.wanted(false);
        assert_eq!(taken(jobs.feed(|| ())), Some((1, 0)));
        assert_eq!(taken(jobs.feed(|| ())), Some((1, 1)));
    }

    #[test]
    fn feeders_that_sleep_are_woken_when_the_gpu_begins_to_help() {
        let progress = Progress::new(Arc::default());
        let jobs = Jobs::new(Arc::new(plans(&[Kind::Either], 100)), 1, progress.clone(), Arc::default());
        let batches: Vec<_> =
            (0..8).map(|number| Batch::new(number, vec![], vec![], None, progress.clone())).collect();
        let units: Vec<_> = batches.iter().map(|batch| batch.unit(0, Boxes::new())).collect();
        let mut units = units.into_iter();
        batches.iter().for_each(|batch| batch.planned());
        // All but the last two batches are complete, so that the GPU does not help.
        units.by_ref().take(6).for_each(drop);
        let chunk = |(number, unit)| {
            let key = ChunkKey { array: 0, part: 0, number };
            Job::Read(Chunk::new(key, Dims::new(), None, unit))
        };
        jobs.push((0..).zip(units).map(chunk).collect());
        let feeder = std::thread::spawn({
            let jobs = jobs.clone();
            move || taken(jobs.feed(|| ()))
        });
        while jobs.lock().waiting[FEEDERS] == 0 {
            std::thread::yield_now();
        }
        // They are taken, one after the other, and nothing is complete any more. A decoder is the first to see that.
        batches[..6].iter().for_each(|batch| batch.wait(|| None).unwrap());
        assert_eq!(taken(jobs.decode(|| ())), Some((0, 0)));
        assert_eq!(feeder.join().unwrap(), Some((0, 1)));
    }

    #[test]
    fn who_waits_is_prepared_first_and_woken_by_work_or_the_end() {
        let (jobs, batch) = jobs(1, &[]);
        let waiting = std::thread::spawn({
            let jobs = jobs.clone();
            move || {
                let mut prepared = 0;
                let first = taken(jobs.decode(|| prepared += 1));
                (first, taken(jobs.decode(|| prepared += 1)), prepared)
            }
        });
        let key = ChunkKey { array: 2, part: 0, number: 7 };
        jobs.push(vec![Job::Read(Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new())))]);
        while jobs.lock().waiting[DECODERS] == 0 || !jobs.lock().cpu.is_empty() {
            std::thread::yield_now();
        }
        jobs.close();
        let (first, second, prepared) = waiting.join().unwrap();
        assert_eq!((first, second), (Some((2, 7)), None));
        assert!((1..=2).contains(&prepared));
        // What comes later is dropped, and its unit finished.
        jobs.push(vec![Job::Read(Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new())))]);
        assert!(batch.is_ready());
    }
}
