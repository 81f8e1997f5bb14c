//! Where the bytes of a chunk are copied to on the GPU.

use super::uploader::Uploader;
use crate::assemble::Conversion;
use crate::codec::{DecodePath, Work};
use crate::dataset::ArrayInfo;
use crate::decode::chunk::Chunk;
use crate::decode::device_pool::{Allocation, DevicePool};
use crate::decode::gpu_task::{ELEMENT_ALIGNMENT, misalignment};
use crate::error::{Error, Result};
use crate::gpu::PinnedPool;

use std::sync::Arc;

/// What the uploads of all workers share.
pub struct UploadContext {
    /// Device memory for chunks until a GPU worker has taken them.
    pub upload_pool: Arc<DevicePool>,
    /// The most boxes of a chunk that one group of a GPU worker assembles, unless a single unit has more.
    pub most_boxes: usize,
}

/// Where the bytes of a chunk are copied to.
pub enum Destination {
    /// To their place in an output, at this address.
    Output(u64),
    /// To the chunk's allocation in the chunk cache, at this address.
    Cache(u64),
    /// To an allocation of the upload pool, at this address in it.
    UploadPool(Allocation, u64),
}

impl Destination {
    /// The address that the first byte is copied to.
    pub fn address(&self) -> u64 {
        match *self {
            Self::Output(address) | Self::Cache(address) | Self::UploadPool(_, address) => address,
        }
    }
}

/// Finds the destinations of one chunk.
pub struct Destinations<'a> {
    /// What all uploads share.
    pub context: &'a UploadContext,
    /// The chunk.
    pub chunk: &'a Chunk,
    /// How its elements become output elements.
    pub conversion: &'a Conversion,
    /// Size of the decoded chunk.
    pub bytes: u64,
}

impl Destinations<'_> {
    /// The destination of the chunk's bytes, if `work` is to be done with them. `None` once the reader stops.
    ///
    /// # Errors
    /// What the driver says, and an upload pool that is too small.
    pub fn find(&self, uploader: &mut Uploader, work: &Work) -> Result<Option<Destination>> {
        let all = work.elements == (0..work.bytes);
        if work.passes.is_empty()
            && all
            && !work.swaps_bytes
            && let Some((address, batch)) = self.chunk.direct_output(self.conversion, self.bytes)
        {
            batch.writable.as_ref().map_or(Ok(()), |writable| uploader.wait_for(writable))?;
            return Ok(Some(Destination::Output(address)));
        }
        if let (Some(allocation), true, 1) = (self.chunk.allocation(), all, work.areas()) {
            return Ok(Some(Destination::Cache(allocation.address())));
        }
        let allocation = self.allocate(upload_bytes(work.bytes), uploader)?;
        Ok(allocation.map(|allocation| {
            let address = allocation.address() + misalignment(work);
            Destination::UploadPool(allocation, address)
        }))
    }

    /// Allocates memory of the upload pool, and waits for it. `None` once the reader stops.
    ///
    /// # Errors
    /// An upload pool that is too small.
    pub fn allocate(&self, bytes: u64, uploader: &mut Uploader) -> Result<Option<Allocation>> {
        let upload_pool = &self.context.upload_pool;
        let allocation = upload_pool.take(bytes, 0, uploader);
        if allocation.is_none() && !upload_pool.is_closed() {
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: upload_pool.capacity_bytes(),
                needed_bytes: bytes,
                what: "one chunk on its way to be decoded".into(),
            });
        }
        Ok(allocation)
    }
}

/// Size of an allocation for bytes whose elements may have to be aligned.
fn upload_bytes(bytes: u64) -> u64 {
    bytes + ELEMENT_ALIGNMENT
}

/// The largest allocation of pinned memory for a chunk, as budgets count it.
pub fn largest_pinned_bytes(array: &ArrayInfo, decode_path: &DecodePath) -> u64 {
    let decoded = array.read_chunk_bytes();
    PinnedPool::padded(match decode_path {
        DecodePath::Gpu(chain) => chain.encoded_bound().max(decoded),
        DecodePath::Cpu(_) => decoded,
    })
}

/// The largest allocation of the upload pool for a chunk, as budgets count it.
pub fn largest_upload_bytes(array: &ArrayInfo, decode_path: &DecodePath) -> u64 {
    let elements = upload_bytes(array.read_chunk_bytes());
    DevicePool::padded(match decode_path {
        DecodePath::Gpu(chain) => elements.max(upload_bytes(chain.encoded_bound())),
        DecodePath::Cpu(_) => elements,
    })
}
