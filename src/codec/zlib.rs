//! zlib: a DEFLATE stream between a header and an Adler-32 checksum.
//!
//! Source: RFC 1950.

use super::work::{Checksum, Decoder, Expected, Pass, Stream, Verdict, Work};
use crate::memory;

use std::io::Read;
use std::ops::Range;

const HEADER_BYTES: usize = 2;
const TRAILER_BYTES: usize = 4;

/// A checksum that was read, before it is known which bytes it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadChecksum(pub Checksum, pub u32);

impl ReadChecksum {
    /// The pass that compares it over a range of the area.
    pub fn over(self, range: Range<u64>) -> Pass {
        let Range { start, end } = range;
        Pass::Check { checksum: self.0, start, end, expected: Expected::Value(self.1) }
    }
}

/// Where the DEFLATE stream is, and the checksum of its content.
///
/// # Errors
/// What cannot be right about the header or the trailer, in words.
pub fn parse(encoded: &[u8]) -> Result<(Range<usize>, ReadChecksum), String> {
    let end = encoded
        .len()
        .checked_sub(TRAILER_BYTES)
        .filter(|&end| end > HEADER_BYTES)
        .ok_or_else(|| format!("{} bytes are too few for a zlib stream", encoded.len()))?;
    let header = u16::from_be_bytes([encoded[0], encoded[1]]);
    let (method, window, dictionary) = (header >> 8 & 15, header >> 12, header & 0x20 != 0);
    if method != 8 || window > 7 || !header.is_multiple_of(31) || dictionary {
        return Err("it does not start with the header of a zlib stream".into());
    }
    let expected = encoded.last_chunk::<TRAILER_BYTES>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    Ok((HEADER_BYTES..end, ReadChecksum(Checksum::Adler32, expected)))
}

/// Adds the stream and the check of a chunk that has to decode to `decoded` bytes.
///
/// # Errors
/// As [`parse`].
pub fn work(encoded: &[u8], decoded: u64, work: &mut Work) -> Result<Verdict, String> {
    let (deflated, checksum) = parse(encoded)?;
    inflate(deflated, checksum, decoded, work);
    Ok(Verdict::Gpu)
}

/// Adds a DEFLATE stream and the check of its content.
pub fn inflate(deflated: Range<usize>, checksum: ReadChecksum, decoded: u64, work: &mut Work) {
    let from = deflated.start as u64..deflated.end as u64;
    work.streams.push(Stream { decoder: Decoder::Inflate, from, to: 0..decoded });
    work.passes.push(checksum.over(0..decoded));
}

/// Decodes on the CPU. Never more than `most` bytes are made.
///
/// # Errors
/// What the decoder says, or that there is more content or that other bytes follow.
pub fn decode(encoded: &[u8], most: u64) -> Result<Vec<u8>, String> {
    let mut rest = encoded;
    let decoded = read(flate2::bufread::ZlibDecoder::new(&mut rest), most)?;
    nothing_behind(rest, "zlib")?;
    Ok(decoded)
}

/// Reads to the end of a decoder that must not give more than `most` bytes.
pub fn read(decoder: impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut decoded = vec![];
    // Most content has `most` bytes. Where that much memory cannot be had, the content may still be smaller.
    let _ = memory::reserve(&mut decoded, most);
    decoder.take(most.saturating_add(1)).read_to_end(&mut decoded).map_err(|error| error.to_string())?;
    if decoded.len() as u64 > most {
        return Err(format!("it holds more than the {most} bytes of the chunk"));
    }
    Ok(decoded)
}

/// An error unless all bytes were used.
pub fn nothing_behind(rest: &[u8], what: &str) -> Result<(), String> {
    if rest.is_empty() {
        return Ok(());
    }
    Err(format!("{} bytes follow the end of the {what} stream", rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn deflate(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_stream_is_taken_apart() {
        let encoded = deflate(b"hello hello hello");
        let (range, checksum) = parse(&encoded).unwrap();
        assert_eq!(range, 2..encoded.len() - 4);
        let (a, b) = b"hello hello hello".iter().fold((1u32, 0u32), |(a, b), &byte| {
            ((a + u32::from(byte)) % 65521, (a + u32::from(byte) + b) % 65521)
        });
        assert_eq!(checksum, ReadChecksum(Checksum::Adler32, b << 16 | a));
        assert_eq!(decode(&encoded, 17).unwrap(), b"hello hello hello");
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let mut encoded = deflate(b"hello hello hello");
        assert!(decode(&encoded, 16).unwrap_err().contains("more than the 16 bytes"));
        encoded.push(0);
        assert!(decode(&encoded, 17).unwrap_err().contains("1 bytes follow"));
        assert!(parse(&encoded[..6]).unwrap_err().contains("too few"));
        // Another method, a window of 64 KiB, a header that is no multiple of 31, and a dictionary.
        for header in [[0x79, 0x18], [0x88, 0x1C], [0x78, 0x9D], [0x78, 0xBB]] {
            encoded[..2].copy_from_slice(&header);
            assert!(parse(&encoded).unwrap_err().contains("header of a zlib stream"), "{header:x?}");
        }
    }
}
