//! nvCOMP's zstd decoder, as a GPU worker calls it.

use crate::error::{Error, Result};
use crate::gpu::DeviceMemory;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::CudaStream;
use nvcomp_sys::{Nvcomp, nvcompBatchedZstdDecompressOpts_t, nvcompStatus_t, nvcompSuccess};

/// nvCOMP's zstd decoder.
pub struct Zstd {
    nvcomp: Nvcomp,
    /// Scratch bytes of one frame, by its decoded size. Asking nvCOMP takes microseconds, and groups are formed chunk by chunk.
    scratch_of_one: Mutex<HashMap<u64, u64>>,
}

const _: () =
    assert!(DeviceMemory::ALIGNMENT as usize >= nvcomp_sys::nvcompZstdRequiredDecompressionAlignment);

/// Count and sizes of the frames that one call decodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    /// Number of frames.
    pub count: u64,
    /// Decoded bytes of the largest frame.
    pub largest: u64,
    /// Decoded bytes of all frames.
    pub total: u64,
}

impl Frames {
    /// Adds a frame of `bytes` decoded bytes.
    pub fn with(self, bytes: u64) -> Self {
        Self { count: self.count + 1, largest: self.largest.max(bytes), total: self.total + bytes }
    }
}

/// nvCOMP's arrays of frames in device memory. A call decodes `count` frames from frame `first` on.
#[derive(Clone, Copy, Debug)]
pub struct FramesOnDevice {
    /// The first frame that is decoded.
    pub first: usize,
    /// Number of frames that are decoded.
    pub count: usize,
    /// Decoded bytes of the largest frame.
    pub largest: u64,
    /// Array of the addresses of encoded frames.
    pub encoded: u64,
    /// Array of the sizes of encoded frames.
    pub encoded_bytes: u64,
    /// Array of the addresses that frames are decoded to.
    pub decoded: u64,
    /// Array of the sizes of these destinations.
    pub decoded_bytes: u64,
    /// Array of the numbers of bytes written; filled by nvCOMP.
    pub actual_bytes: u64,
    /// Array of statuses, 4 bytes for each frame; filled by nvCOMP.
    pub statuses: u64,
}

impl FramesOnDevice {
    /// Address of the entry of frame `first` in an array of 8-byte entries.
    fn at(&self, array: u64) -> u64 {
        array + self.first as u64 * 8
    }

    fn halves(&self) -> (Self, Self) {
        let front = self.count / 2;
        (
            Self { count: front, ..*self },
            Self { first: self.first + front, count: self.count - front, ..*self },
        )
    }
}

impl Zstd {
    /// Number of frame sizes in `scratch_of_one`.
    const MOST_SIZES: usize = 4096;

    /// Loads nvCOMP.
    ///
    /// # Errors
    /// What the loader says.
    pub fn open() -> std::result::Result<Self, nvcomp_sys::LoadError> {
        Ok(Self { nvcomp: nvcomp_sys::open()?, scratch_of_one: Mutex::default() })
    }

    /// The scratch bytes that a call with `frames` usually needs: for each frame as much as for the largest. Used to form groups.
    ///
    /// This is not a bound. nvCOMP 5.3 assumes fewer sequences than zstd makes at level 19: for a chunk of 288,000 bytes it promised
    /// 877,872 and needed 888,368 bytes (measured), which ended the CUDA context. So [`Zstd::decompress`] asks nvCOMP again with
    /// the frames themselves.
    ///
    /// # Errors
    /// What nvCOMP says.
    pub fn usual_scratch_bytes(&self, frames: Frames) -> Result<u64> {
        if frames.count == 0 {
            return Ok(0);
        }
        let mut known = self.scratch_of_one.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = known.get(&frames.largest) {
            return Ok(one * frames.count);
        }
        let options = nvcompBatchedZstdDecompressOpts_t::default();
        let largest = frames.largest as usize;
        let bytes = self
            .nvcomp
            .zstd_temp_size(1, largest, options, largest)
            .map_err(|status| self.error(self.nvcomp.zstd_temp_size_name(), status))?;
        // A frame is a chunk or a block of Blosc, so there are few sizes.
        if known.len() < Self::MOST_SIZES {
            known.insert(frames.largest, bytes as u64);
        }
        Ok(bytes as u64 * frames.count)
    }

    /// Enqueues the decoding of frames, in several calls if the scratch memory is too small for one.
    ///
    /// Waits for the stream, because nvCOMP reads the frames to say how much scratch memory it needs. That took 0.05 ms for 48
    /// frames (H200, 2026-11-20).
    ///
    /// # Errors
    /// What nvCOMP says, or scratch memory that is too small for one frame.
    ///
    /// # Safety
    /// The arrays have an entry for each frame, which work enqueued before has filled. The arrays, the memory that they point to and
    /// `scratch` are valid until the stream has executed the call.
    pub unsafe fn decompress(
        &self,
        stream: &CudaStream,
        frames: &FramesOnDevice,
        scratch: Range<u64>,
    ) -> Result<()> {
        let scratch_bytes = scratch.end - scratch.start;
        let options = nvcompBatchedZstdDecompressOpts_t::default();
        let raw_stream = stream.cu_stream().cast();
        let mut needed = 0;
        // SAFETY: the duties of the caller; nvCOMP waits for the stream before it returns.
        let status = unsafe {
            self.nvcomp.nvcompBatchedZstdDecompressGetTempSizeSync(
                frames.at(frames.encoded) as *const _,
                frames.at(frames.encoded_bytes) as *const _,
                frames.count,
                frames.largest as usize,
                &mut needed,
                frames.largest as usize * frames.count,
                options,
                std::ptr::null_mut(),
                raw_stream,
            )
        };
        self.check("nvcompBatchedZstdDecompressGetTempSizeSync", status)?;
        if needed as u64 > scratch_bytes {
            if frames.count > 1 {
                let (front, back) = frames.halves();
                // SAFETY: parts of the same arrays; calls that share the scratch memory follow one another.
                unsafe { self.decompress(stream, &front, scratch.clone())? };
                // SAFETY: as above.
                return unsafe { self.decompress(stream, &back, scratch) };
            }
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: scratch_bytes,
                needed_bytes: needed as u64,
                what: "nvCOMP's scratch memory for one chunk".into(),
            });
        }
        // SAFETY: the duties of the caller; the scratch memory is what nvCOMP asked for.
        let status = unsafe {
            self.nvcomp.nvcompBatchedZstdDecompressAsync(
                frames.at(frames.encoded) as *const _,
                frames.at(frames.encoded_bytes) as *const _,
                frames.at(frames.decoded_bytes) as *const _,
                frames.at(frames.actual_bytes) as *mut _,
                frames.count,
                scratch.start as *mut _,
                needed,
                frames.at(frames.decoded) as *const _,
                options,
                (frames.statuses + (frames.first * size_of::<nvcompStatus_t>()) as u64) as *mut _,
                raw_stream,
            )
        };
        self.check("nvcompBatchedZstdDecompressAsync", status)
    }

    /// nvCOMP's name of a status that is not success.
    pub fn failure(&self, status: nvcompStatus_t) -> Option<String> {
        (status != nvcompSuccess).then(|| self.nvcomp.status_text(status))
    }

    fn check(&self, operation: &'static str, status: nvcompStatus_t) -> Result<()> {
        if status == nvcompSuccess { Ok(()) } else { Err(self.error(operation, status)) }
    }

    fn error(&self, operation: &'static str, status: nvcompStatus_t) -> Error {
        Error::NvcompCall { operation, status: self.nvcomp.status_text(status) }
    }
}
