//! Boxes of elements as work for the gather kernel, `src/kernels/gather.cu`.

mod layout;
#[cfg(test)]
mod tests;

pub use layout::{ChannelOnDevice, ConversionOnDevice, Region};

use super::Conversion;
use super::channels::Channels;
use super::step::Normalize;
use crate::plan::CopyBox;

use layout::{MAX_DIMENSIONS, NO_DIMENSION};

/// Granules that one block of threads takes.
const GRANULES_PER_TILE: u64 = 2048;
/// Widest access of a thread, in bytes.
const MAX_GRANULE_BYTES: u64 = 16;
/// Largest read chunk that regions can address: granules are counted in 32 bits, with room for a last tile.
pub const MAX_CHUNK_BYTES: u64 = 1 << 31;

/// A conversion that regions name, with the fill element that is converted by channel.
#[derive(Debug, PartialEq)]
struct Known {
    conversion: Conversion,
    fill: u64,
}

/// What the boxes of a read chunk are filled from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A decoded read chunk at this address of the device, its bytes to be swapped or not.
    Decoded {
        /// Address of its first element.
        address: u64,
        /// Elements are in the other byte order.
        swaps_bytes: bool,
    },
    /// The array's fill value, one element in native byte order.
    Fill(&'a [u8]),
}

/// The regions of one launch.
#[derive(Debug, Default)]
pub struct Regions {
    list: Vec<Region>,
    tiles: u64,
    known: Vec<Known>,
}

/// Where the elements of a box come from and go to, the same for all boxes of a read chunk.
struct Elements {
    /// Address of the chunk, 0 for the fill value.
    from: u64,
    from_bytes: u64,
    /// Address of the output.
    to: u64,
    to_bytes: u64,
    fill: u64,
    swaps_bytes: bool,
    converts: bool,
    /// The channels that elements are normalized by.
    channels: Option<Channels>,
}

impl Regions {
    /// The regions for the kernel.
    pub fn list(&self) -> &[Region] {
        &self.list
    }

    /// The conversions that the regions name, and behind them their channels; the kernel expects them right behind the
    /// regions.
    pub fn conversions(&self) -> (Vec<ConversionOnDevice>, Vec<ChannelOnDevice>) {
        let (mut conversions, mut channels) = (vec![], vec![]);
        for (number, known) in self.known.iter().enumerate() {
            let numbers = known.conversion.channels().map_or(&[][..], Channels::numbers);
            let conversions_between = (self.known.len() - number) * size_of::<ConversionOnDevice>();
            let bytes = conversions_between + channels.len() * size_of::<ChannelOnDevice>();
            let offset = if numbers.is_empty() { 0 } else { bytes as u64 };
            conversions.push(ConversionOnDevice::new(&known.conversion, known.fill, offset));
            channels.extend(numbers.iter().map(|&Normalize { mean, std }| ChannelOnDevice { mean, std }));
        }
        (conversions, channels)
    }

    /// How many blocks of threads the launch needs.
    pub fn tiles(&self) -> u64 {
        self.tiles
    }

    /// Size of the regions that boxes become, without the conversion that boxes with converted elements share.
    pub fn bytes(boxes: &[CopyBox], conversion: &Conversion) -> u64 {
        let regions = |piece: &CopyBox| piece.extents[..cut(piece)].iter().product::<u64>();
        let count = |piece: &CopyBox| match conversion.channels() {
            None => regions(piece),
            Some(channels) => regions(&channels.apart(piece).0),
        };
        boxes.iter().map(count).sum::<u64>() * size_of::<Region>() as u64
    }

    /// Size of a conversion on the device; 0 if it only copies.
    pub fn conversion_bytes(conversion: &Conversion) -> u64 {
        let channels = conversion.channels().map_or(0, Channels::len) * size_of::<ChannelOnDevice>();
        if conversion.is_copy() { 0 } else { (size_of::<ConversionOnDevice>() + channels) as u64 }
    }

