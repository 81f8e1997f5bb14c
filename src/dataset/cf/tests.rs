use super::*;
use ElementType::*;
use serde_json::json;

fn decoding(
    element: ElementType,
    attributes: Value,
    v2_fill: Option<f64>,
    is_v3: bool,
) -> Result<Option<Cf>, String> {
    Cf::new(element, attributes.as_object().unwrap(), v2_fill, is_v3)
}

/// Of a Zarr v3 array whose attributes can be used and change something.
fn decoded(element: ElementType, attributes: Value) -> Cf {
    decoding(element, attributes.clone(), None, true).unwrap().unwrap_or_else(|| panic!("{attributes}"))
}

fn refused(element: ElementType, attributes: Value) -> String {
    let text = attributes.to_string();
    decoding(element, attributes, None, true).expect_err(&text)
}

#[test]
fn values_stay_what_they_are_without_attributes_that_change_them() {
    for (element, _, _) in ElementType::ALL {
        for is_v3 in [true, false] {
            assert_eq!(decoding(element, json!({"units": "K"}), None, is_v3), Ok(None));
            let nulls = json!({"_FillValue": null, "missing_value": null, "dtype": "int8"});
            assert_eq!(decoding(element, nulls, None, is_v3), Ok(None));
        }
    }
    // No integer is NaN, and of floats it is one already.
    for element in [Int16, Float32] {
        assert_eq!(decoding(element, json!({"missing_value": ["NaN"]}), None, true), Ok(None));
    }
    assert_eq!(decoding(Bool, json!({"dtype": "bool"}), None, true), Ok(None));
    assert_eq!(decoding(UInt8, json!({"_Unsigned": "true"}), None, true), Ok(None));
    assert_eq!(decoding(Int8, json!({"_Unsigned": "false"}), None, true), Ok(None));
}

#[test]
fn masked_values_have_the_least_type_with_nan_that_holds_them() {
    for (element, expected) in [
        (Int8, Float32),
        (UInt8, Float32),
        (Int16, Float32),
        (UInt16, Float32),
        (Int32, Float64),
        (UInt32, Float64),
        (Int64, Float64),
        (UInt64, Float64),
        (Float16, Float16),
        (Float32, Float32),
        (Float64, Float64),
    ] {
        let cf = decoded(element, json!({"_FillValue": 5}));
        assert_eq!((cf.reads_as, cf.computes_in, cf.output()), (element, expected, expected));
        assert_eq!((cf.masks, cf.scale_factor, cf.add_offset), (vec![5.0], None, None));
    }
    assert!(refused(Bool, json!({"_FillValue": true})).contains("cannot be masked in bools"));
}

#[test]
fn every_number_that_is_missing_is_masked_once() {
    let attributes = json!({"_FillValue": 5, "missing_value": [6, 5, "NaN", -7.5, 6]});
    assert_eq!(decoded(Float32, attributes.clone()).masks, [5.0, 6.0, -7.5]);
    assert_eq!(decoded(Float32, json!({"missing_value": true})).masks, [1.0]);
    // The fill value of a Zarr v2 array stands before the attribute.
    let v2 = decoding(Float32, attributes, Some(3.0), false).unwrap().unwrap();
    assert_eq!(v2.masks, [3.0, 6.0, 5.0, -7.5]);
    let listed = decoding(Int16, json!({"_FillValue": [1, 2]}), None, false).unwrap().unwrap();
    assert_eq!(listed.masks, [1.0, 2.0]);
    assert!(refused(Int16, json!({"missing_value": [1, "x"]})).contains("neither a number nor a list"));
}

#[test]
fn the_fill_value_of_format_3_has_the_type_of_the_array() {
    for (element, value, expected) in [
        (Float64, json!("AAAAAICHw8A="), -9999.0),
        (Float16, json!("QIy1eB2vFUQ="), 1e20),
        (Float32, json!("mpmZmZmZuT8="), 0.1),
        (Float32, json!(-9999), -9999.0),
        (Int16, json!(-3.75), -3.0),
        (UInt64, json!(7), 7.0),
    ] {
        assert_eq!(decoded(element, json!({"_FillValue": value})).masks, [expected], "{value}");
    }
    for (element, value) in [
        (Float64, json!("AAAAAICHw8A")),
        (Float64, json!("AAAAAAICHw8A=")),
        (Float64, json!("AAAA-ICHw8A=")),
        (Int16, json!("AAAAAICHw8A=")),
        (Int16, json!(true)),
        (Bool, json!(1)),
        (Float32, json!([1.0])),
    ] {
        let text = refused(element, json!({"_FillValue": value}));
        assert!(text.contains(&format!("is no {}", element.name())), "{text}");
    }
    // A NaN masks nothing, and is taken for what has made the values floats.
    let nan = json!({"_FillValue": "AAAAAAAA+H8=", "scale_factor": 0.5});
    assert_eq!(decoded(Float32, nan).computes_in, Float32);
}

