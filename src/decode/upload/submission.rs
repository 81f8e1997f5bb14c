//! Copies that complete together.

use crate::batch::{PendingUnit, PendingUnits};
use crate::decode::gpu_task::GpuTask;
use crate::error::Error;
use crate::fetch::Encoded;
use crate::gpu::PinnedBuffer;

use std::sync::Arc;

/// Host-to-device copies that share one event, and what happens when it does.
#[derive(Default)]
pub struct Submission {
    /// The sources of the copies.
    pub sources: Vec<Source>,
    /// Units that are finished when the copies are complete.
    pub units: Vec<PendingUnit>,
    /// Tasks whose bytes the copies bring to the GPU.
    pub tasks: Vec<GpuTask>,
    /// Bytes that cuFile read in place of copies.
    pub by_cufile: usize,
}

/// Pinned memory that copies are made from.
pub enum Source {
    /// What a thread has read or decoded.
    Buffer(PinnedBuffer),
    /// An answer of a store that is in pinned memory.
    Fetched(Encoded),
}

impl Source {
    fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.bytes().len(),
            Self::Fetched(encoded) => encoded.bytes() as usize,
        }
    }
}

impl From<PinnedBuffer> for Source {
    fn from(buffer: PinnedBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

/// What happens when a copy is complete.
pub enum OnComplete {
    /// Nothing: further copies of the same chunk follow.
    Piece,
    /// These units are finished.
    PendingUnits(PendingUnits),
    /// A GPU worker takes the task.
    GpuTask(Box<GpuTask>),
}

impl From<GpuTask> for OnComplete {
    fn from(task: GpuTask) -> Self {
        Self::GpuTask(Box::new(task))
    }
}

impl Submission {
    /// A submission of this many bytes or chunks is full. Small chunks are submitted together until then.
    const FULL: (usize, usize) = (1 << 20, 256);

    /// Adds the copies out of `source`.
    pub fn add(&mut self, source: Option<Source>, on_complete: OnComplete) {
        self.sources.extend(source);
        match on_complete {
            OnComplete::Piece => {}
            OnComplete::PendingUnits(units) => self.units.extend(units),
            OnComplete::GpuTask(task) => self.tasks.push(*task),
        }
    }

    /// Number of bytes that are copied or read.
    pub fn bytes(&self) -> usize {
        self.by_cufile + self.sources.iter().map(Source::bytes).sum::<usize>()
    }

    /// Number of units and tasks.
    pub fn chunks(&self) -> usize {
        self.units.len() + self.tasks.len()
    }

    /// Whether the submission should be submitted now.
    pub fn is_full(&self) -> bool {
        self.bytes() >= Self::FULL.0 || self.chunks() >= Self::FULL.1
    }

    /// Whether there is nothing to submit.
    pub fn is_empty(&self) -> bool {
        self.chunks() == 0 && self.sources.is_empty()
    }

    /// Fails all batches that need one of the chunks.
    pub fn fail(&self, error: Error) {
        let error = Arc::new(error);
        self.units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        self.tasks.iter().for_each(|task| task.fail(Error::Sticky(error.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Progress};
    use crate::decode::chunk::Chunk;
    use crate::decode::gpu_task::Payload;
    use crate::error::Context;
    use crate::plan::{Boxes, ChunkKey, Dims};
    use smallvec::smallvec;

    fn batch() -> Arc<Batch> {
        Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()))
    }

    /// A task whose chunk one more unit of `batch` waits for.
    fn task(batch: &Arc<Batch>) -> GpuTask {
        let key = ChunkKey { array: 0, part: 0, number: 0 };
        let chunk = Chunk::new(key, Dims::new(), None, batch.unit(0, Boxes::new()));
        GpuTask::new(chunk, Payload::Missing, Context::default())
    }

    #[test]
    fn a_submission_is_full_at_a_number_of_chunks() {
        let (batch, mut submission) = (batch(), Submission::default());
        assert!(submission.is_empty());
        submission.add(None, OnComplete::Piece);
        assert!(submission.is_empty());
        let unit = || batch.unit(0, Boxes::new());
        submission.add(None, OnComplete::PendingUnits(smallvec![unit(), unit()]));
        submission.add(None, task(&batch).into());
        assert_eq!((submission.chunks(), submission.bytes(), submission.is_empty()), (3, 0, false));
        while submission.chunks() < Submission::FULL.1 {
            assert!(!submission.is_full());
            submission.add(None, OnComplete::PendingUnits(smallvec![unit()]));
        }
        assert!(submission.is_full());
    }

    #[test]
    fn a_submission_is_full_at_a_number_of_bytes() {
        let mut submission = Submission { by_cufile: Submission::FULL.0 - 1, ..Submission::default() };
        assert!(!submission.is_full());
        submission.by_cufile += 1;
        assert!(submission.is_full());
        // Nothing waits for the bytes yet.
        assert!(submission.is_empty());
    }

    #[test]
    fn a_failed_submission_fails_the_batches_of_its_units_and_tasks() {
        let (of_unit, of_task, other) = (batch(), batch(), batch());
        let mut submission = Submission::default();
        submission.add(None, OnComplete::PendingUnits(smallvec![of_unit.unit(0, Boxes::new())]));
        submission.add(None, task(&of_task).into());
        submission.fail(Error::panic("a test", &"the copy failed"));
        assert!(of_unit.failed() && of_task.failed() && !other.failed());
    }
}
