//! The queue of jobs.
//!
//! Two kinds of threads take jobs: I/O threads read chunks for the GPU, decoders read and decode chunks on the CPU.

use super::chunk::Chunk;
use super::flush::Flush;
use super::job::Job;
use super::part::{PartPlans, Placement};
use super::policy::{Backlog, Policy};
use super::prefetch::Prefetcher;
use crate::batch::Progress;
use crate::error::{Context, Result};
use crate::fetch::Encoded;
use crate::fetch::{Arrive, Located};

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The jobs of both kinds of threads, and the policy that says which thread takes which chunk.
pub struct Jobs {
    parts: Arc<PartPlans>,
    /// Whether there are no decoders.
    alone: bool,
    progress: Arc<Progress>,
    /// Is told which chunks will be read.
    prefetcher: Arc<Prefetcher>,
    origin: Instant,
    state: Mutex<State>,
    io_threads: Condvar,
    decoders: Condvar,
}

#[derive(Default)]
struct State {
    /// For I/O threads only: chunks of [`Placement::Uncompressed`].
    uncompressed: VecDeque<Job>,
    /// For both: chunks of [`Placement::Either`].
    either: Backlog<Job>,
    /// For decoders only: chunks of [`Placement::Cpu`], and units to assemble.
    cpu: VecDeque<Job>,
    policy: Policy,
    /// Number of waiting I/O threads and decoders.
    waiting: [usize; 2],
    closed: bool,
}

const IO: usize = 0;
const DECODERS: usize = 1;

impl Jobs {
    /// An I/O thread that waits for chunks that the policy reserves for the CPU asks the policy again after this time.
    const LOOK_AGAIN: Duration = Duration::from_millis(20);

