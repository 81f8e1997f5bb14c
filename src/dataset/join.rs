//! Arrays of several stores as one, joined along the sample dimension.

use super::array::ArrayInfo;
use crate::error::{Context, Error, Result};
use crate::plan::{ArrayGeometry, PartGeometry};

use serde_json::Value;

/// Attributes that decide what the stored numbers mean; parts of one array cannot differ in them.
pub const VALUE_ATTRIBUTES: [&str; 6] =
    ["scale_factor", "add_offset", "_FillValue", "missing_value", "units", "_Unsigned"];

/// An array as samples are taken from it: one array of one store, or the arrays of that name of several stores, one
/// behind the other along the first dimension. Their chunks, codecs, fill values and Zarr versions may differ.
#[derive(Debug)]
pub struct Joined {
    /// The arrays; at least one.
    pub parts: Vec<ArrayInfo>,
    /// Where each part starts along the first dimension.
    pub starts: Vec<u64>,
    /// Extents of the whole.
    pub shape: Vec<u64>,
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
        let agree = parts.iter().all(|part| part.layout == parts[0].layout);
        let layout = if agree { parts[0].layout.clone() } else { String::new() };
        Ok(Self { parts, starts, shape, axes, layout })
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
    /// for the array's name.
    pub fn place(&self, names: &str) -> String {
        let trimmed = |part: &ArrayInfo| part.store.trim_end_matches('/').to_string();
        let stores = match &self.parts[..] {
            [only] if names.is_empty() => only.store.clone(),
            [only] => trimmed(only),
            [first, .., last] => format!("{}..{}", trimmed(first), trimmed(last)),
            [] => String::new(),
        };
        if names.is_empty() { stores } else { format!("{stores}/{names}") }
    }

    /// What planning needs to know, if windows have `axes` axes.
    pub fn geometry(&self, axes: usize) -> ArrayGeometry {
        let part = |(part, &start): (&ArrayInfo, &u64)| PartGeometry {
            start,
            read_chunk_shape: part.read_chunk_shape().to_vec(),
            chunk_strides: part.chunk_strides.clone(),
        };
        ArrayGeometry {
            shape: self.shape.clone(),
            axes: self.axes.iter().map(|axis| axis.filter(|&axis| axis < axes)).collect(),
            parts: self.parts.iter().zip(&self.starts).map(part).collect(),
        }
    }
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
    if first.shape.is_empty() || first.shape.get(1..) != other.shape.get(1..) {
        let what = "shape beyond the first dimension";
        return Err(unlike(what, format!("{:?}", first.shape), format!("{:?}", other.shape)));
    }
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
