//! Arrays of several stores as one, joined along the sample dimension.

use super::array::ArrayInfo;
use crate::error::{Context, Error, Result};
use crate::plan::{ArrayGeometry, PartGeometry};

use serde_json::Value;

/// Attributes that decide what the stored numbers mean; parts of one array cannot differ in them.
pub const VALUE_ATTRIBUTES: [&str; 6] =
    ["scale_factor", "add_offset", "_FillValue", "missing_value", "units", "_Unsigned"];

/// An array as samples are taken from it: one array of one store, or the arrays of that name of several stores, one
/// behind the other along the first dimension or each by itself. Their chunks, codecs, fill values and Zarr versions may
/// differ.
#[derive(Debug)]
pub struct Joined {
    /// The arrays; at least one.
    pub parts: Vec<ArrayInfo>,
    /// Where each part starts along the first dimension.
    pub starts: Vec<u64>,
    /// Extents of the whole; of parts that are read separately, those of the first.
    pub shape: Vec<u64>,
    /// Whether each part is read by itself.
    pub is_separate: bool,
    /// For each dimension the dimension that it is in the arrays that samples are taken along.
    pub axes: Vec<Option<usize>>,
    /// One DALI letter per dimension, or empty, also where the parts have different ones.
    pub layout: String,
}

impl Joined {
    /// Joins arrays in their order. Of arrays that are the same for every sample the first stands for all.
    ///
    /// # Errors
    /// Names the first array that does not fit to the first one.
    pub(super) fn new(mut parts: Vec<ArrayInfo>, axes: Vec<Option<usize>>) -> Result<Self> {
        if axes.first() != Some(&Some(0)) {
            parts[1..].iter().try_for_each(|other| check_same(&parts[0], other))?;
            parts.truncate(1);
        }
        let first = &parts[0];
        parts[1..].iter().try_for_each(|other| check_fit(first, other))?;
        let mut shape = first.shape.clone();
        let mut starts = vec![0];
        for part in &parts[1..] {
            starts.push(shape[0]);
            shape[0] = shape[0].checked_add(part.shape[0]).ok_or_else(|| Error::Metadata {
                at: part.context(),
                source: "with those before it, it has more steps than can be counted".into(),
            })?;
        }
        let layout = layout(&parts);
        Ok(Self { parts, starts, shape, is_separate: false, axes, layout })
    }

    /// Arrays that are read separately. They agree in their dimensions, and may differ in extents; whether these fit to the
    /// samples is known once there are windows.
    ///
    /// # Errors
    /// Names the first array that does not fit to the first one.
    pub(super) fn separate(parts: Vec<ArrayInfo>, axes: Vec<Option<usize>>) -> Result<Self> {
        let first = &parts[0];
        for other in &parts[1..] {
            if first.shape.len() != other.shape.len() {
                let shapes = [first, other].map(|array| format!("{:?}", array.shape));
                let [here, there] = shapes;
                return Err(unlike(first, other, "shape", here, there));
            }
            let names = [first, other].map(|array| &array.dimension_names);
            if names[0] != names[1] && names.iter().all(|names| !names.is_empty()) {
                let [here, there] = names.map(|names| format!("{names:?}"));
                return Err(unlike(first, other, "list of dimensions", here, there));
            }
            check_values(first, other)?;
        }
        let (starts, shape, layout) = (vec![0; parts.len()], first.shape.clone(), layout(&parts));
        Ok(Self { parts, starts, shape, is_separate: true, axes, layout })
    }

    /// The first part: what all of them agree in can be read off it.
    pub fn first(&self) -> &ArrayInfo {
        &self.parts[0]
    }

    /// The array as the place of an error about the whole.
    pub fn context(&self) -> Context {
        self.first().context()
    }

    /// The array in a sample's `source_info`: `store/array`, or `first..last/array` of joined stores. `names` stands
    /// for the array's name. `store` is the sample's, of stores that are read separately.
    pub fn place(&self, names: &str, store: usize) -> String {
        let trimmed = |part: &ArrayInfo| part.store.trim_end_matches('/').to_string();
        let parts = if self.is_separate { &self.parts[store..=store] } else { &self.parts[..] };
        let stores = match parts {
            [only] if names.is_empty() => only.store.clone(),
            [only] => trimmed(only),
            [first, .., last] => format!("{}..{}", trimmed(first), trimmed(last)),
            [] => String::new(),
        };
        if names.is_empty() { stores } else { format!("{stores}/{names}") }
    }

