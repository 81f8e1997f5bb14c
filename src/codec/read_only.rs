//! Codecs that zarrs lacks, registered for reading only; and what all codecs of ours have in common: no more bytes than a
//! chunk can have.

use super::{lz4, snappy};

use std::any::Any;
use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;

use zarrs::array::codec::api::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, Codec, CodecError, CodecMetadataOptions,
    CodecOptions, CodecPluginV2, CodecPluginV3, CodecTraits, CodecTraitsV2, CodecTraitsV3,
    PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency,
};
use zarrs::metadata::Configuration;
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion};

/// The error of codecs that are for reading only.
pub fn read_only() -> CodecError {
    CodecError::Other("this codec only decodes".into())
}

/// Sizes that something may have.
pub(super) type Sizes = RangeInclusive<u64>;

/// The longest encoding that is read where encoders make at most `bound` bytes: some are worse than the best, leave gaps or
/// add what decoders skip.
pub fn lenient_bound(bound: u64) -> u64 {
    const SLACK_BYTES: u64 = 64 << 10;
    bound.saturating_mul(2).saturating_add(SLACK_BYTES)
}

/// The sizes that something may decode to.
pub(super) fn sizes(decoded: &BytesRepresentation) -> Result<Sizes, CodecError> {
    match *decoded {
        BytesRepresentation::FixedSize(bytes) => Ok(bytes..=bytes),
        BytesRepresentation::BoundedSize(bytes) => Ok(0..=lenient_bound(bytes)),
        BytesRepresentation::UnboundedSize => {
            Err(CodecError::Other("the size of its content has to be known".into()))
        }
    }
}

/// A bytes-to-bytes codec of ours: its type, its names in v3 and v2 metadata, its decoder and its bound.
macro_rules! byte_codec {
    ($codec:ident, $v3:literal, [$($alias:literal),*], $v2:literal, $decode:path, $bound:path) => {
        #[derive(Clone, Debug)]
        struct $codec(Configuration);

        zarrs::plugin::impl_extension_aliases!($codec, v3: $v3, [$($alias),*], v2: $v2, []);
        inventory::submit! { CodecPluginV3::new::<$codec>() }
        inventory::submit! { CodecPluginV2::new::<$codec>() }

        impl CodecTraitsV3 for $codec {
            fn create(metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
                let configuration = metadata.configuration().cloned().unwrap_or_default();
                Ok(Codec::BytesToBytes(Arc::new(Self(configuration))))
            }
        }

        impl CodecTraitsV2 for $codec {
            fn create(metadata: &MetadataV2) -> Result<Codec, PluginCreateError> {
                Ok(Codec::BytesToBytes(Arc::new(Self(metadata.configuration().clone()))))
            }
        }

        impl CodecTraits for $codec {
            fn as_any(&self) -> &dyn Any {
                self
            }

            fn configuration(&self, _: ZarrVersion, _: &CodecMetadataOptions) -> Option<Configuration> {
                Some(self.0.clone())
            }

            fn partial_decoder_capability(&self) -> PartialDecoderCapability {
                PartialDecoderCapability { partial_read: false, partial_decode: false }
            }

            fn partial_encoder_capability(&self) -> PartialEncoderCapability {
                PartialEncoderCapability { partial_encode: false }
            }
        }

        impl BytesToBytesCodecTraits for $codec {
            fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
                self
            }

            fn recommended_concurrency(
                &self,
                _: &BytesRepresentation,
            ) -> Result<RecommendedConcurrency, CodecError> {
                Ok(RecommendedConcurrency::new_maximum(1))
            }

            fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
                decoded
                    .size()
                    .map_or(BytesRepresentation::UnboundedSize, |size| BytesRepresentation::BoundedSize($bound(size)))
            }

            fn encode<'a>(&self, _: ArrayBytesRaw<'a>, _: &CodecOptions) -> Result<ArrayBytesRaw<'a>, CodecError> {
                Err(read_only())
            }

            fn decode<'a>(
                &self,
                encoded: ArrayBytesRaw<'a>,
                decoded: &BytesRepresentation,
                _: &CodecOptions,
            ) -> Result<ArrayBytesRaw<'a>, CodecError> {
                $decode(&encoded, sizes(decoded)?).map(Cow::Owned).map_err(CodecError::Other)
            }
        }
    };
}

byte_codec!(Lz4Codec, "numcodecs.lz4", ["lz4"], "lz4", lz4::decode, lz4::encoded_bound);
byte_codec!(SnappyCodec, "snappy", ["numcodecs.snappy"], "snappy", snappy::decode, snappy::encoded_bound);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_have_slack() {
        assert_eq!(sizes(&BytesRepresentation::FixedSize(7)).unwrap(), 7..=7);
        assert_eq!(sizes(&BytesRepresentation::BoundedSize(7)).unwrap(), 0..=65_550);
        assert!(sizes(&BytesRepresentation::UnboundedSize).is_err());
        assert_eq!(lenient_bound(u64::MAX), u64::MAX);
    }
}
