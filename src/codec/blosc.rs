//! Blosc: a container of blocks, each of one or several streams of another codec, with shuffled elements.
//!
//! What counts is each chunk's own header, not the array's metadata: it says which codec and which shuffle were used.
//! The host reads the header and the offsets; the streams are decoded where their codec is decoded on the GPU.
//!
//! Source: c-blosc 1.21, README_CHUNK_FORMAT.rst and `blosc_d` of blosc.c.
#![forbid(unsafe_code)]

use super::work::{Decoder, Pass, Stream, Verdict, Work};
use super::zlib;

use std::ops::{Range, RangeInclusive};

const HEADER_BYTES: u64 = 16;
/// The version of the format that c-blosc 1 reads and writes.
const FORMAT: u8 = 2;
const BYTE_SHUFFLED: u8 = 0x01;
const COPIED: u8 = 0x02;
const BIT_SHUFFLED: u8 = 0x04;
const RESERVED: u8 = 0x08;
const NOT_SPLIT: u8 = 0x10;
/// A block is split into one stream for each byte of an element if elements have at most this many bytes ...
const MAX_SPLITS: u64 = 16;
/// ... and each stream decodes to at least this many.
const LEAST_SPLIT_BYTES: u64 = 128;

/// The most bytes that Blosc makes of `decoded` bytes.
pub fn encoded_bound(decoded: u64) -> u64 {
    decoded + HEADER_BYTES
}

/// More streams than this are left to the CPU, which is as fast with blocks that small. As in `headers.cuh`.
pub fn max_gpu_streams(decoded: u64) -> u64 {
    64 + decoded / 512
}

/// The 16 bytes at the start.
struct Header {
    version: u8,
    codec_version: u8,
    flags: u8,
    element_bytes: u64,
    decoded_bytes: u64,
    block_bytes: u64,
    encoded_bytes: u64,
}

impl Header {
    fn parse(encoded: &[u8]) -> Result<Self, String> {
        let Some(header) = encoded.first_chunk::<16>() else {
            return Err(format!("{} bytes are too few for a Blosc header", encoded.len()));
        };
        let [version, codec_version, flags, element_bytes, ..] = *header;
        let word = |at: usize| {
            u64::from(u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]))
        };
        Ok(Self {
            version,
            codec_version,
            flags,
            element_bytes: element_bytes.into(),
            decoded_bytes: word(4),
            block_bytes: word(8),
            encoded_bytes: word(12),
        })
    }

    fn check(&self, encoded: u64, decoded: u64) -> Result<(), String> {
        if self.version != FORMAT || self.flags & RESERVED != 0 {
            return Err(format!("the Blosc header is of format {}, not {FORMAT}", self.version));
        }
        if self.decoded_bytes != decoded {
            return Err(format!(
                "the Blosc header declares {} bytes of content, but the chunk has {decoded}",
                self.decoded_bytes
            ));
        }
        if self.encoded_bytes != encoded {
            return Err(format!(
                "the Blosc header declares {} encoded bytes, but there are {encoded}",
                self.encoded_bytes
            ));
        }
        if self.element_bytes == 0 || self.block_bytes == 0 || self.block_bytes > self.decoded_bytes {
            return Err(format!(
                "the Blosc header declares blocks of {} bytes with elements of {}",
                self.block_bytes, self.element_bytes
            ));
        }
        Ok(())
    }
}

/// Checks what the header declares against what there is, before a decoder that allocates it sees it.
///
/// # Errors
/// What cannot be right about it, in words.
pub fn check_size(encoded: &[u8], decoded: RangeInclusive<u64>) -> Result<(), String> {
    let header = Header::parse(encoded)?;
    let declared = header.decoded_bytes;
    header.check(encoded.len() as u64, if decoded.contains(&declared) { declared } else { *decoded.end() })
}

/// Adds the streams and the unshuffling of a chunk that has to decode to `decoded` bytes.
///
/// # Errors
/// What cannot be right about it, in words.
pub fn work(encoded: &[u8], decoded: u64, work: &mut Work) -> Result<Verdict, String> {
    let header = Header::parse(encoded)?;
    header.check(encoded.len() as u64, decoded)?;
    if header.flags & COPIED != 0 {
        if encoded.len() as u64 != HEADER_BYTES + decoded {
            return Err(format!(
                "the Blosc header declares stored content, but {decoded} bytes do not make {}",
                encoded.len()
            ));
        }
        work.streams.push(Stream {
            decoder: Decoder::Stored,
            from: HEADER_BYTES..HEADER_BYTES + decoded,
            to: 0..decoded,
        });
        return Ok(Verdict::Gpu);
    }
    if header.codec_version != 1 {
        return Err(format!("the codec inside Blosc is of version {}, not 1", header.codec_version));
    }
    let verdict = blocks(encoded, &header, work)?;
    let bits = header.flags & BIT_SHUFFLED != 0;
    let bytes = header.flags & BYTE_SHUFFLED != 0 && header.element_bytes > 1;
    if bytes || bits {
        work.passes.push(Pass::Unshuffle {
            bits: !bytes,
            start: 0,
            end: decoded,
            element_bytes: header.element_bytes as u32,
            block_bytes: header.block_bytes as u32,
        });
    }
    Ok(verdict)
}

/// How the content of a container is divided.
pub(super) struct Layout {
    decoded_bytes: u64,
    block_bytes: u64,
    /// How many streams a whole block has.
    splits: u64,
}

