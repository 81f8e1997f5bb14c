//! Assembles boxes of elements into outputs in host memory.

use super::{Conversion, OutputMemory};
use crate::plan::CopyBox;

/// What a box is filled from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A decoded read chunk in native byte order.
    Decoded(&'a [u8]),
    /// The array's fill value, one element, again and again.
    Fill(&'a [u8]),
}

/// Converts the elements of every box into an output.
///
/// # Panics
/// If a box reaches outside the source or the output; plans do not make such boxes.
///
/// # Safety
/// The output's memory is writable host memory that nothing else reads, and no other thread writes to the
/// elements of these boxes.
pub unsafe fn assemble(source: Source<'_>, boxes: &[CopyBox], conversion: &Conversion, output: OutputMemory) {
    let (from_size, to_size) = (conversion.stored_bytes() as u64, conversion.output().size_bytes() as u64);
    let fill = match source {
        Source::Decoded(_) => None,
        Source::Fill(logical) => conversion.fill(logical),
    };
    for piece in boxes {
        let row_bytes = (piece.row_len() * to_size) as usize;
        let step = (piece.row_step() * from_size) as usize;
        for (from, to) in piece.rows() {
            assert!((to + piece.row_len()) * to_size <= output.bytes, "a box reaches outside its output");
            // SAFETY: the row lies within the output (checked above), whose memory is ours alone to write there
            // (duty of the caller).
            let row = unsafe {
                std::slice::from_raw_parts_mut((output.address + to * to_size) as *mut u8, row_bytes)
            };
            match source {
                Source::Decoded(decoded) => {
                    conversion.convert(&decoded[(from * from_size) as usize..], step, row, to);
                }
                Source::Fill(logical) => match &fill {
                    Some(fill) => {
                        row.chunks_exact_mut(fill.len()).for_each(|place| place.copy_from_slice(fill));
                    }
                    None => conversion.of_fill().convert(logical, 0, row, to),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{ElementType, StoredType};
    use smallvec::smallvec;

    #[test]
    fn boxes_are_copied_filled_and_converted() {
        let of = |dtype| {
            let stored = StoredType::Element(ElementType::UInt16);
            Conversion::new(stored, None, None, None, dtype).unwrap()
        };
        let decoded: Vec<u8> = (0u16..6).flat_map(u16::to_ne_bytes).collect();
        let copy = CopyBox {
            from: 1,
            to: 2,
            extents: smallvec![2, 2],
            from_strides: smallvec![3, 1],
            to_strides: smallvec![6, 1],
        };
        let fill = CopyBox {
            from: 0,
            to: 4,
            extents: smallvec![2],
            from_strides: smallvec![1],
            to_strides: smallvec![1],
        };
        let mut output = vec![0u16; 12];
        let memory = OutputMemory { address: output.as_mut_ptr() as u64, bytes: 24 };
        // SAFETY: the memory is that of `output`, which nothing else uses meanwhile.
        unsafe {
            assemble(Source::Decoded(&decoded), std::slice::from_ref(&copy), &of(None), memory);
            assemble(Source::Fill(&7u16.to_ne_bytes()), std::slice::from_ref(&fill), &of(None), memory);
        }
        assert_eq!(output, [0, 0, 1, 2, 7, 7, 0, 0, 4, 5, 0, 0]);

        let mut output = vec![0f64; 12];
        let memory = OutputMemory { address: output.as_mut_ptr() as u64, bytes: 96 };
        let conversion = of(Some(ElementType::Float64));
        // SAFETY: as above.
        unsafe {
            assemble(Source::Decoded(&decoded), &[copy], &conversion, memory);
            assemble(Source::Fill(&7u16.to_ne_bytes()), &[fill], &conversion, memory);
        }
        assert_eq!(output, [0.0, 0.0, 1.0, 2.0, 7.0, 7.0, 0.0, 0.0, 4.0, 5.0, 0.0, 0.0]);
    }
}
