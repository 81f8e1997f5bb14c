//! From decoded read chunks to outputs: on the host here, on the GPU by the gather kernel ([`device`]).
//!
//! ```text
//! normalize=, mean=, std= (bridge, options/arguments) --> normalize, values --+
//! scale_factor, add_offset, _FillValue, dtype= ---+--> conversion: one of each array part: steps for all elements, then mean and std by channel if given
//!                                                         |--> host, arithmetic                      CPU backend
//!                                                         '--> device/layout --> kernels/convert.cuh, called by kernels/gather.cu
//! ```

mod arithmetic;
mod channels;
mod conversion;
pub mod device;
pub mod host;
mod normalize;
mod step;
mod values;

pub use conversion::Conversion;
pub use normalize::Places;
pub use values::conversions;

use crate::plan::CopyBox;

/// The memory of one output of one batch, lent by the consumer until the batch is handed over.
#[derive(Clone, Copy, Debug)]
pub struct OutputMemory {
    /// Address on the host or on the GPU.
    pub address: u64,
    /// Size in bytes of all samples of the batch.
    pub bytes: u64,
}

/// The address in an output to which a decoded read chunk of `bytes` bytes can be written as it is, instead of being copied
/// box by box. `None` unless the whole chunk is contiguous there and needs no conversion.
pub fn whole_chunk(
    boxes: &[CopyBox],
    conversion: &Conversion,
    bytes: u64,
    output: OutputMemory,
) -> Option<u64> {
    let [only] = boxes else { return None };
    let size = conversion.stored_bytes() as u64;
    let whole = only.from == 0 && only.row_step() == 1 && only.row_len() * size == bytes;
    let end = only.to * size + bytes;
    (whole && conversion.is_copy() && end <= output.bytes).then(|| output.address + only.to * size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{ElementType, StoredType};

    #[test]
    fn only_whole_chunks_that_nothing_happens_to_have_a_place_of_their_own() {
        let stored = StoredType::Element(ElementType::UInt16);
        let copy = Conversion::new(stored, None, None, None, None).unwrap();
        let cast = Conversion::new(stored, None, None, None, Some(ElementType::Float32)).unwrap();
        let output = OutputMemory { address: 1000, bytes: 48 };
        let piece = |from, to, extents: &[u64], from_strides: &[u64], to_strides: &[u64]| CopyBox {
            from,
            to,
            extents: extents.into(),
            from_strides: from_strides.into(),
            to_strides: to_strides.into(),
        };
        let whole = piece(0, 12, &[12], &[1], &[1]);
        assert_eq!(whole_chunk(std::slice::from_ref(&whole), &copy, 24, output), Some(1024));
        let others = [
            vec![whole.clone(), whole.clone()],
            vec![piece(1, 12, &[11], &[1], &[1])],
            vec![piece(0, 12, &[11], &[1], &[1])],
            vec![piece(0, 0, &[3, 4], &[4, 1], &[8, 1])],
            vec![piece(0, 0, &[3, 4], &[1, 3], &[4, 1])],
            vec![piece(0, 13, &[12], &[1], &[1])],
        ];
        for boxes in others {
            assert_eq!(whole_chunk(&boxes, &copy, 24, output), None, "{boxes:?}");
        }
        assert_eq!(whole_chunk(&[whole], &cast, 24, output), None);
    }
}
