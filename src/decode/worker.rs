//! What a worker thread does with a chunk: find its bytes, read them, and on the CPU road decode them.

use super::Queue;
use super::chunk::{Chunk, Held};
use super::known::Identity;
use super::lane::{Fetched, Payload};
use crate::assemble::Conversion;
use crate::assemble::host::{self, Source};
use crate::batch::Unit;
use crate::codec::{self, Prepared, Road};
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result, log_once};
use crate::fetch::{Blob, Located, Locator};
use crate::gpu::PinnedPool;
use crate::options::MissingChunks;
use crate::stats::Counters;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// What all workers of a reader share.
pub struct Workers {
    /// What is read.
    pub dataset: Arc<Dataset>,
    /// One per part of each array. On the CPU backend every chain is decoded by zarrs.
    pub roads: Vec<Vec<Road>>,
    /// What happens to elements; one per part of each array.
    pub conversions: Arc<[Vec<Conversion>]>,
    /// Finds chunks.
    pub locator: Locator,
    /// What a missing chunk means.
    pub missing_chunks: MissingChunks,
    /// Where finished work goes.
    pub target: Target,
    /// What is counted.
    pub counters: Arc<Counters>,
}

/// Where encoded bytes are.
type Place = (Arc<dyn Blob>, Range<u64>);

/// A chunk in pinned memory, its place for errors, what it is remembered by, and whether the GPU decodes it.
type Arrived = (Payload, Context, Option<Identity>, bool);

/// Where workers put what they have read.
pub enum Target {
    /// Into the outputs, in host memory.
    Host,
    /// To the lanes of the GPU.
    Lanes {
        /// Memory for chunks on their way.
        pinned: Arc<PinnedPool>,
        /// The lanes' queue.
        queue: Arc<Queue<Fetched>>,
        /// Boxes of a chunk that one group of a lane assembles at most, unless a single unit has more.
        most_boxes: usize,
    },
}

/// What a worker does.
pub enum Job {
    /// Read a chunk, and decode it where that is the CPU's part.
    Read(Arc<Chunk>),
    /// CPU backend: assemble a unit from a chunk that is there.
    Assemble(Arc<Chunk>, Unit),
}

impl Job {
    /// The chunk.
    pub fn chunk(&self) -> &Arc<Chunk> {
        match self {
            Self::Read(chunk) | Self::Assemble(chunk, _) => chunk,
        }
    }
}

