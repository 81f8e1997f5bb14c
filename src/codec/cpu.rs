//! The CPU's side: zarrs decodes, with codecs that it lacks and checks that it does not make.
//!
//! zarrs allocates what a zstd frame or a Blosc header declares, so that a damaged one could end the process, and
//! ignores what follows a gzip or zlib stream; its Fletcher-32 is another than numcodecs'. Those codecs are therefore registered with zarrs once more, in front of its
//! own; that reaches every place in a chain, inner chunks of nested shards included. `lz4`, `snappy` and `delta`
//! are registered as codecs of ours, for reading only.

use super::{blosc, checksum, gzip, lz4, snappy, zlib, zstd};
use crate::dataset::ArrayInfo;

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Once};

use zarrs::array::codec::api::{
    ArrayBytesRaw, ArrayToBytesCodecTraits, BytesRepresentation, BytesToBytesCodecTraits, Codec, CodecError,
    CodecMetadataOptions, CodecOptions, CodecPluginV2, CodecPluginV3, CodecRuntimePluginV2,
    CodecRuntimePluginV3, CodecTraits, CodecTraitsV2, CodecTraitsV3, PartialDecoderCapability,
    PartialEncoderCapability, RecommendedConcurrency, register_codec_v2, register_codec_v3,
};
use zarrs::array::codec::{BloscCodec, Fletcher32Codec, GzipCodec, ZlibCodec, ZstdCodec};
use zarrs::metadata::Configuration;
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};

/// Decodes a read chunk through zarrs on the calling thread, into native byte order.
///
/// # Errors
/// What zarrs says of the bytes.
pub fn decode_on_cpu<'a>(array: &ArrayInfo, encoded: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, CodecError> {
    let codec = &array.codec;
    // Chunks are spread over our own threads; zarrs must not spread each of them once more.
    let options = CodecOptions::default().with_concurrent_target(1);
    let decoded = codec
        .chain
        .decode(encoded, &codec.shape, &codec.data_type, &codec.fill_value, &options)?
        .into_fixed()?;
    let expected = array.read_chunk_bytes();
    if decoded.len() as u64 != expected {
        return Err(CodecError::Other(format!(
            "it decodes to {} bytes instead of {expected}",
            decoded.len()
        )));
    }
    Ok(decoded)
}

/// The error of codecs that are for reading only.
pub fn read_only() -> CodecError {
    CodecError::Other("this codec only decodes".into())
}

/// What is done before zarrs decodes, or in its place.
#[derive(Clone, Copy, Debug)]
enum Guard {
    /// Looks at encoded bytes that have to decode to so many; an error says what is wrong with them.
    Check(fn(&[u8], &BytesRepresentation) -> Result<(), String>),
    /// Decodes to at most so many bytes.
    Decode(fn(&[u8], u64) -> Result<Vec<u8>, String>),
}

fn check_zstd(encoded: &[u8], decoded: &BytesRepresentation) -> Result<(), String> {
    match *decoded {
        BytesRepresentation::FixedSize(bytes) => zstd::check_size(encoded, bytes..=bytes),
        BytesRepresentation::BoundedSize(bytes) => zstd::check_size(encoded, 0..=bytes),
        BytesRepresentation::UnboundedSize => Ok(()),
    }
}

fn check_blosc(encoded: &[u8], decoded: &BytesRepresentation) -> Result<(), String> {
    match *decoded {
        BytesRepresentation::FixedSize(bytes) => blosc::check_size(encoded, bytes),
        _ => Ok(()),
    }
}

/// The most bytes that something may decode to.
fn most(decoded: &BytesRepresentation) -> u64 {
    match *decoded {
        BytesRepresentation::FixedSize(bytes) | BytesRepresentation::BoundedSize(bytes) => bytes,
        BytesRepresentation::UnboundedSize => u64::MAX - 1,
    }
}

/// A codec of zarrs behind a guard.
#[derive(Debug)]
struct Guarded {
    codec: Arc<dyn BytesToBytesCodecTraits>,
    guard: Guard,
}

/// Makes zarrs use the guarded codecs from now on. Does something the first time only.
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        register_one::<ZstdCodec>(&["zstd", "numcodecs.zstd"], Guard::Check(check_zstd));
        register_one::<BloscCodec>(&["blosc", "numcodecs.blosc"], Guard::Check(check_blosc));
        register_one::<GzipCodec>(&["gzip", "numcodecs.gzip"], Guard::Decode(gzip::decode));
        register_one::<ZlibCodec>(&["zlib", "numcodecs.zlib"], Guard::Decode(zlib::decode));
        let fletcher32 = Guard::Decode(checksum::decode_fletcher32);
        register_one::<Fletcher32Codec>(&["fletcher32", "numcodecs.fletcher32"], fletcher32);
    });
}

fn register_one<C: CodecTraitsV2 + CodecTraitsV3>(names: &'static [&'static str], guard: Guard) {
    let wrap = move |codec| match codec {
        Codec::BytesToBytes(codec) => Ok(Codec::BytesToBytes(Arc::new(Guarded { codec, guard }))),
        _ => Err(PluginCreateError::from("not a bytes to bytes codec")),
    };
    // The registry keeps the plugins; the handles are only for taking them out again.
    let _ = register_codec_v3(CodecRuntimePluginV3::new(
        move |name| names.contains(&name),
        move |metadata| wrap(<C as CodecTraitsV3>::create(metadata)?),
    ));
    let _ = register_codec_v2(CodecRuntimePluginV2::new(
        move |name| names.contains(&name),
        move |metadata| wrap(<C as CodecTraitsV2>::create(metadata)?),
    ));
}

impl ExtensionName for Guarded {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.codec.name(version)
    }
}

impl CodecTraits for Guarded {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, version: ZarrVersion, options: &CodecMetadataOptions) -> Option<Configuration> {
        self.codec.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        self.codec.partial_decoder_capability()
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        self.codec.partial_encoder_capability()
    }
}

impl BytesToBytesCodecTraits for Guarded {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        decoded: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        self.codec.recommended_concurrency(decoded)
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        self.codec.encoded_representation(decoded)
    }

    fn encode<'a>(
        &self,
        decoded: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.codec.encode(decoded, options)
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        decoded: &BytesRepresentation,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        match self.guard {
            Guard::Check(check) => {
                check(&encoded, decoded).map_err(CodecError::Other)?;
                self.codec.decode(encoded, decoded, options)
            }
            Guard::Decode(decode) => {
                decode(&encoded, most(decoded)).map(Cow::Owned).map_err(CodecError::Other)
            }
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
                let BytesRepresentation::FixedSize(bytes) = *decoded else {
                    return Err(CodecError::Other("the size of its content has to be known".into()));
                };
                $decode(&encoded, bytes).map(Cow::Owned).map_err(CodecError::Other)
            }
        }
    };
}

byte_codec!(Lz4Codec, "numcodecs.lz4", ["lz4"], "lz4", lz4::decode, lz4::encoded_bound);
byte_codec!(SnappyCodec, "snappy", ["numcodecs.snappy"], "snappy", snappy::decode, snappy::encoded_bound);