    /// What planning needs to know of the array in a domain of samples, if windows have `axes` axes: of the whole, or of the
    /// part in `store` if stores are read separately.
    pub fn geometry(&self, store: usize, axes: usize) -> ArrayGeometry {
        let parts = if self.is_separate { store..store + 1 } else { 0..self.parts.len() };
        let part = |(part, &start): (&ArrayInfo, &u64)| PartGeometry {
            start,
            read_chunk_shape: part.read_chunk_shape().to_vec(),
            chunk_strides: part.chunk_strides.clone(),
        };
        ArrayGeometry {
            shape: if self.is_separate { self.parts[store].shape.clone() } else { self.shape.clone() },
            axes: self.axes.iter().map(|axis| axis.filter(|&axis| axis < axes)).collect(),
            chosen: vec![None; self.shape.len()],
            parts: self.parts[parts.clone()].iter().zip(&self.starts[parts.clone()]).map(part).collect(),
            first_part: parts.start,
        }
    }
}

/// The layout that all parts have, or none.
fn layout(parts: &[ArrayInfo]) -> String {
    let agree = parts.iter().all(|part| part.layout == parts[0].layout);
    if agree { parts[0].layout.clone() } else { String::new() }
}

/// Whether an array that is the same for every sample is that in two stores, as far as metadata tell.
fn check_same(first: &ArrayInfo, other: &ArrayInfo) -> Result<()> {
    match first.shape == other.shape {
        true => Ok(()),
        false => {
            Err(unlike(first, other, "shape", format!("{:?}", first.shape), format!("{:?}", other.shape)))
        }
    }
}

fn unlike(first: &ArrayInfo, other: &ArrayInfo, what: &str, here: String, there: String) -> Error {
    Error::Unlike {
        at: first.context(),
        difference: format!("its {what} is {here}, but {there} in {}", other.context()),
        remedy: "stores that are joined need the same: leave one of them out, or give each a reader of its own",
    }
}

/// Whether two arrays can be parts of one.
fn check_fit(first: &ArrayInfo, other: &ArrayInfo) -> Result<()> {
    let unlike = |what: &str, here, there| unlike(first, other, what, here, there);
    if first.shape.get(1..) != other.shape.get(1..) {
        let what = "shape beyond the first dimension";
        return Err(unlike(what, format!("{:?}", first.shape), format!("{:?}", other.shape)));
    }
    check_values(first, other)
}

/// Whether the numbers in two arrays mean the same.
fn check_values(first: &ArrayInfo, other: &ArrayInfo) -> Result<()> {
    let unlike = |what: &str, here, there| unlike(first, other, what, here, there);
    if first.data_type != other.data_type {
        let name = |array: &ArrayInfo| format!("\"{}\"", array.data_type);
        return Err(unlike("data type", name(first), name(other)));
    }
    for name in VALUE_ATTRIBUTES {
        let (here, there) = (attribute(first, name), attribute(other, name));
        if here != there {
            let text = |value: Option<Value>| value.map_or_else(|| "none".into(), |value| value.to_string());
            return Err(unlike(&format!("attribute \"{name}\""), text(here), text(there)));
        }
    }
    Ok(())
}

