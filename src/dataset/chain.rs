//! Codec chains: what assembling samples undoes is taken out of them here, what is left is bound to what it decodes to.
//!
//! ```text
//! array -> transpose, bitround, fixedscaleoffset -> other array codecs -> bytes -> compressors
//!          '------- undone by assembling ------'    '----------- the read codec -----------'
//! ```
//!
//! A transposed read chunk stays as it is stored and gets strides. `bitround` does nothing when decoding.
//! `fixedscaleoffset` is taken out of the metadata before zarrs sees it (`fixed_scale_offset.rs`).

use super::codecs::SHARDING;
use super::sharding::Sharding;
use crate::plan::row_major_strides;

use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::from_value;
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::array::{
    ArrayToBytesCodecTraits, BytesRepresentation, CodecChain, CodecMetadataOptions, DataType, FillValue,
    data_type,
};
use zarrs::metadata_ext::codec::sharding::ShardingIndexLocation;
use zarrs::plugin::ExtensionName;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The codec chain of a read chunk, bound to the shape and type that it decodes to: shape and type of the stored
/// array, which assembling may have to transpose and to scale.
pub struct ReadCodec {
    /// The chain.
    pub chain: Arc<CodecChain>,
    /// Decoded shape, in the order of the stored dimensions.
    pub shape: Vec<NonZeroU64>,
    /// Decoded data type.
    pub data_type: DataType,
    /// The fill value in that type.
    pub fill_value: FillValue,
    /// The most bytes that an encoder makes of a read chunk. None for sharded chunks, which may have gaps of any size.
    pub encoded_bound: Option<u64>,
}

impl ReadCodec {
    /// The addresses that a process has on today's machines. What is computed from sizes up to here does not overflow.
    const MOST_DECODED_BYTES: u64 = 1 << 47;

    /// Takes the leading transpositions and roundings out of a chain. `shape` is that of a read chunk; the strides are
    /// the elements between neighbours along each of its dimensions in the decoded bytes.
    pub(super) fn new(
        chain: &CodecChain,
        shape: &[u64],
        data_type: DataType,
        fill_value: FillValue,
    ) -> Result<(Self, Vec<u64>), Source> {
        // Stored dimension i is the array's dimension axes[i].
        let mut axes: Vec<usize> = (0..shape.len()).collect();
        let mut rest = chain.array_to_array_codecs();
        while let [codec, others @ ..] = rest {
            match codec.name_v3().as_deref() {
                Some("transpose") => {
                    let configuration = codec.configuration_v3(&CodecMetadataOptions::default());
                    let order: Option<Vec<usize>> = configuration
                        .and_then(|c| from_value(c.get("order")?.clone()).ok())
                        .filter(|order: &Vec<usize>| order.len() == axes.len());
                    let order = order.ok_or("the order of its transposition is not one of its dimensions")?;
                    axes = order
                        .iter()
                        .map(|&axis| axes.get(axis).copied())
                        .collect::<Option<_>>()
                        .ok_or("the order of its transposition names dimensions that it does not have")?;
                }
                Some("bitround") => {}
                _ => break,
            }
            rest = others;
        }
        let stored: Vec<u64> = axes.iter().map(|&axis| shape[axis]).collect();
        let mut strides = vec![0; shape.len()];
        for (&axis, stride) in axes.iter().zip(row_major_strides(&stored)) {
            strides[axis] = stride;
        }
        let rest = CodecChain::new(
            rest.to_vec(),
            chain.array_to_bytes_codec().clone(),
            chain.bytes_to_bytes_codecs().to_vec(),
        );
        let shape = non_zero(&stored);
        let element = data_type.fixed_size().unwrap_or(1) as u64;
        let bytes = stored.iter().try_fold(element, |bytes, &extent| bytes.checked_mul(extent));
        if bytes.is_none_or(|bytes| bytes > Self::MOST_DECODED_BYTES) {
            return Err(format!("chunks of {stored:?} are larger than memory can be").into());
        }
        // Types that a codec of the chain cannot encode come to light here.
        let encoded = encoded_representation(&rest, &shape, &data_type, &fill_value)?;
        let has_gaps = rest.array_to_bytes_codec().name_v3().as_deref() == Some(SHARDING);
        let encoded_bound = encoded.size().filter(|_| !has_gaps);
        Ok((Self { chain: Arc::new(rest), shape, data_type, fill_value, encoded_bound }, strides))
    }

    /// Whether the encoded bytes are the elements themselves.
    pub fn is_raw(&self) -> bool {
        self.chain.array_to_array_codecs().is_empty()
            && self.chain.bytes_to_bytes_codecs().is_empty()
            && self.chain.array_to_bytes_codec().name_v3().as_deref() == Some("bytes")
    }
}

