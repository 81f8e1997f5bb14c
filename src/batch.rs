//! A batch in flight: its outputs, and the units that are not written to them yet.

use crate::assemble::OutputMemory;
use crate::error::{Error, Result};
use crate::plan::Boxes;
use crate::sampler::Drawn;
use crate::stats::Counters;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::CudaEvent;
use smallvec::SmallVec;

/// A batch from its submission until it is handed over.
pub struct Batch {
    /// The samples of the batch.
    pub samples: Vec<Drawn>,
    /// Number of the batch. The first batch of a reader has number 0.
    pub number: u64,
    /// The memory of each output.
    pub outputs: Vec<OutputMemory>,
    /// GPU backend: the event after which the outputs may be written, recorded on the stream that allocated them.
    pub writable: Option<CudaEvent>,
    progress: Arc<Progress>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Number of units that are not finished, plus one while the planner adds units.
    missing: usize,
    /// The times of the unit that was finished last.
    last: Times,
    /// Arrays and parts of which the store does not have a chunk.
    absent: Vec<(usize, usize)>,
    error: Option<Arc<Error>>,
}

/// When the steps of a unit's chunk were done. `None`: the unit did not need the step, or it is not done yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// When the chunk was read.
    pub fetched: Option<Instant>,
    /// When the chunk was decoded.
    pub decoded: Option<Instant>,
    /// Whether the GPU decoded the chunk.
    pub by_gpu: bool,
}

/// How many batches are in flight, and how many of these are complete.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<Fill>,
    counters: Arc<Counters>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    /// Batches in flight.
    submitted: u64,
    /// The most batches that were in flight at once.
    most_submitted: u64,
    /// Complete batches in flight.
    ready: u64,
    /// Since when all batches in flight are complete.
    idle_since: Option<Instant>,
}

