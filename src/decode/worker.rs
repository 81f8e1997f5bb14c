//! What a worker thread does with a unit: find its bytes, read them, and on the CPU road decode them.

use super::Queue;
use super::lane::{Fetched, Payload};
use crate::assemble::host::{self, Source};
use crate::batch::Unit;
use crate::codec::{self, Compression, GpuChain, Road, zstd};
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result};
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
    /// One per array. On the CPU backend every chain is decoded by zarrs.
    pub roads: Vec<Road>,
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
                Ok(Some((payload, at))) => {
                    queue.push([Fetched { unit, payload, at }]);
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
        &self.dataset.arrays[unit.task.array]
    }

    fn locate(&self, unit: &Unit) -> Result<(Option<Place>, Context)> {
        let (located, at) = self.locator.locate(unit.task.array, self.array(unit), &unit.task.read_chunk)?;
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
            None => None,
        };
        let source = decoded.as_deref().map_or(Source::Fill(&array.fill_value), Source::Decoded);
        let output = unit.batch.outputs[unit.task.array];
        // SAFETY: the outputs of the CPU backend are host memory, lent until the batch is handed over, which waits
        // for this unit; plans give no element to two units.
        unsafe { host::assemble(source, &unit.task.boxes, array.element.size_bytes(), output) };
        Ok(())
    }

    /// GPU backend: reads a unit into pinned memory. `None` once the reader stops.
    fn fetch(
        &self,
        unit: &Unit,
        pinned: &Arc<PinnedPool>,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<(Payload, Context)>> {
        let array = self.array(unit);
        let (found, at) = self.locate(unit)?;
        let Some((blob, range)) = found else { return Ok(Some((Payload::Missing, at))) };
        let expected = array.read_chunk_bytes();
        let encoded_bytes = range.end - range.start;
        let take = |bytes: u64| pinned.take(bytes as usize);

        if let Road::Gpu(GpuChain { compression, swaps_bytes }) = self.roads[unit.task.array] {
            match compression {
                Compression::None => {
                    check_plain_size(encoded_bytes, expected, &at)?;
                    let Some(mut buffer) = take(encoded_bytes)? else { return Ok(None) };
                    read(&*blob, &range, buffer.bytes_mut(), &at)?;
                    return Ok(Some((Payload::Plain { buffer, swaps_bytes }, at)));
                }
                Compression::Zstd if encoded_bytes <= zstd::encoded_bound(expected) => {
                    let Some(mut buffer) = take(encoded_bytes)? else { return Ok(None) };
                    read(&*blob, &range, buffer.bytes_mut(), &at)?;
                    let verdict = zstd::check(buffer.bytes(), expected)
                        .map_err(|problem| Error::Damaged { at: at.clone(), problem })?;
                    if verdict == (zstd::Verdict::Gpu { checksum: None }) {
                        return Ok(Some((Payload::Zstd { buffer, swaps_bytes }, at)));
                    }
                }
                // Longer than zstd makes it: zstd's own decoder says what it is.
                Compression::Zstd => {}
            }
        }
        let decoded = decode(array, &*blob, &range, scratch, &at)?;
        let Some(mut buffer) = take(expected)? else { return Ok(None) };
        buffer.bytes_mut().copy_from_slice(&decoded);
        Ok(Some((Payload::Plain { buffer, swaps_bytes: false }, at)))
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
pub fn largest_pinned_bytes(array: &ArrayInfo) -> u64 {
    PinnedPool::padded(zstd::encoded_bound(array.read_chunk_bytes()))
}