impl Sharding {
    /// Takes `sharding_indexed` apart into its index and the chain of its inner chunks. `None` where the inner
    /// chunks are sharded chunks again or where the size of the index depends on its contents: such chunks are read and
    /// decoded whole.
    pub(super) fn of(codecs: &CodecChain, chunk_shape: &[u64]) -> Result<Option<(Self, CodecChain)>, Source> {
        let metadata = codecs
            .array_to_bytes_codec()
            .configuration_v3(&CodecMetadataOptions::default())
            .ok_or("the sharding codec has no configuration")?;
        let ShardingCodecConfiguration::V1(configuration) = from_value(serde_json::to_value(metadata)?)?
        else {
            return Err("this version of the sharding codec is not supported".into());
        };
        let inner = CodecChain::from_metadata(&configuration.codecs)?;
        if inner.array_to_bytes_codec().name_v3().as_deref() == Some(SHARDING) {
            return Ok(None);
        }
        let inner_shape: Vec<u64> = configuration.chunk_shape.iter().map(|n| n.get()).collect();
        let divides = inner_shape.len() == chunk_shape.len()
            && chunk_shape.iter().zip(&inner_shape).all(|(chunk, inner)| chunk % inner == 0);
        if !divides {
            return Err(format!("inner chunks {inner_shape:?} do not divide chunks {chunk_shape:?}").into());
        }
        let inner_grid: Vec<u64> = chunk_shape.iter().zip(&inner_shape).map(|(c, i)| c / i).collect();
        let entries = inner_grid.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
        if entries.is_none_or(|entries| entries > ReadCodec::MOST_DECODED_BYTES / 16) {
            let grid = format!("{inner_grid:?} inner chunks");
            return Err(format!("the index of a sharded chunk of {grid} is larger than memory can be").into());
        }
        let index_codecs = CodecChain::from_metadata(&configuration.index_codecs)?;
        let mut index_shape = non_zero(&inner_grid);
        index_shape.extend(NonZeroU64::new(2));
        let representation = index_codecs.encoded_representation(
            &index_shape,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
        )?;
        let BytesRepresentation::FixedSize(index_bytes) = representation else { return Ok(None) };
        let sharding = Self {
            inner_shape,
            inner_grid,
            index_at_start: configuration.index_location == ShardingIndexLocation::Start,
            index_codecs,
            index_bytes,
        };
        Ok(Some((sharding, inner)))
    }
}

/// As `CodecChain::encoded_representation`; and an error if the `elementsize` of a shuffle does not divide the bytes that it shuffles, which zarrs
/// finds out only when it decodes a chunk.
fn encoded_representation(
    chain: &CodecChain,
    shape: &[NonZeroU64],
    data_type: &DataType,
    fill_value: &FillValue,
) -> Result<BytesRepresentation, Source> {
    let only_bytes =
        CodecChain::new(chain.array_to_array_codecs().to_vec(), chain.array_to_bytes_codec().clone(), vec![]);
    let mut bytes = only_bytes.encoded_representation(shape, data_type, fill_value)?;
    for codec in chain.bytes_to_bytes_codecs() {
        let configuration = codec.configuration_v3(&CodecMetadataOptions::default());
        let element = configuration.as_ref().and_then(|it| it.get("elementsize")?.as_u64()).unwrap_or(1);
        if let BytesRepresentation::FixedSize(size) = bytes
            && size % element.max(1) != 0
        {
            return Err(format!(
                "the elementsize {element} of its shuffle does not divide the {size} bytes of a chunk"
            )
            .into());
        }
        bytes = codec.encoded_representation(&bytes);
    }
    Ok(bytes)
}

