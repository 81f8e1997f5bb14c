//! A batch on its way: the memory it is written to and what is still missing in it.

use crate::assemble::OutputMemory;
use crate::error::{Error, Result};
use crate::plan::CopyBox;
use crate::sampler::Drawn;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::CudaEvent;

/// A batch between its submission and its handing over.
pub struct Batch {
    /// The samples it holds.
    pub samples: Vec<Drawn>,
    /// Its number; the first of a reader is 0.
    pub number: u64,
    /// One per output.
    pub outputs: Vec<OutputMemory>,
    /// GPU backend: when the outputs may be written, in the order of the allocating stream.
    pub writable: Option<CudaEvent>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Units that were not finished yet, and one for the planner while it adds units.
    missing: usize,
    error: Option<Arc<Error>>,
}

impl Batch {
    /// A batch whose units will be added by one planner.
    pub fn new(
        number: u64,
        samples: Vec<Drawn>,
        outputs: Vec<OutputMemory>,
        writable: Option<CudaEvent>,
    ) -> Arc<Self> {
        let state = Mutex::new(State { missing: 1, error: None });
        Arc::new(Self { samples, number, outputs, writable, state, changed: Condvar::new() })
    }

    /// Adds a unit.
    pub fn unit(self: &Arc<Self>, output: usize, boxes: Vec<CopyBox>) -> Unit {
        self.lock().missing += 1;
        Unit { batch: self.clone(), output, boxes }
    }

    /// Ends the planner's part: there are no further units.
    pub fn planned(&self) {
        self.end_part();
    }

    /// Keeps the first error.
    pub fn fail(&self, error: Error) {
        self.lock().error.get_or_insert_with(|| Arc::new(error));
    }

    /// Whether something in it failed already, so that the rest need not be done.
    pub fn failed(&self) -> bool {
        self.lock().error.is_some()
    }

    /// Waits until every unit is finished, looking every second whether they still can be.
    ///
    /// # Errors
    /// The first error of any unit, or what `hopeless` says.
    pub fn wait(&self, hopeless: impl Fn() -> Option<Error>) -> Result<(), Arc<Error>> {
        let mut state = self.lock();
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
        state.error.clone().map_or(Ok(()), Err)
    }

    fn end_part(&self) {
        let mut state = self.lock();
        state.missing -= 1;
        if state.missing == 0 {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A read chunk that a batch waits for. Finished when dropped, whichever way that comes.
pub struct Unit {
    /// The batch.
    pub batch: Arc<Batch>,
    /// Which output the chunk's elements go to.
    pub output: usize,
    /// Where they go.
    pub boxes: Vec<CopyBox>,
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.batch.end_part();
    }
}
