//! CF decoding: what the attributes `_FillValue`, `missing_value`, `scale_factor`, `add_offset` and `_Unsigned` make of
//! an array's values, by the rules of xarray, quirks included.
//!
//! Source: `xarray/coding/variables.py` and `xarray/backends/zarr.py` of xarray 2026.9, with `decode_times=False`.

use super::array::ArrayInfo;
use super::element::ElementType;

use serde_json::{Map, Value};
use zarrs::metadata::ArrayMetadata;

/// How the values of an array are decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Cf {
    /// The type that stored values are taken for; differs from the array's where `_Unsigned` says so.
    pub reads_as: ElementType,
    /// The type that values are computed in, and the type of the result unless `is_bool`. An integer type only where
    /// values stay what they are, or for products with an integer `scale_factor`.
    pub computes_in: ElementType,
    /// Values that become NaN.
    pub masks: Vec<f64>,
    /// Multiplied by.
    pub scale_factor: Option<f64>,
    /// Added after that.
    pub add_offset: Option<f64>,
    /// The result is made a bool: the values stand for truth.
    pub is_bool: bool,
}

/// What masks values.
struct Fill {
    /// The fill value of a Zarr v2 array, or the attribute `_FillValue`.
    fill_value: Option<Vec<f64>>,
    /// The attribute `missing_value`.
    missing_value: Option<Vec<f64>>,
}

impl Cf {
    /// The decoding that an array's metadata ask for; `None` if its values stay what they are.
    ///
    /// # Errors
    /// The attribute that cannot be used and why, as the end of a sentence.
    pub fn of(array: &ArrayInfo) -> Result<Option<Self>, String> {
        // xarray leaves points in time and time spans alone.
        if array.data_type.starts_with("datetime64") || array.data_type.starts_with("timedelta64") {
            return Ok(None);
        }
        let attributes = array.attributes();
        let v2_fill = array.fill_is_cf.then_some(&*array.fill_value);
        if array.components > 1 {
            let given =
                VALUE_KEYS.iter().find(|key| attributes.get(**key).is_some_and(|value| !value.is_null()));
            let given = given.copied().or(v2_fill.map(|_| "fill_value"));
            return given.map_or(Ok(None), |name| {
                Err(format!("its {name} cannot be applied to complex numbers; {APART}"))
            });
        }
        let is_v3 = matches!(array.array.metadata(), ArrayMetadata::V3(_));
        let v2_fill = v2_fill.map(|bytes| array.logical.number(bytes));
        Self::new(array.element, attributes, v2_fill, is_v3)
    }

    /// The same of an array of that type, given the fill value of a Zarr v2 array if it has one.
    fn new(
        element: ElementType,
        attributes: &Map<String, Value>,
        v2_fill: Option<f64>,
        is_v3: bool,
    ) -> Result<Option<Self>, String> {
        let fill_value = match (v2_fill, attributes.get("_FillValue")) {
            (Some(fill), _) => Some(vec![fill]),
            (None, None | Some(Value::Null)) => None,
            (None, Some(value)) if is_v3 => Some(vec![v3_fill_value(element, value)?]),
            (None, Some(value)) => Some(numbers("_FillValue", value)?),
        };
        let missing_value = match attributes.get("missing_value") {
            None | Some(Value::Null) => None,
            Some(value) => Some(numbers("missing_value", value)?),
        };
        let is_integer = element.is_signed_integer() || element.is_unsigned_integer();
        // For integers a list of nothing but NaN counts as absent.
        let kept = |values: Option<Vec<f64>>| values.filter(|v| !is_integer || v.iter().any(|x| !x.is_nan()));
        let mut fill = Fill { fill_value: kept(fill_value), missing_value: kept(missing_value) };
        let wraps = v2_fill.is_some();
        let reads_as = match attributes.get("_Unsigned").and_then(Value::as_str) {
            Some("true") if element.is_signed_integer() => fill.reinterpret(element, false)?,
            Some("false") if element.is_unsigned_integer() => fill.reinterpret(element, wraps)?,
            _ => element,
        };
        let masks = fill.masks();
        let has_fill = fill.fill_value.is_some() || fill.missing_value.is_some();

        let scale = Factor::of("scale_factor", attributes)?;
        let offset = Factor::of("add_offset", attributes)?;
        let computes_in = match (scale, offset) {
            (None, None) if masks.is_empty() => reads_as,
            (None, None) => promoted(reads_as)?,
            // A fill value that masks nothing, which floats can have, is taken for one that has made them floats.
            _ if masks.is_empty() && has_fill => reads_as,
            (Some(Factor::Integer(factor)), None) => product_type(reads_as, factor, masks.is_empty())?,
            _ => ElementType::Float64,
        };
        if computes_in == ElementType::Bool && (scale.is_some() || offset.is_some()) {
            return Err(format!("its scale_factor or add_offset cannot be applied to bools; {APART}"));
        }
        let is_bool = attributes.get("dtype").is_some_and(|name| name == "bool");
        let cf = Self {
            reads_as,
            computes_in,
            masks,
            scale_factor: scale.map(Factor::value),
            add_offset: offset.map(Factor::value),
            is_bool,
        };
        Ok(Some(cf).filter(|cf| cf.output() != element || !cf.is_idle()))
    }