/// Extents of chunks, which zarrs has checked to be at least 1.
fn non_zero(shape: &[u64]) -> Vec<NonZeroU64> {
    shape.iter().map(|&n| NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read_codec(codecs: Value, data_type: DataType, fill_value: FillValue) -> (ReadCodec, Vec<u64>) {
        crate::codec::register();
        let chain = CodecChain::from_metadata(&from_value::<Vec<_>>(codecs).unwrap()).unwrap();
        ReadCodec::new(&chain, &[2, 3, 4], data_type, fill_value).unwrap()
    }

    #[test]
    fn leading_transpositions_become_strides() {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let transpose = |order: [usize; 3]| json!({"name": "transpose", "configuration": {"order": order}});
        for (codecs, strides, shape) in [
            (json!([bytes]), [12, 4, 1], [2, 3, 4]),
            (json!([transpose([2, 0, 1]), bytes]), [3, 1, 6], [4, 2, 3]),
            (json!([transpose([2, 0, 1]), transpose([2, 0, 1]), bytes]), [1, 8, 2], [3, 4, 2]),
        ] {
            let (codec, found) = read_codec(codecs.clone(), data_type::int16(), FillValue::from(0i16));
            assert_eq!(
                (&found[..], codec.is_raw(), codec.encoded_bound),
                (&strides[..], true, Some(48)),
                "{codecs}"
            );
            assert_eq!(codec.shape.iter().map(|n| n.get()).collect::<Vec<_>>(), shape, "{codecs}");
        }
    }

    #[test]
    fn sharded_chunks_are_cut_where_inner_chunks_divide_them() {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let sharded = |chunk_shape: Value, inner: Value, index: Value, location: &str| {
            json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": chunk_shape, "codecs": inner,
                "index_codecs": index, "index_location": location}}])
        };
        let of = |codecs: Value, chunk_shape: &[u64]| {
            let chain = CodecChain::from_metadata(&from_value::<Vec<_>>(codecs).unwrap()).unwrap();
            Sharding::of(&chain, chunk_shape).map_err(|error| error.to_string())
        };
        let index = json!([bytes, "crc32c"]);
        for location in ["start", "end"] {
            let (sharding, _) = of(sharded(json!([1, 2]), json!([bytes]), index.clone(), location), &[4, 6])
                .unwrap()
                .unwrap();
            assert_eq!((&sharding.inner_shape[..], &sharding.inner_grid[..]), (&[1, 2][..], &[4, 3][..]));
            assert_eq!((sharding.index_at_start, sharding.index_bytes), (location == "start", 12 * 16 + 4));
        }
        for inner in [json!([3, 2]), json!([1, 4]), json!([2]), json!([1, 2, 1])] {
            let codecs = sharded(inner.clone(), json!([bytes]), index.clone(), "end");
            let problem = of(codecs, &[4, 6]).err().unwrap();
            assert!(problem.contains("do not divide chunks [4, 6]"), "{problem}");
        }
        let huge = sharded(json!([1]), json!([bytes]), index.clone(), "end");
        assert!(of(huge.clone(), &[1 << 43]).unwrap().is_some());
        assert!(of(huge, &[(1 << 43) + 1]).err().unwrap().contains("larger than memory can be"));
        // Read whole: sharded chunks inside, and an index of unknown size.
        let nested = sharded(
            json!([1, 2]),
            sharded(json!([1, 1]), json!([bytes]), index.clone(), "end"),
            index,
            "end",
        );
        assert!(of(nested, &[4, 6]).unwrap().is_none());
        let gzip = json!([bytes, {"name": "gzip", "configuration": {"level": 1}}]);
        assert!(of(sharded(json!([1, 2]), json!([bytes]), gzip, "end"), &[4, 6]).unwrap().is_none());
    }

    #[test]
    fn a_shuffle_takes_whole_elements() {
        crate::codec::register();
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let checksum = json!({"name": "crc32c"});
        let shuffle =
            |size: u64| json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": size}});
        let problem = |codecs: Value| {
            let chain = CodecChain::from_metadata(&from_value::<Vec<_>>(codecs).unwrap()).unwrap();
            let codec = ReadCodec::new(&chain, &[2, 3, 4], data_type::int16(), FillValue::from(0i16));
            codec.err().map(|problem| problem.to_string())
        };
        assert_eq!(problem(json!([bytes, shuffle(3)])), None);
        assert_eq!(problem(json!([bytes, checksum, shuffle(13)])), None);
        for (codecs, words) in [
            (json!([bytes, shuffle(5)]), "elementsize 5 of its shuffle does not divide the 48 bytes"),
            (
                json!([bytes, checksum, shuffle(3)]),
                "elementsize 3 of its shuffle does not divide the 52 bytes",
            ),
        ] {
            assert!(problem(codecs).unwrap().contains(words));
        }
    }

    #[test]
    fn only_bytes_alone_are_the_elements() {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}});
        let gzip = json!({"name": "gzip", "configuration": {"level": 1}});
        for codecs in [json!([delta, bytes]), json!([bytes, gzip])] {
            let (codec, _) = read_codec(codecs.clone(), data_type::int16(), FillValue::from(0i16));
            assert!(!codec.is_raw(), "{codecs}");
        }
        let (codec, _) = read_codec(json!(["packbits"]), data_type::bool(), FillValue::from(false));
        assert!(!codec.is_raw());
    }
}
