//! numcodecs' `fixedscaleoffset`, which is taken out of metadata and undone by assembling.
//!
//! zarrs' own rounds its numbers to 32 bits, reads not all of its type names, and takes the byte order of the array for
//! that of the stored type.

use super::codecs::{BITROUND, Culprit, FIXED_SCALE_OFFSET, SHARDING, name, parameters};
use super::element::{ElementType, StoredType};

use serde_json::Value;

/// numcodecs' `fixedscaleoffset`: a value is `stored / scale + offset`, computed as NumPy does, then cast to `dtype`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedScaleOffset {
    /// Added after the division.
    pub offset: f64,
    /// Divisor.
    pub scale: f64,
    /// Type of the values, the array's own.
    pub dtype: ElementType,
    /// Type of the stored elements.
    pub astype: ElementType,
}

/// The inner codecs of a sharding codec.
fn inner_codecs(codec: &mut Value) -> Option<&mut Vec<Value>> {
    codec.get_mut("configuration")?.get_mut("codecs")?.as_array_mut()
}

/// The list that codecs between arrays stand in: `codecs` in v3, `filters` in v2.
fn codecs(metadata: &mut Value) -> Option<&mut Vec<Value>> {
    let list = if metadata.get("codecs").is_some() { "codecs" } else { "filters" };
    metadata.get_mut(list)?.as_array_mut()
}

impl FixedScaleOffset {
    /// Takes the codec out of an array's metadata, which then describe an array of the stored type, with a fill value
    /// of 0. `None` and nothing changed if there is none. `declared` is the array's type; `None` for complex numbers.
    ///
    /// # Errors
    /// Parameters that make no sense, and places in a chain where assembling could not undo it.
    pub(super) fn take(metadata: &mut Value, declared: Option<StoredType>) -> Result<Option<Self>, Culprit> {
        let Some(outer) = codecs(metadata) else { return Ok(None) };
        let is_shard = matches!(&outer[..], [only] if name(only) == SHARDING);
        let list = match outer.first_mut() {
            Some(sharding) if is_shard => inner_codecs(sharding),
            _ => Some(outer),
        };
        let leading = |codec: &Value| name(codec) == "transpose" || BITROUND.contains(&name(codec));
        let whole = |list: &[Value]| list.iter().all(|codec| name(codec) != SHARDING);
        let taken = list.filter(|list| whole(list)).and_then(|list| {
            let place = list.iter().position(|codec| !leading(codec))?;
            FIXED_SCALE_OFFSET.contains(&name(&list[place])).then(|| list.remove(place))
        });
        let Some(codec) = taken else {
            return match codecs(metadata).and_then(|outer| find(outer)) {
                None => Ok(None),
                Some(codec) => Err(Culprit::new(
                    codec,
                    "it can only be read as the first codec of a chain, sharded once or not, after `transpose` at most",
                )),
            };
        };
        if let Some(second) = codecs(metadata).and_then(|outer| find(outer)) {
            return Err(Culprit::new(second, "it comes twice"));
        }
        let (decoded, order) =
            Self::parse(&codec, declared).map_err(|problem| Culprit::new(&codec, &problem))?;
        if metadata.get("codecs").is_some() {
            metadata["data_type"] = decoded.astype.name().into();
        } else {
            metadata["dtype"] = numpy_name(decoded.astype, order).into();
        }
        metadata["fill_value"] = if decoded.astype == ElementType::Bool { false.into() } else { 0.into() };
        Ok(Some(decoded))
    }

    /// The codec's parameters and the byte order of the stored type.
    fn parse(codec: &Value, declared: Option<StoredType>) -> Result<(Self, char), String> {
        let parameters = parameters(codec);
        let number = |key: &str| {
            let value = parameters.get(key).and_then(Value::as_f64);
            value.filter(|value| value.is_finite()).ok_or(format!("its {key} is no number"))
        };
        let typed = |key: &str| {
            let value = parameters.get(key).and_then(Value::as_str);
            value
                .map(|text| element(text).ok_or(format!("its {key} \"{text}\" is no number type")))
                .transpose()
        };
        let (dtype, order) = typed("dtype")?.ok_or("its dtype is missing")?;
        let (astype, order) = typed("astype")?.unwrap_or((dtype, order));
        if Some(StoredType::Element(dtype)) != declared {
            return Err("its dtype is not the array's".into());
        }
        Ok((Self { offset: number("offset")?, scale: number("scale")?, dtype, astype }, order))
    }
}

