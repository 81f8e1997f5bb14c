//! Plans what the kernels do with a group of chunks.

use super::sizes::area_bytes;
use super::work_list::{LevelLists, Lists, WorkList};
use crate::assemble::device::Regions;
use crate::codec::Work;
use crate::codec::work::{Checksum, Decoder, Expected, Pass};
use crate::codec::zstd::{Block, CheckedFrame, Place, SUMMARY_BYTES, VALID_FRAME};
use crate::decode::gpu_task::misalignment;
use crate::decode::nvcomp::FramesOnDevice;
use crate::gpu::{
    CheckOnDevice, ChunkOfFrames, DeltaOnDevice, FramesToCheck, FramesToDecode, ShuffledOnDevice,
    StreamKernel, StreamOnDevice,
};

/// What the kernels of a group do, in device addresses.
#[derive(Default)]
pub struct GroupPlan {
    /// Start of the next area.
    pub areas: u64,
    /// The streams of each kernel.
    pub streams: [Vec<StreamOnDevice>; StreamKernel::ALL.len()],
    /// Whether our own decoder takes the zstd frames, and not nvCOMP.
    pub builtin_zstd: bool,
    /// The zstd frames that our own decoder takes.
    pub builtin_frames: Vec<ChunkOfFrames>,
    /// The place behind the blocks of these.
    pub place: Place,
    /// The zstd frames that have to be checked. [`GroupPlan::put`] adds the verified ones behind them.
    pub frames: FrameArrays,
    /// The zstd frames of chunks that were found valid before.
    pub verified_frames: FrameArrays,
    /// The checks of `frames`, one for each.
    pub checked: Vec<CheckedFrame>,
    /// The blocks of checked frames, or of those that our own decoder takes.
    pub blocks: Vec<Block>,
    /// The passes, level after level.
    pub levels: Vec<Level>,
    /// The differences that are added up, after all levels.
    pub deltas: Vec<DeltaOnDevice>,
    /// What is gathered into outputs.
    pub regions: Regions,
    /// Decoded chunks that are copied to the chunk cache.
    pub cache_copies: Vec<CacheCopy>,
}

/// The copy of a decoded chunk from the arena to the chunk cache.
pub struct CacheCopy {
    /// Address of the chunk's allocation in the chunk cache.
    pub to: u64,
    /// Address of the chunk in the arena.
    pub from: u64,
    /// Size of the decoded chunk.
    pub bytes: u64,
}

/// Passes of different chunks that run at the same time: the checks of areas, then the unshuffling of areas into others.
#[derive(Default)]
pub struct Level {
    /// The checks.
    pub checks: Vec<CheckOnDevice>,
    /// The areas that are unshuffled.
    pub shuffled: Vec<ShuffledOnDevice>,
    /// Tiles of all areas in `shuffled`.
    pub tiles: u64,
}

/// nvCOMP's arrays of frames, with one entry for each frame.
#[derive(Default)]
pub struct FrameArrays {
    /// To which task a frame belongs.
    pub frames: Vec<FrameOfTask>,
    /// Addresses of the encoded frames.
    pub encoded: Vec<u64>,
    /// Sizes of the encoded frames.
    pub encoded_bytes: Vec<u64>,
    /// Addresses that the frames are decoded to.
    pub decoded: Vec<u64>,
    /// Sizes of the decoded frames.
    pub decoded_bytes: Vec<u64>,
}

impl FrameArrays {
    fn append(&mut self, mut others: Self) {
        self.frames.append(&mut others.frames);
        self.encoded.append(&mut others.encoded);
        self.encoded_bytes.append(&mut others.encoded_bytes);
        self.decoded.append(&mut others.decoded);
        self.decoded_bytes.append(&mut others.decoded_bytes);
    }
}

/// The expected result of a frame.
pub struct FrameOfTask {
    /// Number of the task in its group.
    pub task: usize,
    /// Size of the decoded frame.
    pub bytes: u64,
}