impl Workers {
    /// Does one job. `scratch` is the thread's own buffer.
    pub fn process(&self, job: Job, scratch: &mut Vec<u8>) {
        let chunk = match job {
            Job::Assemble(chunk, unit) => return self.assemble_held(&chunk, &unit),
            Job::Read(chunk) => chunk,
        };
        if chunk.is_pointless() {
            return;
        }
        let done = match &self.target {
            Target::Host => self.decode_and_assemble(&chunk, scratch),
            Target::Lanes { pinned, queue, most_boxes } => match self.fetch(&chunk, pinned, scratch) {
                Ok(Some((payload, at, identity, by_gpu))) => {
                    // Those that come later are assembled once the chunk is in its room.
                    let units = chunk.take(*most_boxes);
                    queue.push([Fetched { chunk, units, payload, at, identity, by_gpu }]);
                    return;
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = done {
            chunk.fail(error);
        }
    }

    fn array(&self, chunk: &Chunk) -> &ArrayInfo {
        self.dataset.part(chunk.key.array, chunk.key.part)
    }

    fn locate(&self, chunk: &Chunk) -> Result<(Option<Place>, Context)> {
        let (located, at) = self.locator.locate(chunk.place(), self.array(chunk), &chunk.read_chunk)?;
        match located {
            Located::At { blob, range } => {
                self.counters.chunks_read.add(1);
                self.counters.bytes_read.add(range.end - range.start);
                Ok((Some((blob, range)), at))
            }
            Located::Missing if self.missing_chunks == MissingChunks::Fill => {
                self.counters.chunks_missing.add(1);
                Ok((None, at))
            }
            Located::Missing => Err(Error::MissingChunk { at }),
        }
    }

    /// CPU backend: the whole road of a chunk.
    fn decode_and_assemble(&self, chunk: &Chunk, scratch: &mut Vec<u8>) -> Result<()> {
        let array = self.array(chunk);
        let (found, at) = self.locate(chunk)?;
        let decoded = match &found {
            Some((blob, range)) => Some(self.decode(array, &**blob, range, scratch, &at)?),
            None if array.fill_element().is_none() => Some(Cow::Owned(array.filled_chunk())),
            None => None,
        };
        if chunk.room().is_some() {
            let held = decoded.map_or(Held::Missing, |decoded| Held::Host(decoded.into()));
            for unit in chunk.ready(held) {
                self.assemble_held(chunk, &unit);
            }
        } else {
            // Without a room nobody else was added.
            for unit in chunk.take(usize::MAX) {
                self.assemble(chunk, &unit, decoded.as_deref());
            }
        }
        Ok(())
    }

    fn assemble_held(&self, chunk: &Chunk, unit: &Unit) {
        match chunk.held() {
            Some(Held::Host(decoded)) => self.assemble(chunk, unit, Some(&decoded)),
            Some(Held::Missing) => self.assemble(chunk, unit, None),
            // Only chunks that are ready are assembled, and those of the CPU backend are on the host.
            Some(Held::Device { .. }) | None => {
                let message = "a chunk is not where it should be".into();
                unit.batch.fail(Error::Panic { place: "a worker".into(), message });
            }
        }
    }

    /// CPU backend: puts the elements of a decoded chunk, or its fill value, into an output.
    fn assemble(&self, chunk: &Chunk, unit: &Unit, decoded: Option<&[u8]>) {
        let array = self.array(chunk);
        let fill = Source::Fill(array.fill_element().unwrap_or_default());
        let source = decoded.map_or(fill, Source::Decoded);
        let conversion = &self.conversions[chunk.key.array][chunk.key.part];
        let output = unit.batch.outputs[unit.output];
        // SAFETY: the outputs of the CPU backend are host memory, lent until the batch is handed over, which waits
        // for this unit; plans give no element to two units.
        unsafe { host::assemble(source, &unit.boxes, conversion, output) };
    }

    /// GPU backend: reads a chunk into pinned memory. `None` once the reader stops.
    fn fetch(
        &self,
        chunk: &Chunk,
        pinned: &Arc<PinnedPool>,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Arrived>> {
        let array = self.array(chunk);
        let (found, at) = self.locate(chunk)?;
        let Some((blob, range)) = found else {
            if array.fill_element().is_some() {
                return Ok(Some((Payload::Missing, at, None, false)));
            }
            return Ok(
                Payload::decoded(pinned, &array.filled_chunk())?.map(|payload| (payload, at, None, false))
            );
        };
        let encoded_bytes = range.end - range.start;

        if let Road::Gpu(chain) = &self.roads[chunk.key.array][chunk.key.part]
            && encoded_bytes <= chain.encoded_bound()
        {
            let Some(mut buffer) = pinned.take(encoded_bytes as usize)? else { return Ok(None) };
            read(&*blob, &range, buffer.bytes_mut(), &at)?;
            match chain.prepare(buffer.bytes()) {
                Ok(Prepared::Gpu(part, work)) => {
                    // Inner chunks of one file differ by their cells.
                    let identity = (work.zstd_blocks() > 0)
                        .then(|| Identity::new(chunk.place(), &chunk.read_chunk, blob.version()));
                    return Ok(Some((Payload::Chunk { buffer, part, work }, at, identity, true)));
                }
                Ok(Prepared::Cpu(reason)) => {
                    log_once(&format!("{}: decoded on the CPU: {reason}", array.context()))
                }
                Err(problem) => return Err(Error::Damaged { at, problem }),
            }
        }
        let decoded = self.decode(array, &*blob, &range, scratch, &at)?;
        Ok(Payload::decoded(pinned, &decoded)?.map(|payload| (payload, at, None, false)))
    }

    /// Reads and decodes a read chunk on this thread, into native byte order.
    fn decode<'a>(
        &self,
        array: &ArrayInfo,
        blob: &dyn Blob,
        range: &Range<u64>,
        scratch: &'a mut Vec<u8>,
        at: &Context,
    ) -> Result<Cow<'a, [u8]>> {
        let bytes = (range.end - range.start) as usize;
        if scratch.len() < bytes {
            scratch.resize(bytes, 0);
        }
        let encoded = &mut scratch[..bytes];
        read(blob, range, encoded, at)?;
        if array.codec.is_plain() {
            check_plain_size(bytes as u64, array.read_chunk_bytes(), at)?;
        }
        let decoded = codec::decode_on_cpu(array, Cow::Borrowed(encoded))
            .map_err(|error| Error::Decode { at: at.clone(), source: error.into() })?;
        self.counters.chunks_decoded.add(1);
        self.counters.bytes_decoded.add(decoded.len() as u64);
        Ok(decoded)
    }
}

fn read(blob: &dyn Blob, range: &Range<u64>, into: &mut [u8], at: &Context) -> Result<()> {
    blob.read_at(range.start, into).map_err(|source| Error::Io { at: at.clone(), source })
}

fn check_plain_size(bytes: u64, expected: u64, at: &Context) -> Result<()> {
    if bytes == expected {
        return Ok(());
    }
    let problem = format!("the uncompressed chunk has {bytes} bytes instead of {expected}");
    Err(Error::Damaged { at: at.clone(), problem })
}

/// A piece of pinned memory that holds what a unit needs on the GPU road, at most: for budgets.
pub fn largest_pinned_bytes(array: &ArrayInfo, road: &Road) -> u64 {
    let decoded = array.read_chunk_bytes();
    PinnedPool::padded(match road {
        Road::Gpu(chain) => chain.encoded_bound().max(decoded),
        Road::Cpu(_) => decoded,
    })
}
