//! Codecs of zarrs behind guards.
//!
//! zarrs allocates what a chunk's bytes declare and decodes as much as is in them, so that a damaged chunk or one made for
//! it could end the process, and ignores what follows a gzip or zlib stream; its Fletcher-32 is another than numcodecs'.
//! Those codecs are therefore registered with zarrs once more, in front of its own; that reaches every place in a chain,
//! inner chunks of nested sharded chunks included. None of them makes more bytes than the chain can have at that place.

use super::read_only::{Sizes, sizes};
use super::{blosc, bz2, checksum, gzip, pcodec, zlib, zstd};

use std::any::Any;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::{Arc, Once};

use zarrs::array::codec::api::{
    ArrayBytesRaw, ArrayCodecTraits, ArrayToBytesCodecTraits, BytesRepresentation, BytesToBytesCodecTraits,
    Codec, CodecError, CodecMetadataOptions, CodecOptions, CodecRuntimePluginV2, CodecRuntimePluginV3,
    CodecTraits, CodecTraitsV2, CodecTraitsV3, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency, register_codec_v2, register_codec_v3,
};
use zarrs::array::codec::{
    BloscCodec, Bz2Codec, Fletcher32Codec, GzipCodec, PcodecCodec, ZlibCodec, ZstdCodec,
};
use zarrs::array::{ArrayBytes, DataType, FillValue};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};

/// What happens before zarrs decodes, or in place of it.
#[derive(Clone, Copy, Debug)]
enum Guard {
    /// Looks at encoded bytes that have to decode to one of these sizes; an error says what is wrong with them.
    Check(fn(&[u8], Sizes) -> Result<(), String>),
    /// Decodes to one of these sizes, and never to more.
    Decode(fn(&[u8], Sizes) -> Result<Vec<u8>, String>),
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
        register_one::<ZstdCodec>(&["zstd", "numcodecs.zstd"], Guard::Decode(zstd::decode));
        register_one::<BloscCodec>(&["blosc", "numcodecs.blosc"], Guard::Check(blosc::check_size));
        let gzip = Guard::Decode(|encoded, sizes| gzip::decode(encoded, *sizes.end()));
        register_one::<GzipCodec>(&["gzip", "numcodecs.gzip"], gzip);
        let zlib = Guard::Decode(|encoded, sizes| zlib::decode(encoded, *sizes.end()));
        register_one::<ZlibCodec>(&["zlib", "numcodecs.zlib"], zlib);
        let bz2 = Guard::Decode(|encoded, sizes| bz2::decode(encoded, *sizes.end()));
        register_one::<Bz2Codec>(&["bz2", "numcodecs.bz2"], bz2);
        let fletcher32 = Guard::Decode(|encoded, _| checksum::decode_fletcher32(encoded));
        register_one::<Fletcher32Codec>(&["fletcher32", "numcodecs.fletcher32"], fletcher32);
        register_wrapped::<PcodecCodec>(&["pcodec", "numcodecs.pcodec"], |codec| match codec {
            Codec::ArrayToBytes(codec) => Ok(Codec::ArrayToBytes(Arc::new(CappedPcodec(codec)))),
            _ => Err(PluginCreateError::from("not an array to bytes codec")),
        });
    });
}

fn register_one<C: CodecTraitsV2 + CodecTraitsV3>(names: &'static [&'static str], guard: Guard) {
    register_wrapped::<C>(names, move |codec| match codec {
        Codec::BytesToBytes(codec) => Ok(Codec::BytesToBytes(Arc::new(Guarded { codec, guard }))),
        _ => Err(PluginCreateError::from("not a bytes to bytes codec")),
    });
}

/// Makes zarrs use what `wrap` makes of its codec for `names`.
fn register_wrapped<C: CodecTraitsV2 + CodecTraitsV3>(
    names: &'static [&'static str],
    wrap: impl Fn(Codec) -> Result<Codec, PluginCreateError> + Copy + Send + Sync + 'static,
) {
    // The registry keeps the plugins; the handles are only for removing them.
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
                check(&encoded, sizes(decoded)?).map_err(CodecError::Other)?;
                self.codec.decode(encoded, decoded, options)
            }
            Guard::Decode(decode) => {
                decode(&encoded, sizes(decoded)?).map(Cow::Owned).map_err(CodecError::Other)
            }
        }
    }
}

