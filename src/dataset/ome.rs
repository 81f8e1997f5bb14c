//! Names of dimensions that OME-Zarr metadata have: the group of an image names the axes of the arrays in it.

use serde_json::Value;

/// The axes that the attributes of a group name for the array at `path` below it: of `multiscales` in OME-Zarr 0.4 and of
/// `ome.multiscales` in 0.5. `None` if the group is no image that has this array.
pub(super) fn axes(attributes: &Value, path: &str) -> Option<Vec<String>> {
    let metadata = attributes.get("ome").filter(|own| own.is_object()).unwrap_or(attributes);
    let image = metadata.get("multiscales")?.as_array()?.iter().find(|image| has_level(image, path))?;
    // A list of names until version 0.3.
    let name = |axis: &Value| axis.get("name").unwrap_or(axis).as_str().map(str::to_string);
    image.get("axes")?.as_array()?.iter().map(name).collect()
}

fn has_level(image: &Value, path: &str) -> bool {
    let datasets = image.get("datasets").and_then(Value::as_array);
    let paths = datasets.into_iter().flatten().filter_map(|level| level.get("path")?.as_str());
    let parts = |path: &'_ str| {
        path.split('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_string).collect::<Vec<_>>()
    };
    let wanted = parts(path);
    !wanted.is_empty() && paths.map(parts).any(|level| level == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn axes_are_those_of_the_image_that_has_the_array() {
        let image = |names: Value, paths: [&str; 2]| {
            let datasets: Vec<_> = paths.iter().map(|path| json!({"path": path})).collect();
            json!({"axes": names, "datasets": datasets})
        };
        let named = json!([{"name": "c", "type": "channel"}, {"name": "y", "type": "space"}]);
        let images = json!([image(named, ["0", "./s/1/"]), image(json!(["z", "x"]), ["a", "b"])]);
        for attributes in [json!({"multiscales": images}), json!({"ome": {"multiscales": images}})] {
            let of = |path: &str| axes(&attributes, path).map(|names| names.concat());
            assert_eq!(
                [of("0"), of("s/1"), of("b")],
                ["cy", "cy", "zx"].map(|names| Some(names.to_string()))
            );
            assert_eq!([of("2"), of("")], [None, None]);
        }
    }

    #[test]
    fn nonsense_names_nothing() {
        for attributes in [
            json!([]),
            json!({"multiscales": 5}),
            json!({"multiscales": [{"datasets": [{"path": "0"}]}]}),
            json!({"multiscales": [{"axes": ["y"], "datasets": {"path": "0"}}]}),
            json!({"multiscales": [{"axes": [{"type": "space"}], "datasets": [{"path": "0"}]}]}),
        ] {
            assert_eq!(axes(&attributes, "0"), None, "{attributes}");
        }
    }
}