    /// The type of the result.
    pub fn output(&self) -> ElementType {
        if self.is_bool { ElementType::Bool } else { self.computes_in }
    }

    fn is_idle(&self) -> bool {
        self.masks.is_empty() && self.scale_factor.is_none() && self.add_offset.is_none()
    }
}

/// The remedy where no attribute is wrong.
const APART: &str = "give it a reader of its own, without mask_and_scale";

/// The attributes that change values.
const VALUE_KEYS: [&str; 5] = ["_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned"];

impl Fill {
    /// The integer type of the same size and the other signedness, into which the fill value is taken along. The fill
    /// value has to be one of the array's type, or, with `wraps`, is one already.
    fn reinterpret(&mut self, element: ElementType, wraps: bool) -> Result<ElementType, String> {
        let to = other_signedness(element);
        let Some(values) = &mut self.fill_value else { return Ok(to) };
        let bits = 8 * element.size_bytes() as i32;
        let half = 2f64.powi(bits - 1);
        let refused = |value: f64| {
            format!(
                "its attribute \"_FillValue\" {value} is no {}, as \"_Unsigned\" asks for; repair it",
                if element.is_signed_integer() { element.name() } else { to.name() }
            )
        };
        let [value] = values[..] else {
            return Err(
                "its attribute \"_FillValue\" is a list, which \"_Unsigned\" does not allow; repair it"
                    .into(),
            );
        };
        if value.fract() != 0.0 || value < -half || value >= if wraps { 2.0 * half } else { half } {
            return Err(refused(value));
        }
        let taken = match element.is_signed_integer() {
            true if value < 0.0 => value + 2.0 * half,
            false if value >= half => value - 2.0 * half,
            _ => value,
        };
        // What is equal to the fill value goes with it.
        if let Some(missing) = &mut self.missing_value {
            missing.retain(|&other| other != value);
        }
        *values = vec![taken];
        Ok(to)
    }

    /// All values that are numbers.
    fn masks(&self) -> Vec<f64> {
        let lists = [&self.fill_value, &self.missing_value];
        let mut masks: Vec<f64> =
            lists.into_iter().flatten().flatten().copied().filter(|x| !x.is_nan()).collect();
        let mut known = vec![];
        masks.retain(|mask| {
            !known.contains(mask) && {
                known.push(*mask);
                true
            }
        });
        masks
    }
}

fn other_signedness(element: ElementType) -> ElementType {
    use ElementType::*;
    match element {
        Int8 => UInt8,
        Int16 => UInt16,
        Int32 => UInt32,
        Int64 => UInt64,
        UInt8 => Int8,
        UInt16 => Int16,
        UInt32 => Int32,
        UInt64 => Int64,
        other => other,
    }
}