/// zarrs' pcodec, which decodes as many numbers as a chunk has.
#[derive(Debug)]
struct CappedPcodec(Arc<dyn ArrayToBytesCodecTraits>);

impl ExtensionName for CappedPcodec {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.0.name(version)
    }
}

impl CodecTraits for CappedPcodec {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, version: ZarrVersion, options: &CodecMetadataOptions) -> Option<Configuration> {
        self.0.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        self.0.partial_decoder_capability()
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        self.0.partial_encoder_capability()
    }
}

impl ArrayCodecTraits for CappedPcodec {
    fn recommended_concurrency(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        self.0.recommended_concurrency(shape, data_type)
    }
}

impl ArrayToBytesCodecTraits for CappedPcodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToBytesCodecTraits> {
        self
    }

    fn encoded_representation(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<BytesRepresentation, CodecError> {
        self.0.encoded_representation(shape, data_type, fill_value)
    }

    fn encode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.0.encode(bytes, shape, data_type, fill_value, options)
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        _: &FillValue,
        _: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let size = data_type.fixed_size().unwrap_or(0) as u64;
        let expected = shape.iter().fold(size, |bytes, extent| bytes.saturating_mul(extent.get()));
        let decoded = pcodec::decode(&bytes, data_type, expected).map_err(CodecError::Other)?;
        Ok(ArrayBytes::new_flen(decoded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    use serde_json::json;
    use zarrs::metadata::v3::MetadataV3;

    /// What encoders make of a lot of zeros, by the name of the codec.
    fn bombs(content: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        gzip.write_all(content).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::default());
        zlib.write_all(content).unwrap();
        let mut bz2 = ::bzip2::write::BzEncoder::new(vec![], ::bzip2::Compression::default());
        bz2.write_all(content).unwrap();
        // Streamed, so that the frame does not declare the size of its content.
        let streamed = ::zstd::stream::encode_all(content, 3).unwrap();
        let mut blosc = vec![0; content.len() + 16];
        // SAFETY: both pointers are those of slices with these lengths; the name ends with a zero byte.
        let written = unsafe {
            blosc_src::blosc_compress_ctx(
                5,
                1,
                4,
                content.len(),
                content.as_ptr().cast(),
                blosc.as_mut_ptr().cast(),
                blosc.len(),
                c"lz4".as_ptr(),
                0,
                1,
            )
        };
        blosc.truncate(usize::try_from(written).unwrap());
        vec![
            ("zstd", streamed),
            ("zstd", ::zstd::bulk::compress(content, 3).unwrap()),
            ("gzip", gzip.finish().unwrap()),
            ("numcodecs.zlib", zlib.finish().unwrap()),
            ("numcodecs.bz2", bz2.finish().unwrap()),
            ("blosc", blosc),
            ("numcodecs.lz4", lz4_flex::block::compress_prepend_size(content)),
            ("snappy", snap::raw::Encoder::new().compress_vec(content).unwrap()),
        ]
    }

    fn codec(name: &str) -> Arc<dyn BytesToBytesCodecTraits> {
        register();
        let configuration = match name {
            "zstd" => json!({"level": 3, "checksum": false}),
            "gzip" | "numcodecs.zlib" | "numcodecs.bz2" => json!({"level": 5}),
            "blosc" => json!({"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "blocksize": 0}),
            _ => json!({}),
        };
        let metadata = json!({"name": name, "configuration": configuration});
        let metadata: MetadataV3 = serde_json::from_value(metadata).unwrap();
        match Codec::from_metadata(&metadata).unwrap() {
            Codec::BytesToBytes(codec) => codec,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_codec_makes_more_than_there_may_be() {
        const BYTES: u64 = 3 << 20;
        let options = CodecOptions::default();
        for (name, bomb) in bombs(&vec![0; BYTES as usize]) {
            let decode = |sizes| codec(name).decode(Cow::Borrowed(&bomb), &sizes, &options);
            for enough in [BytesRepresentation::FixedSize(BYTES), BytesRepresentation::BoundedSize(BYTES)] {
                assert_eq!(decode(enough).unwrap().len() as u64, BYTES, "{name}");
            }
            for small in
                [BytesRepresentation::FixedSize(BYTES - 1), BytesRepresentation::BoundedSize(BYTES / 3)]
            {
                let error = decode(small).unwrap_err().to_string();
                assert!(!error.contains("panicked"), "{name}: {error}");
            }
            assert!(decode(BytesRepresentation::UnboundedSize).is_err(), "{name}");
        }
    }
}