/// The first `fixedscaleoffset` of a chain, inner chunks included.
fn find(codecs: &[Value]) -> Option<&Value> {
    codecs.iter().find_map(|codec| {
        if FIXED_SCALE_OFFSET.contains(&name(codec)) {
            return Some(codec);
        }
        find(codec.get("configuration")?.get("codecs")?.as_array()?)
    })
}

/// A NumPy type name and its byte order.
fn element(text: &str) -> Option<(ElementType, char)> {
    let plain = text.trim_start_matches(['<', '>', '|', '=']);
    let order = if text.starts_with('>') { '>' } else { '<' };
    let found = ElementType::ALL.iter().find(|(element, name, _)| {
        *name == plain || numpy_name(*element, '<').trim_start_matches(['<', '|']) == plain
    });
    found.map(|(element, ..)| (*element, order))
}

/// The name of a type in Zarr v2 metadata.
pub(super) fn numpy_name(element: ElementType, order: char) -> String {
    let kind = match element.name().trim_end_matches(|c: char| c.is_ascii_digit()) {
        "bool" => 'b',
        "int" => 'i',
        "uint" => 'u',
        _ => 'f',
    };
    let order = if element.size_bytes() == 1 { '|' } else { order };
    format!("{order}{kind}{}", element.size_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_have_the_names_that_numpy_gives_them() {
        for (name, expected) in
            [("|u1", "uint8"), ("<i2", "int16"), (">f8", "float64"), ("float32", "float32")]
        {
            assert_eq!(element(name).unwrap().0.name(), expected);
        }
        assert_eq!(element(">f8").unwrap().1, '>');
        assert_eq!(element("c8"), None);
        assert_eq!(numpy_name(ElementType::UInt16, '>'), ">u2");
        assert_eq!(numpy_name(ElementType::Bool, '>'), "|b1");
    }

    fn scaled(astype: &str) -> Value {
        json!({"id": "fixedscaleoffset", "scale": 10, "offset": 273.15, "dtype": "<f4", "astype": astype})
    }

    fn take(metadata: &mut Value) -> Result<Option<FixedScaleOffset>, Culprit> {
        FixedScaleOffset::take(metadata, Some(StoredType::Element(ElementType::Float32)))
    }

    #[test]
    fn scaling_leaves_an_array_of_the_stored_type() {
        let mut v2 =
            json!({"dtype": "<f4", "fill_value": "NaN", "filters": [scaled(">i2"), {"id": "delta"}]});
        let (dtype, astype) = (ElementType::Float32, ElementType::Int16);
        let expected = FixedScaleOffset { offset: 273.15, scale: 10.0, dtype, astype };
        assert_eq!(take(&mut v2).ok().flatten(), Some(expected));
        assert_eq!(v2, json!({"dtype": ">i2", "fill_value": 0, "filters": [{"id": "delta"}]}));

        let codec = json!({"name": "numcodecs.fixedscaleoffset", "configuration": scaled("u1")});
        let sharding = |inner: Value| json!({"name": "sharding_indexed", "configuration": {"codecs": inner}});
        let chain = json!([{"name": "transpose"}, codec, "bytes"]);
        let mut v3 = json!({"data_type": "float32", "codecs": [sharding(chain.clone())]});
        assert_eq!(take(&mut v3).ok().flatten().unwrap().astype, ElementType::UInt8);
        assert_eq!(v3["data_type"], "uint8");
        assert_eq!(v3["codecs"], json!([sharding(json!([{"name": "transpose"}, "bytes"]))]));
        assert!(take(&mut v3).is_ok_and(|again| again.is_none()));

        for refused in [
            json!([sharding(json!([sharding(chain.clone())]))]),
            json!([codec, sharding(json!(["bytes"]))]),
            json!([{"name": "reshape"}, codec, "bytes"]),
            json!([codec, codec, "bytes"]),
        ] {
            let mut v3 = json!({"data_type": "float32", "codecs": refused});
            assert!(take(&mut v3).is_err(), "{refused}");
        }
    }
}
