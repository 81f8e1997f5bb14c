//! How much of its arena a GPU worker needs for a group of chunks.
//!
//! ```text
//! arena  [areas: decoded and half-decoded chunks][scratch memory of zstd][work list]
//! ```

use crate::assemble::device::{ConversionOnDevice, Region, Regions};
use crate::assemble::{Conversion, whole_chunk};
use crate::codec::work::Decoder;
use crate::codec::zstd::{Block, CheckedFrame, Place, SUMMARY_BYTES};
use crate::codec::{DecodePath, Work};
use crate::decode::gpu_task::{ELEMENT_ALIGNMENT, GpuTask, OnDevice, Payload};
use crate::decode::nvcomp::{Frames, Zstd};
use crate::error::Result;
use crate::gpu::{DeviceMemory, zstd_scratch_bytes};

use std::ops::Range;

/// Work list bytes of a task, apart from its streams, passes and regions: its status, and what aligning may cost.
const UNIT_BYTES: u64 = 16;
/// Work list bytes of a stream: a [`StreamOnDevice`](crate::gpu::StreamOnDevice), or for zstd two pointers, three sizes and a status.
const STREAM_BYTES: u64 = 48;
/// Further work list bytes of a zstd frame, for its check.
const FRAME_BYTES: u64 = size_of::<CheckedFrame>() as u64;
/// Work list bytes of a block of a zstd frame: what the host read of it, and what the GPU finds out.
const BLOCK_BYTES: u64 = size_of::<Block>() as u64 + SUMMARY_BYTES;
/// Work list bytes of a pass of any kind. A stream may have a check of its own.
const PASS_BYTES: u64 = 48;
/// What aligning the parts of a whole arena may cost.
pub const ARENA_SLACK: u64 = 16 << 10;

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(DeviceMemory::ALIGNMENT)
}

fn aligned_down(address: u64) -> u64 {
    address - address % DeviceMemory::ALIGNMENT
}

/// Size of an area in the arena, with space to move its start.
pub fn area_bytes(bytes: u64) -> u64 {
    aligned(bytes + ELEMENT_ALIGNMENT)
}

/// Arena bytes of a group of one chunk on this decode path, whose units have up to `boxes` boxes. A group of several chunks needs at
/// most the sum. Without nvCOMP (`zstd`) the scratch memory is taken to be our own bound.
///
/// # Errors
/// What nvCOMP says.
pub fn unit_bytes(
    zstd: Option<&Zstd>,
    decode_path: &DecodePath,
    conversion: &Conversion,
    boxes: u64,
) -> Result<u64> {
    let conversion = Regions::conversion_bytes(conversion).max(size_of::<ConversionOnDevice>() as u64);
    let regions = boxes * size_of::<Region>() as u64 + conversion;
    let least = UNIT_BYTES + regions + ARENA_SLACK;
    let DecodePath::Gpu(chain) = decode_path else { return Ok(least) };
    let most = chain.most();
    let scratch = match most.zstd_blocks {
        0 => 0,
        _ => {
            let one = Frames::default().with(most.area_bytes);
            let usual = zstd.map_or(Ok(0), |zstd| zstd.usual_scratch_bytes(one))?;
            usual.max(crate::codec::zstd::gpu_scratch_bound(most.area_bytes))
        }
    };
    Ok(least
        + area_bytes(most.area_bytes) * most.areas
        + aligned(scratch)
        + most.streams * (STREAM_BYTES + FRAME_BYTES + PASS_BYTES)
        + most.zstd_blocks * BLOCK_BYTES
        + most.areas * 2 * PASS_BYTES)
}

/// Sizes of the parts of an arena.
#[derive(Clone, Copy, Default)]
pub struct Sizes {
    /// Bytes of all areas.
    pub areas: u64,
    /// Bytes of the work list.
    pub work_list: u64,
    /// The zstd frames, which nvCOMP needs scratch memory for.
    pub zstd: Frames,
    /// Blocks of the zstd frames.
    pub zstd_blocks: u64,
    /// The place behind them.
    pub place: Place,
}