#[test]
fn packed_values_are_computed_in_float64() {
    for attributes in [json!({"scale_factor": 0.5}), json!({"scale_factor": [2]}), json!({"add_offset": 3})] {
        for element in [Bool, Int16, UInt64, Float32] {
            assert_eq!(decoded(element, attributes.clone()).computes_in, Float64, "{attributes}");
        }
    }
    let both = decoded(Int16, json!({"_FillValue": -1, "scale_factor": 0.5, "add_offset": 3}));
    assert_eq!((both.scale_factor, both.add_offset, both.masks), (Some(0.5), Some(3.0), vec![-1.0]));
    for (attributes, part) in [
        (json!({"scale_factor": "2"}), "\"scale_factor\" \"2\" is no number"),
        (json!({"add_offset": [1, 2]}), "\"add_offset\" [1,2] is no number"),
        (json!({"add_offset": []}), "\"add_offset\" [] is no number"),
    ] {
        assert!(refused(Int16, attributes).contains(part), "{part}");
    }
    // Bools whose fill value is NaN stay bools, of which there are no products.
    for attributes in [json!({"scale_factor": 0.5}), json!({"add_offset": 0.5})] {
        let text = decoding(Bool, attributes, Some(f64::NAN), false).unwrap_err();
        assert!(text.contains("cannot be applied to bools"), "{text}");
    }
}

#[test]
fn products_of_integers_stay_integers_as_long_as_a_float64_holds_them() {
    for (element, factor) in [(Int8, 1i64 << 45), (UInt16, 1 << 37), (Int32, 1 << 21), (UInt32, -(1 << 21))] {
        let cf = decoded(element, json!({"scale_factor": factor}));
        assert_eq!((cf.computes_in, cf.scale_factor), (Int64, Some(factor as f64)));
        let beyond = json!({"scale_factor": factor + factor.signum()});
        assert!(refused(element, beyond).contains("need not be exact"));
    }
    assert!(refused(Int64, json!({"scale_factor": 1})).contains("need not be exact"));
    assert!(refused(Float32, json!({"scale_factor": 2})).contains("cut off the fractions"));
    assert!(refused(Int16, json!({"scale_factor": 2, "_FillValue": 0})).contains("no NaN"));
    // With an offset they are floats.
    assert_eq!(decoded(Int64, json!({"scale_factor": 2, "add_offset": 1})).computes_in, Float64);
}

#[test]
fn the_fill_value_goes_with_the_other_signedness() {
    let taken = |element, unsigned: &str, fill: f64| {
        let attributes = json!({"_Unsigned": unsigned, "_FillValue": fill});
        decoding(element, attributes, None, false).map(|cf| cf.unwrap().masks[0])
    };
    for (signed, unsigned, bits) in
        [(Int8, UInt8, 8), (Int16, UInt16, 16), (Int32, UInt32, 32), (Int64, UInt64, 64)]
    {
        let (half, whole) = (2f64.powi(bits - 1), 2f64.powi(bits));
        let cf = decoded(signed, json!({"_Unsigned": "true"}));
        assert_eq!((cf.reads_as, cf.computes_in), (unsigned, unsigned));
        assert_eq!(decoded(unsigned, json!({"_Unsigned": "false"})).reads_as, signed);
        for (fill, expected) in [(0.0, 0.0), (-half, half)] {
            assert_eq!(taken(signed, "true", fill), Ok(expected));
            assert_eq!(taken(unsigned, "false", fill), Ok(fill));
        }
        for outside in [half, 1.5 * half, -half * 1.5, 0.5] {
            assert!(taken(signed, "true", outside).unwrap_err().contains(&format!("no {}", signed.name())));
            assert!(
                taken(unsigned, "false", outside).unwrap_err().contains(&format!("no {}", signed.name()))
            );
        }
        // The fill value of a Zarr v2 array is one of the array's type.
        for (fill, expected) in [(half / 2.0, half / 2.0), (half, -half), (whole - whole / 4.0, -whole / 4.0)]
        {
            let v2 = decoding(unsigned, json!({"_Unsigned": "false"}), Some(fill), false);
            let v2 = v2.unwrap().unwrap();
            assert_eq!((v2.reads_as, v2.masks), (signed, vec![expected]));
        }
        assert!(decoding(unsigned, json!({"_Unsigned": "false"}), Some(whole), false).is_err());
    }
    assert_eq!(taken(Int8, "true", -1.0), Ok(255.0));
    assert!(taken(Int8, "true", 128.0).is_err() && taken(Int8, "true", -129.0).is_err());
    let attributes = json!({"_Unsigned": "true", "_FillValue": -1, "missing_value": [-1, 3]});
    assert_eq!(decoded(Int8, attributes).masks, [255.0, 3.0]);
    let list = json!({"_Unsigned": "true", "_FillValue": [-1, -2]});
    assert!(decoding(Int8, list, None, false).unwrap_err().contains("is a list"));
    assert_eq!(decoded(Float32, json!({"_Unsigned": "true", "_FillValue": 1})).reads_as, Float32);
}

#[test]
fn values_become_bools_where_the_attributes_say_so() {
    let cf = decoded(Int8, json!({"dtype": "bool"}));
    assert_eq!((cf.reads_as, cf.computes_in, cf.output()), (Int8, Int8, Bool));
    let cf = decoded(Int8, json!({"dtype": "bool", "_FillValue": -1}));
    assert_eq!((cf.computes_in, cf.output(), cf.masks), (Float32, Bool, vec![-1.0]));
}
