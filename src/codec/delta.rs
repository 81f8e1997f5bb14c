//! numcodecs' delta: each element as the difference to the one before. zarrs does not have it.
//!
//! Source: numcodecs/delta.py.

use super::read_only::read_only;
use crate::dataset::ElementType;

use std::any::Any;
use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::codec::api::{
    ArrayCodecTraits, ArrayToArrayCodecTraits, Codec, CodecError, CodecMetadataOptions, CodecOptions,
    CodecPluginV2, CodecPluginV3, CodecTraits, CodecTraitsV2, CodecTraitsV3, PartialDecoderCapability,
    PartialEncoderCapability, RecommendedConcurrency,
};
use zarrs::array::{ArrayBytes, DataType, FillValue};
use zarrs::metadata::Configuration;
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion};

zarrs::plugin::impl_extension_aliases!(DeltaCodec, v3: "numcodecs.delta", ["delta"], v2: "delta", []);
inventory::submit! { CodecPluginV3::new::<DeltaCodec>() }
inventory::submit! { CodecPluginV2::new::<DeltaCodec>() }

/// The codec, for decoding.
#[derive(Clone, Debug)]
pub struct DeltaCodec {
    configuration: Configuration,
    decoded: ElementType,
    encoded: ElementType,
    encoded_type: DataType,
}

impl DeltaCodec {
    fn new(configuration: Configuration) -> Result<Self, PluginCreateError> {
        let named = |field: &str| configuration.get(field).and_then(|name| name.as_str());
        let name = named("dtype").ok_or_else(|| PluginCreateError::from("delta has no dtype"))?;
        let (decoded, _) = data_type(name)?;
        let (encoded, encoded_type) = data_type(named("astype").unwrap_or(name))?;
        if undo(&[], encoded, decoded).is_none() {
            let problem = format!("delta from {} to {} is not supported", encoded.name(), decoded.name());
            return Err(PluginCreateError::from(problem));
        }
        Ok(Self { decoded, encoded, encoded_type, configuration })
    }

    /// Size of the elements, if adding them up modulo their size undoes the codec: integers that were not cast.
    pub fn gpu_element_bytes(codec: &dyn ArrayToArrayCodecTraits) -> Option<u32> {
        let codec = codec.as_any().downcast_ref::<Self>()?;
        (codec.decoded == codec.encoded && codec.decoded.name().contains("int"))
            .then_some(codec.decoded.size_bytes() as u32)
    }
}

/// A type by NumPy's name, long or short. The byte order in it does not count: the serializer has dealt with that.
fn data_type(name: &str) -> Result<(ElementType, DataType), PluginCreateError> {
    let refused =
        || PluginCreateError::from(format!("delta with elements of type \"{name}\" is not supported"));
    let bare = name.trim_start_matches(['<', '>', '|', '=']);
    let named = ElementType::from_name(bare).or_else(|| {
        let (kind, bytes) = bare.split_at_checked(1)?;
        let word = match kind {
            "i" => "int",
            "u" => "uint",
            "f" => "float",
            _ => return None,
        };
        ElementType::from_name(&format!("{word}{}", bytes.parse::<u32>().ok()?.checked_mul(8)?))
    });
    let element = named.ok_or_else(refused)?;
    let data_type = DataType::from_metadata(&MetadataV3::new(element.name())).map_err(|_| refused())?;
    Ok((element, data_type))
}

impl CodecTraitsV3 for DeltaCodec {
    fn create(metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
        let configuration = metadata.configuration().cloned().unwrap_or_default();
        Ok(Codec::ArrayToArray(Arc::new(Self::new(configuration)?)))
    }
}

impl CodecTraitsV2 for DeltaCodec {
    fn create(metadata: &MetadataV2) -> Result<Codec, PluginCreateError> {
        Ok(Codec::ArrayToArray(Arc::new(Self::new(metadata.configuration().clone())?)))
    }
}

impl CodecTraits for DeltaCodec {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, _: ZarrVersion, _: &CodecMetadataOptions) -> Option<Configuration> {
        Some(self.configuration.clone())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability { partial_read: false, partial_decode: false }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl ArrayCodecTraits for DeltaCodec {
    fn recommended_concurrency(
        &self,
        _: &[NonZeroU64],
        _: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }
}

impl ArrayToArrayCodecTraits for DeltaCodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToArrayCodecTraits> {
        self
    }

    fn encoded_data_type(&self, decoded: &DataType) -> Result<DataType, CodecError> {
        if ElementType::from_zarrs(decoded) != Some(self.decoded) {
            return Err(CodecError::Other(format!("delta is of {}, the array is not", self.decoded.name())));
        }
        Ok(self.encoded_type.clone())
    }

    fn encoded_fill_value(&self, _: &DataType, _: &FillValue) -> Result<FillValue, CodecError> {
        // Nothing decodes a fill value through this codec.
        Ok(FillValue::new(vec![0; self.encoded.size_bytes()]))
    }

