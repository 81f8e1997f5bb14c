//! Codec chains: what assembling samples undoes is taken out of them here, what is left is bound to what it decodes to.
//!
//! ```text
//! array -> transpose, bitround, fixedscaleoffset -> other array codecs -> bytes -> compressors
//!          '------- undone by assembling ------'    '----------- the read codec -----------'
//! ```
//!
//! A transposed read chunk stays as it is stored and gets strides. `bitround` does nothing when decoding.
//! `fixedscaleoffset` is taken out of the metadata before zarrs sees it: zarrs rounds its numbers to 32 bits, reads
//! not all of its type names, and takes the byte order of the array for that of the stored type.

use super::{ElementType, Sharding, StoredType, fields, non_zero};
use crate::error::CODECS;
use crate::plan::row_major_strides;

use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Map, Value, from_value};
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::array::codec::api::Codec;
use zarrs::array::{
    ArrayToBytesCodecTraits, BytesRepresentation, CodecChain, CodecMetadataOptions, DataType, FillValue,
    data_type,
};
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::metadata_ext::codec::sharding::ShardingIndexLocation;
use zarrs::plugin::{ExtensionName, PluginCreateError};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The codec chain of a read chunk, bound to the shape and type that it decodes to: those of the stored array, which
/// assembling may have to transpose and to scale.
pub struct ReadCodec {
    /// The chain.
    pub chain: Arc<CodecChain>,
    /// Decoded shape, in the order of the stored dimensions.
    pub shape: Vec<NonZeroU64>,
    /// Decoded data type.
    pub data_type: DataType,
    /// The fill value in that type.
    pub fill_value: FillValue,
    /// The most bytes that an encoder makes of a read chunk. None for shards, which may have gaps of any size.
    pub encoded_bound: Option<u64>,
}

/// numcodecs' `fixedscaleoffset`: a value is `stored / scale + offset`, computed as NumPy does, then cast to `dtype`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedScaleOffset {
    /// Added after the division.
    pub offset: f64,
    /// Divisor.
    pub scale: f64,
    /// Type of the values, the array's own.
    pub dtype: ElementType,
    /// Type of the stored elements.
    pub astype: ElementType,
}

/// A codec that cannot be used, as the metadata has it.
pub(super) struct Culprit {
    pub name: String,
    pub parameters: Value,
    pub problem: Option<String>,
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
        let encoded = rest.encoded_representation(&shape, &data_type, &fill_value)?;
        let has_gaps = rest.array_to_bytes_codec().name_v3().as_deref() == Some(SHARDING);
        let encoded_bound = encoded.size().filter(|_| !has_gaps);
        Ok((Self { chain: Arc::new(rest), shape, data_type, fill_value, encoded_bound }, strides))
    }

    /// Whether the encoded bytes are the elements themselves.
    pub fn is_plain(&self) -> bool {
        self.chain.array_to_array_codecs().is_empty()
            && self.chain.bytes_to_bytes_codecs().is_empty()
            && self.chain.array_to_bytes_codec().name_v3().as_deref() == Some("bytes")
    }
}

