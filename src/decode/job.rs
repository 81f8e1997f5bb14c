//! What a worker thread is given to do.

use super::chunk::Chunk;
use crate::batch::PendingUnit;

use std::sync::Arc;

/// A job of a worker thread.
pub enum Job {
    /// Reads a chunk. Decodes it too, unless the GPU does.
    Read(Arc<Chunk>),
    /// CPU backend: assembles a unit from a decoded chunk in the chunk cache. The unit is boxed, because units are large and
    /// queues hold many jobs.
    Assemble(Arc<Chunk>, Box<PendingUnit>),
}

impl Job {
    /// The chunk of a [`Job::Read`].
    pub fn read(&self) -> Option<&Arc<Chunk>> {
        match self {
            Self::Read(chunk) => Some(chunk),
            Self::Assemble(..) => None,
        }
    }

    /// The chunk of the job.
    pub fn chunk(&self) -> &Arc<Chunk> {
        match self {
            Self::Read(chunk) | Self::Assemble(chunk, _) => chunk,
        }
    }
}
