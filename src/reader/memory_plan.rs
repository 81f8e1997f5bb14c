//! Shares memory budgets out: numbers in, a plan out. Reads no file, asks no GPU, starts nothing.
//!
//! A plan is made in two steps. [`HostShare`] chooses the host memory budget and the number of threads that decode; then
//! [`MemoryPlan`] chooses the rest: how many batches are in flight, how many decoded chunks are cached, and on the GPU backend
//! the sizes of the arenas, of the upload pool and of the buffers. Either step refuses a budget that cannot hold the least that
//! is needed, and names the least that can.

mod overhead;

pub use overhead::{LargestChunk, Overhead, check_batch};

use overhead::host_budget_error;

use crate::decode::upload::{GdsStaging, Uploader};
use crate::error::{Error, Result};
use crate::gpu::PinnedPool;
use crate::options::{DeviceBudget, Options};

/// Batches that DALI holds beside the batches in flight: two in its queue and one in use, by DALI's defaults.
const BATCHES_HELD_BY_DALI: u64 = 3;
/// The most batches in flight on the GPU backend, and those where the GPU decodes nothing.
const MOST_DEPTH: u64 = 128;
const MOST_COPIED: u64 = 16;
/// Each GPU worker has a stream and an arena; with four, copies, decoding and the host's part overlap, and groups are full
/// (benches/NOTES.md).
const MAX_GPU_WORKERS: u64 = 4;
/// The most batches in flight on the CPU backend, where latency is short: enough to keep every thread busy.
const MAX_CPU_DEPTH: u64 = 8;
/// 1/32 of the device budget is left for what the driver rounds allocations up to, so that the budget holds when it is
/// watched from outside (`benches/budgets.py`).
const ROUNDING_SHARE: u64 = 32;
/// Staging buffers of cuFile take at most 1/16 of the device budget.
const STAGING_SHARE: u64 = 16;
/// A packed buffer of fewer bytes is of no use.
const LEAST_PACKED_BYTES: u64 = 64 << 10;
/// Plans of batches in flight take at most 1/4 of the host budget.
const PLAN_SHARE: u64 = 4;
/// Indexes of sharded chunks that are kept open take at most 1/8 of the host budget.
const SHARD_INDEX_SHARE: u64 = 8;
/// The record of which later batches use a chunk takes at most 1/8 of the host budget.
const CHUNK_USE_SHARE: u64 = 8;
/// Chunks of remote stores that are in flight, or have arrived and wait to be decoded, take at most 1/4 of the host budget, beyond it.
const FETCHED_SHARE: u64 = 4;
/// A quarter of those can wait to be written to the cache on the local disk.
const DISK_QUEUE_SHARE: u64 = 4;

/// How device memory is shared out, and how much is worth having in flight, by how the GPU decodes (benches/NOTES.md).
struct Shares {
    /// Outputs in flight take at most the device budget divided by this; the rest is for decoding.
    outputs: u64,
    /// Chunks uploaded ahead for each chunk that GPU workers decode, so that a GPU worker that is done finds some.
    uploaded_ahead: u64,
    /// The most that the arena of a GPU worker has, if a chunk fits.
    arena_bytes: u64,
    /// Chunks and decoded bytes in flight that keep the GPU busy, and the number of batches that is useful in any case.
    chunks_in_flight: u64,
    bytes_in_flight: u64,
    least_depth: u64,
}

impl Shares {
    /// Chunks are decoded in milliseconds, so that small groups do, one behind the other.
    const PARALLEL: Self = Self {
        outputs: 2,
        uploaded_ahead: 4,
        arena_bytes: 384 << 20,
        chunks_in_flight: 0,
        bytes_in_flight: 1_200_000_000,
        least_depth: 6,
    };
    /// A chunk takes as long as hundreds of chunks do together.
    const SEQUENTIAL: Self = Self {
        outputs: 4,
        uploaded_ahead: 2,
        arena_bytes: u64::MAX,
        chunks_in_flight: 768,
        bytes_in_flight: 2_500_000_000,
        least_depth: 16,
    };
}

/// Host memory that a reader may use, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct HostBudget {
    /// Used without need.
    pub bytes: u64,
    /// Used where a batch or a chunk needs it; `bytes` or more.
    pub most_bytes: u64,
}

