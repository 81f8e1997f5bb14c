use super::*;
use serde_json::json;

fn sessions() -> Sessions {
    Sessions::new(Session::WHILE_OPENING)
}

#[test]
fn consolidated_metadata_name_the_arrays_below_the_root() {
    let arrays = |files: Value| {
        let files = files.as_object().unwrap().clone().into_iter().collect();
        Consolidated { files, version: Version::Immutable }.arrays()
    };
    let v2 = json!({
        ".zgroup": {}, ".zattrs": {}, "b/.zgroup": {}, "b/c/.zarray": {}, "b/c/.zattrs": {}, "a/.zarray": {},
    });
    assert_eq!(arrays(v2), ["a", "b/c"]);
    let (array, group) = (json!({"node_type": "array"}), json!({"node_type": "group"}));
    let v3 = json!({
        "zarr.json": group, "b/zarr.json": group, "b/c/zarr.json": array, "a/zarr.json": array, "a/other.json": array,
    });
    assert_eq!(arrays(v3), ["a", "b/c"]);
    assert_eq!(arrays(json!({"zarr.json": array})), [""; 0]);
    assert_eq!(arrays(json!({".zarray": {}})), [""; 0]);
}

#[test]
fn arrays_below_groups_are_found_and_links_that_lead_back_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
    for (file, metadata) in [
        ("zarr.json", group),
        ("g/zarr.json", group),
        ("g/b/.zarray", r#"{"zarr_format": 2}"#),
        ("a/zarr.json", r#"{"zarr_format": 3, "node_type": "array"}"#),
    ] {
        let file = folder.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, metadata).unwrap();
    }
    std::os::unix::fs::symlink("..", folder.path().join("g/up")).unwrap();
    let store =
        OpenStore::new(folder.path().to_str().unwrap(), &Access::to_folders(true), &sessions()).unwrap();
    assert_eq!(store.names().unwrap(), ["a", "g/b"]);
}

#[test]
fn metadata_that_cannot_be_used_are_named_with_their_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    std::fs::write(folder.path().join("zarr.json"), r#"{"zarr_format": 3, "node_type": "group"}"#).unwrap();
    for (metadata, problem) in [("{", "it is no JSON"), (r#"{"zarr_format": 3}"#, "\"node_type\" is null")] {
        std::fs::write(folder.path().join("a/zarr.json"), metadata).unwrap();
        let path = folder.path().to_str().unwrap();
        let store = OpenStore::new(path, &Access::to_folders(true), &sessions()).unwrap();
        let error = store.arrays(&["a".into()]).unwrap_err();
        let Error::Metadata { at, source } = &error else { panic!("{error}") };
        let expected = Context {
            store: path.into(),
            array: "a".into(),
            key: Some("a/zarr.json".into()),
            ..Context::default()
        };
        assert_eq!(at, &expected);
        assert!(source.to_string().contains(problem), "{source}");
    }
}

#[test]
fn a_web_page_is_told_from_damaged_metadata() {
    for (bytes, is) in [
        (" <!DOCTYPE HTML><p>Please log in", true),
        ("<html>", true),
        ("<", false),
        ("", false),
        ("{}", false),
    ] {
        assert_eq!(is_web_page(bytes.as_bytes()), is, "{bytes}");
    }
}

#[test]
fn a_key_is_a_file_in_a_folder() {
    assert_eq!([key("", "zarr.json"), key("a/b", "zarr.json")], ["zarr.json", "a/b/zarr.json"]);
}
