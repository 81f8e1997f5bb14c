//! zarrs' codecs behind checks of their own: what a decoder on the CPU must not be given.
//!
//! zarrs allocates what a zstd frame declares, so that a damaged header could end the process, and its gzip decoder
//! stops after the first member without a word about what follows. Both codecs are therefore registered with zarrs once
//! more, in front of its own, with a look at the encoded bytes before each decoding. That reaches every place in a
//! chain, inner chunks of nested shards included.

use super::{gzip, zstd};

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Once};

use zarrs::array::codec::api::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, Codec, CodecError, CodecMetadataOptions,
    CodecOptions, CodecRuntimePluginV2, CodecRuntimePluginV3, CodecTraits, CodecTraitsV2, CodecTraitsV3,
    PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency, register_codec_v2,
    register_codec_v3,
};
use zarrs::array::codec::{GzipCodec, ZstdCodec};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};

/// Looks at encoded bytes that have to decode to so many; an error says what is wrong with them.
type Check = fn(&[u8], &BytesRepresentation) -> Result<(), String>;

fn check_zstd(encoded: &[u8], decoded: &BytesRepresentation) -> Result<(), String> {
    match *decoded {
        BytesRepresentation::FixedSize(bytes) => zstd::check_size(encoded, bytes..=bytes),
        BytesRepresentation::BoundedSize(bytes) => zstd::check_size(encoded, 0..=bytes),
        BytesRepresentation::UnboundedSize => Ok(()),
    }
}

fn check_gzip(encoded: &[u8], decoded: &BytesRepresentation) -> Result<(), String> {
    match *decoded {
        BytesRepresentation::FixedSize(bytes) => gzip::check_size(encoded, bytes),
        _ => Ok(()),
    }
}

/// A codec of zarrs with a check before its decoding.
#[derive(Debug)]
struct Checked {
    codec: Arc<dyn BytesToBytesCodecTraits>,
    check: Check,
}

/// Makes zarrs use the checked codecs from now on. Does something the first time only.
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        register_one::<ZstdCodec>("zstd", check_zstd);
        register_one::<GzipCodec>("gzip", check_gzip);
    });
}

fn register_one<C: CodecTraitsV2 + CodecTraitsV3>(codec: &'static str, check: Check) {
    let wrap = move |codec| match codec {
        Codec::BytesToBytes(codec) => Ok(Codec::BytesToBytes(Arc::new(Checked { codec, check }))),
        _ => Err(PluginCreateError::from("not a bytes to bytes codec")),
    };
    // The registry keeps the plugins; the handles are only for taking them out again.
    let _ = register_codec_v3(CodecRuntimePluginV3::new(
        move |name| name == codec,
        move |metadata| wrap(<C as CodecTraitsV3>::create(metadata)?),
    ));
    let _ = register_codec_v2(CodecRuntimePluginV2::new(
        move |name| name == codec,
        move |metadata| wrap(<C as CodecTraitsV2>::create(metadata)?),
    ));
}

impl ExtensionName for Checked {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.codec.name(version)
    }
}

impl CodecTraits for Checked {
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

impl BytesToBytesCodecTraits for Checked {
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
        representation: &BytesRepresentation,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        (self.check)(&encoded, representation).map_err(CodecError::Other)?;
        self.codec.decode(encoded, representation, options)
    }
}
