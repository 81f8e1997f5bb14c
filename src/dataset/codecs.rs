//! Codecs as metadata of either version name them, and which of them cannot be used.

use super::fields;

use serde_json::{Map, Value, from_value};
use zarrs::array::codec::api::Codec;
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::PluginCreateError;

pub(super) const SHARDING: &str = "sharding_indexed";
pub(super) const BITROUND: [&str; 2] = ["bitround", "numcodecs.bitround"];
pub(super) const FIXED_SCALE_OFFSET: [&str; 2] = ["fixedscaleoffset", "numcodecs.fixedscaleoffset"];

/// The codecs that can be read, by their names in Zarr v3 metadata or, where they have none, in v2.
const CODECS: [&str; 19] = [
    "adler32",
    "bitround",
    "blosc",
    "bytes",
    "bz2",
    "crc32c",
    "delta",
    "fixedscaleoffset",
    "fletcher32",
    "gzip",
    "lz4",
    "packbits",
    "pcodec",
    "sharding_indexed",
    "shuffle",
    "snappy",
    "transpose",
    "zlib",
    "zstd",
];

/// A codec's name in metadata of either version.
pub(super) fn name(codec: &Value) -> &str {
    codec.as_str().or_else(|| codec.get("name").or_else(|| codec.get("id"))?.as_str()).unwrap_or_default()
}

/// A codec's parameters in metadata of either version.
pub(super) fn parameters(codec: &Value) -> Value {
    match codec {
        Value::Object(entries) if entries.contains_key("id") => {
            entries.iter().filter(|(key, _)| *key != "id").map(|(k, v)| (k.clone(), v.clone())).collect()
        }
        _ => codec.get("configuration").cloned().unwrap_or_else(|| Map::new().into()),
    }
}

/// A codec that cannot be used, as the metadata has it.
pub(super) struct Culprit {
    pub name: String,
    pub parameters: Value,
    pub problem: Option<String>,
}

/// Leaves `bitround` out of v2 metadata, where zarrs does not know it.
pub(super) fn drop_bitround(metadata: &mut Value) {
    if let Some(filters) = metadata.get_mut("filters").and_then(Value::as_array_mut) {
        filters.retain(|filter| !BITROUND.contains(&name(filter)));
    }
}

impl Culprit {
    pub(super) fn new(codec: &Value, problem: &str) -> Self {
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
                // Unknown codecs are found by `find`.
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
                Err(error) => {
                    let problem =
                        foreign_shuffle(codec).unwrap_or_else(|| fields::readable(error.to_string()));
                    Some(Self::new(codec, &problem))
                }
            }
        })
    }
}

/// What is wrong with a Blosc codec whose `shuffle` is as the other version of metadata has it: a number in format 2, a name in format 3.
fn foreign_shuffle(codec: &Value) -> Option<String> {
    let parameters = parameters(codec);
    let shuffle = parameters.get("shuffle").filter(|_| name(codec).ends_with("blosc"))?;
    let (is_foreign, names) = match codec.get("id") {
        Some(_) => (shuffle.is_string(), "0 (none), 1 (bytes), 2 (bits) or -1"),
        None => (shuffle.is_number(), "\"noshuffle\", \"shuffle\" or \"bitshuffle\""),
    };
    is_foreign.then(|| format!("its shuffle is {shuffle}, but is one of {names} in this format"))
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
    fn a_shuffle_as_the_other_format_has_it_is_named() {
        crate::codec::register();
        let v3 = |shuffle: Value| {
            let parameters =
                json!({"cname": "lz4", "clevel": 5, "shuffle": shuffle, "typesize": 4, "blocksize": 0});
            json!({"codecs": [{"name": "blosc", "configuration": parameters}]})
        };
        let v2 = |shuffle: Value| json!({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": shuffle, "blocksize": 0}});
        let problem = |metadata: Value| Culprit::find(&metadata).and_then(|culprit| culprit.problem);
        for (metadata, words) in [(v3(json!(1)), "\"bitshuffle\""), (v2(json!("shuffle")), "2 (bits)")] {
            let problem = problem(metadata).unwrap();
            assert!(problem.starts_with("its shuffle is") && problem.contains(words), "{problem}");
        }
        assert_eq!(problem(v3(json!("shuffle"))), None);
    }

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
    fn an_unknown_codec_is_found_inside_sharded_chunks() {
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
