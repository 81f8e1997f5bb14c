use super::*;
use serde_json::json;
use zarrs::plugin::ExtensionName;

#[test]
fn data_types_are_known_by_the_names_of_their_format() {
    let found = |metadata: Value| {
        let (found, name) = data_type(&metadata).unwrap();
        (found.and_then(|found| found.name_v3().map(|name| name.into_owned())), name)
    };
    let known = |name: &str, declared: &str| (Some(name.to_string()), declared.to_string());
    assert_eq!(found(json!({"zarr_format": 2, "dtype": ">f4"})), known("float32", ">f4"));
    assert_eq!(found(json!({"zarr_format": 3, "data_type": "int8"})), known("int8", "int8"));
    let time = json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}});
    assert_eq!(found(json!({"data_type": time})), known("numpy.datetime64", "numpy.datetime64"));
    for (metadata, name) in [
        (json!({"zarr_format": 2, "dtype": "<q9"}), "<q9"),
        (json!({"zarr_format": 2, "dtype": 5}), "5"),
        (json!({"zarr_format": 3, "data_type": "float31"}), "float31"),
        (json!({"zarr_format": 3, "data_type": [1]}), "[1]"),
    ] {
        assert_eq!(found(metadata), (None, name.to_string()));
    }
    assert!(data_type(&json!({"zarr_format": 2})).unwrap_err().to_string().contains("no dtype"));
    assert!(data_type(&json!({"zarr_format": 3})).unwrap_err().to_string().contains("no data_type"));
}

#[test]
fn points_in_time_and_time_spans_have_the_names_that_numpy_gives_them() {
    for (dtype, expected) in [
        ("<M8[ns]", Some("datetime64[ns]")),
        (">m8[25s]", Some("timedelta64[25s]")),
        ("|M8", Some("datetime64[generic]")),
        ("<i8", None),
    ] {
        let found = time_type(&json!({"zarr_format": 2, "dtype": dtype}));
        assert_eq!(found.as_deref(), expected, "{dtype}");
    }
    let v3 = |name: &str, configuration: Value| {
        time_type(&json!({"data_type": {"name": name, "configuration": configuration}}))
    };
    let steps = |steps: u64| json!({"unit": "s", "scale_factor": steps});
    assert_eq!(v3("numpy.datetime64", steps(1)).unwrap(), "datetime64[s]");
    assert_eq!(v3("numpy.timedelta64", steps(25)).unwrap(), "timedelta64[25s]");
    assert_eq!(v3("numpy.datetime64", json!({"unit": "D"})).unwrap(), "datetime64[D]");
    assert_eq!(v3("int64", steps(1)), None);
    assert_eq!(time_type(&json!({"data_type": "int64"})), None);
    assert_eq!(time_type(&json!({"zarr_format": 2, "dtype": [["a", "<i4"]]})), None);
}

#[test]
fn metadata_of_format_2_are_completed_for_zarrs() {
    let completed = |dtype: Value, fill: Value| {
        let mut metadata = json!({"zarr_format": 2, "dtype": dtype, "fill_value": fill});
        complete_v2(&mut metadata);
        (metadata["dtype"].clone(), metadata["fill_value"].clone())
    };
    let not_a_time = i64::MIN;
    for (dtype, stored) in [("<M8[ns]", "<i8"), (">m8[s]", ">i8"), ("|M8", "<i8")] {
        for fill in [json!(null), json!("NaT")] {
            assert_eq!(completed(json!(dtype), fill), (json!(stored), json!(not_a_time)), "{dtype}");
        }
        assert_eq!(completed(json!(dtype), json!(7)), (json!(stored), json!(7)), "{dtype}");
    }
    assert_eq!(completed(json!("<c8"), json!(null)), (json!("<c8"), json!([0, 0])));
    for (dtype, fill) in [("<c8", json!([1, 2])), ("<f4", json!(null)), ("<f4", json!("NaT"))] {
        assert_eq!(completed(json!(dtype), fill.clone()), (json!(dtype), fill));
    }
    let v3 = json!({"zarr_format": 3, "dtype": "<M8[ns]", "fill_value": null});
    let mut same = v3.clone();
    complete_v2(&mut same);
    assert_eq!(same, v3);
}
