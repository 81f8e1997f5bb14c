//! Descriptions of zstd's entropy tables: read and checked, so that the kernels build tables from them without checks.
//!
//! Source: RFC 8878, sections 4.1.1 (FSE tables) and 4.2.1 (Huffman trees).
#![forbid(unsafe_code)]

/// Huffman codes are not longer. libzstd's decoder takes 12 bits, which the RFC does not allow and no encoder makes.
pub(super) const HUFFMAN_BITS: usize = 11;

/// Weights of Huffman codes are described by an FSE table of at most 64 states.
const MAX_WEIGHT_LOG: u32 = 6;
/// Symbols besides the last one, whose weight follows from the others.
const MAX_WEIGHTS: usize = 255;

/// An FSE table: how many of its `1 << log` states each code has; -1 stands for one state at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts<const CODES: usize> {
    pub(super) counts: [i16; CODES],
    pub(super) log: u8,
}

impl<const CODES: usize> Counts<CODES> {
    /// A table with one state.
    pub(super) fn single(code: u8) -> Option<Self> {
        let mut counts = [0; CODES];
        *counts.get_mut(usize::from(code))? = 1;
        Some(Self { counts, log: 0 })
    }

    /// Reads a table description; also returns its size.
    pub(super) fn read(bytes: &[u8], max_log: u32) -> Result<(Self, usize), &'static str> {
        let log = u32::from(*bytes.first().ok_or(TABLE_ENDS)? & 15) + 5;
        if log > max_log {
            return Err("an FSE table is larger than allowed");
        }
        let (mut at, mut counts, mut code, mut left) = (4, [0i16; CODES], 0, 1u32 << log);
        while left > 0 {
            // A value of 0..=left + 1; the smaller ones take one bit less.
            let bits = (left + 1).ilog2() + 1;
            let value = forward(bytes, at);
            let (half, short_values) = (1 << (bits - 1), (1 << bits) - 2 - left);
            let short = value & (half - 1);
            let value = if short < short_values {
                at += bits as usize - 1;
                short
            } else {
                at += bits as usize;
                let value = value & (2 * half - 1);
                if value >= half { value - short_values } else { value }
            };
            let count = value as i16 - 1;
            *counts.get_mut(code).ok_or("an FSE table has more codes than there are")? = count;
            code += 1;
            left -= u32::from(count.unsigned_abs());
            if count == 0 {
                loop {
                    let zeros = (forward(bytes, at) & 3) as usize;
                    (at, code) = (at + 2, code + zeros);
                    if zeros < 3 || code > CODES {
                        break;
                    }
                }
            }
        }
        let size = at.div_ceil(8);
        if size > bytes.len() {
            return Err(TABLE_ENDS);
        }
        Ok((Self { counts, log: log as u8 }, size))
    }
}

const TABLE_ENDS: &str = "a table description ends early";

/// At least 25 bits from bit `at` on, lowest first; zeros after the end.
fn forward(bytes: &[u8], at: usize) -> u32 {
    let tail = bytes.get(at / 8..).unwrap_or_default();
    let word = match tail.first_chunk() {
        Some(&word) => u32::from_le_bytes(word),
        None => tail.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)),
    };
    word >> (at % 8)
}

/// Huffman codes by their lengths, for a table of `1 << HUFFMAN_BITS` cells: the codes of `length` bits end before cell
/// `[length]`, and the longest ones come first. Which symbols they stand for is left out.
pub(super) type CodeEnds = [u16; HUFFMAN_BITS + 1];

/// A Huffman tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) ends: CodeEnds,
    /// The weights of all symbols, two in a byte, the lower half first.
    pub(super) weights: [u8; 128],
    /// The last symbol that has a code.
    pub(super) last_symbol: u8,
    /// Bits of the longest codes.
    pub(super) bits: u8,
}

