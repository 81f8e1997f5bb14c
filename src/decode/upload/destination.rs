//! Where the bytes of a chunk are copied to on the GPU.

use super::uploader::Uploader;
use crate::assemble::{Conversion, whole_chunk};
use crate::batch::Batch;
use crate::codec::{DecodePath, Work};
use crate::dataset::ArrayInfo;
use crate::decode::chunk::Chunk;
use crate::decode::device_pool::{Allocation, DevicePool};
use crate::decode::gpu_task::{ELEMENT_ALIGNMENT, misalignment};
use crate::decode::pace::Pace;
use crate::error::{Error, Result};
use crate::gpu::PinnedPool;

use std::sync::Arc;

use smallvec::SmallVec;

/// What the uploads of all workers share.
pub struct UploadContext {
    /// Device memory for chunks until a GPU worker has taken them.
    pub upload_pool: Arc<DevicePool>,
    /// The most boxes of a chunk that one group of a GPU worker assembles, unless a single unit has more.
    pub most_boxes: usize,
    /// Says whether there is time for copies to several outputs.
    pub pace: Arc<dyn Pace>,
}

/// For each unit that a cached chunk is taken for, in their order: where the whole chunk belongs in an output, or `None` if the
/// unit needs a GPU worker.
pub type Copies = SmallVec<[Option<(u64, Arc<Batch>)>; 1]>;

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
            && let Some((address, batch)) = self.direct_output()
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

    fn direct_output(&self) -> Option<(u64, Arc<Batch>)> {
        self.chunk.direct_output(self.conversion, self.bytes)
    }

    /// Whether the bytes should be copied to the output directly, and there is time to copy this chunk alone.
    pub fn is_worth_a_copy(&self, work: &Work) -> bool {
        self.has_time_to_copy(work) && self.direct_output().is_some()
    }

    /// Whether the bytes should be copied to each output where they belong. Copies take bandwidth of the bus, which is free while
    /// enough batches are ready. A gather kernel takes time from the model that trains.
    fn has_time_to_copy(&self, work: &Work) -> bool {
        let is_decoded = work.passes.is_empty() && work.elements == (0..work.bytes) && work.areas() == 1;
        is_decoded && !work.swaps_bytes && work.bytes >= Uploader::LEAST_COPY && self.context.pace.has_time()
    }

    /// The outputs that a cached chunk is copied to, besides to its allocation in the chunk cache.
    pub fn copies(&self, work: &Work) -> Copies {
        if self.chunk.allocation().is_none() || !self.has_time_to_copy(work) {
            return Copies::new();
        }
        self.chunk.look_at(self.context.most_boxes, |unit| {
            let output = unit.batch.outputs[unit.output];
            let address = whole_chunk(&unit.boxes, self.conversion, work.bytes, output)?;
            Some((address, unit.batch.clone()))
        })
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

/// Enqueues copies of a piece of a chunk, which starts at byte `offset` of the chunk: to the chunk's destination at `address`,
/// and to the places of `copies`.
///
/// # Safety
/// All of these have space for the whole chunk, and nothing else uses it until the copies are complete.
pub unsafe fn copy_to_all(
    uploader: &Uploader,
    bytes: &[u8],
    address: u64,
    offset: u64,
    copies: &Copies,
) -> Result<()> {
    // SAFETY: the duty of the caller.
    unsafe { uploader.copy(bytes, address + offset)? };
    for (address, batch) in copies.iter().flatten() {
        batch.writable.as_ref().map_or(Ok(()), |writable| uploader.wait_for(writable))?;
        // SAFETY: as above; the batch is lent to this reader until the unit is finished.
        unsafe { uploader.copy(bytes, address + offset)? };
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assemble::OutputMemory;
    use crate::batch::{PendingUnit, Progress};
    use crate::dataset::{ElementType, StoredType};
    use crate::plan::{ChunkKey, CopyBox, Dims};
    use std::time::Instant;

    const BYTES: u64 = Uploader::LEAST_COPY;

    /// A policy that has time or not.
    struct Time(bool);

    impl Pace for Time {
        fn has_time(&self) -> bool {
            self.0
        }
        fn keeps_to_sm_partition(&self) -> bool {
            false
        }
        fn decoded_on_gpu(&self, _: u64, _: Instant) {}
    }

    fn context(has_time: bool) -> UploadContext {
        let upload_pool = DevicePool::new(0, 1 << 10);
        UploadContext { upload_pool, most_boxes: usize::MAX, pace: Arc::new(Time(has_time)) }
    }

    /// A batch with one output at `address` that holds two chunks.
    fn batch(address: u64) -> Arc<Batch> {
        let output = OutputMemory { address, bytes: 2 * BYTES };
        Batch::new(0, vec![], vec![output], None, Progress::new(Arc::default()))
    }

    /// A unit for the first `bytes` bytes of a chunk, at the second place of the output.
    fn unit(batch: &Arc<Batch>, bytes: u64) -> PendingUnit {
        let (extents, strides) = (Dims::from_slice(&[bytes]), Dims::from_slice(&[1]));
        let one = CopyBox { from: 0, to: BYTES, extents, from_strides: strides.clone(), to_strides: strides };
        batch.unit(0, [one].into_iter().collect())
    }

    fn chunk(cached: bool, unit: PendingUnit) -> Arc<Chunk> {
        let allocation = cached.then(|| DevicePool::new(0, BYTES).take(BYTES, 0, &mut ()).unwrap());
        Chunk::new(ChunkKey { array: 0, part: 0, number: 0 }, Dims::new(), allocation, unit)
    }

    fn bytes_as_they_are() -> Conversion {
        Conversion::new(StoredType::Element(ElementType::UInt8), None, None, None, None).unwrap()
    }

    #[test]
    fn a_cached_chunk_is_copied_to_the_outputs_that_take_all_of_it() {
        let (first, second, conversion) = (batch(1 << 20), batch(1 << 30), bytes_as_they_are());
        let chunk = chunk(true, unit(&first, BYTES));
        assert!(chunk.add(unit(&second, BYTES - 1)).is_none());
        assert!(chunk.add(unit(&second, BYTES)).is_none());
        let copies = |has_time: bool, work: &Work| {
            let context = context(has_time);
            let destinations =
                Destinations { context: &context, chunk: &chunk, conversion: &conversion, bytes: BYTES };
            let copies = destinations.copies(work).into_iter();
            copies.map(|copy| copy.map(|(address, _)| address)).collect::<Vec<_>>()
        };
        let work = Work::none(BYTES);
        assert_eq!(copies(true, &work), [Some((1 << 20) + BYTES), None, Some((1 << 30) + BYTES)]);
        assert!(copies(false, &work).is_empty());
        // What is too small or has to be changed first is left to the gather kernel.
        assert!(copies(true, &Work::none(BYTES - 1)).is_empty());
        assert!(copies(true, &Work { swaps_bytes: true, ..Work::none(BYTES) }).is_empty());
        assert!(copies(true, &Work { elements: 1..BYTES, ..Work::none(BYTES) }).is_empty());
    }

    #[test]
    fn a_chunk_that_is_not_cached_is_worth_a_copy_if_one_output_takes_all_of_it() {
        let (batch, conversion) = (batch(1 << 20), bytes_as_they_are());
        let is_worth_a_copy = |cached: bool, bytes: u64, has_time: bool| {
            let (context, chunk) = (context(has_time), chunk(cached, unit(&batch, bytes)));
            let destinations =
                Destinations { context: &context, chunk: &chunk, conversion: &conversion, bytes: BYTES };
            assert!(cached || destinations.copies(&Work::none(BYTES)).is_empty());
            destinations.is_worth_a_copy(&Work::none(BYTES))
        };
        assert!(is_worth_a_copy(false, BYTES, true));
        assert!(!is_worth_a_copy(false, BYTES, false));
        assert!(!is_worth_a_copy(false, BYTES - 1, true));
        assert!(!is_worth_a_copy(true, BYTES, true));
    }
}
