//! Host memory that counts against the budget beside outputs, pinned memory and cached chunks.

use crate::error::{Error, Result};
use crate::options::Options;

/// Host memory beside outputs, pinned memory and cached chunks, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// Scratch memory of a thread that decodes.
    pub scratch_bytes: u64,
    /// Planning one batch.
    pub planning_bytes: u64,
    /// The finished plan of each batch in flight.
    pub planned_bytes: u64,
    /// The lists of a shuffle.
    pub order_bytes: u64,
    /// Opening the largest shard index.
    pub index_bytes: u64,
}

impl Overhead {
    /// The plan of a batch in flight, for each of its chunks. 530 bytes were measured with 2^18 chunks of one byte in each of
    /// eight batches.
    const PLANNED_CHUNK_BYTES: u64 = 700;
    /// Planning a batch, for each of its chunks: its lists, and the record of the three batches that are looked at ahead of it.
    const PLANNING_CHUNK_BYTES: u64 = 1400;
    /// A shard's index is held as it was read, decoded and in the cache of indexes.
    const INDEX_COPIES: u64 = 4;

    /// The overhead of batches of `batch_chunks` chunks, with shard indexes of at most `index_bytes`.
    pub fn new(batch_chunks: u64, scratch_bytes: u64, order_bytes: u64, index_bytes: u64) -> Self {
        Self {
            scratch_bytes,
            planning_bytes: batch_chunks.saturating_mul(Self::PLANNING_CHUNK_BYTES),
            planned_bytes: batch_chunks.saturating_mul(Self::PLANNED_CHUNK_BYTES),
            order_bytes,
            index_bytes: index_bytes.saturating_mul(Self::INDEX_COPIES),
        }
    }

    /// The bytes that count against the budget, for `threads` threads that decode and `depth` batches in flight.
    pub fn bytes(&self, threads: u64, depth: u64) -> u64 {
        let all = [
            self.scratch_bytes.saturating_mul(threads),
            self.planned_bytes.saturating_mul(depth),
            self.planning_bytes,
            self.order_bytes,
            self.index_bytes,
        ];
        all.into_iter().fold(0, u64::saturating_add).saturating_sub(Options::UNCOUNTED_HOST_BYTES)
    }

    /// The largest item, for an error.
    pub(super) fn describe_largest(&self, chunk: &LargestChunk) -> String {
        let plan = self.planning_bytes.saturating_add(self.planned_bytes);
        let all = [
            (
                self.scratch_bytes,
                format!(
                    "a read chunk of {} bytes of {} while it is decoded, which takes {} (smaller chunks take less)",
                    chunk.bytes, chunk.array, self.scratch_bytes
                ),
            ),
            (
                plan,
                format!(
                    "the plan of a batch, which takes {plan} (larger chunks, smaller samples or batches take less)"
                ),
            ),
            (self.order_bytes, format!("the order of shuffled samples, which takes {}", self.order_bytes)),
            (
                self.index_bytes,
                format!("the index of a shard, which takes {} (smaller shards take less)", self.index_bytes),
            ),
        ];
        all.into_iter()
            .max_by_key(|(bytes, _)| *bytes)
            .map(|(_, text)| format!(", and {text}"))
            .unwrap_or_default()
    }
}

/// Refuses batches whose plan would not fit the budget even if each sample had a single chunk.
///
/// # Errors
/// [`Error::Budget`] with the least that would do.
pub fn check_batch(batch_size: u64, most_bytes: u64) -> Result<()> {
    let chunk_bytes = Overhead::PLANNED_CHUNK_BYTES + Overhead::PLANNING_CHUNK_BYTES;
    let plan = batch_size.saturating_mul(chunk_bytes).saturating_sub(Options::UNCOUNTED_HOST_BYTES);
    if plan <= most_bytes {
        return Ok(());
    }
    let what = format!("the plan of a batch of {batch_size} samples (smaller batches take less)");
    Err(host_budget_error(most_bytes, plan, what))
}

/// The error of a host budget.
pub(super) fn host_budget_error(budget_bytes: u64, needed_bytes: u64, what: String) -> Error {
    Error::Budget { name: "host_memory_budget", budget_bytes, needed_bytes, what }
}

/// The read chunk that decodes to the most bytes.
#[derive(Clone, Debug)]
pub struct LargestChunk {
    /// Its decoded bytes.
    pub bytes: u64,
    /// Its array, for an error.
    pub array: String,
}
