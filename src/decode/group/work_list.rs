//! The work list of a group: all that its kernels read besides the chunks, copied to the device at once.

use crate::assemble::device::{ChannelOnDevice, ConversionOnDevice, Region};
use crate::codec::zstd::{Block, CheckedFrame, SUMMARY_BYTES};
use crate::decode::nvcomp::FramesOnDevice;
use crate::gpu::{
    CheckOnDevice, DeltaOnDevice, FramesToCheck, ShuffledOnDevice, StreamKernel, StreamOnDevice,
};

/// Address and length of an array on the device.
pub type List = (u64, usize);

/// The arrays of a work list, by the kernels that read them.
pub struct Lists {
    /// The streams of each kernel.
    pub streams: [List; StreamKernel::ALL.len()],
    /// The frames that nvCOMP decodes.
    pub frames: FramesOnDevice,
    /// The frames that are checked before.
    pub checked: FramesToCheck,
    /// The passes, level after level.
    pub levels: Vec<LevelLists>,
    /// The differences that are added up.
    pub deltas: List,
    /// The regions that are gathered.
    pub regions: List,
    /// Tiles of all regions.
    pub region_tiles: u64,
}

/// The arrays of one level of passes.
pub struct LevelLists {
    /// The checks.
    pub checks: List,
    /// The areas that are unshuffled.
    pub shuffled: List,
    /// Tiles of these areas.
    pub tiles: u64,
}

/// Collects arrays that are copied to the device together.
pub struct WorkList {
    bytes: Vec<u8>,
    /// Address on the device.
    address: u64,
}

/// Plain data that may be copied to the device byte by byte.
pub trait Plain: Copy {}
impl Plain for u64 {}
impl Plain for u32 {}
impl Plain for u8 {}
impl Plain for [u8; SUMMARY_BYTES as usize] {}
impl Plain for Block {}
impl Plain for CheckedFrame {}
impl Plain for Region {}
impl Plain for ConversionOnDevice {}
impl Plain for ChannelOnDevice {}
impl Plain for StreamOnDevice {}
impl Plain for CheckOnDevice {}
impl Plain for ShuffledOnDevice {}
impl Plain for DeltaOnDevice {}

impl WorkList {
    /// An empty list that will be copied to `address`.
    pub fn new(address: u64) -> Self {
        Self { bytes: vec![], address }
    }

    /// The bytes to copy.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Adds an array. Returns its address on the device.
    pub fn put<T: Plain>(&mut self, values: &[T]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let address = self.address + self.bytes.len() as u64;
        // SAFETY: `Plain` types have no padding and no invalid bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        self.bytes.extend_from_slice(bytes);
        address
    }

    /// Adds an array. Returns its address on the device and its length.
    pub fn put_list<T: Plain>(&mut self, values: &[T]) -> List {
        (self.put(values), values.len())
    }
}
