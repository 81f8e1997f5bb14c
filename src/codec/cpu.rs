//! Decoding on the CPU: by zarrs, with codecs that it lacks (`read_only.rs`) and checks that it does not make (`guarded.rs`).

use crate::dataset::ArrayInfo;

use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs::array::codec::api::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

/// Decodes a read chunk through zarrs on the calling thread, into native byte order.
///
/// # Errors
/// What zarrs says of the bytes.
pub fn decode_on_cpu<'a>(array: &ArrayInfo, encoded: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, CodecError> {
    let codec = &array.codec;
    // Chunks are spread over our own threads; zarrs must not spread each of them once more.
    let options = CodecOptions::default().with_concurrent_target(1);
    // Not every codec of zarrs checks what it slices: such bytes are as wrong as others.
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        codec.chain.decode(encoded, &codec.shape, &codec.data_type, &codec.fill_value, &options)
    }));
    let decoded =
        decoded.unwrap_or_else(|payload| Err(CodecError::Other(panic_message(&*payload).into())))?;
    let decoded = decoded.into_fixed()?;
    let expected = array.read_chunk_bytes();
    if decoded.len() as u64 != expected {
        return Err(CodecError::Other(format!(
            "it decodes to {} bytes instead of {expected}",
            decoded.len()
        )));
    }
    Ok(decoded)
}

/// What a panic says.
fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("the decoder gave up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_decoder_trips_over_is_an_error_of_the_chunk() {
        let payload = catch_unwind(|| panic!("at byte {}", 7)).unwrap_err();
        assert_eq!(panic_message(&*payload), "at byte 7");
    }
}
