//! The kernels of `src/kernels/`, compiled at build time and loaded from inside this library, with the types of their arguments.

use super::zstd::{FramesToDecode, ZstdKernels};
use super::{Gpu, image};
use crate::codec::HeaderFormat;
use crate::error::{Error, Result};

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

/// One compressed stream, field for field the `Stream` of `streams.cuh`: decoded by one warp.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamOnDevice {
    /// Address of the encoded bytes.
    pub from: u64,
    /// Address of the decoded bytes.
    pub to: u64,
    /// Encoded size.
    pub from_bytes: u32,
    /// Decoded size.
    pub to_bytes: u32,
    /// Address of a [`StreamStatus`].
    pub status: u64,
}

/// A checksum to be compared, field for field the `Check` of `checks.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CheckOnDevice {
    /// Address of the bytes.
    pub from: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The checksum, or its address.
    pub expected: u64,
    /// Address of a [`StreamStatus`].
    pub status: u64,
    /// Number of the kind.
    pub kind: u32,
    /// Whether `expected` is an address.
    pub is_at: u32,
}

/// Shuffled blocks, field for field the `Shuffled` of `unshuffle.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShuffledOnDevice {
    /// Address of the shuffled bytes.
    pub from: u64,
    /// Address of the bytes in order.
    pub to: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Number of the chunk's first tile in the launch.
    pub first_tile: u64,
    /// Size of a block.
    pub block_bytes: u32,
    /// Size of an element.
    pub element_bytes: u32,
    /// 1: bytes were shuffled, 2: bits.
    pub kind: u32,
    /// Fills the record up; 0.
    pub reserved: u32,
}

impl ShuffledOnDevice {
    /// `TILE_BYTES` of `unshuffle.cuh`.
    const TILE_BYTES: u64 = 16384;

    /// How many tiles the chunk has.
    pub fn tiles(&self) -> u64 {
        let block = u64::from(self.block_bytes);
        self.bytes / block * block.div_ceil(Self::TILE_BYTES)
            + (self.bytes % block).div_ceil(Self::TILE_BYTES)
    }
}

/// An encoded chunk whose headers are copied to the host, field for field the `Chunk` of `headers.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadersOnDevice {
    /// Address of the chunk.
    pub from: u64,
    /// Address of as many bytes of pinned memory.
    pub to: u64,
    /// Encoded size.
    pub bytes: u32,
    /// Decoded size.
    pub decoded_bytes: u32,
    /// Where in the chunk its headers are.
    pub format: HeaderFormat,
}

/// Elements to be added up, field for field the `Delta` of `delta.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeltaOnDevice {
    /// Address of the elements.
    pub address: u64,
    /// How many elements.
    pub elements: u64,
    /// Size of an element.
    pub element_bytes: u32,
    /// Fills the record up; 0.
    pub reserved: u32,
}

const _: () = assert!(
    size_of::<StreamOnDevice>() == 32
        && size_of::<CheckOnDevice>() == 40
        && size_of::<ShuffledOnDevice>() == 48
        && size_of::<DeltaOnDevice>() == 24
        && size_of::<HeadersOnDevice>() == 32
);

/// What a kernel says of a stream or a check: 0, or the first error, a `StreamError` of `streams.cuh`.
pub type StreamStatus = u32;

/// A status in words.
pub fn status_text(status: StreamStatus) -> &'static str {
    match status & 255 {
        1 => "its compressed bytes end too early",
        2 => "it holds more than the chunk's bytes",
        3 => "it refers to bytes before its start",
        4 => "it holds fewer than the chunk's bytes",
        5 => "a header inside it cannot be right",
        6 => "a code inside it cannot be right",
        7 => "its checksum does not match its content",
        8 => "bytes follow its end",
        _ => "it cannot be decoded",
    }
}

/// The kernels that take a list of [`StreamOnDevice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StreamKernel {
    Stored,
    Lz4,
    BloscLz,
    Snappy,
    Inflate,
}

