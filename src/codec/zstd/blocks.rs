//! What the GPU needs to check the bitstreams of a frame: one descriptor a block, with every header and table description
//! read and checked here, so that the kernels (`src/kernels/zstd_check.cuh`) read nothing but bits.
//!
//! Together they accept what libzstd's decoder accepts, less what the RFC forbids or no encoder makes:
//! - a window of more than 2 GiB; a block that is, holds or regenerates more than Block_Maximum_Size, which a window or
//!   content below 128 KiB lowers;
//! - Huffman codes of 12 bits, FSE tables that list weights above 12, more sequences or literals than their block can
//!   regenerate, no sequences in a long form, no literals in Huffman streams, a fourth stream of none;
//! - Huffman streams whose codes do not end with their bits: libzstd's faster decoders do not look.
//!
//! Source: RFC 8878, section 3.1.1.3 (compressed blocks).
#![forbid(unsafe_code)]

use super::frame::{BlockHeader, BlockKind, Cursor, Header, MAX_BLOCK_BYTES};
use super::tables::{CodeEnds, Counts, HUFFMAN_BITS, Tree, last_bit, read_huffman};

const LITERAL_CODES: usize = 36;
const MATCH_CODES: usize = 53;
const OFFSET_CODES: usize = 32;

const MAX_LITERAL_LOG: u32 = 9;
const MAX_MATCH_LOG: u32 = 9;
const MAX_OFFSET_LOG: u32 = 8;

/// libzstd's `ZSTD_WINDOWLOG_MAX`, and the largest fraction on top.
const MAX_WINDOW_BYTES: u64 = 15 << 28;
/// The fewest bytes that a match copies.
const MIN_MATCH: u64 = 3;

/// One block for the kernels. Field for field the `Block` of `zstd_block.cuh`; offsets count from the frame's first byte.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Block_Maximum_Size: the most bytes that it may regenerate.
    limit: u32,
    /// How many literals it regenerates; of a raw or RLE block, how many bytes.
    literals: u32,
    /// Where the literals, the one that is repeated, or the Huffman streams begin.
    literals_at: u32,
    /// Sizes of the Huffman streams: none, one or four of them.
    stream_bytes: [u32; 4],
    /// How many sequences.
    sequences: u32,
    /// Where their bitstream begins.
    sequences_at: u32,
    /// Size of their bitstream.
    sequence_bytes: u32,
    /// What the frame has to decode to, if it says so; of its first block.
    content_bytes: u32,
    /// Where in a launch it is.
    place: Place,
    first_of_frame: u8,
    literal_kind: u8,
    huffman_log: u8,
    last_symbol: u8,
    literal_log: u8,
    match_log: u8,
    offset_log: u8,
    padding: u8,
    /// The FSE tables, if there are sequences; a table of one code, given as such, has log 0.
    literal_counts: [i16; LITERAL_CODES],
    match_counts: [i16; MATCH_CODES],
    offset_counts: [i16; OFFSET_CODES],
    /// The weights of the Huffman tree, if there are streams.
    weights: [u8; 128],
    /// The ends of its codes.
    code_ends: CodeEnds,
    padding_at_end: [u8; 2],
}

const _: () = assert!(size_of::<Block>() == 464 && align_of::<Block>() == 16 && HUFFMAN_BITS == 11);

/// Where a block is among the chunks of a launch, and where its parts of the scratch memory begin, in units of 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of its chunk.
    pub chunk: u32,
    /// Of its decoded literals.
    pub literals: u32,
    /// Of its sequences.
    pub records: u32,
    /// Of the places of its sequences.
    pub groups: u32,
}

impl Place {
    /// The place behind a block that is here.
    pub fn behind(self, block: &Block) -> Self {
        let literals = if block.literal_kind == HUFFMAN_LITERALS { block.literals.div_ceil(16) } else { 0 };
        Self {
            literals: self.literals + literals,
            records: self.records + block.sequences.next_multiple_of(4) / 2,
            groups: self.groups + block.sequences.div_ceil(SEQUENCES_OF_GROUP).div_ceil(2),
            ..self
        }
    }

    /// Bytes of the three parts of scratch memory up to here.
    pub fn scratch_bytes(self) -> [u64; 3] {
        [self.literals, self.records, self.groups].map(|units| u64::from(units) * 16)
    }
}

