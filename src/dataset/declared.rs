//! What an array's metadata declare, in one form for both Zarr versions, also where the array cannot be read.

use super::codecs::{SHARDING, name, parameters};

use serde_json::{Value, from_value, json};

/// What an array's metadata declare. Whatever they leave open is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declared {
    /// Version of the Zarr format.
    pub zarr_format: Option<u64>,
    /// Extents.
    pub shape: Vec<u64>,
    /// The data type as it is written there.
    pub data_type: String,
    /// Extents of a chunk.
    pub chunk_shape: Vec<u64>,
    /// Extents of an inner chunk, if the codec chain is a sharding codec alone.
    pub inner_chunk_shape: Vec<u64>,
    /// The codec chain in the order of encoding, each codec an object with a `name` and a `configuration`. Those of v2
    /// keep their names and parameters there; its `order` and byte order become `transpose` and `bytes`, as in v3.
    pub codecs: Vec<Value>,
}

impl Declared {
    /// Reads metadata of either version.
    pub(super) fn new(metadata: &Value) -> Self {
        let extents = |value: Option<&Value>| -> Vec<u64> {
            value.and_then(|value| from_value(value.clone()).ok()).unwrap_or_default()
        };
        let is_v2 = metadata.get("chunks").is_some();
        let (data_type, chunks) = match is_v2 {
            true => (metadata.get("dtype"), metadata.get("chunks")),
            false => (metadata.get("data_type"), metadata.pointer("/chunk_grid/configuration/chunk_shape")),
        };
        let data_type = match data_type {
            None => String::new(),
            Some(Value::String(name)) => name.clone(),
            Some(Value::Object(named)) if named.contains_key("name") => name(&named["name"]).into(),
            Some(other) => other.to_string(),
        };
        let shape = extents(metadata.get("shape"));
        let codecs = if is_v2 { codecs_v2(metadata, shape.len()) } else { codecs_v3(metadata) };
        let inner = match &codecs[..] {
            [only] if only["name"] == SHARDING => only.pointer("/configuration/chunk_shape"),
            _ => None,
        };
        Self {
            zarr_format: metadata.get("zarr_format").and_then(Value::as_u64),
            data_type,
            chunk_shape: extents(chunks),
            inner_chunk_shape: extents(inner),
            shape,
            codecs,
        }
    }
}

fn codecs_v3(metadata: &Value) -> Vec<Value> {
    metadata.get("codecs").and_then(Value::as_array).into_iter().flatten().map(codec).collect()
}

fn codecs_v2(metadata: &Value, dimensions: usize) -> Vec<Value> {
    let filters = metadata.get("filters").and_then(Value::as_array).into_iter().flatten();
    let mut codecs: Vec<Value> = filters.map(codec).collect();
    if metadata.get("order").is_some_and(|order| order == "F") && dimensions > 1 {
        let order: Vec<usize> = (0..dimensions).rev().collect();
        codecs.insert(0, json!({"name": "transpose", "configuration": {"order": order}}));
    }
    let dtype = metadata.get("dtype").and_then(Value::as_str).unwrap_or_default();
    let bytes = match dtype.starts_with('>') {
        true => json!({"endian": "big"}),
        false => json!({}),
    };
    codecs.push(json!({"name": "bytes", "configuration": bytes}));
    codecs.extend(metadata.get("compressor").filter(|codec| codec.is_object()).map(codec));
    codecs
}

fn codec(metadata: &Value) -> Value {
    json!({"name": name(metadata), "configuration": parameters(metadata)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_take_one_form() {
        let v2 = Declared::new(&json!({
            "zarr_format": 2, "shape": [9, 4], "chunks": [3, 4], "dtype": ">f4", "order": "F",
            "filters": [{"id": "delta", "dtype": ">f4"}], "compressor": {"id": "zlib", "level": 1},
        }));
        let v3 = Declared::new(&json!({
            "zarr_format": 3, "shape": [9, 4], "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 4]}},
            "codecs": [
                {"name": "transpose", "configuration": {"order": [1, 0]}},
                {"name": "delta", "configuration": {"dtype": ">f4"}},
                {"name": "bytes", "configuration": {"endian": "big"}},
                {"name": "zlib", "configuration": {"level": 1}},
            ],
        }));
        assert_eq!((v2.zarr_format, &*v2.data_type), (Some(2), ">f4"));
        assert_eq!((v3.zarr_format, &*v3.data_type), (Some(3), "float32"));
        assert_eq!((&v2.shape, &v2.chunk_shape, &v2.codecs), (&v3.shape, &v3.chunk_shape, &v3.codecs));
    }

    #[test]
    fn inner_chunks_are_found_and_nonsense_is_empty() {
        let sharding = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 2], "codecs": ["bytes"]}});
        let sharded = Declared::new(&json!({"codecs": [sharding], "data_type": {"name": "struct"}}));
        assert_eq!((&*sharded.inner_chunk_shape, &*sharded.data_type), (&[1, 2][..], "struct"));
        assert_eq!(Declared::new(&json!([1])), Declared::default());
        assert_eq!(Declared::new(&json!({"shape": "x", "codecs": 5})), Declared::default());
    }
}