impl StreamKernel {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Stored, Self::Lz4, Self::BloscLz, Self::Snappy, Self::Inflate];

    fn name(self) -> &'static CStr {
        match self {
            Self::Stored => c"decode_stored",
            Self::Lz4 => c"decode_lz4",
            Self::BloscLz => c"decode_blosclz",
            Self::Snappy => c"decode_snappy",
            Self::Inflate => c"inflate",
        }
    }
}

/// zstd frames on the device, to be checked before nvCOMP sees them.
#[derive(Clone, Copy, Debug)]
pub struct FramesToCheck {
    /// Address of the [`CheckedFrame`](crate::codec::zstd::CheckedFrame)s.
    pub frames: u64,
    /// How many frames.
    pub count: usize,
    /// Address of the frames' [`Block`](crate::codec::zstd::Block)s.
    pub blocks: u64,
    /// How many blocks.
    pub block_count: usize,
    /// Address of scratch memory for a summary of each block.
    pub summaries: u64,
    /// nvCOMP's array of the frames' addresses, in which a valid frame takes the place of an invalid one.
    pub encoded: u64,
    /// nvCOMP's array of the frames' sizes.
    pub encoded_bytes: u64,
    /// Address of the valid frame that takes the place of invalid ones.
    pub valid: u64,
    /// Size of the valid frame.
    pub valid_bytes: u64,
}

/// The loaded kernels.
#[derive(Debug)]
pub struct Kernels {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    gather: sys::CUfunction,
    streams: [sys::CUfunction; StreamKernel::ALL.len()],
    check: sys::CUfunction,
    unshuffle: sys::CUfunction,
    undo_delta: sys::CUfunction,
    copy_headers: sys::CUfunction,
    zstd_check_blocks: sys::CUfunction,
    zstd_check_frames: sys::CUfunction,
    zstd: ZstdKernels,
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// A launch: how many blocks, of how many threads each.
#[derive(Clone, Copy)]
struct Grid {
    blocks: u64,
    threads: u32,
}

impl Kernels {
    /// As the launch bounds of the kernels say.
    const GATHER_THREADS: u32 = 256;
    /// A warp decodes a stream.
    const STREAM_THREADS: u32 = 128;
    const INFLATE_THREADS: u32 = 32;
    /// A block puts a tile in order.
    const UNSHUFFLE_THREADS: u32 = 256;
    /// A block compares a checksum.
    const CHECK_THREADS: u32 = 1024;
    /// How many blocks of zstd frames a block of threads checks.
    const ZSTD_BLOCKS_PER_BLOCK: u64 = 4;
    /// Threads of a block that checks zstd frames.
    const ZSTD_BLOCK_THREADS: u32 = 64;
    /// A block sums up a chunk.
    const DELTA_THREADS: u32 = 1024;
    /// Warps that copy the headers of a Blosc container; those of other chunks follow one another.
    const HEADER_WARPS: u32 = 16;

    /// Loads the kernels into a context.
    ///
    /// # Errors
    /// What the driver says, for example of an architecture older than all that were compiled for.
    pub fn load(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        let capability =
            gpu.context.compute_capability().map_err(Error::cuda("asking for an architecture"))?;
        let image = image::of(gpu.driver, (capability.0 as u32, capability.1 as u32))?;
        // SAFETY: a whole image from NVIDIA's compilers, of which the driver makes its own copy.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let module = module.map_err(Error::cuda("loading the kernels"))?;
        let function = |name: &CStr| {
            // SAFETY: the module was just loaded and is unloaded in `drop` only.
            let function = unsafe { result::module::get_function(module, name.to_owned()) };
            function.map_err(Error::cuda("finding a kernel"))
        };
        let mut streams = [std::ptr::null_mut(); StreamKernel::ALL.len()];
        for kernel in StreamKernel::ALL {
            streams[kernel as usize] = function(kernel.name())?;
        }
        Ok(Self {
            gpu: gpu.clone(),
            module,
            gather: function(c"gather")?,
            streams,
            check: function(c"check")?,
            unshuffle: function(c"unshuffle")?,
            undo_delta: function(c"undo_delta")?,
            copy_headers: function(c"copy_headers")?,
            zstd_check_blocks: function(c"zstd_check_blocks")?,
            zstd_check_frames: function(c"zstd_check_frames")?,
            zstd: ZstdKernels::load(gpu, function)?,
        })
    }

