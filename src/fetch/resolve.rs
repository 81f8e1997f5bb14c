//! From a read chunk to the object that holds it. Nothing is read here. Where an inner chunk lies in its object is in the shard index,
//! which is read elsewhere and decoded here.

use crate::dataset::{ArrayInfo, Sharding};
use crate::error::{Context, Error, Result};
use crate::memory;
use crate::plan::shard_index::ShardIndex;

use std::num::NonZeroU64;
use std::ops::Range;

use zarrs::array::{ArrayToBytesCodecTraits, CodecOptions, FillValue, data_type};

/// The object that holds a read chunk.
#[derive(Clone, Debug)]
pub struct Address {
    /// The chunk, for errors, with the key of the object.
    pub at: Context,
    /// Where in a sharded chunk the read chunk is; `None` if the object is the read chunk.
    pub in_shard: Option<InShard>,
}

/// The place of an inner chunk in its sharded chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InShard {
    /// Coordinates of the sharded chunk in the array's chunk grid.
    pub shard: Vec<u64>,
    /// Number of the inner chunk in the shard index, row by row.
    pub number: u64,
}

/// The object that holds the read chunk at `cell` of the array's grid of read chunks.
pub fn resolve(array: &ArrayInfo, cell: &[u64]) -> Address {
    let Some(sharding) = &array.sharding else {
        return Address { at: array.chunk_context(cell), in_shard: None };
    };
    let (shard, (inner, number)) = (sharding.chunk_of(cell), sharding.inner_of(cell));
    let at = Context { inner_chunk: Some(inner), ..array.chunk_context(&shard) };
    Address { at, in_shard: Some(InShard { shard, number }) }
}

impl Address {
    /// Key of the object.
    pub fn key(&self) -> &str {
        self.at.key.as_deref().unwrap_or_default()
    }

    /// The sharded chunk as the place of an error, without the inner chunk.
    pub fn of_object(&self) -> Context {
        Context { inner_chunk: None, ..self.at.clone() }
    }

    /// The address with the bytes of the read chunk.
    pub fn with_range(self, range: Range<u64>) -> Context {
        Context { byte_range: Some(range), ..self.at }
    }
}

/// Decodes the index of a sharded chunk at `at`, whose object has `object_bytes` bytes.
///
/// # Errors
/// An index that cannot be right.
pub fn decode_index(
    sharding: &Sharding,
    encoded: Vec<u8>,
    object_bytes: u64,
    at: &Context,
) -> Result<ShardIndex> {
    let refused = |problem| Error::ShardIndex { at: at.clone(), problem };
    if (encoded.len() as u64) < sharding.index_bytes {
        return Err(refused(too_small(sharding, object_bytes)));
    }
    decoded_index(sharding, encoded, object_bytes).map_err(refused)
}

/// What is wrong with an object that is too small for its index.
pub fn too_small(sharding: &Sharding, object_bytes: u64) -> String {
    format!("needs {} bytes, but the file has {object_bytes}", sharding.index_bytes)
}

fn decoded_index(sharding: &Sharding, encoded: Vec<u8>, object_bytes: u64) -> Result<ShardIndex, String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot be decoded ({error})");
    let mut shape: Vec<_> = sharding.inner_grid.iter().filter_map(|&n| NonZeroU64::new(n)).collect();
    shape.extend(NonZeroU64::new(2));
    let decoded = sharding
        .index_codecs
        .decode(
            encoded.into(),
            &shape,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
            &CodecOptions::default(),
        )
        .map_err(|e| refused(&e))?
        .into_fixed()
        .map_err(|e| refused(&e))?;
    let mut entries = vec![];
    memory::reserve(&mut entries, decoded.len() as u64 / 8)?;
    entries.extend(decoded.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)));
    ShardIndex::new(entries, sharding.inner_chunks(), object_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrs::array::CodecChain;
    use zarrs::metadata::v3::MetadataV3;

    /// 2 x 2 inner chunks; their index has 4 entries of 16 bytes, and a checksum.
    fn sharding() -> Sharding {
        let codecs = r#"[{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]"#;
        let codecs: Vec<MetadataV3> = serde_json::from_str(codecs).unwrap();
        Sharding {
            inner_shape: vec![1, 4],
            inner_grid: vec![2, 2],
            index_at_start: false,
            index_codecs: CodecChain::from_metadata(&codecs).unwrap(),
            index_bytes: 68,
        }
    }

    #[test]
    fn an_index_is_decoded_or_refused_with_its_place() {
        let at = Context { key: Some("c/0/0".into()), ..Context::default() };
        let missing = ShardIndex::MISSING;
        let encoded = |last_end: u64| {
            let entries = [0, 10, missing, missing, 10, 6, 16, last_end - 16];
            let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            bytes
        };
        let decode = |encoded| decode_index(&sharding(), encoded, 100, &at);
        let index = decode(encoded(32)).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|inner| index.range(inner)),
            [Some(0..10), None, Some(10..16), Some(16..32)]
        );
        let mut damaged = encoded(32);
        damaged[3] ^= 1;
        for (encoded, problem) in [
            (encoded(101), "past the 100 bytes of the file"),
            (damaged, "cannot be decoded"),
            (encoded(32)[..67].to_vec(), "needs 68 bytes, but the file has 100"),
        ] {
            let text = decode(encoded).unwrap_err().to_string();
            assert!(text.contains(problem) && text.contains("c/0/0"), "{text}");
        }
    }

    #[test]
    fn places_of_errors_are_as_narrow_as_what_they_are_about() {
        let at = Context {
            chunk: Some(vec![3, 1]),
            inner_chunk: Some(vec![0, 1]),
            key: Some("c/3/1".into()),
            ..Context::default()
        };
        let address = Address { at: at.clone(), in_shard: Some(InShard { shard: vec![3, 1], number: 1 }) };
        assert_eq!(address.key(), "c/3/1");
        assert_eq!(address.of_object(), Context { inner_chunk: None, ..at.clone() });
        assert_eq!(address.with_range(5..9), Context { byte_range: Some(5..9), ..at });
    }
}