impl Sharding {
    /// Takes `sharding_indexed` apart into its index and the chain of its inner chunks. `None` where the inner
    /// chunks are shards again or where the size of the index depends on its contents: such chunks are read and
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

pub(super) const SHARDING: &str = "sharding_indexed";
const BITROUND: [&str; 2] = ["bitround", "numcodecs.bitround"];
const FIXED_SCALE_OFFSET: [&str; 2] = ["fixedscaleoffset", "numcodecs.fixedscaleoffset"];

/// A codec's name in metadata of either version.
pub(super) fn name(codec: &Value) -> &str {
    codec.as_str().or_else(|| codec.get("name").or_else(|| codec.get("id"))?.as_str()).unwrap_or_default()
}

/// Its parameters.
pub(super) fn parameters(codec: &Value) -> Value {
    match codec {
        Value::Object(entries) if entries.contains_key("id") => {
            entries.iter().filter(|(key, _)| *key != "id").map(|(k, v)| (k.clone(), v.clone())).collect()
        }
        _ => codec.get("configuration").cloned().unwrap_or_else(|| Map::new().into()),
    }
}

/// The inner codecs of a sharding codec.
fn inner_codecs(codec: &mut Value) -> Option<&mut Vec<Value>> {
    codec.get_mut("configuration")?.get_mut("codecs")?.as_array_mut()
}

/// The list that codecs between arrays stand in: `codecs` in v3, `filters` in v2.
fn codecs(metadata: &mut Value) -> Option<&mut Vec<Value>> {
    let list = if metadata.get("codecs").is_some() { "codecs" } else { "filters" };
    metadata.get_mut(list)?.as_array_mut()
}

/// Leaves `bitround` out of v2 metadata, where zarrs does not know it.
pub(super) fn drop_bitround(metadata: &mut Value) {
    if let Some(filters) = metadata.get_mut("filters").and_then(Value::as_array_mut) {
        filters.retain(|filter| !BITROUND.contains(&name(filter)));
    }
}

impl FixedScaleOffset {
    /// Takes the codec out of an array's metadata, which then describe an array of the stored type, with a fill value
    /// of 0. `None` and nothing changed if there is none. `declared` is the array's type; `None` for complex numbers.
    ///
    /// # Errors
    /// Parameters that make no sense, and places in a chain where assembling could not undo it.
    pub(super) fn take(metadata: &mut Value, declared: Option<StoredType>) -> Result<Option<Self>, Culprit> {
        let Some(outer) = codecs(metadata) else { return Ok(None) };
        let is_shard = matches!(&outer[..], [only] if name(only) == SHARDING);
        let list = match outer.first_mut() {
            Some(sharding) if is_shard => inner_codecs(sharding),
            _ => Some(outer),
        };
        let leading = |codec: &Value| name(codec) == "transpose" || BITROUND.contains(&name(codec));
        let whole = |list: &[Value]| list.iter().all(|codec| name(codec) != SHARDING);
        let taken = list.filter(|list| whole(list)).and_then(|list| {
            let place = list.iter().position(|codec| !leading(codec))?;
            FIXED_SCALE_OFFSET.contains(&name(&list[place])).then(|| list.remove(place))
        });
        let Some(codec) = taken else {
            return match codecs(metadata).and_then(|outer| find(outer)) {
                None => Ok(None),
                Some(codec) => Err(Culprit::new(
                    codec,
                    "it can only be read as the first codec of a chain, sharded once or not, after `transpose` at most",
                )),
            };
        };
        if let Some(second) = codecs(metadata).and_then(|outer| find(outer)) {
            return Err(Culprit::new(second, "it comes twice"));
        }
        let (decoded, order) =
            Self::parse(&codec, declared).map_err(|problem| Culprit::new(&codec, &problem))?;
        if metadata.get("codecs").is_some() {
            metadata["data_type"] = decoded.astype.name().into();
        } else {
            metadata["dtype"] = numpy_name(decoded.astype, order).into();
        }
        metadata["fill_value"] = if decoded.astype == ElementType::Bool { false.into() } else { 0.into() };
        Ok(Some(decoded))
    }

    /// The codec's parameters and the byte order of the stored type.
    fn parse(codec: &Value, declared: Option<StoredType>) -> Result<(Self, char), String> {
        let parameters = parameters(codec);
        let number = |key: &str| {
            let value = parameters.get(key).and_then(Value::as_f64);
            value.filter(|value| value.is_finite()).ok_or(format!("its {key} is no number"))
        };
        let typed = |key: &str| {
            let value = parameters.get(key).and_then(Value::as_str);
            value
                .map(|text| element(text).ok_or(format!("its {key} \"{text}\" is no number type")))
                .transpose()
        };
        let (dtype, order) = typed("dtype")?.ok_or("its dtype is missing")?;
        let (astype, order) = typed("astype")?.unwrap_or((dtype, order));
        if Some(StoredType::Element(dtype)) != declared {
            return Err("its dtype is not the array's".into());
        }
        Ok((Self { offset: number("offset")?, scale: number("scale")?, dtype, astype }, order))
    }
}

/// The first `fixedscaleoffset` of a chain, inner chunks included.
fn find(codecs: &[Value]) -> Option<&Value> {
    codecs.iter().find_map(|codec| {
        if FIXED_SCALE_OFFSET.contains(&name(codec)) {
            return Some(codec);
        }
        find(codec.get("configuration")?.get("codecs")?.as_array()?)
    })
}

/// A NumPy type name and its byte order.
fn element(text: &str) -> Option<(ElementType, char)> {
    let plain = text.trim_start_matches(['<', '>', '|', '=']);
    let order = if text.starts_with('>') { '>' } else { '<' };
    let found = ElementType::ALL.iter().find(|(element, name, _)| {
        *name == plain || numpy_name(*element, '<').trim_start_matches(['<', '|']) == plain
    });
    found.map(|(element, ..)| (*element, order))
}

/// The name of a type in Zarr v2 metadata.
pub(super) fn numpy_name(element: ElementType, order: char) -> String {
    let kind = match element.name().trim_end_matches(|c: char| c.is_ascii_digit()) {
        "bool" => 'b',
        "int" => 'i',
        "uint" => 'u',
        _ => 'f',
    };
    let order = if element.size_bytes() == 1 { '|' } else { order };
    format!("{order}{kind}{}", element.size_bytes())
}

impl Culprit {
    fn new(codec: &Value, problem: &str) -> Self {
        Self {
            name: name(codec).into(),
            parameters: parameters(codec),
            problem: Some(problem.into()).filter(|problem: &String| !problem.is_empty()),
        }
    }