    /// Enqueues the work of `count` regions, which together have `tiles` tiles and behind which are their conversions.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// `regions` is the device address of `count` [`Region`](crate::assemble::device::Region)s and, right behind them,
    /// the [`ConversionOnDevice`](crate::assemble::device::ConversionOnDevice)s that they name, in device memory until
    /// the stream has passed, and so are all sources and destinations they name.
    pub unsafe fn gather(&self, stream: &CudaStream, regions: u64, count: usize, tiles: u64) -> Result<()> {
        let grid = Grid { blocks: tiles, threads: Self::GATHER_THREADS };
        // SAFETY: these are the kernel's arguments; memory is the caller's duty.
        unsafe { self.launch("launching the gather kernel", stream, self.gather, grid, regions, count) }
    }

    /// Enqueues the decoding of `count` streams.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// `streams` is the device address of `count` [`StreamOnDevice`]s, in device memory until the stream has passed, and so
    /// is all that they name, which nothing else writes to meanwhile.
    pub unsafe fn decode(
        &self,
        stream: &CudaStream,
        kernel: StreamKernel,
        streams: u64,
        count: usize,
    ) -> Result<()> {
        let threads =
            if kernel == StreamKernel::Inflate { Self::INFLATE_THREADS } else { Self::STREAM_THREADS };
        let grid = Grid { blocks: (count as u64).div_ceil(u64::from(threads / 32)), threads };
        let kernel = self.streams[kernel as usize];
        // SAFETY: as in `gather`.
        unsafe { self.launch("launching a decoder", stream, kernel, grid, streams, count) }
    }

    /// Enqueues the comparison of `count` checksums.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As for [`Kernels::decode`], for [`CheckOnDevice`]s.
    pub unsafe fn check(&self, stream: &CudaStream, checks: u64, count: usize) -> Result<()> {
        let grid = Grid { blocks: count as u64, threads: Self::CHECK_THREADS };
        // SAFETY: as in `gather`.
        unsafe { self.launch("launching the checks", stream, self.check, grid, checks, count) }
    }

    /// Enqueues the unshuffling of `count` chunks, which together have `tiles` tiles.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As for [`Kernels::decode`], for [`ShuffledOnDevice`]s.
    pub unsafe fn unshuffle(&self, stream: &CudaStream, chunks: u64, count: usize, tiles: u64) -> Result<()> {
        let grid = Grid { blocks: tiles, threads: Self::UNSHUFFLE_THREADS };
        // SAFETY: as in `gather`.
        unsafe { self.launch("launching the unshuffling", stream, self.unshuffle, grid, chunks, count) }
    }

    /// Enqueues the summing up of `count` chunks.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As for [`Kernels::decode`], for [`DeltaOnDevice`]s.
    pub unsafe fn undo_delta(&self, stream: &CudaStream, chunks: u64, count: usize) -> Result<()> {
        let grid = Grid { blocks: count as u64, threads: Self::DELTA_THREADS };
        // SAFETY: as in `gather`.
        unsafe { self.launch("launching the sums", stream, self.undo_delta, grid, chunks, count) }
    }

    /// Enqueues the copy of a chunk's headers to the places that they have in it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The chunk is in device memory until the stream has passed, and nothing else uses the pinned memory meanwhile.
    pub unsafe fn copy_headers(&self, stream: &CudaStream, mut chunk: HeadersOnDevice) -> Result<()> {
        let warps = if chunk.format == HeaderFormat::Blosc { Self::HEADER_WARPS } else { 1 };
        let grid = Grid { blocks: 1, threads: 32 * warps };
        let mut arguments = [argument(&mut chunk)];
        // SAFETY: this is the kernel's argument; memory is the caller's duty.
        unsafe { launch("copying headers", stream, self.copy_headers, grid, &mut arguments) }
    }