    fn encode<'a>(
        &self,
        _: ArrayBytes<'a>,
        _: &[NonZeroU64],
        _: &DataType,
        _: &FillValue,
        _: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        Err(read_only())
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        _: &[NonZeroU64],
        _: &DataType,
        _: &FillValue,
        _: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let encoded = bytes.into_fixed()?;
        let decoded = undo(&encoded, self.encoded, self.decoded).ok_or_else(|| {
            CodecError::Other(format!(
                "delta from {} to {} is not supported",
                self.encoded.name(),
                self.decoded.name()
            ))
        })?;
        Ok(ArrayBytes::new_flen(decoded))
    }
}

/// The running sum of elements, cast to the wanted type before each addition, as `numpy.cumsum` does it.
/// `None` for types that cannot be added up or cast.
pub fn undo(encoded: &[u8], from: ElementType, to: ElementType) -> Option<Vec<u8>> {
    macro_rules! sum {
        ($from:ty, $to:ty, |$sum:ident, $next:ident| $add:expr) => {{
            let mut $sum: $to = 0 as $to;
            let elements = encoded.as_chunks::<{ size_of::<$from>() }>().0.iter();
            elements
                .enumerate()
                .flat_map(|(i, bytes)| {
                    let $next = <$from>::from_ne_bytes(*bytes) as $to;
                    // Starting from the first element and not from 0 keeps the sign of a zero.
                    $sum = if i == 0 { $next } else { $add };
                    $sum.to_ne_bytes()
                })
                .collect()
        }};
    }
    macro_rules! to {
        ($from:ty) => {
            match to {
                ElementType::Int8 => sum!($from, i8, |sum, next| sum.wrapping_add(next)),
                ElementType::Int16 => sum!($from, i16, |sum, next| sum.wrapping_add(next)),
                ElementType::Int32 => sum!($from, i32, |sum, next| sum.wrapping_add(next)),
                ElementType::Int64 => sum!($from, i64, |sum, next| sum.wrapping_add(next)),
                ElementType::UInt8 => sum!($from, u8, |sum, next| sum.wrapping_add(next)),
                ElementType::UInt16 => sum!($from, u16, |sum, next| sum.wrapping_add(next)),
                ElementType::UInt32 => sum!($from, u32, |sum, next| sum.wrapping_add(next)),
                ElementType::UInt64 => sum!($from, u64, |sum, next| sum.wrapping_add(next)),
                ElementType::Float32 => sum!($from, f32, |sum, next| sum + next),
                ElementType::Float64 => sum!($from, f64, |sum, next| sum + next),
                _ => return None,
            }
        };
    }
    Some(match from {
        ElementType::Int8 => to!(i8),
        ElementType::Int16 => to!(i16),
        ElementType::Int32 => to!(i32),
        ElementType::Int64 => to!(i64),
        ElementType::UInt8 => to!(u8),
        ElementType::UInt16 => to!(u16),
        ElementType::UInt32 => to!(u32),
        ElementType::UInt64 => to!(u64),
        ElementType::Float32 => to!(f32),
        ElementType::Float64 => to!(f64),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_by_both_of_their_names() {
        for name in ["<i2", ">i2", "i2", "int16"] {
            assert_eq!(data_type(name).unwrap().0, ElementType::Int16, "{name}");
        }
        assert_eq!(data_type("|u1").unwrap().0, ElementType::UInt8);
        assert_eq!(data_type("<f8").unwrap().0, ElementType::Float64);
        for name in ["<M8[ns]", "i3", "", "<"] {
            assert!(data_type(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_gpu_adds_up_integers_that_were_not_cast() {
        let element_bytes = |configuration: serde_json::Value| {
            let metadata = serde_json::json!({"name": "numcodecs.delta", "configuration": configuration});
            match Codec::from_metadata(&serde_json::from_value::<MetadataV3>(metadata).unwrap()).unwrap() {
                Codec::ArrayToArray(codec) => {
                    // As it was read, for messages and for `info`.
                    let kept = codec.configuration_v3(&CodecMetadataOptions::default()).unwrap();
                    assert_eq!(serde_json::to_value(kept).unwrap(), configuration);
                    DeltaCodec::gpu_element_bytes(&*codec)
                }
                other => panic!("{other:?}"),
            }
        };
        for (name, bytes) in [("|i1", 1), ("<u2", 2), (">i4", 4), ("uint64", 8)] {
            assert_eq!(element_bytes(serde_json::json!({"dtype": name})), Some(bytes), "{name}");
            assert_eq!(element_bytes(serde_json::json!({"dtype": name, "astype": name})), Some(bytes));
            assert_eq!(element_bytes(serde_json::json!({"dtype": "<i2", "astype": name})), None, "{name}");
        }
        assert_eq!(element_bytes(serde_json::json!({"dtype": "<f4"})), None);
    }

    #[test]
    fn differences_add_up_and_wrap_around() {
        let encoded: Vec<u8> = [100i8, 100, -50].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let same = undo(&encoded, ElementType::Int8, ElementType::Int8).unwrap();
        assert_eq!(same, [100i8, -56, -106].map(|n| n as u8));
        let wider = undo(&encoded, ElementType::Int8, ElementType::Int16).unwrap();
        assert_eq!(wider, [100i16, 200, 150].iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>());
        assert!(undo(&encoded, ElementType::Bool, ElementType::Int8).is_none());
    }
}