    /// Adds the boxes of one read chunk, whose elements go to the output that starts at `output`.
    pub fn add(&mut self, source: Source<'_>, boxes: &[CopyBox], conversion: &Conversion, output: u64) {
        let to_bytes = conversion.output().size_bytes() as u64;
        let from_bytes = conversion.stored_bytes() as u64;
        let mut elements = Elements {
            from: 0,
            from_bytes,
            to: output,
            to_bytes,
            fill: 0,
            swaps_bytes: false,
            converts: false,
            channels: None,
        };
        match source {
            Source::Fill(logical) => match conversion.fill(logical) {
                Some(fill) => elements.fill = repeated(&fill),
                None => {
                    let of_fill = conversion.of_fill();
                    (elements.from_bytes, elements.converts) = (of_fill.stored_bytes() as u64, true);
                    elements.fill = self.number(of_fill, repeated(logical));
                }
            },
            Source::Decoded { address, swaps_bytes } => {
                (elements.from, elements.swaps_bytes) = (address, swaps_bytes);
                if !conversion.is_copy() {
                    elements.converts = true;
                    elements.fill = self.number(conversion, 0);
                }
            }
        }
        elements.channels = conversion.channels().cloned();
        for piece in boxes {
            let apart = elements.channels.as_ref().map(|channels| channels.apart(piece).0);
            let piece = apart.as_ref().unwrap_or(piece);
            let cut = cut(piece);
            if cut == 0 {
                self.push(&elements, piece);
                continue;
            }
            for (from, to) in outer(piece, cut).rows() {
                let inner = CopyBox {
                    from,
                    to,
                    extents: piece.extents[cut..].into(),
                    from_strides: piece.from_strides[cut..].into(),
                    to_strides: piece.to_strides[cut..].into(),
                };
                self.push(&elements, &inner);
            }
        }
    }

    /// The number of a conversion among the conversions of the launch.
    fn number(&mut self, conversion: &Conversion, fill: u64) -> u64 {
        let same = |known: &Known| known.fill == fill && known.conversion == *conversion;
        self.known.iter().position(same).unwrap_or_else(|| {
            self.known.push(Known { conversion: conversion.clone(), fill });
            self.known.len() - 1
        }) as u64
    }

    fn push(&mut self, elements: &Elements, piece: &CopyBox) {
        let last = piece.extents.len() - 1;
        let fills = elements.from == 0;
        let to = elements.to + piece.to * elements.to_bytes;
        let from = if fills { 0 } else { elements.from + piece.from * elements.from_bytes };
        let (granule, per_granule) = if elements.converts || (!fills && piece.row_step() != 1) {
            (elements.from_bytes, 1)
        } else {
            // Everything that an access is added up from; the granule has to divide it all.
            let mut alignment = MAX_GRANULE_BYTES | to | from | (piece.extents[last] * elements.to_bytes);
            for d in 0..last {
                alignment |= piece.to_strides[d] * elements.to_bytes;
                if !fills {
                    alignment |= piece.from_strides[d] * elements.from_bytes;
                }
            }
            let granule = 1 << alignment.trailing_zeros();
            debug_assert!(granule >= elements.to_bytes, "memory is not aligned to its elements");
            (granule, granule / elements.to_bytes)
        };

        let mut region = Region {
            from,
            to,
            fill: elements.fill,
            first_tile: self.tiles,
            from_strides: [0; MAX_DIMENSIONS],
            to_strides: [0; MAX_DIMENSIONS - 1],
            extents: [1; MAX_DIMENSIONS],
            granules: 0,
            dimensions: piece.extents.len() as u8,
            granule_bytes: granule as u8,
            swap_bytes: if elements.swaps_bytes { elements.from_bytes as u8 } else { 0 },
            converted_bytes: if elements.converts { elements.to_bytes as u8 } else { 0 },
            channel: 0,
            channel_dimension: NO_DIMENSION,
            reserved: [0; 3],
        };
        if let Some(channels) = &elements.channels {
            // The channels of a box that has them apart are a dimension of it, or it has one.
            let (_, dimension, channel) = channels.apart(piece);
            region.channel = channel;
            region.channel_dimension = dimension.map_or(NO_DIMENSION, |dimension| dimension as u8);
        }
        let mut granules = 1;
        for d in 0..=last {
            let per_granule = if d == last { per_granule } else { 1 };
            let extent = piece.extents[d] / per_granule;
            granules *= extent;
            region.extents[d] = extent as u32;
            if !fills {
                region.from_strides[d] = piece.from_strides[d] * per_granule * elements.from_bytes;
            }
            if d < last {
                region.to_strides[d] = piece.to_strides[d] * elements.to_bytes;
            }
        }
        debug_assert!(granules <= MAX_CHUNK_BYTES);
        region.granules = granules as u32;
        self.tiles += granules.div_ceil(GRANULES_PER_TILE);
        self.list.push(region);
    }
}

/// How many of a box's outermost dimensions are too many for the kernel.
fn cut(piece: &CopyBox) -> usize {
    piece.extents.len().saturating_sub(MAX_DIMENSIONS)
}

/// The `cut` outermost dimensions of a box and one more, of extent 1: each row of the result is a region.
fn outer(piece: &CopyBox, cut: usize) -> CopyBox {
    let with_one = |list: &[u64]| list[..cut].iter().copied().chain([1]).collect();
    CopyBox {
        extents: with_one(&piece.extents),
        from_strides: with_one(&piece.from_strides),
        to_strides: with_one(&piece.to_strides),
        ..*piece
    }
}

/// A fill element repeated to 8 bytes.
fn repeated(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element));
    u64::from_ne_bytes(bytes)
}