    /// A v2 `delta` in another byte order than the elements: numcodecs adds up the bytes as they lie there, while here they
    /// are in the machine's order by then.
    pub(super) fn misordered_delta(metadata: &Value) -> Option<Self> {
        let order = |name: &Value| name.as_str()?.chars().next().filter(|order| "<>".contains(*order));
        let elements = order(metadata.get("dtype")?)?;
        let differs = |codec: &&Value| {
            let orders = ["dtype", "astype"].map(|key| codec.get(key).and_then(order));
            name(codec) == "delta" && orders.into_iter().flatten().any(|order| order != elements)
        };
        let codec = metadata.get("filters")?.as_array()?.iter().find(differs)?;
        Some(Self::new(codec, "its byte order is not that of the elements"))
    }

    /// The first codec that stands where it cannot: a chain turns arrays into arrays, then the array into bytes, then bytes into
    /// bytes. zarrs would sort them in silence. Inner chunks and their index included.
    pub(super) fn misplaced(metadata: &Value) -> Option<Self> {
        let mut last: Option<(Stage, &str)> = None;
        for codec in all_codecs(metadata) {
            if let Some(inner) = codec.get("configuration").filter(|_| name(codec) == SHARDING)
                && let Some(culprit) = inner_chains(inner).find_map(|chain| Self::misplaced(&chain))
            {
                return Some(culprit);
            }
            let stage = match make(codec) {
                Some(Ok(Codec::ArrayToArray(_))) => Stage::ArrayToArray,
                Some(Ok(Codec::ArrayToBytes(_))) => Stage::ArrayToBytes,
                Some(Ok(Codec::BytesToBytes(_))) => Stage::BytesToBytes,
                // What is not known is told elsewhere.
                _ => continue,
            };
            if let Some((before, earlier)) = last
                && (stage < before || (stage == before && stage == Stage::ArrayToBytes))
            {
                let takes = if stage == Stage::BytesToBytes { "bytes" } else { "an array" };
                let problem = format!("it takes {takes}, but stands behind \"{earlier}\", which gives bytes");
                return Some(Self::new(codec, &problem));
            }
            last = Some((stage, name(codec)));
        }
        None
    }

    /// The first codec of the metadata that zarrs cannot make, inner chunks and their index included.
    pub(super) fn find(metadata: &Value) -> Option<Self> {
        all_codecs(metadata).find_map(|codec| {
            if let Some(inner) = codec.get("configuration").filter(|_| name(codec) == SHARDING)
                && let Some(culprit) = inner_chains(inner).find_map(|chain| Self::find(&chain))
            {
                return Some(culprit);
            }
            match make(codec)? {
                Ok(_) => None,
                Err(PluginCreateError::Unsupported(_)) => Some(Self::new(codec, "")),
                Err(error) => Some(Self::new(codec, &fields::readable(error.to_string()))),
            }
        })
    }
}

/// What a codec takes and gives, in the order of a chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    ArrayToArray,
    ArrayToBytes,
    BytesToBytes,
}

