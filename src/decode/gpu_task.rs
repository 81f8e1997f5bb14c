//! A chunk on its way to a GPU worker.

use super::chunk::Chunk;
use super::device_pool::Allocation;
use super::verified::Identity;
use crate::batch::{PendingUnit, PendingUnits};
use crate::codec::Work;
use crate::error::{Context, Error};
use crate::gpu::LentEvent;

use std::sync::Arc;
use std::time::Instant;

use smallvec::smallvec;

/// A chunk whose bytes are on the GPU or are being copied there.
pub struct GpuTask {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// The units that get elements of the chunk.
    pub units: PendingUnits,
    /// The bytes of the chunk.
    pub payload: Payload,
    /// The chunk as the place of an error.
    pub at: Context,
    /// Set for a chunk that is remembered once it is found valid.
    pub identity: Option<Identity>,
    /// Whether the GPU decodes the chunk. Otherwise a worker did.
    pub by_gpu: bool,
    /// When the chunk was read.
    pub arrived: Option<Instant>,
}

impl GpuTask {
    /// A task without units.
    pub fn new(chunk: Arc<Chunk>, payload: Payload, at: Context) -> Self {
        Self { chunk, units: PendingUnits::new(), payload, at, identity: None, by_gpu: false, arrived: None }
    }

    /// A task for one more unit of a chunk that is in the chunk cache.
    pub fn cached(chunk: Arc<Chunk>, unit: PendingUnit) -> Self {
        Self { units: smallvec![unit], ..Self::new(chunk, Payload::Cached, Context::default()) }
    }

    /// Notes that the bytes of the chunk are on the GPU once `event` has happened.
    pub fn arrives_with(&mut self, event: &Arc<LentEvent>) {
        if let Payload::OnDevice(on_device) = &mut self.payload {
            on_device.arrived = Some(event.clone());
        }
    }

    /// Fails the batches of the units and, unless the chunk is decoded already, every other batch that needs it.
    pub fn fail(&self, error: Error) {
        let error = Arc::new(error);
        self.units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        self.chunk.fail(Error::Sticky(error));
    }
}

/// Where a GPU worker finds the elements of a chunk.
pub enum Payload {
    /// Nowhere: the chunk is missing and its elements are the fill value.
    Missing,
    /// Decoded, in the chunk cache.
    Cached,
    /// In bytes that still have to be decoded or gathered.
    OnDevice(OnDevice),
}

/// Bytes of a chunk in device memory.
pub struct OnDevice {
    /// Address of the bytes.
    pub address: u64,
    /// The allocation that holds the bytes. `None` if they are in the chunk's own allocation in the chunk cache.
    pub allocation: Option<Arc<Allocation>>,
    /// How the bytes are decoded.
    pub work: Work,
    /// Happens when the bytes have been copied. `None` until the copy is submitted.
    pub arrived: Option<Arc<LentEvent>>,
}

/// The elements of a chunk start at a multiple of this many bytes, so that they are gathered with wide accesses.
pub const ELEMENT_ALIGNMENT: u64 = 16;

/// How many bytes behind an aligned address the bytes of a chunk start, so that the elements in them are aligned. For work that
/// leaves the elements in place.
pub fn misalignment(work: &Work) -> u64 {
    (ELEMENT_ALIGNMENT - work.elements.start % ELEMENT_ALIGNMENT) % ELEMENT_ALIGNMENT
}
