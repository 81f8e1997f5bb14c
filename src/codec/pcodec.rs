//! pcodec: chunks of numbers, each with a count of its own. Decoded on the CPU only.
//!
//! zarrs asks for as much memory as a hint in the file says and decodes as many numbers as there are; here they go to
//! memory that has room for the chunk's numbers.

use crate::dataset::{ElementType, StoredType};
use crate::memory;

use zarrs::array::{DataType, transmute_to_bytes_vec};

/// Decodes the numbers of a data type; the result has the number of bytes that is given.
///
/// # Errors
/// What the decoder says, or that there are more numbers or fewer.
pub fn decode(encoded: &[u8], data_type: &DataType, bytes: u64) -> Result<Vec<u8>, String> {
    macro_rules! numbers {
        ($number:ty) => {{
            let count = bytes / size_of::<$number>() as u64;
            let mut numbers: Vec<$number> = vec![];
            memory::reserve(&mut numbers, count)?;
            numbers.resize(count as usize, <$number>::default());
            let progress = pco::standalone::simple_decompress_into(encoded, &mut numbers)
                .map_err(|error| error.to_string())?;
            if !progress.finished {
                return Err(format!("it holds more than the {bytes} bytes of the chunk"));
            }
            if progress.n_processed as u64 != count {
                return Err(format!("it holds {} numbers instead of {count}", progress.n_processed));
            }
            Ok(transmute_to_bytes_vec(numbers))
        }};
    }
    let element = match StoredType::from_zarrs(data_type) {
        Some((StoredType::Element(element), _)) => element,
        _ => return Err("its data type is none of pcodec's".into()),
    };
    match element {
        ElementType::Int16 => numbers!(i16),
        ElementType::Int32 => numbers!(i32),
        ElementType::Int64 => numbers!(i64),
        ElementType::UInt16 => numbers!(u16),
        ElementType::UInt32 => numbers!(u32),
        ElementType::UInt64 => numbers!(u64),
        ElementType::Float16 => numbers!(half::f16),
        ElementType::Float32 => numbers!(f32),
        ElementType::Float64 => numbers!(f64),
        ElementType::Bool | ElementType::Int8 | ElementType::UInt8 => {
            Err("pcodec has no numbers of 8 bits".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrs::array::data_type;

    #[test]
    fn as_many_numbers_as_the_chunk_has_are_decoded_and_no_more() {
        for count in [1usize, 255, 256, 300, 600] {
            let numbers: Vec<i32> = (0..count as i32).map(|n| n * n).collect();
            let config = pco::ChunkConfig::default().with_paging_spec(pco::PagingSpec::EqualPagesUpTo(256));
            let encoded = pco::standalone::simple_compress(&numbers, &config).unwrap();
            let bytes = 4 * count as u64;
            let decode = |bytes| decode(&encoded, &data_type::int32(), bytes);
            assert_eq!(decode(bytes).unwrap(), transmute_to_bytes_vec(numbers));
            assert!(decode(bytes + 4).unwrap_err().contains("instead of"), "{count}");
            assert!(decode(bytes - 4).is_err(), "{count}");
            assert!(decode(u64::MAX).unwrap_err().contains("cannot be had"));
        }
        assert!(decode(b"pco!", &data_type::int32(), 4).is_err());
        assert!(decode(b"pco!", &data_type::uint8(), 4).is_err());
    }
}
