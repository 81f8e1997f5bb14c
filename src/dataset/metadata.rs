//! What is read from an array's metadata beside zarrs, and what is rewritten before zarrs reads them.

use super::element::ElementType;
use super::fixed_scale_offset::numpy_name;
use super::layout::NoStore;
use crate::error::{Context, Error, Result, Source};

use std::num::NonZeroU64;

use serde_json::{Value, from_value};
use zarrs::array::{Array, DataType, FillValue};
use zarrs::metadata::v2::DataTypeMetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::metadata::{ArrayMetadata, FillValueMetadata};

pub(super) fn is_v2(metadata: &Value) -> bool {
    metadata.get("zarr_format").is_some_and(|version| version == 2)
}

/// Rewrites what zarrs does not read in v2 metadata: points in time and time spans as the integers that stand for
/// them, and complex numbers without a fill value.
pub(super) fn complete_v2(metadata: &mut Value) {
    /// What NumPy calls "not a time".
    const NOT_A_TIME: i64 = i64::MIN;
    let Some(dtype) = metadata.get("dtype").and_then(Value::as_str).filter(|_| is_v2(metadata)) else {
        return;
    };
    let order = if dtype.starts_with('>') { '>' } else { '<' };
    let kind = dtype.trim_start_matches(['<', '>', '|', '=']);
    let fill = metadata.get("fill_value").unwrap_or(&Value::Null);
    if kind.starts_with("M8") || kind.starts_with("m8") {
        if fill.is_null() || fill == "NaT" {
            metadata["fill_value"] = NOT_A_TIME.into();
        }
        metadata["dtype"] = numpy_name(ElementType::Int64, order).into();
    } else if kind.starts_with('c') && fill.is_null() {
        metadata["fill_value"] = serde_json::json!([0, 0]);
    }
}

/// NumPy's name of a type of points in time or time spans; `None` for every other type.
pub(super) fn time_type(metadata: &Value) -> Option<String> {
    let (kind, unit) = if is_v2(metadata) {
        let name = metadata.get("dtype")?.as_str()?.trim_start_matches(['<', '>', '|', '=']);
        let (kind, unit) = name.split_once('[').unwrap_or((name, "generic]"));
        (kind, unit.trim_end_matches(']').to_string())
    } else {
        let data_type = metadata.get("data_type")?;
        let configuration = data_type.get("configuration")?;
        let unit = configuration.get("unit")?.as_str()?;
        let steps = configuration.get("scale_factor").and_then(Value::as_u64).filter(|&steps| steps != 1);
        let steps = steps.map(|steps| steps.to_string()).unwrap_or_default();
        (data_type.get("name")?.as_str()?, format!("{steps}{unit}"))
    };
    match kind {
        "M8" | "numpy.datetime64" => Some(format!("datetime64[{unit}]")),
        "m8" | "numpy.timedelta64" => Some(format!("timedelta64[{unit}]")),
        _ => None,
    }
}

/// The data type that the metadata declare, if zarrs knows it, and its name there.
pub(super) fn data_type(metadata: &Value) -> Result<(Option<DataType>, String), Source> {
    let key = if is_v2(metadata) { "dtype" } else { "data_type" };
    let value = metadata.get(key).ok_or_else(|| format!("it has no {key}"))?;
    let unknown = (None, value.to_string());
    Ok(if is_v2(metadata) {
        from_value(value.clone()).map_or(unknown, |metadata: DataTypeMetadataV2| {
            (DataType::from_metadata(&metadata).ok(), metadata.to_string())
        })
    } else {
        from_value(value.clone()).map_or(unknown, |metadata: MetadataV3| {
            (DataType::from_metadata(&metadata).ok(), metadata.name().to_string())
        })
    })
}

/// A fill value in the type that the metadata declared.
pub(super) fn fill_value(
    declared: &DataType,
    fill: Option<Value>,
    metadata: &Value,
) -> Result<FillValue, Source> {
    let fill: FillValueMetadata = from_value(fill.unwrap_or_default())?;
    let made = if is_v2(metadata) { declared.fill_value_v2(&fill) } else { declared.fill_value_v3(&fill) };
    Ok(made?)
}

pub(super) fn regular_chunk_shape(array: &Array<NoStore>, at: &Context) -> Result<Vec<u64>> {
    let grid = match array.metadata() {
        ArrayMetadata::V2(v2) => return Ok(v2.chunks.iter().map(|n| n.get()).collect()),
        ArrayMetadata::V3(v3) => &v3.chunk_grid,
    };
    let refused = || Error::ChunkGrid { at: at.clone(), grid: grid.name().to_string() };
    if grid.name() != "regular" {
        return Err(refused());
    }
    let configuration = grid.configuration().ok_or_else(refused)?;
    configuration
        .get("chunk_shape")
        .and_then(|shape| from_value::<Vec<NonZeroU64>>(shape.clone()).ok())
        .map(|shape| shape.iter().map(|n| n.get()).collect())
        .ok_or_else(refused)
}

#[cfg(test)]
mod tests;