/// What a reader of either backend needs.
pub struct Needs<'a> {
    /// All outputs of a batch.
    pub batch_bytes: u64,
    /// The least number of batches in flight.
    pub least_depth: u64,
    /// Chunks cached from epoch to epoch, as the user asked.
    pub cache_bytes: u64,
    /// Threads that only read.
    pub io_threads: u64,
    /// Threads that decode on the CPU, if memory allows; 0 if the CPU decodes nothing.
    pub decode_threads: u64,
    /// Host memory.
    pub host: HostBudget,
    /// Host memory beside outputs, pinned memory and cached chunks.
    pub overhead: Overhead,
    /// For errors; `None` if there is no chunk.
    pub largest_chunk: Option<LargestChunk>,
    /// Decoded bytes that later batches can reuse at most, by the number of batches in flight.
    pub reusable_bytes: Box<dyn Fn(u64) -> u64 + 'a>,
    /// Decoded bytes of all chunks that any sample touches.
    pub all_chunk_bytes: u64,
}

impl Needs<'_> {
    fn cache_text(&self) -> String {
        match self.cache_bytes {
            0 => String::new(),
            bytes => format!(", and {bytes} bytes of cache"),
        }
    }

    /// The chunk cache out of `budget` bytes, of which `fixed` are needed for other things: what `depth` batches in flight
    /// can reuse, up to the cache's share of the budget, and what is kept from epoch to epoch.
    fn chunk_cache_bytes(&self, budget: u64, fixed: u64, depth: u64) -> u64 {
        let shared = (self.reusable_bytes)(depth).min(budget / Options::CHUNK_CACHE_SHARE);
        shared.saturating_add(self.cache_bytes).min(budget - fixed).min(self.all_chunk_bytes.max(shared))
    }
}

/// The first step of a plan: the host memory budget, and the threads that fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// Host memory that the reader uses at most.
    pub bytes: u64,
    /// Threads that decode on the CPU.
    pub decode_threads: u64,
    /// The least budget in which all threads that were asked for would decode.
    pub all_threads_bytes: u64,
}

impl HostShare {
    /// For the CPU backend, whose outputs are in host memory.
    ///
    /// # Errors
    /// [`Error::Budget`] with the least that would do.
    pub fn on_cpu(needs: &Needs) -> Result<Self> {
        let (batch, least) = (needs.batch_bytes, needs.least_depth);
        let fixed = batch.saturating_mul(least).saturating_add(needs.cache_bytes);
        let cached = needs.cache_text();
        Self::new(needs, fixed, &format!("{least} batch(es) of {batch} bytes in flight{cached}"))
    }

    /// For the GPU backend, which has pinned memory on the host.
    ///
    /// # Errors
    /// [`Error::Budget`] with the least that would do.
    pub fn on_gpu(needs: &Needs, gpu: &GpuNeeds) -> Result<Self> {
        Self::new(needs, gpu.largest_pinned_bytes, "the largest encoded chunk")
    }

    /// `fixed` bytes are needed besides the overhead, for what `what` says.
    fn new(needs: &Needs, fixed: u64, what: &str) -> Result<Self> {
        let HostBudget { bytes, most_bytes } = needs.host;
        let threads = needs.decode_threads;
        let overhead = |threads: u64| needs.overhead.bytes(threads, needs.least_depth);
        let needed = |threads: u64| fixed.saturating_add(overhead(threads));
        let least = needed(threads.min(1));
        if least > most_bytes {
            let largest = needs.largest_chunk.as_ref().filter(|_| overhead(threads.min(1)) > 0);
            let largest = largest.map(|chunk| needs.overhead.describe_largest(chunk)).unwrap_or_default();
            return Err(host_budget_error(most_bytes, least, format!("{what}{largest}")));
        }
        // As much again as threads have for themselves is for what they decode to.
        let generous = |threads: u64| needed((2 * threads).saturating_sub(1));
        let bytes = bytes.max(generous(threads).min(most_bytes)).max(least);
        let fitting = (1..=threads).rev().find(|&threads| generous(threads) <= bytes).unwrap_or(1);
        Ok(Self { bytes, decode_threads: fitting.min(threads), all_threads_bytes: generous(threads) })
    }
}

/// What the GPU backend needs besides.
#[derive(Clone, Debug)]
pub struct GpuNeeds {
    /// One for each part of each array.
    pub parts: Vec<PartNeeds>,
    /// The largest piece of pinned memory that a chunk needs.
    pub largest_pinned_bytes: u64,
    /// Whether cuFile reads to staging buffers.
    pub uses_cufile: bool,
}