/// Where the parts of an arena are.
pub struct Layout {
    /// Address of the areas.
    pub areas: u64,
    /// Addresses of the scratch memory.
    pub scratch: Range<u64>,
    /// Address of the work list.
    pub work_list: u64,
}

impl Sizes {
    /// Adds a task.
    pub fn with(mut self, task: &GpuTask, conversion: &Conversion) -> Self {
        if let Payload::OnDevice(OnDevice { work, .. }) = &task.payload {
            self = self.with_work(work, target(task, conversion).is_some());
        }
        self.work_list += UNIT_BYTES;
        self.work_list += task.units.iter().map(|unit| Regions::bytes(&unit.boxes, conversion)).sum::<u64>();
        // The units of a chunk share one conversion.
        self.work_list += Regions::conversion_bytes(conversion);
        self
    }

    /// Adds the work on a chunk. `has_target`: the chunk's last area is not in the arena.
    pub fn with_work(mut self, work: &Work, has_target: bool) -> Self {
        // Bytes that need no decoder are an area themselves.
        let areas = work.areas() - u64::from(work.streams.is_empty());
        self.areas += area_bytes(work.bytes) * areas.saturating_sub(u64::from(has_target));
        for stream in &work.streams {
            if let Decoder::Zstd(blocks) = &stream.decoder {
                self.place = blocks.iter().fold(self.place, Place::behind);
                self.zstd = self.zstd.with(stream.to.end - stream.to.start);
                self.work_list += FRAME_BYTES;
            }
        }
        self.zstd_blocks += work.zstd_blocks();
        self.work_list += work.zstd_blocks() * BLOCK_BYTES;
        self.work_list += work.streams.len() as u64 * STREAM_BYTES + work.passes.len() as u64 * PASS_BYTES;
        self
    }

    /// Bytes of the scratch memory: nvCOMP's, or without it that of our own decoder.
    ///
    /// # Errors
    /// What nvCOMP says.
    pub fn scratch(&self, zstd: Option<&Zstd>) -> Result<u64> {
        let own = zstd_scratch_bytes(self.zstd_blocks, self.place);
        zstd.map_or(Ok(own), |zstd| zstd.usual_scratch_bytes(self.zstd))
    }

    /// Bytes of all parts, with `scratch` bytes of scratch memory.
    pub fn arena_bytes(&self, scratch: u64) -> u64 {
        self.areas + self.work_list + aligned(scratch) + ARENA_SLACK
    }

    /// The parts of the arena at `address` of `bytes` bytes, one behind the other. The work list is at the end, so that the scratch
    /// memory has all bytes between areas and work list. `bytes` need not be aligned.
    pub fn layout(&self, address: u64, bytes: u64) -> Layout {
        let scratch = address + self.areas;
        let work_list = aligned_down(address + bytes - self.work_list - ARENA_SLACK / 2);
        Layout { areas: address, scratch: scratch..work_list, work_list }
    }
}

/// Where the last step of decoding a chunk writes, if not to the arena.
#[derive(Clone, Copy)]
pub enum Target {
    /// To the chunk's allocation in the chunk cache.
    Cache(u64),
    /// To the output of the only unit.
    Output(u64),
}

impl Target {
    /// The address that it writes to.
    pub fn address(self) -> u64 {
        match self {
            Self::Cache(address) | Self::Output(address) => address,
        }
    }
}

/// The target of a task, if its chunk is decoded to one.
pub fn target(task: &GpuTask, conversion: &Conversion) -> Option<Target> {
    let Payload::OnDevice(OnDevice { work, .. }) = &task.payload else { return None };
    let in_place = work.streams.is_empty() && work.areas() == 1;
    if in_place || work.elements != (0..work.bytes) {
        return None;
    }
    if let Some(allocation) = task.chunk.allocation() {
        return Some(Target::Cache(allocation.address()));
    }
    let [unit] = &task.units[..] else { return None };
    let output = unit.batch.outputs[unit.output];
    let address = whole_chunk(&unit.boxes, conversion, work.bytes, output)?;
    // No step needs another alignment: decoders do not, and differences are added up in place.
    (!work.swaps_bytes && address.is_multiple_of(ELEMENT_ALIGNMENT)).then_some(Target::Output(address))
}