    /// Enqueues the check of zstd frames. An invalid frame gets an error status, and in nvCOMP's arrays a valid one takes its
    /// place.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As for [`Kernels::decode`], for all arrays; each frame has a block.
    pub unsafe fn check_zstd(&self, stream: &CudaStream, check: &FramesToCheck) -> Result<()> {
        if check.count == 0 {
            return Ok(());
        }
        let FramesToCheck { mut frames, mut blocks, mut summaries, .. } = *check;
        let (mut count, mut block_count) = (check.count as u32, check.block_count as u32);
        let (mut encoded, mut encoded_bytes) = (check.encoded, check.encoded_bytes);
        let (mut valid, mut valid_bytes) = (check.valid, check.valid_bytes);
        let grid = Grid {
            blocks: u64::from(block_count).div_ceil(Self::ZSTD_BLOCKS_PER_BLOCK),
            threads: Self::ZSTD_BLOCK_THREADS,
        };
        let mut arguments = [
            argument(&mut frames),
            argument(&mut count),
            argument(&mut blocks),
            argument(&mut block_count),
            argument(&mut summaries),
        ];
        // SAFETY: these are the kernel's arguments; memory is the caller's duty.
        unsafe { launch("checking zstd blocks", stream, self.zstd_check_blocks, grid, &mut arguments)? };
        let grid = Grid { blocks: u64::from(count).div_ceil(32), threads: 32 };
        let mut arguments = [
            argument(&mut frames),
            argument(&mut count),
            argument(&mut summaries),
            argument(&mut encoded),
            argument(&mut encoded_bytes),
            argument(&mut valid),
            argument(&mut valid_bytes),
        ];
        // SAFETY: as above.
        unsafe { launch("checking zstd frames", stream, self.zstd_check_frames, grid, &mut arguments) }
    }

    /// Enqueues the decoding of zstd frames, with our own decoder. Damaged ones get an error status.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As for [`Kernels::decode`], for all arrays; so many bytes as [`zstd_scratch_bytes`](super::zstd_scratch_bytes) says
    /// from `scratch` on, which is aligned to 16 bytes, are not used otherwise until the stream has passed.
    pub unsafe fn decode_zstd(
        &self,
        stream: &CudaStream,
        frames: &FramesToDecode,
        scratch: u64,
    ) -> Result<()> {
        // SAFETY: the duties of the caller.
        unsafe { self.zstd.decode(stream, frames, scratch) }
    }

    /// Launches a kernel that takes a list and its length.
    ///
    /// # Safety
    /// The kernel takes these two arguments, and the memory behind the list stays until the stream has passed.
    unsafe fn launch(
        &self,
        what: &'static str,
        stream: &CudaStream,
        kernel: sys::CUfunction,
        grid: Grid,
        mut list: u64,
        count: usize,
    ) -> Result<()> {
        let mut count = count as u32;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the arguments are a pointer and a 32-bit number, as the caller promises.
        unsafe { launch(what, stream, kernel, grid, &mut [argument(&mut list), argument(&mut count)]) }
    }
}

/// An argument as a launch takes it.
fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// Launches a kernel.
///
/// # Safety
/// The arguments are the kernel's and live, and the memory that they point to stays until the stream has passed.
unsafe fn launch(
    what: &'static str,
    stream: &CudaStream,
    kernel: sys::CUfunction,
    grid: Grid,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    let (blocks, threads) = ((grid.blocks as u32, 1, 1), (grid.threads, 1, 1));
    // SAFETY: the duties of the caller.
    let launched =
        unsafe { result::launch_kernel(kernel, blocks, threads, 0, stream.cu_stream(), arguments) };
    launched.map_err(Error::cuda(what))
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once, after the streams that use it were waited for.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