/// The codecs of an array's metadata of either version, in the order of encoding.
fn all_codecs(metadata: &Value) -> impl Iterator<Item = &Value> {
    let list = |key: &str| metadata.get(key).and_then(Value::as_array).into_iter().flatten();
    let compressor = metadata.get("compressor").filter(|codec| codec.is_object());
    list("codecs").chain(list("filters")).chain(compressor)
}

/// The chains in the configuration of a sharding codec: that of inner chunks, and that of their index.
fn inner_chains(sharding: &Value) -> impl Iterator<Item = Value> {
    ["codecs", "index_codecs"]
        .into_iter()
        .filter_map(|key| Some(serde_json::json!({"codecs": sharding.get(key)?})))
}

/// The codec of metadata of either version, or why there is none; `None` where it need not be understood.
fn make(codec: &Value) -> Option<Result<Codec, PluginCreateError>> {
    match codec.get("id") {
        Some(_) => from_value::<MetadataV2>(codec.clone()).ok().map(|codec| Codec::from_metadata(&codec)),
        None => from_value::<MetadataV3>(codec.clone())
            .ok()
            .filter(MetadataV3::must_understand)
            .map(|codec| Codec::from_metadata(&codec)),
    }
}

/// The codecs that can be read in metadata of Zarr v2 or v3, by the names that they have there.
pub(super) fn known(is_v2: bool) -> Vec<String> {
    let made = |name: &str| match is_v2 {
        true => make(&serde_json::json!({"id": name})),
        false => make(&name.into()),
    };
    let is_known = |name: &String| {
        // Taken out of metadata before zarrs sees them.
        let ours =
            is_v2 && (BITROUND.contains(&name.as_str()) || FIXED_SCALE_OFFSET.contains(&name.as_str()));
        ours || !matches!(made(name), None | Some(Err(PluginCreateError::Unsupported(_))))
    };
    let names = |codec: &&str| [codec.to_string(), format!("numcodecs.{codec}")].into_iter().find(is_known);
    CODECS.iter().filter_map(names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_codec_of_the_error_is_there() {
        crate::codec::register();
        let (v2, v3) = (known(true), known(false));
        for codec in CODECS {
            let listed = |names: &[String]| names.iter().any(|name| name.ends_with(codec));
            assert!(listed(&v2) || listed(&v3), "{codec}");
        }
        // zarrs reads packed bits of v3 only, and v2 has no chains but those of filters and a compressor.
        assert!(
            ["bz2", "zstd", "bitround", "fixedscaleoffset"].iter().all(|name| v2.contains(&name.to_string()))
        );
        assert!(
            !["packbits", "sharding_indexed", "crc32c"].iter().any(|name| v2.contains(&name.to_string()))
        );
        assert!(["packbits", "sharding_indexed"].iter().all(|name| v3.contains(&name.to_string())));
        assert!(v3.iter().any(|name| name.ends_with("bz2")));
    }

    #[test]
    fn codecs_in_an_order_that_cannot_be_are_found() {
        crate::codec::register();
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
        let zstd = json!({"name": "zstd", "configuration": {"level": 1, "checksum": false}});
        let sharded = |inner: Value, index: Value| {
            let chunk_shape = [2, 2];
            json!([{"name": "sharding_indexed", "configuration":
                {"chunk_shape": chunk_shape, "codecs": inner, "index_codecs": index}}])
        };
        for right in [
            json!([transpose, bytes, zstd, zstd]),
            json!([bytes, {"name": "x.note", "must_understand": false}]),
            sharded(json!([transpose, bytes, zstd]), json!([bytes, "crc32c"])),
        ] {
            assert!(Culprit::misplaced(&json!({"codecs": right})).is_none(), "{right}");
        }
        for (wrong, name) in [
            (json!([zstd, bytes]), "bytes"),
            (json!([bytes, transpose]), "transpose"),
            (json!([bytes, zstd, transpose]), "transpose"),
            (json!([bytes, bytes]), "bytes"),
            (sharded(json!([zstd, bytes]), json!([bytes])), "bytes"),
            (sharded(json!([bytes]), json!(["crc32c", bytes])), "bytes"),
        ] {
            let culprit = Culprit::misplaced(&json!({"codecs": wrong})).unwrap();
            assert_eq!(culprit.name, name, "{wrong}");
            assert!(culprit.problem.unwrap().contains("stands behind"));
        }
        let delta = json!({"id": "delta", "dtype": "<i4"});
        let (shuffle, zlib) = (json!({"id": "shuffle", "elementsize": 4}), json!({"id": "zlib", "level": 1}));
        let v2 = |filters: Value| json!({"filters": filters, "compressor": zlib});
        assert!(Culprit::misplaced(&v2(json!([delta, shuffle]))).is_none());
        assert!(Culprit::misplaced(&v2(json!(null))).is_none());
        assert_eq!(Culprit::misplaced(&v2(json!([shuffle, delta]))).unwrap().name, "delta");
    }

    #[test]
    fn types_have_the_names_that_numpy_gives_them() {
        for (name, expected) in
            [("|u1", "uint8"), ("<i2", "int16"), (">f8", "float64"), ("float32", "float32")]
        {
            assert_eq!(element(name).unwrap().0.name(), expected);
        }
        assert_eq!(element(">f8").unwrap().1, '>');
        assert_eq!(element("c8"), None);
        assert_eq!(numpy_name(ElementType::UInt16, '>'), ">u2");
        assert_eq!(numpy_name(ElementType::Bool, '>'), "|b1");
    }

    fn scaled(astype: &str) -> Value {
        json!({"id": "fixedscaleoffset", "scale": 10, "offset": 273.15, "dtype": "<f4", "astype": astype})
    }

    fn take(metadata: &mut Value) -> Result<Option<FixedScaleOffset>, Culprit> {
        FixedScaleOffset::take(metadata, Some(StoredType::Element(ElementType::Float32)))
    }

    #[test]
    fn scaling_leaves_an_array_of_the_stored_type() {
        let mut v2 =
            json!({"dtype": "<f4", "fill_value": "NaN", "filters": [scaled(">i2"), {"id": "delta"}]});
        let (dtype, astype) = (ElementType::Float32, ElementType::Int16);
        let expected = FixedScaleOffset { offset: 273.15, scale: 10.0, dtype, astype };
        assert_eq!(take(&mut v2).ok().flatten(), Some(expected));
        assert_eq!(v2, json!({"dtype": ">i2", "fill_value": 0, "filters": [{"id": "delta"}]}));

        let codec = json!({"name": "numcodecs.fixedscaleoffset", "configuration": scaled("u1")});
        let sharding = |inner: Value| json!({"name": "sharding_indexed", "configuration": {"codecs": inner}});
        let chain = json!([{"name": "transpose"}, codec, "bytes"]);
        let mut v3 = json!({"data_type": "float32", "codecs": [sharding(chain.clone())]});
        assert_eq!(take(&mut v3).ok().flatten().unwrap().astype, ElementType::UInt8);
        assert_eq!(v3["data_type"], "uint8");
        assert_eq!(v3["codecs"], json!([sharding(json!([{"name": "transpose"}, "bytes"]))]));
        assert!(take(&mut v3).is_ok_and(|again| again.is_none()));

        for refused in [
            json!([sharding(json!([sharding(chain.clone())]))]),
            json!([codec, sharding(json!(["bytes"]))]),
            json!([{"name": "reshape"}, codec, "bytes"]),
            json!([codec, codec, "bytes"]),
        ] {
            let mut v3 = json!({"data_type": "float32", "codecs": refused});
            assert!(take(&mut v3).is_err(), "{refused}");
        }
    }

    #[test]
    fn the_codec_that_nobody_knows_is_found_inside_shards() {
        let inner = json!({"codecs": ["bytes", {"name": "squeeze.me", "configuration": {"hard": true}}]});
        let metadata = json!({"codecs": [{"name": "sharding_indexed", "configuration": inner}]});
        let culprit = Culprit::find(&metadata).unwrap();
        assert_eq!((culprit.name.as_str(), culprit.problem), ("squeeze.me", None));
        assert_eq!(culprit.parameters, json!({"hard": true}));
        let culprit =
            Culprit::find(&json!({"filters": null, "compressor": {"id": "lzma", "preset": 1}})).unwrap();
        assert_eq!((culprit.name.as_str(), culprit.parameters), ("lzma", json!({"preset": 1})));
        assert!(Culprit::find(&json!({"codecs": ["bytes"], "compressor": null})).is_none());
    }
}
