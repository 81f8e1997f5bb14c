//! Which field of an array's metadata is wrong, where zarrs only says that they are no metadata.

use serde_json::Value;

/// A field: its name, what it should be, whether it may be left out, and whether a value is that.
type Field = (&'static str, &'static str, bool, fn(&Value) -> bool);

const EXTENTS: &str = "a list of integers, 0 or more";
const CHUNK: &str = "a list of integers, 1 or more, one for each dimension";

const V3: [Field; 10] = [
    ("zarr_format", "3", false, |value| value == 3),
    ("node_type", "\"array\"", false, |value| value == "array"),
    ("shape", EXTENTS, false, |value| extents(value, 0).is_some()),
    ("data_type", "a name, or an object with one", false, is_named),
    ("chunk_grid", "an object with a name and a configuration", false, is_named),
    ("chunk_key_encoding", "an object with a name", false, is_named),
    ("fill_value", "a value of the data type", false, |_| true),
    ("codecs", "a list of codecs, each with a name", false, |value| all(value, is_named)),
    ("attributes", "an object", true, Value::is_object),
    ("dimension_names", "null or a list of names", true, |value| value.is_null() || all(value, is_name)),
];

const V2: [Field; 8] = [
    ("zarr_format", "2", false, |value| value == 2),
    ("shape", EXTENTS, false, |value| extents(value, 0).is_some()),
    ("chunks", CHUNK, false, |value| extents(value, 1).is_some()),
    ("dtype", "the name of a NumPy type", false, |value| value.is_string() || value.is_array()),
    ("compressor", "null or an object with an id", true, |value| value.is_null() || has_id(value)),
    ("fill_value", "a value of the type, or null", false, |_| true),
    ("order", "\"C\" or \"F\"", false, |value| value == "C" || value == "F"),
    ("filters", "null or a list of objects with an id", true, |value| value.is_null() || all(value, has_id)),
];

/// What is wrong with the first field that is, in metadata of Zarr v2 or v3; `None` if each for itself could be right.
pub(super) fn problem(metadata: &Value, is_v2: bool) -> Option<String> {
    let Some(entries) = metadata.as_object() else {
        return Some(format!("it is {}, not an object", short(metadata)));
    };
    let fields: &[Field] = if is_v2 { &V2 } else { &V3 };
    for (name, meaning, optional, fits) in fields {
        match entries.get(*name) {
            None if *optional => {}
            None => return Some(format!("it has no field \"{name}\", which should be {meaning}")),
            Some(value) if fits(value) => {}
            Some(value) => return Some(wrong(name, value, meaning)),
        }
    }
    let (name, chunk) = match is_v2 {
        true => ("chunks", metadata.get("chunks")),
        false => {
            let grid = metadata.get("chunk_grid")?;
            if grid.get("name")? != "regular" {
                return None;
            }
            ("chunk_grid.configuration.chunk_shape", grid.pointer("/configuration/chunk_shape"))
        }
    };
    let dimensions = extents(metadata.get("shape")?, 0)?.len();
    let chunk = chunk.unwrap_or(&Value::Null);
    let fits = extents(chunk, 1).is_some_and(|chunk| chunk.len() == dimensions);
    (!fits).then(|| wrong(name, chunk, CHUNK))
}

/// What is wrong with metadata that say whether there is an array or a group; `None` if nothing is.
pub(super) fn node_problem(metadata: &Value) -> Option<String> {
    const NODE: &str = "\"array\" or \"group\"";
    if !metadata.is_object() {
        return Some(format!("it is {}, not an object", short(metadata)));
    }
    let (version, node) = (&metadata["zarr_format"], &metadata["node_type"]);
    if version != 3 {
        return Some(wrong("zarr_format", version, "3"));
    }
    (node != "array" && node != "group").then(|| wrong("node_type", node, NODE))
}

/// What zarrs says, unless that names only its own types.
pub(super) fn readable(problem: String) -> String {
    match problem.contains("untagged enum") {
        true => "these parameters do not fit together, or are none that it has".into(),
        false => problem,
    }
}

fn wrong(name: &str, value: &Value, meaning: &str) -> String {
    format!("its field \"{name}\" is {}, but should be {meaning}", short(value))
}

/// The beginning of a value.
fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

fn extents(value: &Value, least: u64) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(|extent| extent.as_u64().filter(|&extent| extent >= least)).collect()
}

fn all(value: &Value, fits: fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(fits))
}

fn is_name(value: &Value) -> bool {
    value.is_string() || value.is_null()
}

fn is_named(value: &Value) -> bool {
    value.is_string() || value.get("name").is_some_and(Value::is_string)
}

fn has_id(value: &Value) -> bool {
    value.get("id").is_some_and(Value::is_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_field_that_is_wrong_is_named() {
        let v3 = json!({
            "zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "int8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
            "chunk_key_encoding": {"name": "default"}, "codecs": ["bytes"],
        });
        let v2 = json!({
            "zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": "<i4", "compressor": null,
            "fill_value": null, "order": "C",
        });
        for (metadata, is_v2, fields) in [(&v3, false, &V3[..]), (&v2, true, &V2[..])] {
            assert_eq!(problem(metadata, is_v2), None);
            for (name, _, optional, _) in fields {
                let mut changed = metadata.clone();
                changed.as_object_mut().unwrap().remove(*name);
                let found = problem(&changed, is_v2);
                assert_eq!(found.is_some(), !optional, "{name}");
                assert!(found.is_none_or(|text| text.contains(&format!("no field \"{name}\""))));
                changed[*name] = json!(-17.25);
                let found = problem(&changed, is_v2);
                let named = |text: String| text.contains(&format!("\"{name}\" is -17.25"));
                assert!(*name == "fill_value" || found.is_some_and(named), "{name}");
            }
            assert!(problem(&json!([1]), is_v2).unwrap().contains("[1], not an object"));
        }
        let mut other = v3.clone();
        other["chunk_grid"]["configuration"]["chunk_shape"] = json!([0, 2]);
        assert!(problem(&other, false).unwrap().contains("chunk_shape\" is [0,2]"));
        other["shape"] = json!(vec![1; 100]);
        assert!(problem(&other, false).unwrap().contains("is [0,2]"));
        other["shape"] = json!(vec![-1; 100]);
        assert!(problem(&other, false).unwrap().len() < 160);
        other["chunk_grid"] = json!({"name": "spiral"});
        other["shape"] = json!([3]);
        assert_eq!(problem(&other, false), None);
    }

    #[test]
    fn what_zarrs_says_is_kept_unless_it_names_its_own_types() {
        assert_eq!(readable("the level is 99".into()), "the level is 99");
        let own = readable("data did not match any variant of untagged enum Level".into());
        assert!(own.contains("do not fit together") && !own.contains("enum"), "{own}");
    }

    #[test]
    fn nodes_are_arrays_or_groups() {
        assert_eq!(node_problem(&json!({"zarr_format": 3, "node_type": "group"})), None);
        for (text, part) in [
            (json!([]), "not an object"),
            (json!({}), "\"zarr_format\" is null"),
            (json!({"zarr_format": 4, "node_type": "array"}), "\"zarr_format\" is 4"),
            (json!({"zarr_format": 3}), "\"node_type\" is null"),
            (json!({"zarr_format": 3, "node_type": "leaf"}), "\"node_type\" is \"leaf\""),
        ] {
            assert!(node_problem(&text).unwrap().contains(part), "{text}");
        }
    }
}
