//! Boxes of elements as work for the gather kernel (`src/kernels/gather.cu`, which this file mirrors).

use crate::plan::CopyBox;

use std::borrow::Cow;

/// Dimensions that the kernel handles; boxes with more are cut along their outermost ones.
const MAX_DIMENSIONS: usize = 6;
/// Granules that one block of threads copies.
const GRANULES_PER_TILE: u64 = 2048;
/// Widest access of a thread, in bytes.
const MAX_GRANULE_BYTES: u64 = 16;
/// Largest read chunk that regions can address: granules are counted in 32 bits, with room for a last tile.
pub const MAX_CHUNK_BYTES: u64 = 1 << 31;

/// One box for the kernel. Field for field the `Region` of `gather.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Region {
    from: u64,
    to: u64,
    fill: u64,
    first_tile: u64,
    from_strides: [u64; MAX_DIMENSIONS - 1],
    to_strides: [u64; MAX_DIMENSIONS - 1],
    extents: [u32; MAX_DIMENSIONS],
    granules: u32,
    dimensions: u16,
    granule_bytes: u8,
    swap_bytes: u8,
}

const _: () = assert!(size_of::<Region>() == 144 && align_of::<Region>() == 8);

/// What the boxes of a read chunk are filled from, on the device.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A decoded read chunk at this address, its bytes to be swapped or not.
    Decoded {
        /// Address of its first element.
        address: u64,
        /// Elements are in the other byte order.
        swaps_bytes: bool,
    },
    /// The fill value, repeated to 8 bytes.
    Fill(u64),
}

/// The regions of one launch.
#[derive(Debug, Default)]
pub struct Regions {
    list: Vec<Region>,
    tiles: u64,
}

impl Regions {
    /// The regions for the kernel.
    pub fn list(&self) -> &[Region] {
        &self.list
    }

    /// How many blocks the launch needs.
    pub fn tiles(&self) -> u64 {
        self.tiles
    }

    /// How many regions a box becomes.
    pub fn count(piece: &CopyBox) -> u64 {
        let cut = contiguous(piece).extents.len().saturating_sub(MAX_DIMENSIONS);
        piece.extents[..cut].iter().product()
    }

    /// Adds the copies of one read chunk into the output that starts at `output`.
    pub fn add(&mut self, source: Source, boxes: &[CopyBox], element_bytes: usize, output: u64) {
        for piece in boxes {
            let piece = &*contiguous(piece);
            let cut = piece.extents.len().saturating_sub(MAX_DIMENSIONS);
            let outer = CopyBox {
                extents: piece.extents[..cut].iter().copied().chain([1]).collect(),
                from_strides: piece.from_strides[..cut].iter().copied().chain([1]).collect(),
                to_strides: piece.to_strides[..cut].iter().copied().chain([1]).collect(),
                ..*piece
            };
            for (from, to) in outer.rows() {
                let inner = CopyBox {
                    from,
                    to,
                    extents: piece.extents[cut..].to_vec(),
                    from_strides: piece.from_strides[cut..].to_vec(),
                    to_strides: piece.to_strides[cut..].to_vec(),
                };
                self.push(source, &inner, element_bytes as u64, output);
            }
        }
    }

    fn push(&mut self, source: Source, piece: &CopyBox, element: u64, output: u64) {
        let last = piece.extents.len() - 1;
        let to = output + piece.to * element;
        let (from, fill, swaps) = match source {
            Source::Decoded { address, swaps_bytes } => (address + piece.from * element, 0, swaps_bytes),
            Source::Fill(fill) => (0, fill, false),
        };
        // Everything that an access is added up from; the granule has to divide it all.
        let mut alignment = MAX_GRANULE_BYTES | to | (piece.extents[last] * element);
        for &stride in &piece.to_strides[..last] {
            alignment |= stride * element;
        }
        if from != 0 {
            alignment |= from;
            for &stride in &piece.from_strides[..last] {
                alignment |= stride * element;
            }
        }
        let granule = 1 << alignment.trailing_zeros();
        debug_assert!(granule >= element, "memory is not aligned to its elements");

        let mut region = Region {
            from,
            to,
            fill,
            first_tile: self.tiles,
            from_strides: [0; MAX_DIMENSIONS - 1],
            to_strides: [0; MAX_DIMENSIONS - 1],
            extents: [1; MAX_DIMENSIONS],
            granules: 0,
            dimensions: piece.extents.len() as u16,
            granule_bytes: granule as u8,
            swap_bytes: if swaps { element as u8 } else { 0 },
        };
        let mut granules = 1;
        for d in 0..=last {
            let extent = if d == last { piece.extents[d] * element / granule } else { piece.extents[d] };
            granules *= extent;
            region.extents[d] = extent as u32;
            if d < last {
                region.from_strides[d] = piece.from_strides[d] * element;
                region.to_strides[d] = piece.to_strides[d] * element;
            }
        }
        debug_assert!(granules <= MAX_CHUNK_BYTES);
        region.granules = granules as u32;
        self.tiles += granules.div_ceil(GRANULES_PER_TILE);
        self.list.push(region);
    }
}

