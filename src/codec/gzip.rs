//! gzip: decoded by zarrs on the CPU; here is what it does not check.
//!
//! Source: RFC 1952, section 2.3.1 (trailer).
#![forbid(unsafe_code)]

/// Header and trailer of an empty member.
const LEAST_BYTES: usize = 18;

/// Whether the last four bytes are the size of `decoded` bytes of content, as they are at the end of a member. If other
/// bytes follow the member, they are not; zarrs would ignore them.
///
/// # Errors
/// What is wrong, in words.
pub fn check_size(encoded: &[u8], decoded: u64) -> Result<(), String> {
    if encoded.len() < LEAST_BYTES {
        return Err(format!("{} bytes are too few for a gzip member", encoded.len()));
    }
    let declared = u64::from(encoded.last_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes)));
    // The field holds the size modulo 2^32.
    if declared == decoded & 0xFFFF_FFFF {
        return Ok(());
    }
    Err(format!(
        "it does not end with the trailer of a gzip member of {decoded} bytes (the size there is {declared})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_has_to_be_at_the_end() {
        let mut member = vec![0; 14];
        member.extend(1000u32.to_le_bytes());
        assert_eq!(check_size(&member, 1000), Ok(()));
        assert_eq!(check_size(&member, 1000 + (1 << 32)), Ok(()));
        assert!(check_size(&member, 999).is_err());
        member.push(0);
        assert!(check_size(&member, 1000).is_err());
        assert!(check_size(&member[..17], 1000).unwrap_err().contains("too few"));
    }
}
