//! Parameters of codecs that metadata leave out, because zarr-python and numcodecs have a default for them, and an `elementsize` that only these
//! understand.

use super::codecs::{SHARDING, name};

use serde_json::{Map, Value, json};

/// Adds what is left out to the codecs of metadata of either version, inner chunks and their index included. An `elementsize` below 1
/// becomes 1. `element_bytes` is the size of the array's elements.
pub(super) fn complete(metadata: &mut Value, element_bytes: u64) {
    for key in ["codecs", "filters"] {
        let codecs = metadata.get_mut(key).and_then(Value::as_array_mut);
        codecs.into_iter().flatten().for_each(|codec| complete_one(codec, element_bytes));
    }
    if let Some(compressor) = metadata.get_mut("compressor") {
        complete_one(compressor, element_bytes);
    }
}

fn complete_one(codec: &mut Value, element_bytes: u64) {
    let name = name(codec).to_string();
    let is_v2 = codec.get("id").is_some();
    let of_numcodecs = if is_v2 { Some(&*name) } else { name.strip_prefix("numcodecs.") };
    let defaults = match of_numcodecs {
        Some(name) => of_numcodecs_codec(name, is_v2, element_bytes),
        None => of_zarr_codec(&name),
    };
    let Value::Object(defaults) = defaults else { return };
    if let Value::String(name) = codec {
        *codec = json!({"name": name});
    }
    let Some(entries) = codec.as_object_mut() else { return };
    let parameters = if is_v2 {
        Some(&mut *entries)
    } else {
        entries.entry("configuration").or_insert_with(|| Map::new().into()).as_object_mut()
    };
    // What is there and is wrong is found later.
    let Some(parameters) = parameters else { return };
    // zarr-python takes null in v3 for an `elementsize` that is left out.
    if !is_v2 && parameters.get("elementsize").is_some_and(Value::is_null) {
        parameters.remove("elementsize");
    }
    for (key, value) in defaults {
        parameters.entry(key).or_insert(value);
    }
    // numcodecs shuffles nothing then; zarrs refuses it.
    if let Some(size) = parameters.get_mut("elementsize").filter(|size| size.as_i64().is_some_and(|n| n < 1))
    {
        *size = 1.into();
    }
    if name == SHARDING {
        let mut inner = json!({"codecs": parameters.remove("codecs")});
        complete(&mut inner, element_bytes);
        parameters.insert("codecs".into(), inner["codecs"].take());
        let mut index = json!({"codecs": parameters.remove("index_codecs")});
        complete(&mut index, size_of::<u64>() as u64);
        parameters.insert("index_codecs".into(), index["codecs"].take());
    }
}

/// Defaults of the codecs that Zarr v3 names, as zarr-python has them.
fn of_zarr_codec(name: &str) -> Value {
    let little = || json!({"name": "bytes", "configuration": {"endian": "little"}});
    match name {
        "blosc" => json!({"typesize": 1, "cname": "zstd", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}),
        "gzip" => json!({"level": 5}),
        "zstd" => json!({"level": 0, "checksum": false}),
        SHARDING => json!({
            "codecs": [little()],
            "index_codecs": [little(), {"name": "crc32c"}],
            "index_location": "end",
        }),
        _ => Value::Null,
    }
}

/// Defaults of numcodecs.
fn of_numcodecs_codec(name: &str, is_v2: bool, element_bytes: u64) -> Value {
    match name {
        "blosc" => json!({"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}),
        "bz2" | "gzip" | "zlib" => json!({"level": 1}),
        "lz4" => json!({"acceleration": 1}),
        // In v3, zarr-python fills in the size of elements.
        "shuffle" => json!({"elementsize": if is_v2 { 4 } else { element_bytes }}),
        "zstd" if is_v2 => json!({"level": 0}),
        "zstd" => json!({"level": 0, "checksum": false}),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_out_is_added() {
        let completed = |codecs: Value| {
            let mut metadata = json!({"codecs": codecs});
            complete(&mut metadata, 2);
            metadata["codecs"].take()
        };
        assert_eq!(
            completed(
                json!(["zstd", {"name": "zstd", "configuration": {"level": 9}}, {"name": "numcodecs.shuffle"}])
            ),
            json!([
                {"name": "zstd", "configuration": {"level": 0, "checksum": false}},
                {"name": "zstd", "configuration": {"level": 9, "checksum": false}},
                {"name": "numcodecs.shuffle", "configuration": {"elementsize": 2}},
            ])
        );
        let whole =
            json!([{"name": "bytes"}, "crc32c", {"name": "x.unknown"}, {"name": "gzip", "configuration": 3}]);
        assert_eq!(completed(whole.clone()), whole);
        let sharded = |inner: Value| json!([{"name": "sharding_indexed", "configuration": inner}]);
        let completed = completed(sharded(json!({"chunk_shape": [2], "codecs": ["bytes", "gzip"]})));
        assert_eq!(
            completed,
            sharded(json!({
                "chunk_shape": [2],
                "codecs": ["bytes", {"name": "gzip", "configuration": {"level": 5}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
                "index_location": "end",
            }))
        );
    }

    #[test]
    fn the_elementsize_of_a_shuffle_is_as_zarr_python_understands_it() {
        for (given, in_v2, in_v3) in [
            (json!(-1), json!(1), json!(1)),
            (json!(0), json!(1), json!(1)),
            (json!(3), json!(3), json!(3)),
            (json!(null), json!(null), json!(2)),
        ] {
            let mut v2 = json!({"filters": [{"id": "shuffle", "elementsize": given}]});
            complete(&mut v2, 2);
            assert_eq!(v2["filters"][0]["elementsize"], in_v2);
            let shuffle = json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": given}});
            let mut v3 =
                json!({"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [shuffle]}}]});
            complete(&mut v3, 2);
            let inner = &v3["codecs"][0]["configuration"]["codecs"][0];
            assert_eq!(inner["configuration"]["elementsize"], in_v3);
        }
    }

    #[test]
    fn metadata_of_v2_have_the_defaults_of_numcodecs() {
        let mut metadata =
            json!({"filters": [{"id": "shuffle"}], "compressor": {"id": "blosc", "clevel": 9}});
        complete(&mut metadata, 2);
        assert_eq!(metadata["filters"], json!([{"id": "shuffle", "elementsize": 4}]));
        let blosc = json!({"id": "blosc", "cname": "lz4", "clevel": 9, "shuffle": 1, "blocksize": 0});
        assert_eq!(metadata["compressor"], blosc);
        let mut raw = json!({"filters": null, "compressor": null});
        complete(&mut raw, 2);
        assert_eq!(raw, json!({"filters": null, "compressor": null}));
    }
}