/// Why the GPU does not decode a container.
enum Refused {
    /// It is damaged, as these words say.
    Damaged(String),
    /// The CPU has to, for this reason.
    Unusual(&'static str),
}

/// The streams of a block.
pub(super) struct BlockStreams {
    /// How many.
    pub count: u64,
    /// What each decodes to.
    pub bytes: u64,
    /// Where the block begins in the content.
    start: u64,
}

impl Layout {
    /// That of a container of `encoded` bytes whose first bytes are `start`. `None`: it is not divided, or is none that the GPU decodes to
    /// `decoded` bytes.
    pub(super) fn of(start: &[u8], encoded: u64, decoded: u64) -> Option<Self> {
        let header = Header::parse(start).ok()?;
        header.check(encoded, decoded).ok()?;
        if header.flags & COPIED != 0 {
            return None;
        }
        Self::new(&header, encoded).ok()
    }

    /// That of a container with this header.
    fn new(header: &Header, encoded: u64) -> Result<Self, Refused> {
        let split = header.flags & NOT_SPLIT == 0
            && header.element_bytes <= MAX_SPLITS
            && header.block_bytes / header.element_bytes >= LEAST_SPLIT_BYTES;
        let splits = if split { header.element_bytes } else { 1 };
        let layout = Self { decoded_bytes: header.decoded_bytes, block_bytes: header.block_bytes, splits };
        if layout.table().end > encoded {
            let count = layout.blocks();
            return Err(Refused::Damaged(format!(
                "the Blosc container ends inside its table of {count} blocks"
            )));
        }
        if !header.block_bytes.is_multiple_of(splits) {
            Err(Refused::Unusual("its Blosc blocks do not hold whole elements"))
        } else if layout.blocks() * splits > max_gpu_streams(header.decoded_bytes) {
            Err(Refused::Unusual("its Blosc blocks are very small"))
        } else {
            Ok(layout)
        }
    }

    fn blocks(&self) -> u64 {
        self.decoded_bytes.div_ceil(self.block_bytes)
    }

    /// Where in the container the table is of where blocks begin, four bytes each.
    pub(super) fn table(&self) -> Range<u64> {
        HEADER_BYTES..HEADER_BYTES + self.blocks() * 4
    }

    /// The streams of block `number`.
    pub(super) fn block(&self, number: u64) -> BlockStreams {
        let start = number * self.block_bytes;
        let bytes = self.block_bytes.min(self.decoded_bytes - start);
        // A block that is cut short by the end of the content is never split.
        let count = if bytes < self.block_bytes { 1 } else { self.splits };
        BlockStreams { count, bytes: bytes / count, start }
    }
}

fn blocks(encoded: &[u8], header: &Header, work: &mut Work) -> Result<Verdict, String> {
    let layout = match Layout::new(header, encoded.len() as u64) {
        Ok(layout) => layout,
        Err(Refused::Damaged(problem)) => return Err(problem),
        Err(Refused::Unusual(reason)) => return Ok(Verdict::Cpu(reason)),
    };
    for number in 0..layout.blocks() {
        let BlockStreams { count, bytes, start } = layout.block(number);
        let mut at = word(encoded, HEADER_BYTES + number * 4)
            .filter(|&at| at >= layout.table().end)
            .ok_or_else(|| format!("Blosc block {number} does not start behind the table of blocks"))?;
        for part in 0..count {
            let size = word(encoded, at)
                .ok_or_else(|| format!("Blosc block {number} starts past the end of the container"))?;
            let from = at + 4..at + 4 + size;
            let content = encoded
                .get(from.start as usize..from.end as usize)
                .ok_or_else(|| format!("Blosc block {number} ends past the end of the container"))?;
            at = from.end;
            let to = start + part * bytes..start + (part + 1) * bytes;
            if size == bytes {
                work.streams.push(Stream { decoder: Decoder::Stored, from, to });
                continue;
            }
            match stream(header.flags >> 5, content, from.start, to, work)
                .map_err(|problem| format!("Blosc block {number}: {problem}"))?
            {
                Verdict::Gpu => {}
                cpu => return Ok(cpu),
            }
        }
    }
    Ok(Verdict::Gpu)
}

/// Adds one stream. `offset` is where `content` starts in the chunk.
fn stream(
    codec: u8,
    content: &[u8],
    offset: u64,
    to: Range<u64>,
    work: &mut Work,
) -> Result<Verdict, String> {
    let bytes = to.end - to.start;
    let from = offset..offset + content.len() as u64;
    let decoder = match codec {
        0 => Decoder::BloscLz,
        1 => Decoder::Lz4,
        2 => Decoder::Snappy,
        3 => {
            let (deflated, check) = zlib::parse(content)?;
            let from = offset + deflated.start as u64..offset + deflated.end as u64;
            work.passes.push(check.over(to.start..to.end));
            work.streams.push(Stream { decoder: Decoder::Inflate, from, to });
            return Ok(Verdict::Gpu);
        }
        4 => return work.add_zstd_frame(content, offset, to),
        other => return Err(format!("codec number {other} is unknown")),
    };
    if bytes > 0 && content.is_empty() {
        return Err("a stream is empty".into());
    }
    work.streams.push(Stream { decoder, from, to });
    Ok(Verdict::Gpu)
}

fn word(encoded: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    Some(u64::from(u32::from_le_bytes(*encoded.get(at..)?.first_chunk::<4>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_streams_of_a_chunk_are_known_by_its_size() {
        assert_eq!([0, 511, 512, 1 << 20].map(max_gpu_streams), [64, 64, 65, 2112]);
    }
}