/// `kGroup` of `zstd_block.cuh`.
const SEQUENCES_OF_GROUP: u32 = 32;
/// `LiteralKind` of `zstd_block.cuh`.
const RAW_LITERALS: u8 = 0;
const RLE_LITERALS: u8 = 1;
const HUFFMAN_LITERALS: u8 = 2;
/// `kNotDeclared` of `zstd_block.cuh`.
const NOT_DECLARED: u32 = u32::MAX;

/// One frame for the kernels. Field for field the `Frame` of `zstd_check.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CheckedFrame {
    /// Address of the frame on the device, of any alignment.
    pub from: u64,
    /// Address of a `uint32_t` that receives a `StreamError`; it is not written if all is well.
    pub status: u64,
    /// What the frame has to decode to, at most [`super::MAX_GPU_CHUNK_BYTES`].
    pub to_bytes: u32,
    /// Number of its first block among all blocks of the launch; ascending from frame to frame.
    pub first_block: u32,
    /// How many blocks it has.
    pub blocks: u32,
    /// Zero.
    pub padding: u32,
}

const _: () = assert!(size_of::<CheckedFrame>() == 32 && align_of::<CheckedFrame>() == 8);

/// Device memory that the kernels need for each block between them, aligned to 4 bytes.
pub const SUMMARY_BYTES: u64 = 48;

/// A frame of one empty block, for nvCOMP to decode in place of an invalid one.
pub const VALID_FRAME: [u8; 9] = [0x28, 0xB5, 0x2F, 0xFD, 0x20, 0x00, 0x01, 0x00, 0x00];

/// Describes the blocks of a frame that [`super::check`] gives to the GPU, and that has to decode to `expected` bytes.
///
/// # Errors
/// What cannot be right about it, in words, or what makes it unlike any encoder's frame (see the module's source): zstd's own
/// decoder has the last word.
pub fn blocks(encoded: &[u8], expected: u64) -> Result<Vec<Block>, String> {
    if u32::try_from(encoded.len()).is_err() {
        return Err(format!("a zstd frame of {} bytes is too large for the GPU", encoded.len()));
    }
    let mut cursor = Cursor { bytes: encoded, at: 0 };
    let header = Header::read(&mut cursor)?;
    if header.window_bytes > MAX_WINDOW_BYTES {
        return Err(format!("the zstd frame asks for a window of {} bytes", header.window_bytes));
    }
    let limit = header.window_bytes.min(MAX_BLOCK_BYTES) as u32;
    let (mut blocks, mut tables, mut least) = (Vec::new(), Tables::default(), 0);
    loop {
        let header = BlockHeader::read(&mut cursor)?;
        let at = cursor.at;
        cursor.skip(header.encoded_bytes())?;
        let mut block = match header.kind {
            _ if header.size > u64::from(limit) => Err("is larger than the window allows"),
            BlockKind::Raw => Ok(Block::new(limit, header.size as u32, RAW_LITERALS, at)),
            BlockKind::Rle => Ok(Block::new(limit, header.size as u32, RLE_LITERALS, at)),
            BlockKind::Compressed => tables.read_block(&encoded[..cursor.at], at, limit),
        }
        .map_err(|problem| format!("block {} of the zstd frame {problem}", blocks.len()))?;
        least += block.least_bytes();
        // The size that the frame declares is `expected`, which `check` has seen.
        block.first_of_frame = blocks.is_empty().into();
        block.content_bytes = NOT_DECLARED;
        blocks.push(block);
        if header.last {
            break;
        }
    }
    if least > expected {
        return Err(format!(
            "the blocks of the zstd frame hold at least {least} bytes, but the chunk has {expected}"
        ));
    }
    Ok(blocks)
}

impl Block {
    fn new(limit: u32, literals: u32, literal_kind: u8, at: usize) -> Self {
        Self {
            limit,
            literals,
            literals_at: at as u32,
            stream_bytes: [0; 4],
            sequences: 0,
            sequences_at: 0,
            sequence_bytes: 0,
            content_bytes: NOT_DECLARED,
            place: Place::default(),
            first_of_frame: 0,
            literal_kind,
            huffman_log: 0,
            last_symbol: 0,
            literal_log: 0,
            match_log: 0,
            offset_log: 0,
            padding: 0,
            literal_counts: [0; LITERAL_CODES],
            match_counts: [0; MATCH_CODES],
            offset_counts: [0; OFFSET_CODES],
            weights: [0; 128],
            code_ends: [0; HUFFMAN_BITS + 1],
            padding_at_end: [0; 2],
        }
    }