impl Progress {
    /// No batch is in flight. Waiting times are added to `counters`.
    pub fn new(counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), counters })
    }

    /// Number of complete batches in flight, and of all batches in flight.
    pub fn fill(&self) -> (u64, u64) {
        let state = self.lock();
        (state.ready, state.submitted)
    }

    /// Microseconds in which all batches in flight were complete, so that the threads waited for the consumer. Includes the wait that
    /// is not over yet.
    pub fn waiting_consumer_us(&self) -> u64 {
        let state = self.lock();
        let idle = state.idle_since.map_or(0, |since| since.elapsed().as_micros() as u64);
        self.counters.us_waiting_consumer.get() + idle
    }

    /// The most batches that were in flight at once.
    pub fn most_submitted(&self) -> u64 {
        self.lock().most_submitted
    }

    fn submitted(&self) {
        let mut state = self.lock();
        state.submitted += 1;
        state.most_submitted = state.most_submitted.max(state.submitted);
        self.busy(&mut state);
    }

    fn finished(&self) {
        let mut state = self.lock();
        state.ready += 1;
        if state.ready == state.submitted {
            state.idle_since = Some(Instant::now());
        }
    }

    fn taken(&self) {
        let mut state = self.lock();
        state.submitted = state.submitted.saturating_sub(1);
        state.ready = state.ready.saturating_sub(1);
        self.busy(&mut state);
    }

    /// Ends a wait for the consumer and counts it.
    fn busy(&self, state: &mut Fill) {
        if let Some(since) = state.idle_since.take() {
            self.counters.us_waiting_consumer.add(since.elapsed().as_micros() as u64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Fill> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    /// A batch without units. One planner adds them.
    pub fn new(
        number: u64,
        samples: Vec<Drawn>,
        outputs: Vec<OutputMemory>,
        writable: Option<CudaEvent>,
        progress: Arc<Progress>,
    ) -> Arc<Self> {
        progress.submitted();
        let state = Mutex::new(State { missing: 1, last: Times::default(), absent: vec![], error: None });
        Arc::new(Self { samples, number, outputs, writable, progress, state, changed: Condvar::new() })
    }

    /// Adds a unit with the elements of `boxes`.
    pub fn unit(self: &Arc<Self>, output: usize, boxes: Boxes) -> PendingUnit {
        self.lock().missing += 1;
        PendingUnit { batch: self.clone(), output, boxes, times: Times::default() }
    }

    /// Says that the planner has added all units.
    pub fn planned(&self) {
        self.end_part(Times::default());
    }

    /// Fails the batch. The first error is kept.
    pub fn fail(&self, error: Error) {
        self.lock().error.get_or_insert_with(|| Arc::new(error));
    }

    /// Notes that the store does not have a chunk of this array and part. Returns whether it is the first one in this batch.
    pub fn note_absent(&self, array: (usize, usize)) -> bool {
        let absent = &mut self.lock().absent;
        let first = !absent.contains(&array);
        if first {
            absent.push(array);
        }
        first
    }

    /// Arrays and parts of which the store does not have a chunk.
    pub fn absent(&self) -> Vec<(usize, usize)> {
        self.lock().absent.clone()
    }

    /// Whether the batch has failed, so that its other units need not be done.
    pub fn failed(&self) -> bool {
        self.lock().error.is_some()
    }

    /// Whether every unit is finished.
    pub fn is_ready(&self) -> bool {
        self.lock().missing == 0
    }

    /// Waits until every unit is finished, and counts the waiting time by its cause. Asks `hopeless` every second whether the wait can
    /// still end.
    ///
    /// # Errors
    /// The first error of any unit, or the error of `hopeless`.
    pub fn wait(&self, hopeless: impl Fn() -> Option<Error>) -> Result<(), Arc<Error>> {
        let since = Instant::now();
        let mut state = self.lock();
        let waits = state.missing > 0;
        while state.missing > 0 {
            let (locked, waited) = self
                .changed
                .wait_timeout(state, Duration::from_secs(1))
                .unwrap_or_else(PoisonError::into_inner);
            state = locked;
            if waited.timed_out()
                && let Some(error) = hopeless()
            {
                return Err(Arc::new(error));
            }
        }
        let (last, error) = (state.last, state.error.clone());
        drop(state);
        if waits {
            last.count_wait(since, Instant::now(), &self.progress.counters);
        }
        self.progress.taken();
        error.map_or(Ok(()), Err)
    }

    fn end_part(&self, times: Times) {
        let mut state = self.lock();
        state.missing -= 1;
        if state.missing == 0 {
            state.last = times;
            // Under the lock, because `wait` takes the batch from the ready ones as soon as it gets the lock.
            self.progress.finished();
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The units that wait for one chunk. There is often only one.
pub type PendingUnits = SmallVec<[PendingUnit; 1]>;

/// What one output of a batch needs of one read chunk. Dropping it finishes it, also after an error or a panic.
pub struct PendingUnit {
    /// The batch.
    pub batch: Arc<Batch>,
    /// Number of the output.
    pub output: usize,
    /// The boxes that are copied from the chunk to the output.
    pub boxes: Boxes,
    /// The times of the chunk so far.
    pub times: Times,
}

impl Drop for PendingUnit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A panic of the thread that had the unit. The thread may not be able to fail the batch itself.
            self.batch.fail(Error::panic("a thread of the reader", &"a chunk was not finished"));
        }
        self.batch.end_part(self.times);
    }
}

impl Times {
    /// Counts the time from `since` to `until` by the step that this unit, the last of its batch, waited for.
    fn count_wait(&self, since: Instant, until: Instant, counters: &Counters) {
        let mut from = since;
        let mut part = |end: Instant| {
            let part = end.saturating_duration_since(from);
            from = from.max(end);
            part.as_micros() as u64
        };
        // A step without a time was not needed.
        let fetched = self.fetched.map_or(0, &mut part);
        let decoded = self.decoded.map_or(0, &mut part);
        let rest = part(until);
        counters.us_waiting_fetch.add(fetched);
        match self.by_gpu {
            true => counters.us_waiting_gpu.add(decoded),
            false => counters.us_waiting_cpu.add(decoded),
        }
        counters.us_waiting_gather.add(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_by_what_the_last_unit_waited_for() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let counted = |times: Times, since, until| {
            let counters = Counters::default();
            times.count_wait(at(since), at(until), &counters);
            [
                counters.us_waiting_fetch.get(),
                counters.us_waiting_cpu.get(),
                counters.us_waiting_gpu.get(),
                counters.us_waiting_gather.get(),
            ]
            .map(|us| us / 1000)
        };
        let times = Times { fetched: Some(at(10)), decoded: Some(at(30)), by_gpu: true };
        assert_eq!(counted(times, 0, 35), [10, 0, 20, 5]);
        assert_eq!(counted(Times { by_gpu: false, ..times }, 15, 30), [0, 15, 0, 0]);
        assert_eq!(counted(times, 40, 45), [0, 0, 0, 5]);
        assert_eq!(counted(Times::default(), 0, 7), [0, 0, 0, 7]);
    }

    #[test]
    fn the_fill_counts_complete_batches_that_were_not_handed_over() {
        let progress = Progress::new(Arc::default());
        let batches: Vec<_> =
            (0..3).map(|number| Batch::new(number, vec![], vec![], None, progress.clone())).collect();
        let unit = batches[1].unit(0, Boxes::new());
        batches.iter().for_each(|batch| batch.planned());
        assert_eq!(progress.fill(), (2, 3));
        batches[0].wait(|| None).unwrap();
        assert_eq!(progress.fill(), (1, 2));
        assert!(!batches[1].is_ready());
        drop(unit);
        assert_eq!(progress.fill(), (2, 2));
    }

    #[test]
    fn a_batch_is_not_complete_where_a_panic_took_its_units() {
        let batch = Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()));
        let (unit, other) = (batch.unit(0, Boxes::new()), batch.unit(0, Boxes::new()));
        batch.planned();
        drop(other);
        assert!(!batch.failed());
        let panics = std::panic::AssertUnwindSafe(|| {
            let _unit = unit;
            std::panic::resume_unwind(Box::new("away"));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        let error = batch.wait(|| None).unwrap_err().to_string();
        assert!(error.contains("a chunk was not finished"), "{error}");
    }

    #[test]
    fn a_batch_that_is_taken_at_once_is_not_counted_twice() {
        let progress = Progress::new(Arc::default());
        let (to_other, units) = std::sync::mpsc::channel::<PendingUnit>();
        let other = std::thread::spawn(move || units.into_iter().for_each(drop));
        for number in 0..20_000 {
            let batch = Batch::new(number, vec![], vec![], None, progress.clone());
            to_other.send(batch.unit(0, Boxes::new())).unwrap();
            batch.planned();
            while !batch.is_ready() {
                std::hint::spin_loop();
            }
            batch.wait(|| None).unwrap();
            assert_eq!(progress.fill(), (0, 0), "after batch {number}");
        }
        drop(to_other);
        other.join().unwrap();
    }
}