    /// An empty queue for a reader with `decoders` decoder threads.
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
            io_threads: Condvar::new(),
            decoders: Condvar::new(),
        })
    }

    /// Adds jobs at the end. They are dropped once the queue is closed.
    pub fn push(&self, jobs: Vec<Job>) {
        self.prefetcher.push(jobs.iter().filter_map(Job::read));
        let mut state = self.lock();
        if state.closed {
            return;
        }
        self.look_at_fill(&mut state);
        let (mut for_io, mut for_decoders) = (0, 0);
        for job in jobs {
            let plan = &self.parts[job.chunk().part()];
            match (plan.placement, &job) {
                (Placement::Cpu, _) | (_, Job::Assemble(..)) => {
                    for_decoders += 1;
                    state.cpu.push_back(job);
                }
                (Placement::Uncompressed, _) => {
                    for_io += 1;
                    state.uncompressed.push_back(job);
                }
                (Placement::Either, _) => {
                    for_io += usize::from(self.alone || state.policy.gpu_helps());
                    for_decoders += usize::from(state.policy.cpu_helps());
                    state.policy.submitted(plan.chunk_bytes);
                    state.either.push(job, plan.chunk_bytes);
                }
            }
        }
        let wake = [
            (&self.io_threads, for_io.min(state.waiting[IO])),
            (&self.decoders, for_decoders.min(state.waiting[DECODERS])),
        ];
        drop(state);
        for (side, count) in wake {
            (0..count).for_each(|_| side.notify_one());
        }
    }

    /// The next job of an I/O thread. If there is none, calls `holder.flush()` once and waits. `None` once the queue is closed.
    pub fn feed(&self, holder: &mut impl Flush) -> Option<Job> {
        self.next(IO, holder, |state| {
            let State { uncompressed, either, policy, .. } = state;
            uncompressed.pop_front().or_else(|| match self.alone {
                true => either.for_gpu(0),
                false => policy.next_for_gpu(either, self.now()),
            })
        })
    }

    /// As [`Jobs::feed`], for a decoder. The decoder calls [`Jobs::decoder_done`] after the job.
    pub fn decode(&self, holder: &mut impl Flush) -> Option<Job> {
        self.next(DECODERS, holder, |state| {
            let job = state.cpu.pop_front().or_else(|| state.policy.next_for_cpu(&mut state.either))?;
            state.policy.cpu_begins(self.now());
            Some(job)
        })
    }

    /// A decoder has finished the job that it began at `since`. `decoded`: array and part of the chunk that it decoded, if it
    /// decoded one.
    pub fn decoder_done(&self, decoded: Option<(usize, usize)>, since: Instant) {
        let (seconds, now) = (since.elapsed().as_secs_f64(), self.now());
        let mut state = self.lock();
        let helped = (state.policy.gpu_helps(), state.policy.cpu_helps());
        match decoded {
            Some(part) => state.policy.cpu_ends(self.parts[part].chunk_bytes, seconds, now),
            None => state.policy.cpu_gives_up(),
        }
        // Cores that turn out to be too slow leave what is queued to the GPU, and those that are not take part again.
        let changed = helped != (state.policy.gpu_helps(), state.policy.cpu_helps());
        drop(state);
        if changed {
            self.io_threads.notify_all();
            self.decoders.notify_all();
        }
    }

    /// The consumer asks for the next batch. `waits`: the batch is not complete yet.
    pub fn wanted(&self, waits: bool) {
        let (ready, submitted) = self.progress.fill();
        let mut state = self.lock();
        let helps = state.policy.gpu_helps();
        let changed = state.policy.wanted(waits, ready, submitted, self.now());
        state.policy.fill(ready, submitted);
        let changed = changed || helps != state.policy.gpu_helps();
        drop(state);
        if changed {
            self.io_threads.notify_all();
            self.decoders.notify_all();
        }
    }

    /// The consumer got a batch that it had to wait for.
    pub fn handed_over(&self) {
        let mut state = self.lock();
        state.policy.handed_over(self.now());
    }

    /// Who decodes and why, in words.
    pub fn policy(&self) -> String {
        let has = |placement| self.parts.iter().any(|plan| plan.placement == placement);
        let policy = &self.lock().policy;
        let who = match (has(Placement::Either), has(Placement::Cpu)) {
            (true, _) if !self.alone => return policy.explanation(),
            (true, _) => "the GPU decodes, because no thread decodes on the CPU",
            (false, true) => {
                "the CPU decodes, because decode=\"cpu\", the CPU backend or the codecs leave no choice"
            }
            (false, false) => "nothing has to be decoded",
        };
        format!("{who}; {}", policy.taken_in_words())
    }

    /// Closes the queue: drops all jobs and ends all waiting.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let left: Vec<Job> = std::mem::take(&mut state.either).take().collect();
        let more = (std::mem::take(&mut state.uncompressed), std::mem::take(&mut state.cpu));
        drop(state);
        self.io_threads.notify_all();
        self.decoders.notify_all();
        drop((left, more));
    }

    fn next(
        &self,
        side: usize,
        holder: &mut impl Flush,
        mut take: impl FnMut(&mut State) -> Option<Job>,
    ) -> Option<Job> {
        let changed = if side == IO { &self.io_threads } else { &self.decoders };
        let mut state = self.lock();
        let mut flushed = false;
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
            if !flushed {
                flushed = true;
                drop(state);
                holder.flush();
                state = self.lock();
                continue;
            }
            // The bytes that the policy reserves for the CPU shrink with time, without any call that would wake this I/O thread.
            let looks_again = side == IO && !state.either.is_empty() && state.policy.gpu_helps();
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

    /// Whether a GPU worker should decode its next group on the SM partition and leave the other multiprocessors to the model.
    pub fn keeps_to_sm_partition(&self) -> bool {
        let (ready, submitted) = self.progress.fill();
        self.lock().policy.keeps_to_sm_partition(ready, submitted)
    }

    /// The GPU has decoded chunks of `bytes` decoded bytes in total. The first of them was read at `since`.
    pub fn decoded_on_gpu(&self, bytes: u64, since: Instant) {
        self.lock().policy.gpu_ends(bytes, since.elapsed().as_secs_f64());
    }

    /// Tells the policy how many batches are complete. Wakes the I/O threads if the GPU helps from now on.
    fn look_at_fill(&self, state: &mut State) {
        let helped = state.policy.gpu_helps();
        let (ready, submitted) = self.progress.fill();
        state.policy.fill(ready, submitted);
        if !helped && state.policy.gpu_helps() {
            self.io_threads.notify_all();
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
            Ok((located, at)) => {
                chunk.keep_location((Encoded::located(located), at));
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

    /// A queue for three arrays, one of each kind, with a read job for a chunk of each array in `arrays`, and the batch that needs
    /// these chunks.
    fn jobs(decoders: usize, arrays: &[usize]) -> (Arc<Jobs>, Arc<Batch>) {
        let progress = Progress::new(Arc::default());
        let parts = plans(&[Placement::Uncompressed, Placement::Either, Placement::Cpu], 100);
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
    fn each_kind_of_chunk_goes_to_the_threads_that_can_take_it() {
        let (jobs, _batch) = jobs(2, &[1, 0, 2, 1]);
        let _next = Batch::new(1, vec![], vec![], None, jobs.progress.clone());
        // No batch is ready, so the GPU helps. Chunks that only one kind of thread can take come first.
        assert_eq!(taken(jobs.decode(&mut ())), Some((2, 2)));
        assert_eq!(taken(jobs.decode(&mut ())), Some((1, 0)));
        assert_eq!(taken(jobs.feed(&mut ())), Some((0, 1)));
        assert_eq!(taken(jobs.feed(&mut ())), Some((1, 3)));
    }

    #[test]
    fn without_decoders_io_threads_take_everything() {
        let (jobs, _batch) = jobs(0, &[1, 1]);
        jobs.wanted(false);
        assert_eq!(taken(jobs.feed(&mut ())), Some((1, 0)));
        assert_eq!(taken(jobs.feed(&mut ())), Some((1, 1)));
    }

    #[test]
    fn waiting_io_threads_are_woken_when_the_gpu_begins_to_help() {
        let progress = Progress::new(Arc::default());
        let jobs = Jobs::new(Arc::new(plans(&[Placement::Either], 100)), 1, progress.clone(), Arc::default());
        let batches: Vec<_> =
            (0..8).map(|number| Batch::new(number, vec![], vec![], None, progress.clone())).collect();
        let units: Vec<_> = batches.iter().map(|batch| batch.unit(0, Boxes::new())).collect();
        let mut units = units.into_iter();
        batches.iter().for_each(|batch| batch.planned());
        // All but the last two batches are complete, so the GPU does not help.
        units.by_ref().take(6).for_each(drop);
        let chunk = |(number, unit)| {
            let key = ChunkKey { array: 0, part: 0, number };
            Job::Read(Chunk::new(key, Dims::new(), None, unit))
        };
        jobs.push((0..).zip(units).map(chunk).collect());
        let io_thread = std::thread::spawn({
            let jobs = jobs.clone();
            move || taken(jobs.feed(&mut ()))
        });
        while jobs.lock().waiting[IO] == 0 {
            std::thread::yield_now();
        }
        // The consumer takes the complete batches, so that none is ready any more. A decoder is the first to see that.
        batches[..6].iter().for_each(|batch| batch.wait(|| None).unwrap());
        assert_eq!(taken(jobs.decode(&mut ())), Some((0, 0)));
        assert_eq!(io_thread.join().unwrap(), Some((0, 1)));
    }

    #[test]
    fn io_threads_are_woken_when_cores_turn_out_to_be_too_slow() {
        let progress = Progress::new(Arc::default());
        let jobs = Jobs::new(Arc::new(plans(&[Placement::Either], 100)), 1, progress.clone(), Arc::default());
        let batch = Batch::new(0, vec![], vec![], None, progress);
        let chunk = |number| {
            let key = ChunkKey { array: 0, part: 0, number };
            Job::Read(Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new())))
        };
        // A consumer that asks often and never waits: with one batch in flight the GPU does not help.
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(1));
            jobs.wanted(false);
        }
        jobs.push((0..3).map(chunk).collect());
        batch.planned();
        let io_thread = std::thread::spawn({
            let jobs = jobs.clone();
            move || taken(jobs.feed(&mut ()))
        });
        while jobs.lock().waiting[IO] == 0 {
            std::thread::yield_now();
        }
        assert_eq!(taken(jobs.decode(&mut ())), Some((0, 0)));
        jobs.decoder_done(Some((0, 0)), Instant::now() - Duration::from_secs(60));
        assert_eq!(io_thread.join().unwrap(), Some((0, 1)));
    }

    #[test]
    fn a_thread_flushes_before_it_waits_and_is_woken_by_a_job_or_the_end() {
        struct Flushes(usize);
        impl Flush for Flushes {
            fn flush(&mut self) {
                self.0 += 1;
            }
        }
        let (jobs, batch) = jobs(1, &[]);
        let waiting = std::thread::spawn({
            let jobs = jobs.clone();
            move || {
                let mut flushes = Flushes(0);
                let first = taken(jobs.decode(&mut flushes));
                (first, taken(jobs.decode(&mut flushes)), flushes.0)
            }
        });
        let key = ChunkKey { array: 2, part: 0, number: 7 };
        jobs.push(vec![Job::Read(Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new())))]);
        while jobs.lock().waiting[DECODERS] == 0 || !jobs.lock().cpu.is_empty() {
            std::thread::yield_now();
        }
        jobs.close();
        let (first, second, flushes) = waiting.join().unwrap();
        assert_eq!((first, second), (Some((2, 7)), None));
        assert!((1..=2).contains(&flushes));
        // A job that is pushed after the end is dropped, and its unit is finished.
        jobs.push(vec![Job::Read(Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new())))]);
        assert!(batch.is_ready());
    }
}