    /// The block at a place of a launch.
    pub fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    fn least_bytes(&self) -> u64 {
        u64::from(self.literals) + MIN_MATCH * u64::from(self.sequences)
    }
}

/// What a block may take over from the ones before.
#[derive(Default)]
struct Tables {
    huffman: Option<Tree>,
    literals: Option<Counts<LITERAL_CODES>>,
    matches: Option<Counts<MATCH_CODES>>,
    offsets: Option<Counts<OFFSET_CODES>>,
}

impl Tables {
    /// Reads the compressed block that begins at `at` and ends with `bytes`.
    fn read_block(&mut self, bytes: &[u8], at: usize, limit: u32) -> Result<Block, &'static str> {
        let mut rest = Rest { bytes, at };
        let mut block = self.read_literals(&mut rest, limit)?;
        self.read_sequences(&mut rest, &mut block)?;
        if block.least_bytes() > u64::from(limit) {
            return Err("has more sequences than it can regenerate");
        }
        Ok(block)
    }

    fn read_literals(&mut self, rest: &mut Rest, limit: u32) -> Result<Block, &'static str> {
        let first = rest.peek()?;
        let (kind, format) = (first & 3, first >> 2 & 3);
        // Raw or RLE: a size of 5, 12 or 20 bits. Huffman: two sizes of 10, 14 or 18 bits.
        let (header_bytes, shift, size_bits) = match (kind < 2, format) {
            (true, 0 | 2) => (1, 3, 5),
            (true, 1) => (2, 4, 12),
            (true, _) => (3, 4, 20),
            (false, 0 | 1) => (3, 4, 10),
            (false, 2) => (4, 4, 14),
            (false, _) => (5, 4, 18),
        };
        let header = rest.number(header_bytes)? >> shift;
        let literals = (header & ((1 << size_bits) - 1)) as u32;
        if literals > limit {
            return Err("has more literals than it can regenerate");
        }
        let literal_kind = [RAW_LITERALS, RLE_LITERALS, HUFFMAN_LITERALS, HUFFMAN_LITERALS][kind as usize];
        let mut block = Block::new(limit, literals, literal_kind, rest.at);
        if kind < 2 {
            rest.take(if kind == 0 { literals as usize } else { 1 })?;
            return Ok(block);
        }

        let mut coded = rest.part((header >> size_bits) as usize)?;
        if kind == 2 {
            let (tree, size) = read_huffman(coded.remaining())?;
            coded.take(size)?;
            self.huffman = Some(tree);
        }
        let tree = self.huffman.ok_or("takes over a Huffman tree that is not there")?;
        (block.code_ends, block.weights) = (tree.ends, tree.weights);
        (block.huffman_log, block.last_symbol) = (tree.bits, tree.last_symbol);
        let sizes = if format == 0 { [usize::MAX; 4] } else { coded.jump_table()? };
        block.literals_at = coded.at as u32;
        let last_literals = i64::from(literals) - 3 * i64::from(literals.div_ceil(4));
        let (streams, last_literals) =
            if format == 0 { (1, i64::from(literals)) } else { (4, last_literals) };
        if last_literals <= 0 {
            return Err("has fewer literals than its Huffman streams need");
        }
        for (index, size) in sizes.into_iter().take(streams).enumerate() {
            let size = if index + 1 == streams { coded.remaining().len() } else { size };
            let stream = coded.take(size)?;
            last_bit(stream).ok_or("has a Huffman stream that does not end with a mark")?;
            block.stream_bytes[index] = stream.len() as u32;
        }
        Ok(block)
    }

    fn read_sequences(&mut self, rest: &mut Rest, block: &mut Block) -> Result<(), &'static str> {
        block.sequences = match rest.number(1)? as u32 {
            0 => return if rest.remaining().is_empty() { Ok(()) } else { Err("goes on after its end") },
            255 => rest.number(2)? as u32 + 0x7F00,
            high @ 128.. => (high - 128) << 8 | rest.number(1)? as u32,
            count => count,
        };
        if block.sequences == 0 {
            return Err("has no sequences, but says so at length");
        }
        let modes = rest.number(1)?;
        if modes & 3 != 0 {
            return Err("uses reserved bits");
        }
        let literals = read_table(rest, modes >> 6, MAX_LITERAL_LOG, &LITERALS, &mut self.literals)?;
        let offsets = read_table(rest, modes >> 4 & 3, MAX_OFFSET_LOG, &OFFSETS, &mut self.offsets)?;
        let matches = read_table(rest, modes >> 2 & 3, MAX_MATCH_LOG, &MATCHES, &mut self.matches)?;
        (block.literal_counts, block.literal_log) = (literals.counts, literals.log);
        (block.offset_counts, block.offset_log) = (offsets.counts, offsets.log);
        (block.match_counts, block.match_log) = (matches.counts, matches.log);
        block.sequences_at = rest.at as u32;
        block.sequence_bytes = rest.remaining().len() as u32;
        last_bit(rest.remaining()).ok_or("has sequences that do not end with a mark")?;
        Ok(())
    }
}