impl GroupPlan {
    /// Plans the work on the chunk of task number `task`, whose bytes are at `on_device`. Its status goes to `status`.
    ///
    /// Returns the address of the decoded elements. They are in the chunk's last area, which is at `target` if that is given.
    /// The zstd frames of a `verified` chunk are not checked.
    pub fn chunk(
        &mut self,
        task: usize,
        status: u64,
        on_device: u64,
        work: &Work,
        verified: bool,
        target: Option<u64>,
    ) -> u64 {
        // Bytes that need no decoder are the first area themselves.
        let mut areas_left = work.areas() - u64::from(work.streams.is_empty());
        let mut next_area = |plan: &mut Self| {
            areas_left -= 1;
            target.filter(|_| areas_left == 0).unwrap_or_else(|| plan.area(work))
        };
        let mut area = if work.streams.is_empty() { on_device } else { next_area(self) };
        self.decode_streams(task, status, on_device, area, work, verified);
        let mut level = 0;
        for pass in &work.passes {
            if self.levels.len() == level {
                self.levels.push(Level::default());
            }
            match *pass {
                Pass::Check { checksum, start, end, expected } => {
                    let (expected, is_at) = match expected {
                        Expected::Value(value) => (value.into(), 0),
                        Expected::At(at) => (area + at, 1),
                    };
                    self.levels[level].checks.push(CheckOnDevice {
                        from: area + start,
                        bytes: end - start,
                        expected,
                        status,
                        kind: kind(checksum),
                        is_at,
                    });
                }
                Pass::Unshuffle { bits, start, end, element_bytes, block_bytes } => {
                    let next = next_area(self);
                    let level_list = &mut self.levels[level];
                    let shuffled = ShuffledOnDevice {
                        from: area + start,
                        to: next,
                        bytes: end - start,
                        block_bytes,
                        element_bytes,
                        kind: if bits { 2 } else { 1 },
                        first_tile: level_list.tiles,
                        reserved: 0,
                    };
                    level_list.tiles += shuffled.tiles();
                    level_list.shuffled.push(shuffled);
                    area = next;
                    level += 1;
                }
                Pass::UndoDelta { element_bytes } => self.deltas.push(DeltaOnDevice {
                    address: area + work.elements.start,
                    elements: (work.elements.end - work.elements.start) / u64::from(element_bytes),
                    element_bytes,
                    reserved: 0,
                }),
            }
        }
        area + work.elements.start
    }

    /// Plans the decoding of the streams at `on_device` to `area`.
    fn decode_streams(
        &mut self,
        task: usize,
        status: u64,
        on_device: u64,
        area: u64,
        work: &Work,
        verified: bool,
    ) {
        for stream in &work.streams {
            let (from, from_bytes) = (on_device + stream.from.start, stream.from.end - stream.from.start);
            let (to, to_bytes) = (area + stream.to.start, stream.to.end - stream.to.start);
            let kernel = match &stream.decoder {
                Decoder::Stored => StreamKernel::Stored,
                Decoder::Lz4 => StreamKernel::Lz4,
                Decoder::BloscLz => StreamKernel::BloscLz,
                Decoder::Snappy => StreamKernel::Snappy,
                Decoder::Inflate => StreamKernel::Inflate,
                Decoder::Zstd(blocks) if self.builtin_zstd => {
                    self.builtin_frame([from, to, status], [from_bytes, to_bytes], blocks);
                    continue;
                }
                Decoder::Zstd(blocks) => {
                    let frames = if verified { &mut self.verified_frames } else { &mut self.frames };
                    frames.frames.push(FrameOfTask { task, bytes: to_bytes });
                    frames.encoded.push(from);
                    frames.encoded_bytes.push(from_bytes);
                    frames.decoded.push(to);
                    frames.decoded_bytes.push(to_bytes);
                    if !verified {
                        self.checked.push(CheckedFrame {
                            from,
                            status,
                            to_bytes: to_bytes as u32,
                            first_block: self.blocks.len() as u32,
                            blocks: blocks.len() as u32,
                            padding: 0,
                        });
                        self.blocks.extend(blocks);
                    }
                    continue;
                }
            };
            let (from_bytes, to_bytes) = (from_bytes as u32, to_bytes as u32);
            self.streams[kernel as usize].push(StreamOnDevice { from, to, from_bytes, to_bytes, status });
        }
    }

