//! What the gather kernel reads, field for field as `src/kernels/gather.cu` and `convert.cuh` have it.

use crate::assemble::Conversion;
use crate::assemble::channels::Channels;
use crate::assemble::conversion::Register;
use crate::assemble::step::{Code, MAX_STEPS, Rounds, Step};
use crate::dataset::{ElementType, StoredType};

/// Dimensions that the kernel handles; boxes with more are cut along their outermost ones.
pub(super) const MAX_DIMENSIONS: usize = 6;

/// One box for the kernel. Field for field the `Region` of `gather.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The fill element, repeated to 8 bytes; of elements that are converted, the number of the conversion.
    pub(super) fill: u64,
    pub(super) first_tile: u64,
    pub(super) from_strides: [u64; MAX_DIMENSIONS],
    pub(super) to_strides: [u64; MAX_DIMENSIONS - 1],
    pub(super) extents: [u32; MAX_DIMENSIONS],
    pub(super) granules: u32,
    pub(super) dimensions: u8,
    pub(super) granule_bytes: u8,
    pub(super) swap_bytes: u8,
    pub(super) converted_bytes: u8,
    /// The channel of the first element, of elements that are normalized by channel.
    pub(super) channel: u32,
    /// The dimension along which channels follow one another, or [`NO_DIMENSION`].
    pub(super) channel_dimension: u8,
    pub(super) reserved: [u8; 3],
}

/// No dimension of a region.
pub(super) const NO_DIMENSION: u8 = u8::MAX;

/// A conversion for the kernel. Field for field the `Conversion` of `convert.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConversionOnDevice {
    steps: [Step; MAX_STEPS],
    step_count: u32,
    load: u8,
    store: u8,
    register: u8,
    /// What results of the normalization by channel are rounded to.
    rounds: u8,
    /// Bytes from here to the [`ChannelOnDevice`]s, 0: there are none.
    channels: u64,
    /// The element that regions without a source are made of, where channels make it differ.
    fill: u64,
    table: [f32; 256],
}

/// What a channel is normalized by. Field for field the `Channel` of `convert.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChannelOnDevice {
    pub(super) mean: f64,
    pub(super) std: f64,
}

const _: () = assert!(size_of::<Region>() == 160 && align_of::<Region>() == 8);
const _: () = assert!(size_of::<Step>() == 16 && size_of::<ConversionOnDevice>() == 1432);
const _: () = assert!(size_of::<ChannelOnDevice>() == 16);

impl ConversionOnDevice {
    /// `fill`: the element that regions without a source are made of; `channels`: bytes from here to the channels.
    pub(super) fn new(conversion: &Conversion, fill: u64, channels: u64) -> Self {
        let mut steps = [Step::new(Code::Round, 0.0); MAX_STEPS];
        let used = conversion.steps();
        steps[..used.len()].copy_from_slice(used);
        Self {
            steps,
            step_count: used.len() as u32,
            load: match conversion.loads() {
                StoredType::Element(element) => element as u8,
                StoredType::BFloat16 => ElementType::ALL.len() as u8,
                StoredType::Byte(_) => ElementType::ALL.len() as u8 + 1,
            },
            store: conversion.output() as u8,
            register: match conversion.register() {
                Register::Signed => 0,
                Register::Unsigned => 1,
                Register::Single => 2,
                Register::Double | Register::None => 3,
            },
            rounds: conversion.channels().map_or(Rounds::Register, Channels::rounds) as u8,
            channels,
            fill,
            table: match conversion.loads() {
                StoredType::Byte(format) => *format.table(),
                _ => [0.0; 256],
            },
        }
    }
}