/// What the read chunks of a part of an array need on the GPU.
#[derive(Clone, Copy, Debug)]
pub struct PartNeeds {
    /// Arena of a GPU worker, for one chunk.
    pub unit_bytes: u64,
    /// Upload pool, for one chunk.
    pub upload_bytes: u64,
    /// Decoded bytes of a chunk.
    pub chunk_bytes: u64,
    /// Whether the GPU may decode them.
    pub gpu_decodes: bool,
    /// Whether the GPU decodes a chunk in one sequential walk, which takes so long that only many chunks at once are worth it.
    pub is_sequential: bool,
}

/// How many read chunks a batch has, for each part of each array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchChunks {
    /// All that it touches.
    pub touched: Vec<u64>,
    /// Those that the batch before it does not touch.
    pub new: Vec<u64>,
}

/// How the memory of a reader is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Batches in flight.
    pub depth: u64,
    /// Threads that decode on the CPU.
    pub decode_threads: usize,
    /// Host memory: outputs and cached chunks on the CPU backend, pinned memory on the GPU backend.
    pub host_bytes: u64,
    /// Decoded chunks that are cached for later batches, in the memory of the backend.
    pub chunk_cache_bytes: u64,
    /// Chunks of remote stores that are in flight, or have arrived and wait to be decoded. Beyond the host budget.
    pub fetched_bytes: u64,
}

/// How the GPU memory of a reader is shared out, besides outputs and the chunk cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemoryPlan {
    /// GPU memory that the reader uses at most.
    pub budget_bytes: u64,
    /// GPU workers that decode.
    pub gpu_workers: u64,
    /// The arena of each GPU worker.
    pub arena_bytes: u64,
    /// The pool that chunks are uploaded to.
    pub upload_pool_bytes: u64,
    /// Each buffer that small chunks are packed in; 0 if they are not.
    pub packed_bytes: u64,
    /// All staging buffers of cuFile; 0 if it does not read.
    pub staging_bytes: u64,
    /// The largest piece of pinned memory that a chunk needs.
    pub largest_pinned_bytes: u64,
}

impl MemoryPlan {
    /// Bytes for the indexes of shards that stay open.
    pub fn shard_index_bytes(&self) -> u64 {
        self.host_bytes / SHARD_INDEX_SHARE
    }

    /// The part of [`MemoryPlan::fetched_bytes`] for those that wait to be written to the cache on the local disk.
    pub fn disk_queue_bytes(&self) -> u64 {
        self.fetched_bytes / DISK_QUEUE_SHARE
    }

    /// Bytes for the record of which later batches use a chunk.
    pub fn chunk_use_bytes(&self) -> u64 {
        self.host_bytes.max(Options::UNCOUNTED_HOST_BYTES) / CHUNK_USE_SHARE
    }

    /// The plan of the CPU backend.
    pub fn on_cpu(needs: &Needs, host: HostShare) -> Self {
        let (batch, least, threads) = (needs.batch_bytes, needs.least_depth, host.decode_threads);
        let bytes =
            |depth: u64| batch.saturating_mul(depth).saturating_add(needs.overhead.bytes(threads, depth));
        let depth_in = |budget: u64| {
            (least..=MAX_CPU_DEPTH).rev().find(|&depth| bytes(depth) <= budget).unwrap_or(least)
        };
        let chunk_cache_bytes = needs.chunk_cache_bytes(host.bytes, bytes(least), depth_in(host.bytes));
        Self {
            depth: depth_in(host.bytes - chunk_cache_bytes),
            decode_threads: threads as usize,
            host_bytes: host.bytes,
            chunk_cache_bytes,
            fetched_bytes: host.bytes / FETCHED_SHARE,
        }
    }

