//! What a worker thread does with a unit: find its bytes, read them, and on the CPU road decode them.

use super::Queue;
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
}

/// Where encoded bytes are.
type Place = (Arc<dyn Blob>, Range<u64>);

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
    },
}

impl Workers {
    /// Does what a worker does with one unit. `scratch` is the thread's own buffer.
    pub fn process(&self, unit: Unit, scratch: &mut Vec<u8>) {
        if unit.batch.failed() {
            return;
        }
        let done = match &self.target {
            Target::Host => self.assemble(&unit, scratch),
            Target::Lanes { pinned, queue } => match self.fetch(&unit, pinned, scratch) {
                Ok(Some((payload, at, identity))) => {
                    queue.push([Fetched { unit, payload, at, identity }]);
                    return;
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = done {
            unit.batch.fail(error);
        }
    }

    fn array(&self, unit: &Unit) -> &ArrayInfo {
        self.dataset.part(unit.task.array, unit.task.part)
    }

    fn locate(&self, unit: &Unit) -> Result<(Option<Place>, Context)> {
        let task = &unit.task;
        let (located, at) =
            self.locator.locate((task.array, task.part), self.array(unit), &task.read_chunk)?;
        match located {
            Located::At { blob, range } => Ok((Some((blob, range)), at)),
            Located::Missing if self.missing_chunks == MissingChunks::Fill => Ok((None, at)),
            Located::Missing => Err(Error::MissingChunk { at }),
        }
    }

    /// CPU backend: the whole road of a unit.
    fn assemble(&self, unit: &Unit, scratch: &mut Vec<u8>) -> Result<()> {
        let array = self.array(unit);
        let (found, at) = self.locate(unit)?;
        let decoded = match &found {
            Some((blob, range)) => Some(decode(array, &**blob, range, scratch, &at)?),
            None if array.fill_element().is_none() => Some(Cow::Owned(array.filled_chunk())),
            None => None,
        };
        let fill = Source::Fill(array.fill_element().unwrap_or_default());
        let source = decoded.as_deref().map_or(fill, Source::Decoded);
        let conversion = &self.conversions[unit.task.array][unit.task.part];
        let output = unit.batch.outputs[unit.task.output];
        // SAFETY: the outputs of the CPU backend are host memory, lent until the batch is handed over, which waits
        // for this unit; plans give no element to two units.
        unsafe { host::assemble(source, &unit.task.boxes, conversion, output) };
        Ok(())
    }

    /// GPU backend: reads a unit into pinned memory. `None` once the reader stops.
    fn fetch(
        &self,
        unit: &Unit,
        pinned: &Arc<PinnedPool>,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<(Payload, Context, Option<Identity>)>> {
        let array = self.array(unit);
        let (found, at) = self.locate(unit)?;
        let Some((blob, range)) = found else {
            if array.fill_element().is_some() {
                return Ok(Some((Payload::Missing, at, None)));
            }
            return Ok(Payload::decoded(pinned, &array.filled_chunk())?.map(|payload| (payload, at, None)));
        };
        let encoded_bytes = range.end - range.start;

        if let Road::Gpu(chain) = &self.roads[unit.task.array][unit.task.part]
            && encoded_bytes <= chain.encoded_bound()
        {
            let Some(mut buffer) = pinned.take(encoded_bytes as usize)? else { return Ok(None) };
            read(&*blob, &range, buffer.bytes_mut(), &at)?;
            match chain.prepare(buffer.bytes()) {
                Ok(Prepared::Gpu(part, work)) => {
                    let task = &unit.task;
                    // Inner chunks of one file differ by their cells.
                    let identity = (work.zstd_blocks() > 0)
                        .then(|| Identity::new((task.array, task.part), &task.read_chunk, blob.version()));
                    return Ok(Some((Payload::Chunk { buffer, part, work }, at, identity)));
                }
                Ok(Prepared::Cpu(reason)) => {
                    log_once(&format!("{}: decoded on the CPU: {reason}", array.context()))
                }
                Err(problem) => return Err(Error::Damaged { at, problem }),
            }
        }
        let decoded = decode(array, &*blob, &range, scratch, &at)?;
        Ok(Payload::decoded(pinned, &decoded)?.map(|payload| (payload, at, None)))
    }
}

/// Reads and decodes a read chunk on this thread, into native byte order.
fn decode<'a>(
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
    codec::decode_on_cpu(array, Cow::Borrowed(encoded))
        .map_err(|error| Error::Decode { at: at.clone(), source: error.into() })
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
