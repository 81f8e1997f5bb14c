//! What an entry is called, and what stands before its bytes.

use crate::store::{Extent, Version};

/// The array of entries: a store, an array in it, and the version of its metadata.
#[derive(Clone, Debug)]
pub struct ArrayKey {
    text: String,
    /// Name of the folder of its entries.
    pub folder: String,
}

/// An entry: an array, the key of an object, and which of its bytes.
#[derive(Clone, Debug)]
pub struct EntryKey {
    /// All of it, which the header repeats.
    pub text: String,
    /// Path below the folder of the cache.
    pub path: String,
    /// A hash of the text.
    pub id: u128,
}

impl ArrayKey {
    /// `None` if the version of the metadata cannot tell that they are the same in another run.
    pub fn new(store: &str, array: &str, metadata: &Version) -> Option<Self> {
        let text = [store, array, &version_text(metadata)?].join("\0");
        let folder = format!("{:032x}", hash(&text));
        Some(Self { text, folder })
    }

    /// The entry of a part of an object, of the version `expected` if that is known before its bytes are.
    pub fn entry(&self, key: &str, extent: &Extent, expected: Option<&Version>) -> Option<EntryKey> {
        let extent = match extent {
            Extent::Whole => "whole".into(),
            Extent::Range(range) => format!("{}-{}", range.start, range.end),
            Extent::Prefix(bytes) => format!("first {bytes}"),
            Extent::Suffix(bytes) => format!("last {bytes}"),
        };
        let expected = match expected {
            Some(version) => version_text(version)?,
            None => String::new(),
        };
        let text = [&self.text, key, &extent, &expected].join("\0");
        let id = hash(&text);
        let name = format!("{id:032x}");
        let path = format!("{}/{}/{}", self.folder, &name[..2], &name[2..]);
        Some(EntryKey { text, path, id })
    }
}

/// A version as text. `None` for those that do not tell the bytes of an object from others.
fn version_text(version: &Version) -> Option<String> {
    match version {
        Version::ETag(tag) if version.tells_bytes() => Some(format!("tag {tag}")),
        Version::Immutable => Some("immutable".into()),
        _ => None,
    }
}

fn version_of(text: &str) -> Option<Version> {
    match text.strip_prefix("tag ") {
        Some(tag) => Some(Version::ETag(tag.into())),
        None => (text == "immutable").then_some(Version::Immutable),
    }
}

/// FNV-1a with 128 bits. Names stay the same from release to release, and the header has what two of the same name differ in.
fn hash(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// What an entry says of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of the bytes, crc32c.
    pub checksum: u32,
    /// Length of the object that the bytes are a part of.
    pub object_bytes: u64,
    /// Version of the object.
    pub version: Version,
}

impl Header {
    /// Length of a header. The bytes follow it.
    pub const BYTES: usize = 1024;
    const MAGIC: [u8; 8] = *b"zarrdal1";
    /// Where the texts begin: behind the magic, two checksums, two lengths of bytes and two of texts.
    const TEXTS: usize = 40;