/// Reads one of the three tables of a block's sequences, by its compression mode.
fn read_table<const CODES: usize>(
    rest: &mut Rest,
    mode: u64,
    max_log: u32,
    predefined: &Counts<CODES>,
    last: &mut Option<Counts<CODES>>,
) -> Result<Counts<CODES>, &'static str> {
    let table = match mode {
        0 => *predefined,
        1 => Counts::single(rest.number(1)? as u8).ok_or("repeats a code that there is not")?,
        2 => {
            let (table, size) = Counts::read(rest.remaining(), max_log)?;
            rest.take(size)?;
            table
        }
        _ => last.ok_or("takes over an FSE table that is not there")?,
    };
    *last = Some(table);
    Ok(table)
}

/// The bytes of a block from `at` on.
struct Rest<'a> {
    bytes: &'a [u8],
    at: usize,
}

const BLOCK_ENDS: &str = "is shorter than what it holds";

impl<'a> Rest<'a> {
    fn remaining(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn peek(&self) -> Result<u8, &'static str> {
        self.remaining().first().copied().ok_or(BLOCK_ENDS)
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], &'static str> {
        let taken = self.remaining().get(..size).ok_or(BLOCK_ENDS)?;
        self.at += size;
        Ok(taken)
    }

    /// The next little-endian number of up to 8 bytes.
    fn number(&mut self, size: usize) -> Result<u64, &'static str> {
        Ok(self.take(size)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// The next `size` bytes by themselves.
    fn part(&mut self, size: usize) -> Result<Self, &'static str> {
        let at = self.at;
        self.take(size)?;
        Ok(Self { bytes: &self.bytes[..self.at], at })
    }

    /// Sizes of the first three of four streams; the fourth takes the rest.
    fn jump_table(&mut self) -> Result<[usize; 4], &'static str> {
        let mut sizes = [0; 4];
        for size in &mut sizes[..3] {
            *size = self.number(2)? as usize;
        }
        Ok(sizes)
    }
}

/// The default distributions. RFC 8878, section 3.1.1.3.2.2.
const LITERALS: Counts<LITERAL_CODES> = Counts {
    log: 6,
    counts: [
        4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1,
        -1, -1, -1,
    ],
};
const MATCHES: Counts<MATCH_CODES> = Counts {
    log: 6,
    counts: [
        1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
    ],
};
const OFFSETS: Counts<OFFSET_CODES> = Counts {
    log: 5,
    counts: [
        1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, 0, 0, 0,
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The rarest codes have less than one of the states, which are as many as the table has; no code has none before them.
    fn is_distribution<const CODES: usize>(table: &Counts<CODES>, unused: usize, rare: usize) -> bool {
        let states: u32 = table.counts.iter().map(|count| u32::from(count.unsigned_abs())).sum();
        let (usual, rest) = table.counts.split_at(CODES - unused - rare);
        let usual = usual.iter().all(|&count| count > 0);
        let rare =
            rest[..rare].iter().all(|&count| count == -1) && rest[rare..].iter().all(|&count| count == 0);
        states == 1 << table.log && usual && rare
    }

    #[test]
    fn the_default_distributions_are_complete_and_end_with_rare_codes() {
        assert!(is_distribution(&LITERALS, 0, 4));
        assert!(is_distribution(&MATCHES, 0, 7));
        assert!(is_distribution(&OFFSETS, 3, 5));
    }
}