/// Reads a Huffman tree description; also returns its size.
pub(super) fn read_huffman(bytes: &[u8]) -> Result<(Tree, usize), &'static str> {
    let &header = bytes.first().ok_or(TABLE_ENDS)?;
    let mut weights = [0; MAX_WEIGHTS + 1];
    let (count, size) = if header >= 128 {
        let count = usize::from(header) - 127;
        let packed = bytes.get(1..1 + count.div_ceil(2)).ok_or(TABLE_ENDS)?;
        for (index, weight) in weights[..count].iter_mut().enumerate() {
            *weight = packed[index / 2] >> (4 * (1 - index % 2)) & 15;
        }
        (count, 1 + packed.len())
    } else {
        let packed = bytes.get(1..1 + usize::from(header)).ok_or(TABLE_ENDS)?;
        (read_weights(packed, &mut weights)?, 1 + packed.len())
    };
    Ok((tree(weights, count)?, size))
}

/// Decodes weights that two FSE states took turns to encode; returns how many.
fn read_weights(bytes: &[u8], weights: &mut [u8; MAX_WEIGHTS + 1]) -> Result<usize, &'static str> {
    // One code more than the largest weight, as libzstd's decoder has it; `tree` looks at the values.
    let (table, size) = Counts::<{ HUFFMAN_BITS + 2 }>::read(bytes, MAX_WEIGHT_LOG)?;
    let states = weight_states(&table);
    let mut bits = Backward::new(&bytes[size..])?;
    let log = u32::from(table.log);
    let (mut now, mut next) = (bits.take(log), bits.take(log));
    if bits.left < 0 {
        return Err(WEIGHTS_DAMAGED);
    }
    for count in 0..MAX_WEIGHTS {
        let state = states[now];
        weights[count] = state.code;
        (now, next) = (next, usize::from(state.base) + bits.take(u32::from(state.bits)));
        // The first state that has no bits left for its successor leaves the last weight to the other one.
        if bits.left < 0 {
            if count + 2 > MAX_WEIGHTS {
                break;
            }
            weights[count + 1] = states[now].code;
            return Ok(count + 2);
        }
    }
    Err(WEIGHTS_DAMAGED)
}

const WEIGHTS_DAMAGED: &str = "the weights of a Huffman tree do not end where they should";

#[derive(Clone, Copy, Default)]
struct State {
    code: u8,
    bits: u8,
    base: u8,
}

/// The decoding table of [`read_weights`].
fn weight_states<const CODES: usize>(table: &Counts<CODES>) -> [State; 1 << MAX_WEIGHT_LOG] {
    let size = 1usize << table.log;
    let (mut states, mut next) = ([State::default(); 1 << MAX_WEIGHT_LOG], [0u16; CODES]);
    let mut end = size;
    for (code, &count) in table.counts.iter().enumerate() {
        next[code] = count.unsigned_abs();
        if count < 0 {
            end -= 1;
            states[end].code = code as u8;
        }
    }
    let (step, mut at) = ((size >> 1) + (size >> 3) + 3, 0);
    for (code, &count) in table.counts.iter().enumerate() {
        for _ in 0..count {
            states[at].code = code as u8;
            at = (at + step) % size;
            while at >= end {
                at = (at + step) % size;
            }
        }
    }
    for state in &mut states[..size] {
        let number = &mut next[usize::from(state.code)];
        let bits = u32::from(table.log) - number.ilog2();
        (state.bits, state.base) = (bits as u8, ((*number << bits) - size as u16) as u8);
        *number += 1;
    }
    states
}

/// Reads a bitstream of up to 127 bytes from its end.
struct Backward<'a> {
    bytes: &'a [u8],
    /// How many bits are not read yet; negative if more were asked for than there are.
    left: i32,
}

impl<'a> Backward<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let left = last_bit(bytes).ok_or(WEIGHTS_DAMAGED)?;
        Ok(Self { bytes, left: left as i32 })
    }

    /// The next `bits`, at most 8; 0 where there are none.
    fn take(&mut self, bits: u32) -> usize {
        self.left -= bits as i32;
        match usize::try_from(self.left) {
            Ok(at) => (forward(self.bytes, at) & ((1 << bits) - 1)) as usize,
            Err(_) => 0,
        }
    }
}

/// How many bits come before the one that marks the end of a bitstream: the highest of its last byte.
pub(super) fn last_bit(bytes: &[u8]) -> Option<usize> {
    let last = bytes.last()?.checked_ilog2()?;
    Some((bytes.len() - 1) * 8 + last as usize)
}

