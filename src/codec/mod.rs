//! Codec chains: which of them the GPU decodes, and with what. One file per codec; the CPU road is zarrs' own.

mod checked;
mod gzip;
pub mod zstd;

pub use checked::register;

use crate::dataset::ArrayInfo;

use std::borrow::Cow;

use zarrs::array::{ArrayToBytesCodecTraits, CodecError, CodecMetadataOptions, CodecOptions};
use zarrs::plugin::ExtensionName;

/// How the read chunks of an array become decoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Road {
    /// On the GPU.
    Gpu(GpuChain),
    /// On the CPU by zarrs, then copied where a GPU wants them; with the reason.
    Cpu(String),
}

/// A codec chain that the GPU can decode: at most one compression over the `bytes` codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuChain {
    /// The bytes-to-bytes codec.
    pub compression: Compression,
    /// Elements are stored in the other byte order.
    pub swaps_bytes: bool,
}

/// A bytes-to-bytes codec that the GPU can decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// The bytes as they are.
    None,
    /// One Zstandard frame.
    Zstd,
}

/// Chooses the road of an array's read chunks from its codec chain.
pub fn road(array: &ArrayInfo) -> Road {
    let chain = &array.codec.chain;
    if let Some(codec) = chain.array_to_array_codecs().first() {
        return Road::Cpu(format!("codec \"{}\" is decoded on the CPU", name(codec.name_v3())));
    }
    let serializer = chain.array_to_bytes_codec();
    if serializer.name_v3().as_deref() != Some("bytes") {
        return Road::Cpu(format!("codec \"{}\" is decoded on the CPU", name(serializer.name_v3())));
    }
    let swaps_bytes = serializer
        .configuration_v3(&CodecMetadataOptions::default())
        .and_then(|configuration| configuration.get("endian").and_then(|e| e.as_str()).map(str::to_owned))
        .is_some_and(|endian| endian != if cfg!(target_endian = "big") { "big" } else { "little" })
        && array.stored.size_bytes() > 1;
    let compression = match chain.bytes_to_bytes_codecs() {
        [] => Compression::None,
        [codec] if codec.name_v3().as_deref() == Some("zstd") => Compression::Zstd,
        [codec] => return Road::Cpu(format!("codec \"{}\" is decoded on the CPU", name(codec.name_v3()))),
        codecs => {
            let names: Vec<_> = codecs.iter().map(|codec| name(codec.name_v3())).collect();
            return Road::Cpu(format!("codecs \"{}\" are decoded on the CPU", names.join("\", \"")));
        }
    };
    if compression == Compression::Zstd && array.read_chunk_bytes() > zstd::MAX_GPU_CHUNK_BYTES {
        return Road::Cpu(format!(
            "its read chunks decode to {} bytes, and nvCOMP takes at most {}",
            array.read_chunk_bytes(),
            zstd::MAX_GPU_CHUNK_BYTES
        ));
    }
    Road::Gpu(GpuChain { compression, swaps_bytes })
}

fn name(name: Option<Cow<'static, str>>) -> Cow<'static, str> {
    name.unwrap_or(Cow::Borrowed("unknown"))
}

impl Road {
    /// Whether decoding needs nvCOMP.
    pub fn needs_nvcomp(&self) -> bool {
        matches!(self, Self::Gpu(GpuChain { compression: Compression::Zstd, .. }))
    }
}

impl std::fmt::Display for Road {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(GpuChain { compression: Compression::None, .. }) => {
                f.write_str("uncompressed, on the GPU")
            }
            Self::Gpu(GpuChain { compression: Compression::Zstd, .. }) => f.write_str("zstd on the GPU"),
            Self::Cpu(reason) => write!(f, "on the CPU: {reason}"),
        }
    }
}

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
