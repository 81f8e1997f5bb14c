//! Launches our own zstd decoder, `zstd_decode.cu`: entropy, resolve, chain, execute.

use super::Gpu;
use crate::codec::zstd::{Block, Place};
use crate::error::{Error, Result};

use std::ffi::{CStr, c_void};

use cudarc::driver::{CudaStream, result, sys};

/// A chunk of zstd frames on the device, field for field the `Chunk` of `zstd_block.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChunkOfFrames {
    /// Address of the encoded bytes, of any alignment.
    pub from: u64,
    /// Address of the decoded bytes, of any alignment.
    pub to: u64,
    /// Address of a [`StreamStatus`](super::StreamStatus), which gets the number of the block in its higher 24 bits.
    pub status: u64,
    /// Encoded size.
    pub from_bytes: u32,
    /// Decoded size.
    pub to_bytes: u32,
    /// Number of its first block in the launch.
    pub first_block: u32,
    /// How many blocks it has.
    pub blocks: u32,
}

const _: () = assert!(size_of::<ChunkOfFrames>() == 40 && size_of::<Block>() == 464);

/// Chunks of zstd frames to be decoded. A block's [`Place`] says where its part of the scratch memory is.
#[derive(Clone, Copy, Debug, Default)]
pub struct FramesToDecode {
    /// Address of the [`ChunkOfFrames`].
    pub chunks: u64,
    /// How many chunks.
    pub count: usize,
    /// Address of their [`Block`]s.
    pub blocks: u64,
    /// How many blocks.
    pub block_count: usize,
    /// The place behind the last block.
    pub end: Place,
}

/// Size of the `Summary` of `zstd_block.cuh`.
const SUMMARY_BYTES: u64 = 96;

/// Scratch bytes that so many blocks up to this place need.
pub fn zstd_scratch_bytes(blocks: u64, end: Place) -> u64 {
    blocks * SUMMARY_BYTES + progress_bytes(blocks) + end.scratch_bytes().iter().sum::<u64>()
}

/// Bytes in which the thread blocks of the last stage tell each other how far chunks are: `zstd_execute_tiles` takes a word and two
/// for each chunk, and a chunk has a block at least.
fn progress_bytes(blocks: u64) -> u64 {
    (4 + 8 * blocks).next_multiple_of(16)
}

/// Field for field the `Launch` of `zstd_block.cuh`.
#[repr(C)]
struct Launch {
    chunks: u64,
    blocks: u64,
    summaries: u64,
    literals: u64,
    records: u64,
    groups: u64,
    chunk_count: u32,
    block_count: u32,
}

/// The kernels of the decoder.
#[derive(Debug)]
pub(super) struct ZstdKernels {
    entropy: sys::CUfunction,
    resolve: sys::CUfunction,
    chain: sys::CUfunction,
    execute: sys::CUfunction,
    /// Warps of a thread block of `execute`, and how many of these run at once.
    execute_warps: u32,
    execute_blocks: u32,
    multiprocessors: u32,
}

impl ZstdKernels {
    /// Shared memory of a block of the entropy stage: the larger of `sizeof(FseSlot)` and `kHuffmanSlotBytes`.
    const SLOT_BYTES: u32 = 5648;
    /// `tile_shared_bytes(1)`.
    const TILE_BYTES: u32 = 4096 + 640;
    /// Warps of a tile, where there is shared memory for them.
    const TILE_WARPS: [u32; 2] = [16, 8];
    /// Blocks that one warp decodes at most.
    const MOST_SLOTS: u32 = 8;
    /// Thread blocks of `execute` for each chunk of a launch. Each works on a tile, and tiles of a chunk end one after the other, because
    /// matches reach into the tiles before: more thread blocks would only wait, and take multiprocessors from other groups and from the
    /// model. (Tiles without matches need not wait; where one chunk of them is alone in a launch, it takes longer than it could.)
    const TILES_OF_CHUNK: u32 = 6;