/// The type that can hold NaN beside the values of `element`.
fn promoted(element: ElementType) -> Result<ElementType, String> {
    match element {
        ElementType::Bool => Err(format!("its fill value cannot be masked in bools; {APART}")),
        float if float.is_float() => Ok(float),
        integer if integer.size_bytes() <= 2 => Ok(ElementType::Float32),
        _ => Ok(ElementType::Float64),
    }
}

/// The type of products with an integer, which xarray computes in int64.
fn product_type(element: ElementType, factor: f64, unmasked: bool) -> Result<ElementType, String> {
    let refused = |why: &str| {
        Err(format!("its attribute \"scale_factor\" is an integer, {why}; write it with a decimal point"))
    };
    // A float64 holds integers up to this one.
    const EXACT: f64 = (1u64 << 53) as f64;
    let largest = 2f64.powi(8 * element.size_bytes() as i32);
    if !unmasked {
        return refused("so the values become integers, which have no NaN for its fill value");
    }
    if element.is_float() {
        return refused("so xarray would cut off the fractions of its values");
    }
    if largest * factor.abs() > EXACT {
        return refused("and its products need not be exact");
    }
    Ok(ElementType::Int64)
}

/// `scale_factor` or `add_offset`.
#[derive(Clone, Copy)]
enum Factor {
    Float(f64),
    /// Without decimal point in the metadata.
    Integer(f64),
}

impl Factor {
    fn of(name: &str, attributes: &Map<String, Value>) -> Result<Option<Self>, String> {
        let Some(value) = attributes.get(name) else { return Ok(None) };
        let (number, is_list) = match value {
            Value::Array(list) if list.len() == 1 => (&list[0], true),
            other => (other, false),
        };
        match number {
            Value::Number(n) if n.is_f64() || is_list => Ok(n.as_f64().map(Self::Float)),
            Value::Number(n) => Ok(n.as_f64().map(Self::Integer)),
            _ => Err(format!("its attribute \"{name}\" {value} is no number; repair it")),
        }
    }

    fn value(self) -> f64 {
        match self {
            Self::Float(value) | Self::Integer(value) => value,
        }
    }
}

/// The numbers of an attribute, a single one or a list.
fn numbers(name: &str, value: &Value) -> Result<Vec<f64>, String> {
    let list = match value {
        Value::Array(list) => &list[..],
        single => std::slice::from_ref(single),
    };
    let number = |value: &Value| match value {
        // Where JSON has no name for it, see `json::parse`.
        Value::String(name) if name == "NaN" => Some(f64::NAN),
        value => value.as_f64().or_else(|| value.as_bool().map(f64::from)),
    };
    let numbers: Option<_> = list.iter().map(number).collect();
    numbers.ok_or_else(|| {
        format!("its attribute \"{name}\" {value} is neither a number nor a list of numbers; repair it")
    })
}

/// The attribute `_FillValue` of a Zarr v3 array. xarray writes that of floats as the base64 text of a float64; plain
/// numbers, which others write, are clear too.
fn v3_fill_value(element: ElementType, value: &Value) -> Result<f64, String> {
    let refused = || format!("its attribute \"_FillValue\" {value} is no {}; repair it", element.name());
    match value {
        Value::Number(number) if element.is_float() => number.as_f64().ok_or_else(refused),
        Value::Number(number) if element != ElementType::Bool => {
            number.as_f64().map(f64::trunc).ok_or_else(refused)
        }
        Value::Bool(truth) if element == ElementType::Bool => Ok((*truth).into()),
        Value::String(text) if element.is_float() => base64_float64(text).ok_or_else(refused),
        _ => Err(refused()),
    }
}

/// The little-endian float64 that 12 characters of base64 stand for.
fn base64_float64(text: &str) -> Option<f64> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.strip_suffix('=').filter(|digits| digits.len() == 11)?;
    let mut bits = 0u128;
    for digit in digits.bytes() {
        bits = bits << 6 | ALPHABET.iter().position(|&known| known == digit)? as u128;
    }
    // 66 bits: 8 bytes, the first in front, and 2 bits of padding.
    Some(f64::from_bits(((bits >> 2) as u64).swap_bytes()))
}

#[cfg(test)]
mod tests;
