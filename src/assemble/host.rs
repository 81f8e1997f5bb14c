//! Copies boxes of elements into outputs in host memory.

use super::OutputMemory;
use crate::plan::CopyBox;

/// What a box is filled from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A decoded read chunk.
    Decoded(&'a [u8]),
    /// One element, again and again.
    Fill(&'a [u8]),
}

/// Copies every box into an output of elements of `element_bytes`.
///
/// # Panics
/// If a box reaches outside the source or the output; plans do not make such boxes.
///
/// # Safety
/// The output's memory is writable host memory that nothing else reads, and no other thread writes to the
/// elements of these boxes.
pub unsafe fn assemble(source: Source<'_>, boxes: &[CopyBox], element_bytes: usize, output: OutputMemory) {
    let size = element_bytes as u64;
    for piece in boxes {
        let row_bytes = (piece.row_len() * size) as usize;
        let step = (piece.row_step() * size) as usize;
        for (from, to) in piece.rows() {
            assert!((to + piece.row_len()) * size <= output.bytes, "a box reaches outside its output");
            // SAFETY: the row lies within the output (checked above), whose memory is ours alone to write there
            // (duty of the caller).
            let row =
                unsafe { std::slice::from_raw_parts_mut((output.address + to * size) as *mut u8, row_bytes) };
            match source {
                Source::Decoded(decoded) => {
                    let from = (from * size) as usize;
                    if step == element_bytes {
                        row.copy_from_slice(&decoded[from..from + row_bytes]);
                        continue;
                    }
                    for (place, from) in row.chunks_exact_mut(element_bytes).zip((from..).step_by(step)) {
                        place.copy_from_slice(&decoded[from..from + element_bytes]);
                    }
                }
                Source::Fill(element) => {
                    row.chunks_exact_mut(element_bytes).for_each(|place| place.copy_from_slice(element));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_copied_and_filled() {
        let mut output = vec![0u16; 12];
        let memory = OutputMemory { address: output.as_mut_ptr() as u64, bytes: 24 };
        let decoded: Vec<u8> = (0u16..6).flat_map(u16::to_ne_bytes).collect();
        let copy =
            CopyBox { from: 1, to: 2, extents: vec![2, 2], from_strides: vec![3, 1], to_strides: vec![6, 1] };
        let fill = CopyBox { from: 0, to: 4, extents: vec![2], from_strides: vec![1], to_strides: vec![1] };
        // SAFETY: the memory is that of `output`, which nothing else uses meanwhile.
        unsafe {
            assemble(Source::Decoded(&decoded), &[copy], 2, memory);
            assemble(Source::Fill(&7u16.to_ne_bytes()), &[fill], 2, memory);
        }
        assert_eq!(output, [0, 0, 1, 2, 7, 7, 0, 0, 4, 5, 0, 0]);
    }
}