    /// Adds a frame for our own decoder, by the addresses of its encoded and decoded bytes and its status.
    fn builtin_frame(
        &mut self,
        [from, to, status]: [u64; 3],
        [from_bytes, to_bytes]: [u64; 2],
        blocks: &[Block],
    ) {
        self.place.chunk = self.builtin_frames.len() as u32;
        self.builtin_frames.push(ChunkOfFrames {
            from,
            to,
            status,
            from_bytes: from_bytes as u32,
            to_bytes: to_bytes as u32,
            first_block: self.blocks.len() as u32,
            blocks: blocks.len() as u32,
        });
        for block in blocks {
            self.blocks.push(block.at(self.place));
            self.place = self.place.behind(block);
        }
    }

    /// Puts all arrays of the plan into a work list. `largest_frame`: decoded bytes of the largest zstd frame.
    pub fn put(&mut self, list: &mut WorkList, largest_frame: u64) -> Lists {
        let verified_frames = std::mem::take(&mut self.verified_frames);
        self.frames.append(verified_frames);
        let streams = self.streams.each_ref().map(|streams| list.put_list(streams));
        let frame_count = self.frames.encoded.len();
        let frames = FramesOnDevice {
            first: 0,
            count: frame_count,
            largest: largest_frame,
            encoded: list.put(&self.frames.encoded),
            encoded_bytes: list.put(&self.frames.encoded_bytes),
            decoded: list.put(&self.frames.decoded),
            decoded_bytes: list.put(&self.frames.decoded_bytes),
            actual_bytes: list.put(&vec![0u64; frame_count]),
            statuses: list.put(&vec![0u32; frame_count]),
        };
        let blocks = list.put(&self.blocks);
        let (chunks, count) = list.put_list(&self.builtin_frames);
        let decoded =
            FramesToDecode { chunks, count, blocks, block_count: self.blocks.len(), end: self.place };
        let checked = FramesToCheck {
            frames: list.put(&self.checked),
            count: self.checked.len(),
            blocks,
            block_count: self.blocks.len(),
            // Our own decoder has others, in its scratch memory.
            summaries: match self.checked.len() {
                0 => 0,
                _ => list.put(&vec![[0u8; SUMMARY_BYTES as usize]; self.blocks.len()]),
            },
            encoded: frames.encoded,
            encoded_bytes: frames.encoded_bytes,
            valid: list.put(&VALID_FRAME),
            valid_bytes: VALID_FRAME.len() as u64,
        };
        let levels = self.levels.iter().map(|level| LevelLists {
            checks: list.put_list(&level.checks),
            shuffled: list.put_list(&level.shuffled),
            tiles: level.tiles,
        });
        let levels = levels.collect();
        let deltas = list.put_list(&self.deltas);
        let regions = list.put_list(self.regions.list());
        // Right behind the regions, whose size is a multiple of the arrays' alignment.
        let (conversions, channels) = self.regions.conversions();
        list.put(&conversions);
        list.put(&channels);
        Lists {
            streams,
            frames,
            checked,
            decoded,
            levels,
            deltas,
            regions,
            region_tiles: self.regions.tiles(),
        }
    }

    /// The start of a new area. The elements are aligned if this is the chunk's last area.
    fn area(&mut self, work: &Work) -> u64 {
        let area = self.areas + misalignment(work);
        self.areas += area_bytes(work.bytes);
        area
    }
}

/// The number of a checksum in `checks.cuh`.
fn kind(checksum: Checksum) -> u32 {
    match checksum {
        Checksum::Crc32 => 1,
        Checksum::Adler32 => 2,
        Checksum::Xxh64 => 3,
        Checksum::Crc32c => 4,
        Checksum::Fletcher32 => 5,
    }
}
