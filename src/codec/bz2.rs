//! bz2: streams of blocks that are compressed on their own. Decoded on the CPU only.

use super::zlib::read;

/// Decodes on the CPU, all streams. Never more than `most` bytes are made.
///
/// # Errors
/// What the decoder says, or that there is more content or that other bytes follow.
pub fn decode(encoded: &[u8], most: u64) -> Result<Vec<u8>, String> {
    read(bzip2::bufread::MultiBzDecoder::new(encoded), most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn stream(content: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(vec![], bzip2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn all_streams_are_decoded_and_no_more_than_there_may_be() {
        let two = [stream(b"con"), stream(b"tent")].concat();
        assert_eq!(decode(&two, 7).unwrap(), b"content");
        assert!(decode(&two, 6).unwrap_err().contains("more than the 6 bytes"));
        assert!(decode(&[&two[..], b"more"].concat(), 7).is_err());
        for cut in 1..two.len() {
            assert!(decode(&two[..cut], 7).is_err() || cut == stream(b"con").len(), "cut at {cut}");
        }
    }
}
