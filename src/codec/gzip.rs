//! gzip: a DEFLATE stream between a header and a CRC-32 with the size of the content.
//!
//! Source: RFC 1952.

use super::work::{Checksum, Verdict, Work};
use super::zlib::{ReadChecksum, inflate, nothing_behind, read};

use std::ops::Range;

const HEADER_BYTES: usize = 10;
const TRAILER_BYTES: usize = 8;
const HAS_HEADER_CHECKSUM: u8 = 0x02;
const HAS_EXTRA: u8 = 0x04;
const HAS_NAME: u8 = 0x08;
const HAS_COMMENT: u8 = 0x10;
const RESERVED: u8 = 0xE0;

/// Where the DEFLATE stream of the first member would be if it were the only one, and its header had no checksum.
fn parse(encoded: &[u8], decoded: u64) -> Result<(Range<usize>, ReadChecksum), String> {
    let short = || format!("{} bytes are too few for a gzip member", encoded.len());
    let end = encoded.len().checked_sub(TRAILER_BYTES).ok_or_else(short)?;
    let [0x1F, 0x8B, 8, flags, ..] = *encoded.first_chunk::<HEADER_BYTES>().ok_or_else(short)? else {
        return Err("it does not start with the header of a gzip member".into());
    };
    if flags & RESERVED != 0 {
        return Err("the gzip header uses a reserved bit".into());
    }
    let mut start = HEADER_BYTES;
    if flags & HAS_EXTRA != 0 {
        let size = encoded.get(start..).and_then(|rest| rest.first_chunk::<2>()).ok_or_else(short)?;
        start += 2 + usize::from(u16::from_le_bytes(*size));
    }
    for text in [HAS_NAME, HAS_COMMENT] {
        if flags & text != 0 {
            let rest = encoded.get(start..).unwrap_or_default();
            start += 1 + rest.iter().position(|&byte| byte == 0).ok_or_else(short)?;
        }
    }
    if start >= end {
        return Err(short());
    }
    let word =
        |at: usize| u32::from_le_bytes([encoded[at], encoded[at + 1], encoded[at + 2], encoded[at + 3]]);
    // The field holds the size modulo 2^32.
    if u64::from(word(end + 4)) != decoded & 0xFFFF_FFFF {
        return Err(format!(
            "it does not end with the trailer of a gzip member of {decoded} bytes (the size there is {})",
            word(end + 4)
        ));
    }
    Ok((start..end, ReadChecksum(Checksum::Crc32, word(end))))
}

/// Adds the stream and the check of a chunk that has to decode to `decoded` bytes.
///
/// # Errors
/// What cannot be right about the header or the trailer, in words.
pub fn work(encoded: &[u8], decoded: u64, work: &mut Work) -> Result<Verdict, String> {
    let (deflated, checksum) = match parse(encoded, decoded) {
        Ok(parsed) => parsed,
        // Valid, rare: the decoder on the CPU says which it is.
        Err(_) if encoded.first_chunk::<3>() == Some(&[0x1F, 0x8B, 8]) => {
            return Ok(Verdict::Cpu("its gzip chunks have several members, or are damaged"));
        }
        Err(problem) => return Err(problem),
    };
    if encoded[3] & HAS_HEADER_CHECKSUM != 0 {
        return Ok(Verdict::Cpu("its gzip headers carry a checksum"));
    }
    inflate(deflated, checksum, decoded, work);
    Ok(Verdict::Gpu)
}

/// Decodes on the CPU, all members. Never more than `most` bytes are made.
///
/// # Errors
/// What the decoder says, or that there is more content or that other bytes follow.
pub fn decode(encoded: &[u8], most: u64) -> Result<Vec<u8>, String> {
    let mut rest = encoded;
    let decoded = read(flate2::bufread::MultiGzDecoder::new(&mut rest), most)?;
    nothing_behind(rest, "gzip")?;
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::work::{Decoder, Stream};
    use std::io::Write;

    fn member(builder: flate2::GzBuilder, content: &[u8]) -> Vec<u8> {
        let mut encoder = builder.write(vec![], flate2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_stream_is_found_behind_any_header() {
        let plain = member(flate2::GzBuilder::new(), b"content");
        for builder in [
            flate2::GzBuilder::new(),
            flate2::GzBuilder::new().filename("name").comment("words"),
            flate2::GzBuilder::new().extra(vec![1, 2, 3]).filename("name"),
        ] {
            let encoded = member(builder, b"content");
            let mut found = Work::default();
            assert_eq!(work(&encoded, 7, &mut found), Ok(Verdict::Gpu));
            let [Stream { decoder: Decoder::Inflate, from, to }] = &found.streams[..] else {
                panic!("{found:?}")
            };
            assert_eq!(encoded[from.start as usize..from.end as usize], plain[10..plain.len() - 8]);
            assert_eq!(*to, 0..7);
        }
    }

    #[test]
    fn what_is_unusual_goes_to_the_cpu() {
        let members =
            [member(flate2::GzBuilder::new(), b"con"), member(flate2::GzBuilder::new(), b"tent")].concat();
        assert!(matches!(work(&members, 7, &mut Work::default()), Ok(Verdict::Cpu(_))));
        assert_eq!(decode(&members, 7).unwrap(), b"content");
        // The checksum of the header is the lower half of its CRC-32.
        let mut encoded = member(flate2::GzBuilder::new(), b"content");
        encoded[3] |= HAS_HEADER_CHECKSUM;
        let mut checksum = flate2::Crc::new();
        checksum.update(&encoded[..HEADER_BYTES]);
        let [low, high, ..] = checksum.sum().to_le_bytes();
        encoded.splice(HEADER_BYTES..HEADER_BYTES, [low, high]);
        let verdict = work(&encoded, 7, &mut Work::default());
        assert_eq!(verdict, Ok(Verdict::Cpu("its gzip headers carry a checksum")));
        assert_eq!(decode(&encoded, 7).unwrap(), b"content");
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let encoded = member(flate2::GzBuilder::new(), b"content");
        assert!(decode(&encoded, 6).unwrap_err().contains("more than"));
        assert!(decode(&[&encoded[..], &[0]].concat(), 7).is_err());
        assert!(
            work(b"PK\x03\x04 no gzip at all", 7, &mut Work::default())
                .unwrap_err()
                .contains("does not start")
        );
        for cut in 0..encoded.len() {
            assert!(decode(&encoded[..cut], 7).is_err(), "cut at {cut}");
        }
    }
}
