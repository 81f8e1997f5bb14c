//! The headers of a Zstandard frame and of its blocks. Pure.
//!
//! Source: RFC 8878, sections 3.1.1.1 (frame header) and 3.1.1.2 (block headers).
#![forbid(unsafe_code)]

pub(in crate::codec) const MAGIC: u32 = 0xFD2F_B528;
/// Block_Maximum_Size: no block regenerates more, whatever the window.
pub(super) const MAX_BLOCK_BYTES: u64 = 128 << 10;

/// What the headers of a frame say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Size of the decoded content, if the frame declares it.
    pub content_bytes: Option<u64>,
    /// The frame needs a dictionary.
    pub needs_dictionary: bool,
    /// The checksum that follows the content: the low 32 bits of its XXH64, seed 0.
    pub checksum: Option<u32>,
    /// Encoded size of the frame, from the first byte of the magic number.
    pub frame_bytes: u64,
    /// The least and the most that the blocks can regenerate.
    pub regenerates: (u64, u64),
}

/// Size of the skippable frame at the start, if there is one.
pub(super) fn skippable_bytes(encoded: &[u8]) -> Option<u64> {
    let header = encoded.first_chunk::<8>()?;
    let [kind, 0x2A, 0x4D, 0x18, size @ ..] = *header else { return None };
    (kind & 0xF0 == 0x50).then(|| 8 + u64::from(u32::from_le_bytes(size)))
}

impl Frame {
    /// Reads the frame header and every block header.
    ///
    /// # Errors
    /// Where the bytes stop being a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let frame = Self::parse_most(bytes, u64::MAX)?;
        frame.ok_or_else(|| "the zstd frame has more blocks than bytes".into())
    }

    /// As [`Frame::parse`], or `None` if the frame has more than `most_blocks` blocks: then it has read the header of the first one too many, and nothing behind it.
    ///
    /// # Errors
    /// As [`Frame::parse`].
    pub fn parse_most(bytes: &[u8], most_blocks: u64) -> Result<Option<Self>, String> {
        let mut cursor = Cursor { bytes, at: 0 };
        let header = Header::read(&mut cursor)?;
        let (mut least, mut most, mut blocks) = (0, 0, 0);
        loop {
            let block = BlockHeader::read(&mut cursor)?;
            blocks += 1;
            if blocks > most_blocks {
                return Ok(None);
            }
            let (low, high) = match block.kind {
                BlockKind::Raw | BlockKind::Rle => (block.size, block.size),
                BlockKind::Compressed => (0, MAX_BLOCK_BYTES),
            };
            (least, most) = (least + low, most + high);
            cursor.skip(block.encoded_bytes())?;
            if block.last {
                break;
            }
        }
        let checksum = if header.has_checksum { Some(cursor.number(4)? as u32) } else { None };
        Ok(Some(Self {
            content_bytes: header.content_bytes,
            needs_dictionary: header.needs_dictionary,
            checksum,
            frame_bytes: cursor.at as u64,
            regenerates: (least, most),
        }))
    }
}

/// The header of a frame.
pub(super) struct Header {
    content_bytes: Option<u64>,
    needs_dictionary: bool,
    has_checksum: bool,
    /// Size of the window; of a frame in a single segment, the size of its content.
    pub(super) window_bytes: u64,
}

impl Header {
    pub(super) fn read(cursor: &mut Cursor) -> Result<Self, String> {
        if cursor.number(4)? != u64::from(MAGIC) {
            return Err("it does not start with a zstd frame".into());
        }
        let descriptor = cursor.number(1)?;
        if descriptor & 0x08 != 0 {
            return Err("the zstd frame header uses a reserved bit".into());
        }
        let single_segment = descriptor & 0x20 != 0;
        let window = if single_segment { None } else { Some(cursor.number(1)?) };
        let dictionary = cursor.number([0, 1, 2, 4][(descriptor & 3) as usize])?;
        let content_bytes = match descriptor >> 6 {
            0 if single_segment => Some(cursor.number(1)?),
            0 => None,
            1 => Some(cursor.number(2)? + 256),
            2 => Some(cursor.number(4)?),
            _ => Some(cursor.number(8)?),
        };
        let window_bytes = match window {
            Some(window) => (8 + (window & 7)) << (7 + (window >> 3)),
            None => content_bytes.unwrap_or(0),
        };
        Ok(Self {
            content_bytes,
            needs_dictionary: dictionary != 0,
            has_checksum: descriptor & 0x04 != 0,
            window_bytes,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Raw,
    Rle,
    Compressed,
}

/// The header of a block.
pub(super) struct BlockHeader {
    pub(super) last: bool,
    pub(super) kind: BlockKind,
    /// Encoded bytes; of an RLE block, regenerated ones.
    pub(super) size: u64,
}

impl BlockHeader {
    pub(super) fn read(cursor: &mut Cursor) -> Result<Self, String> {
        let header = cursor.number(3)?;
        let size = header >> 3;
        if size > MAX_BLOCK_BYTES {
            return Err(format!("a zstd block of {size} bytes is larger than blocks can be"));
        }
        let kind = match header >> 1 & 3 {
            0 => BlockKind::Raw,
            1 => BlockKind::Rle,
            2 => BlockKind::Compressed,
            _ => return Err("a zstd block has the reserved type".into()),
        };
        Ok(Self { last: header & 1 != 0, kind, size })
    }

    /// Size of what follows the header.
    pub(super) fn encoded_bytes(&self) -> u64 {
        if self.kind == BlockKind::Rle { 1 } else { self.size }
    }
}

/// A place in a frame.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl Cursor<'_> {
    /// The next little-endian number of up to 8 bytes.
    pub(super) fn number(&mut self, size: usize) -> Result<u64, String> {
        let start = self.at;
        self.skip(size as u64)?;
        Ok(self.bytes[start..self.at].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    pub(super) fn skip(&mut self, size: u64) -> Result<(), String> {
        if size > (self.bytes.len() - self.at) as u64 {
            return Err(format!(
                "the zstd frame ends after {} bytes, in the middle of a block or header",
                self.bytes.len()
            ));
        }
        self.at += size as usize;
        Ok(())
    }
}