    /// The header of an entry of `bytes` bytes. `None` if the key is too long, or the version tells nothing.
    pub fn encode(&self, key: &EntryKey, bytes: u64) -> Option<[u8; Self::BYTES]> {
        let version = version_text(&self.version)?;
        let texts = [key.text.as_bytes(), version.as_bytes()].concat();
        let mut header = [0; Self::BYTES];
        header.get_mut(Self::TEXTS..Self::TEXTS + texts.len())?.copy_from_slice(&texts);
        header[..8].copy_from_slice(&Self::MAGIC);
        header[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        header[16..24].copy_from_slice(&bytes.to_le_bytes());
        header[24..32].copy_from_slice(&self.object_bytes.to_le_bytes());
        header[32..36].copy_from_slice(&(key.text.len() as u32).to_le_bytes());
        header[36..40].copy_from_slice(&(version.len() as u32).to_le_bytes());
        let own = crc32c::crc32c(&header[12..]);
        header[8..12].copy_from_slice(&own.to_le_bytes());
        Some(header)
    }

    /// Reads the header of the entry of a key that has `bytes` bytes behind it. `None` if it is not that.
    pub fn decode(header: &[u8; Self::BYTES], key: &EntryKey, bytes: u64) -> Option<Self> {
        let number = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let small = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        if header[..8] != Self::MAGIC || small(8)? != crc32c::crc32c(&header[12..]) || number(16)? != bytes {
            return None;
        }
        let key_end = Self::TEXTS + small(32)? as usize;
        let found = header.get(Self::TEXTS..key_end)?;
        let version = header.get(key_end..key_end + small(36)? as usize)?;
        if found != key.text.as_bytes() {
            return None;
        }
        let version = version_of(str::from_utf8(version).ok()?)?;
        Some(Self { checksum: small(12)?, object_bytes: number(24)?, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tag(text: &str) -> Version {
        Version::ETag(text.into())
    }

    #[test]
    fn entries_differ_in_all_that_can_change_their_bytes() {
        let array = |store: &str, name: &str, metadata: &Version| ArrayKey::new(store, name, metadata);
        let one = array("s3://b/a", "t", &tag("1")).unwrap();
        let mut paths = vec![];
        for array in [
            one.clone(),
            array("s3://b/b", "t", &tag("1")).unwrap(),
            array("s3://b/a", "u", &tag("1")).unwrap(),
            array("s3://b/a", "t", &tag("2")).unwrap(),
            array("s3://b/a", "t", &Version::Immutable).unwrap(),
        ] {
            for extent in [Extent::Whole, Extent::Range(1..2), Extent::Prefix(2), Extent::Suffix(2)] {
                for expected in [None, Some(tag("1")), Some(tag("2"))] {
                    let keys =
                        ["c/0", "c/1"].map(|key| array.entry(key, &extent, expected.as_ref()).unwrap());
                    paths.extend(keys.map(|key| key.path));
                }
            }
        }
        let count = paths.len();
        paths.sort();
        paths.dedup();
        assert_eq!((count, paths.len()), (120, 120));
        // Where nothing tells that the bytes are the same there is no entry.
        assert!(array("s3://b/a", "t", &tag("W/\"1\"")).is_none());
        assert!(array("s3://b/a", "t", &Version::Modified { at_ns: 1 }).is_none());
        assert!(one.entry("c/0", &Extent::Whole, Some(&Version::Modified { at_ns: 1 })).is_none());
    }

    #[test]
    fn names_are_those_of_earlier_releases() {
        assert_eq!(hash(""), 0x6c62272e07bb014262b821756295c58d);
        // The test vector of FNV's authors for FNV-1a with 128 bits.
        assert_eq!(hash("a"), 0xd228cb696f1a8caf78912b704e4a8964);
    }

    proptest! {
        #[test]
        fn a_header_is_read_back_and_a_flipped_bit_refused(
            key in "[a-z/0-9]{0,300}", version in "[a-z\"-]{1,100}", bytes: u64, object_bytes: u64, checksum: u32, bit in 0usize..8 * Header::BYTES,
        ) {
            let array = ArrayKey::new("http://h/s", "a", &Version::Immutable).unwrap();
            let key = array.entry(&key, &Extent::Whole, None).unwrap();
            let header = Header { checksum, object_bytes, version: tag(&version) };
            let mut encoded = header.encode(&key, bytes).unwrap();
            prop_assert_eq!(Header::decode(&encoded, &key, bytes), Some(header));
            prop_assert_eq!(Header::decode(&encoded, &key, bytes ^ 1), None);
            let other = array.entry("other", &Extent::Whole, None).unwrap();
            prop_assert_eq!(Header::decode(&encoded, &other, bytes), None);
            encoded[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&encoded, &key, bytes), None);
        }
    }

    #[test]
    fn a_key_that_is_too_long_has_no_header() {
        let array = ArrayKey::new("http://h/s", "a", &Version::Immutable).unwrap();
        let header = Header { checksum: 0, object_bytes: 9, version: Version::Immutable };
        let encoded = |bytes: usize| {
            let key = array.entry(&"k".repeat(bytes), &Extent::Whole, None).unwrap();
            header.encode(&key, 9).is_some()
        };
        assert!(encoded(900) && !encoded(1000));
    }
}