/// The same box with a last dimension that is contiguous in the source too.
fn contiguous(piece: &CopyBox) -> Cow<'_, CopyBox> {
    if piece.row_step() == 1 {
        return Cow::Borrowed(piece);
    }
    let mut piece = piece.clone();
    for list in [&mut piece.extents, &mut piece.from_strides, &mut piece.to_strides] {
        list.push(1);
    }
    Cow::Owned(piece)
}

/// A fill element repeated to 8 bytes.
pub fn repeated(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element));
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The kernel, one granule after another, on host memory: an oracle for what the host prepares.
    fn run(regions: &Regions) {
        let mut tiles = 0;
        for region in regions.list() {
            assert_eq!(region.first_tile, tiles);
            tiles += u64::from(region.granules).div_ceil(GRANULES_PER_TILE);
            let n = usize::from(region.dimensions);
            let size = u64::from(region.granule_bytes);
            for granule in 0..u64::from(region.granules) {
                let mut rest = granule;
                let (mut from, mut to) = (region.from, region.to);
                for d in (0..n).rev() {
                    let index = rest % u64::from(region.extents[d]);
                    rest /= u64::from(region.extents[d]);
                    from += index * if d == n - 1 { size } else { region.from_strides[d] };
                    to += index * if d == n - 1 { size } else { region.to_strides[d] };
                }
                assert_eq!(to % size, 0);
                let mut value = [0; 16];
                let value = &mut value[..size as usize];
                if region.from == 0 {
                    let fill = [region.fill.to_ne_bytes(), region.fill.to_ne_bytes()].concat();
                    value.copy_from_slice(&fill[..value.len()]);
                } else {
                    assert_eq!(from % size, 0);
                    // SAFETY: the address lies in the test's source buffer, as the comparison after the run proves.
                    value.copy_from_slice(unsafe {
                        std::slice::from_raw_parts(from as *const u8, value.len())
                    });
                    if region.swap_bytes > 0 {
                        value.chunks_exact_mut(region.swap_bytes.into()).for_each(<[u8]>::reverse);
                    }
                }
                // SAFETY: as above, for the destination buffer.
                unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to as *mut u8, value.len()) };
            }
        }
        assert_eq!(regions.tiles(), tiles);
    }

    proptest! {
        #[test]
        fn the_kernel_does_what_the_host_assembler_does(
            dims in prop::collection::vec((1u64..5, 0u64..3, 0u64..3), 1..9),
            turns: bool, log_size in 0u32..4, from_offset in 0u64..9, to_offset in 0u64..9, swaps: bool, fills: bool,
        ) {
            let size = 1u64 << log_size;
            let dense = |slack: &dyn Fn(usize) -> u64| {
                let mut strides = vec![1; dims.len()];
                for d in (1..dims.len()).rev() {
                    strides[d - 1] = strides[d] * (dims[d].0 + slack(d));
                }
                let all = strides[0] * dims[0].0;
                (strides, all)
            };
            let (mut from_strides, from_len) = dense(&|d| dims[d].1);
            if turns {
                // Transposed: the first dimension is the contiguous one. Strides need not fit the extents to be copied.
                from_strides.reverse();
            }
            let from_len = from_len.max(dims.iter().zip(&from_strides).map(|(d, stride)| d.0 * stride).sum());
            let (to_strides, to_len) = dense(&|d| dims[d].2);
            let extents = dims.iter().map(|d| d.0).collect();
            let piece = CopyBox { from: from_offset, to: to_offset, extents, from_strides, to_strides }.collapsed();
            // Buffers of u128 are aligned as the device's allocations are.
            let words = |len: u64| (len * size).div_ceil(16) as usize + 1;
            let from: Vec<u128> =
                (0..words(from_len + 9) as u128).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)).collect();
            let mut to = vec![0u128; words(to_len + 9)];
            let mut expected = to.clone();
            let element = &[1u8, 2, 3, 4, 5, 6, 7, 8][..size as usize];
            let source = if fills {
                Source::Fill(repeated(element))
            } else {
                Source::Decoded { address: from.as_ptr() as u64, swaps_bytes: swaps && size > 1 }
            };
            let mut regions = Regions::default();
            regions.add(source, std::slice::from_ref(&piece), size as usize, to.as_mut_ptr() as u64);
            prop_assert_eq!(regions.list().len() as u64, Regions::count(&piece));
            run(&regions);

            let mut decoded: Vec<u8> = from.iter().flat_map(|word| word.to_ne_bytes()).collect();
            if swaps {
                decoded.chunks_exact_mut(size as usize).for_each(<[u8]>::reverse);
            }
            let source =
                if fills { super::super::host::Source::Fill(element) } else { super::super::host::Source::Decoded(&decoded) };
            let output = super::super::OutputMemory {
                address: expected.as_mut_ptr() as u64,
                bytes: expected.len() as u64 * 16,
            };
            // SAFETY: `expected` is this thread's alone.
            unsafe { super::super::host::assemble(source, &[piece], size as usize, output) };
            prop_assert_eq!(to, expected);
        }
    }
}