/// An attribute's value as far as it matters: numbers by value, and nothing where it changes nothing.
fn attribute(array: &ArrayInfo, name: &str) -> Option<Value> {
    let value = match array.attributes().get(name)? {
        Value::Array(list) if list.len() == 1 => &list[0],
        value => value,
    };
    match (name, value.as_f64()) {
        ("scale_factor", Some(1.0)) | ("add_offset", Some(0.0)) => None,
        ("_Unsigned", None) if value == "false" => None,
        (_, Some(number)) if value.as_i64().is_none() && value.as_u64().is_none() => Some(match number {
            whole if whole.fract() == 0.0 && whole.abs() < 1e15 => (whole as i64).into(),
            number => number.into(),
        }),
        _ => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::array::tests::array;
    use super::*;
    use serde_json::json;

    fn part(shape: &[u64], attributes: Value) -> ArrayInfo {
        array("int8", shape, json!({"attributes": attributes})).0
    }

    fn join(parts: Vec<ArrayInfo>) -> Result<Joined> {
        let axes = (0..parts[0].shape.len()).map(Some).collect();
        Joined::new(parts, axes)
    }

    #[test]
    fn parts_follow_one_another_along_the_first_dimension() {
        let joined = join([6, 4, 1].map(|steps| part(&[steps, 5], json!({}))).into()).unwrap();
        assert_eq!((&joined.starts[..], &joined.shape[..]), (&[0, 6, 10][..], &[11, 5][..]));
        let geometry = joined.geometry(0, 1);
        assert_eq!((&geometry.shape, &geometry.axes[..]), (&joined.shape, &[Some(0), None][..]));
        let parts = geometry
            .parts
            .iter()
            .map(|part| (part.start, &part.read_chunk_shape[..], &part.chunk_strides[..]));
        let strides = &[3, 1][..];
        let expected = [(0, &[2, 3][..], strides), (6, &[2, 3][..], strides), (10, &[1, 3][..], strides)];
        assert_eq!(parts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_the_same_for_every_sample_is_taken_from_the_first_store() {
        let axes = || vec![Some(1)];
        let joined =
            Joined::new(vec![part(&[5], json!({})), part(&[5], json!({"units": "K"}))], axes()).unwrap();
        assert_eq!((joined.parts.len(), &joined.shape[..]), (1, &[5][..]));
        let other =
            Joined::new(vec![part(&[5], json!({})), part(&[6], json!({}))], axes()).unwrap_err().to_string();
        assert!(other.contains("its shape is [5], but [6] in"), "{other}");
    }

    #[test]
    fn a_place_names_the_first_and_the_last_store() {
        let mut parts: Vec<ArrayInfo> = [2, 2, 2].map(|steps| part(&[steps], json!({}))).into();
        parts
            .iter_mut()
            .zip(["a.zarr/", "b.zarr", "c.zarr/"])
            .for_each(|(part, store)| part.store = store.into());
        let mut joined = join(parts).unwrap();
        assert_eq!([joined.place("", 0), joined.place("t2m", 0)], ["a.zarr..c.zarr", "a.zarr..c.zarr/t2m"]);
        assert_eq!(joined.context().store, "a.zarr/");
        joined.parts.truncate(1);
        assert_eq!([joined.place("", 0), joined.place("t2m", 0)], ["a.zarr/", "a.zarr/t2m"]);
    }

    #[test]
    fn a_layout_is_kept_where_all_parts_have_it() {
        let layout = |names: [&str; 2]| {
            let parts = [["time", "lat"], names]
                .map(|names| array("int8", &[4, 4], json!({"dimension_names": names})).0);
            join(parts.into()).unwrap().layout
        };
        assert_eq!([layout(["time", "lat"]), layout(["time", "lon"])], ["TH", ""]);
    }

    #[test]
    fn parts_have_one_type_and_one_shape_beyond_the_first_dimension() {
        for (other, problem) in [
            (array("int8", &[6, 4], json!({})).0, "[6, 5], but [6, 4] in"),
            (array("int8", &[6], json!({})).0, "[6, 5], but [6] in"),
            (array("int16", &[6, 5], json!({})).0, "data type is \"int8\", but \"int16\" in"),
        ] {
            let text = join(vec![part(&[6, 5], json!({})), other]).unwrap_err().to_string();
            assert!(text.contains(problem), "{text}");
        }
    }

    #[test]
    fn parts_have_the_same_attributes_as_far_as_these_change_values() {
        for (here, there) in [
            (json!({}), json!({"scale_factor": 1.0, "add_offset": 0, "_Unsigned": "false", "comment": "x"})),
            (json!({"scale_factor": [1]}), json!({"add_offset": [0.0]})),
            (json!({"scale_factor": 2}), json!({"scale_factor": [2.0]})),
            (json!({"missing_value": -3.0}), json!({"missing_value": -3})),
            (json!({"_FillValue": 1e20, "units": "K"}), json!({"_FillValue": [1e20], "units": "K"})),
            (json!({"_FillValue": 0.5}), json!({"_FillValue": 0.5})),
        ] {
            assert!(
                join(vec![part(&[6], here.clone()), part(&[6], there.clone())]).is_ok(),
                "{here} {there}"
            );
            assert!(join(vec![part(&[6], there), part(&[6], here)]).is_ok());
        }
        for (name, here, there) in [
            ("scale_factor", json!({}), json!({"scale_factor": 0.0})),
            ("add_offset", json!({}), json!({"add_offset": 1.0})),
            ("_Unsigned", json!({}), json!({"_Unsigned": "true"})),
            ("_FillValue", json!({}), json!({"_FillValue": "false"})),
            ("_FillValue", json!({"_FillValue": 0.5}), json!({"_FillValue": 0.75})),
            ("_FillValue", json!({"_FillValue": 1e20}), json!({"_FillValue": 2e20})),
            ("missing_value", json!({"missing_value": [1, 2]}), json!({"missing_value": 1})),
            ("units", json!({"units": "K"}), json!({"units": "C"})),
        ] {
            let text = join(vec![part(&[6], here), part(&[6], there)]).unwrap_err().to_string();
            assert!(text.contains(&format!("attribute \"{name}\" is ")), "{text}");
        }
    }
}