    /// The plan of the GPU backend. `chunks` is only called if the budget can hold a batch: counting the chunks of a larger
    /// one may take more memory than there is.
    ///
    /// # Errors
    /// [`Error::Budget`] with the least device budget that would do.
    pub fn on_gpu(
        needs: &Needs,
        gpu: &GpuNeeds,
        host: HostShare,
        budget: DeviceBudget,
        chunks: impl FnOnce() -> BatchChunks,
    ) -> Result<(Self, GpuMemoryPlan)> {
        let batch = needs.batch_bytes.max(1);
        let (largest_unit, largest_upload) =
            (gpu.largest(|part| part.unit_bytes), gpu.largest(|part| part.upload_bytes));
        let fixed = gpu.fixed_bytes(needs);
        let budget_bytes = gpu.raise_budget(needs, budget)?;
        let staging_bytes = gpu.staging_bytes(needs, budget_bytes);
        let usable = usable_bytes(budget_bytes);
        let chunks = chunks();
        let planned = (host.bytes / PLAN_SHARE).saturating_add(Options::UNCOUNTED_HOST_BYTES);
        let most_depth = gpu
            .useful_depth(&chunks.new)
            .min(planned / needs.overhead.planned_bytes.max(1))
            .max(needs.least_depth);
        let most_depth = gpu.fitting_depth(needs, host, most_depth);
        let shares = gpu.shares();
        let likely_depth = (usable / shares.outputs / batch).min(most_depth).max(needs.least_depth);
        let mut chunk_cache_bytes = needs.chunk_cache_bytes(usable, fixed + staging_bytes, likely_depth);
        // A cache that cannot hold what later batches share leaves a quarter to decoding, which would have memory for one chunk at a
        // time otherwise.
        let left = usable - fixed - staging_bytes;
        if chunk_cache_bytes == left {
            chunk_cache_bytes = needs.cache_bytes.max(left / 4 * 3).min(left);
        }
        let free = usable - chunk_cache_bytes - staging_bytes - batch * BATCHES_HELD_BY_DALI;
        // One chunk always fits beside the outputs.
        let fits = (free - largest_unit - largest_upload) / batch;
        let depth = (free / shares.outputs / batch).min(most_depth).min(fits).max(needs.least_depth);

        // Small stores do not need the whole budget: no more than all batches in flight can use at once.
        let useful =
            |bytes: fn(&PartNeeds) -> u64| gpu.batch_bytes(&chunks.touched, bytes).saturating_mul(depth);
        let rest = free - batch * depth;
        let both = largest_unit + shares.uploaded_ahead * largest_upload;
        let arenas = (u128::from(rest) * u128::from(largest_unit) / u128::from(both.max(1))) as u64;
        let most = shares.arena_bytes.max(largest_unit).saturating_mul(MAX_GPU_WORKERS);
        let arenas = arenas.min(useful(|part| part.unit_bytes)).min(most).max(largest_unit);
        let upload_pool_bytes = (rest - arenas).min(useful(|part| part.upload_bytes)).max(largest_upload);
        let gpu_workers = (arenas / largest_unit).clamp(1, MAX_GPU_WORKERS.min(depth.max(2)));
        let host_bytes = gpu.pinned_bytes(needs, host, depth);
        let threads = needs.io_threads + host.decode_threads;
        let plan = Self {
            depth,
            decode_threads: host.decode_threads as usize,
            host_bytes,
            chunk_cache_bytes,
            fetched_bytes: host.bytes / FETCHED_SHARE,
        };
        let gpu_plan = GpuMemoryPlan {
            budget_bytes,
            gpu_workers,
            arena_bytes: arenas / gpu_workers,
            upload_pool_bytes,
            packed_bytes: packed_bytes(threads, upload_pool_bytes, host_bytes),
            staging_bytes,
            largest_pinned_bytes: gpu.largest_pinned_bytes,
        };
        Ok((plan, gpu_plan))
    }
}

impl GpuNeeds {
    fn largest(&self, bytes: impl Fn(&PartNeeds) -> u64) -> u64 {
        self.parts.iter().map(bytes).max().unwrap_or(0)
    }

    /// What the chunks of a batch need together, counted by part.
    fn batch_bytes(&self, chunks: &[u64], bytes: impl Fn(&PartNeeds) -> u64) -> u64 {
        let parts = chunks.iter().zip(&self.parts);
        parts.map(|(&chunks, part)| chunks.saturating_mul(bytes(part))).fold(0, u64::saturating_add)
    }

    /// The least number of batches with what DALI holds, and one chunk while it is decoded.
    fn fixed_bytes(&self, needs: &Needs) -> u64 {
        let least_batches = needs.least_depth.saturating_add(BATCHES_HELD_BY_DALI);
        let batches = needs.batch_bytes.max(1).saturating_mul(least_batches);
        let (unit, upload) = (self.largest(|part| part.unit_bytes), self.largest(|part| part.upload_bytes));
        batches.saturating_add(unit).saturating_add(upload)
    }