    /// Finds the kernels with `function`.
    pub fn load(gpu: &Gpu, function: impl Fn(&CStr) -> Result<sys::CUfunction>) -> Result<Self> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = gpu.context.attribute(attribute).map_err(Error::cuda("counting multiprocessors"))?;
        let multiprocessors = u32::try_from(count).unwrap_or(1).max(1);
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared = gpu.context.attribute(attribute).map_err(Error::cuda("asking for shared memory"))?;
        let fits = |warps: &u32| i64::from(warps * Self::TILE_BYTES) <= i64::from(shared);
        let execute_warps = Self::TILE_WARPS.into_iter().find(fits).unwrap_or(Self::TILE_WARPS[1]);
        let execute = function(c"zstd_execute_tiles")?;
        let (threads, bytes) = (32 * execute_warps as i32, execute_warps * Self::TILE_BYTES);
        let limit = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut at_once = 0;
        // SAFETY: the function is loaded, and `at_once` is written to.
        unsafe {
            sys::cuFuncSetAttribute(execute, limit, bytes as i32)
                .result()
                .map_err(Error::cuda("setting shared memory"))?;
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut at_once,
                execute,
                threads,
                bytes as usize,
            )
            .result()
            .map_err(Error::cuda("asking for the occupancy"))?;
        }
        Ok(Self {
            entropy: function(c"zstd_entropy")?,
            resolve: function(c"zstd_resolve")?,
            chain: function(c"zstd_chain")?,
            execute,
            execute_warps,
            execute_blocks: multiprocessors * u32::try_from(at_once).unwrap_or(1).max(1),
            multiprocessors,
        })
    }

    /// Blocks that one warp decodes. It takes about as long for several as for one, so that it gets as many as leave every multiprocessor
    /// a warp of sequences or of literals.
    fn slots(&self, blocks: u32) -> u32 {
        blocks.div_ceil(self.multiprocessors).next_power_of_two().min(Self::MOST_SLOTS)
    }

    /// Enqueues the decoding of chunks, with scratch memory from `scratch` on, aligned to 16 bytes.
    ///
    /// # Safety
    /// The arrays and what they point to are in device memory until the stream has passed, and so are as many bytes of scratch
    /// memory as [`zstd_scratch_bytes`] says, which nothing else uses meanwhile.
    pub unsafe fn decode(&self, stream: &CudaStream, frames: &FramesToDecode, scratch: u64) -> Result<()> {
        if frames.count == 0 || frames.block_count == 0 {
            return Ok(());
        }
        let (chunks, blocks) = (frames.count as u32, frames.block_count as u32);
        let progress = scratch + u64::from(blocks) * SUMMARY_BYTES;
        let [literals, records, _] = frames.end.scratch_bytes();
        let literals_at = progress + progress_bytes(blocks.into());
        let launch = Launch {
            chunks: frames.chunks,
            blocks: frames.blocks,
            summaries: scratch,
            literals: literals_at,
            records: literals_at + literals,
            groups: literals_at + literals + records,
            chunk_count: chunks,
            block_count: blocks,
        };
        // SAFETY: the caller's duty.
        unsafe { result::memset_d8_async(scratch, 0, (literals_at - scratch) as usize, stream.cu_stream()) }
            .map_err(Error::cuda("clearing scratch memory"))?;
        let slots = self.slots(blocks);
        let warps = blocks.div_ceil(slots);
        let (execute_warps, numbers) = (self.execute_warps, &mut [warps, slots]);
        let execute_blocks = self.execute_blocks.min(chunks.saturating_mul(Self::TILES_OF_CHUNK));
        for (kernel, grid, threads, shared) in [
            (self.entropy, 2 * warps, 32, slots * Self::SLOT_BYTES),
            (self.resolve, blocks, 32, 0),
            (self.chain, chunks.div_ceil(32), 32, 0),
            (self.execute, execute_blocks, 32 * execute_warps, execute_warps * Self::TILE_BYTES),
        ] {
            let mut arguments: Vec<*mut c_void> = vec![(&raw const launch).cast_mut().cast()];
            if kernel == self.entropy {
                arguments.extend(numbers.iter_mut().map(|number| std::ptr::from_mut(number).cast()));
            } else if kernel == self.execute {
                arguments.push((&raw const progress).cast_mut().cast());
            }
            let (grid, threads) = ((grid, 1, 1), (threads, 1, 1));
            // SAFETY: these are the kernel's arguments; memory is the caller's duty.
            unsafe {
                result::launch_kernel(kernel, grid, threads, shared, stream.cu_stream(), &mut arguments)
            }
            .map_err(Error::cuda("decoding zstd frames"))?;
        }
        Ok(())
    }
}