/// Completes `count` weights by the last one, which makes their sum a power of two. The others are 0.
fn tree(mut weights: [u8; MAX_WEIGHTS + 1], count: usize) -> Result<Tree, &'static str> {
    const INVALID: &str = "a Huffman tree is not complete or too deep";
    // How many symbols have each weight. Neighbours often have the same one, and an increment waits for the one before of the same counter:
    // so there are four of each. Weights that are too large, up to 15, make the sum too large.
    let mut counters = [[0u16; 16]; 4];
    for four in weights.as_chunks::<4>().0 {
        for (counter, weight) in counters.iter_mut().zip(four) {
            counter[usize::from(weight & 15)] += 1;
        }
    }
    let mut codes: [u16; 16] =
        std::array::from_fn(|weight| counters.iter().map(|counter| counter[weight]).sum());
    let sum: u32 = (1..).zip(&codes[1..]).map(|(weight, &count)| u32::from(count) << (weight - 1)).sum();
    if sum == 0 {
        return Err(INVALID);
    }
    let bits = sum.ilog2() + 1;
    let rest = (1 << bits) - sum;
    if bits as usize > HUFFMAN_BITS || !rest.is_power_of_two() {
        return Err(INVALID);
    }
    let last_weight = rest.ilog2() + 1;
    codes[last_weight as usize] += 1;
    if codes[1] < 2 {
        return Err(INVALID);
    }
    let (mut ends, mut end) = ([0; HUFFMAN_BITS + 1], 0);
    for (length, code_end) in ends.iter_mut().enumerate().skip(1).rev() {
        if length <= bits as usize {
            end += codes[bits as usize + 1 - length] << (HUFFMAN_BITS - length);
        }
        *code_end = end;
    }
    weights[count] = last_weight as u8;
    let pairs = weights.as_chunks::<2>().0;
    let packed = std::array::from_fn(|pair| pairs[pair][0] | pairs[pair][1] << 4);
    Ok(Tree { ends, weights: packed, last_symbol: count as u8, bits: bits as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_are_those_of_the_rfcs_rules() {
        // From the lowest bit: log 5; 17 of 0..=33, which is short, for 16 states; 17 of 0..=17, which is not, for the rest.
        let bits = 0b11111u32 << 9 | 0b10001 << 4;
        let (table, size) = Counts::<3>::read(&bits.to_le_bytes(), 6).unwrap();
        assert_eq!((table, size), (Counts { counts: [16, 16, 0], log: 5 }, 2));
        assert!(Counts::<3>::read(&bits.to_le_bytes()[..1], 6).is_err());
        assert!(Counts::<3>::read(&[2], 6).unwrap_err().contains("larger"));
    }

    #[test]
    fn a_direct_tree_is_completed() {
        // Weights 2 and 1, and one more of 1.
        let (tree, size) = read_huffman(&[129, 0x21]).unwrap();
        let ends = tree.ends;
        assert_eq!((size, tree.last_symbol, tree.bits, &tree.weights[..2]), (2, 2, 2, &[0x12, 0x01][..]));
        assert_eq!((ends[1], ends[2], ends[3]), (2048, 1024, 0));
        assert!(read_huffman(&[129, 0x20]).unwrap_err().contains("complete"));
        for too_large in 12..16 {
            assert!(read_huffman(&[129, too_large << 4 | 1]).is_err());
        }
        assert!(read_huffman(&[129]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_complete(bytes in prop::collection::vec(any::<u8>(), 0..140)) {
            if let Ok((Tree { ends, .. }, size)) = read_huffman(&bytes) {
                prop_assert!(size <= bytes.len());
                prop_assert_eq!(ends[1], 1 << HUFFMAN_BITS);
                prop_assert!(ends[1..].is_sorted_by(|a, b| a >= b));
            }
            if let Ok((table, size)) = Counts::<53>::read(&bytes, 9) {
                prop_assert!(size <= bytes.len());
                prop_assert_eq!(table.counts.iter().map(|count| count.unsigned_abs()).sum::<u16>(), 1 << table.log);
            }
        }
    }
}