    /// The budget, or more of it where a batch needs that.
    fn raise_budget(&self, needs: &Needs, budget: DeviceBudget) -> Result<u64> {
        let cache = needs.cache_bytes;
        let budget_bytes =
            self.least_budget(needs, self.fixed_bytes(needs).saturating_add(cache), budget.bytes);
        if budget_bytes <= budget.most_bytes {
            return Ok(budget_bytes);
        }
        Err(Error::Budget {
            name: "device_memory_budget",
            budget_bytes: budget.bytes,
            needed_bytes: budget_bytes,
            what: format!(
                "{} batches of {} bytes, of which {BATCHES_HELD_BY_DALI} are in DALI's hands, and one chunk while it is \
                 decoded{}",
                needs.least_depth.saturating_add(BATCHES_HELD_BY_DALI),
                needs.batch_bytes.max(1),
                needs.cache_text(),
            ),
        })
    }

    /// The least budget from `budget` on that holds `bytes` beside the staging buffers.
    fn least_budget(&self, needs: &Needs, bytes: u64, mut budget: u64) -> u64 {
        loop {
            // The staging buffers grow with the budget, up to a limit.
            let bytes = u128::from(bytes) + u128::from(self.staging_bytes(needs, budget));
            let whole = u128::from(ROUNDING_SHARE);
            let least = u64::try_from((bytes * whole).div_ceil(whole - 1)).unwrap_or(u64::MAX);
            if least <= budget {
                return budget;
            }
            budget = least;
        }
    }

    /// Two staging buffers for each thread that reads.
    fn staging_bytes(&self, needs: &Needs, budget: u64) -> u64 {
        if !self.uses_cufile {
            return 0;
        }
        let buffers = 2 * needs.io_threads;
        let each = (budget / STAGING_SHARE / buffers.max(1)).min(GdsStaging::MOST_BYTES);
        buffers * (each - each % GdsStaging::ALIGNMENT).max(GdsStaging::ALIGNMENT)
    }

    /// The shares that suit how the GPU decodes.
    fn shares(&self) -> &'static Shares {
        let is_slow = |part: &PartNeeds| part.gpu_decodes && part.is_sequential;
        if self.parts.iter().any(is_slow) { &Shares::SEQUENTIAL } else { &Shares::PARALLEL }
    }

    /// The number of batches in flight that keeps the GPU busy, if each batch has `new_chunks` of each part.
    fn useful_depth(&self, new_chunks: &[u64]) -> u64 {
        let shares = self.shares();
        let chunks = self.batch_bytes(new_chunks, |_| 1).max(1);
        let bytes = self.batch_bytes(new_chunks, |part| part.chunk_bytes).max(1);
        let wanted = shares.chunks_in_flight.div_ceil(chunks).max(shares.bytes_in_flight.div_ceil(bytes));
        let decodes = self.parts.iter().any(|part| part.gpu_decodes);
        wanted.clamp(shares.least_depth, if decodes { MOST_DEPTH } else { MOST_COPIED })
    }

    /// As many batches in flight, up to `most`, as the host budget has room for beside the largest piece of pinned memory.
    fn fitting_depth(&self, needs: &Needs, host: HostShare, most: u64) -> u64 {
        let bytes = |depth| needs.overhead.bytes(host.decode_threads, depth);
        let fits =
            |depth: &u64| self.largest_pinned_bytes.saturating_add(bytes(*depth)) <= needs.host.most_bytes;
        (needs.least_depth..=most).rev().find(fits).unwrap_or(needs.least_depth)
    }

    /// Pinned memory: the host budget less the overhead. A budget that was not given is raised by the overhead first.
    fn pinned_bytes(&self, needs: &Needs, host: HostShare, depth: u64) -> u64 {
        let overhead = needs.overhead.bytes(host.decode_threads, depth);
        let raised = needs.host.bytes.saturating_add(overhead).min(needs.host.most_bytes);
        host.bytes.max(raised).saturating_sub(overhead).max(self.largest_pinned_bytes)
    }
}

/// Packed buffers of `threads` threads, each of which fills one while others are decoded.
fn packed_bytes(threads: u64, upload_pool_bytes: u64, host_bytes: u64) -> u64 {
    let share = |bytes: u64| bytes / (4 * threads).max(1);
    let bytes = share(upload_pool_bytes).min(share(host_bytes)).min(Uploader::PIECE_BYTES as u64);
    if bytes < LEAST_PACKED_BYTES { 0 } else { bytes - bytes % PinnedPool::ALIGNMENT }
}

/// What may be taken of a device budget.
fn usable_bytes(budget: u64) -> u64 {
    budget - budget / ROUNDING_SHARE
}

#[cfg(test)]
mod tests;
