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
    /// Scratch memory of one frame, by its size: asking nvCOMP takes microseconds, and groups are formed chunk by chunk.
    scratch_of_one: Mutex<HashMap<u64, u64>>,
}

const _: () =
    assert!(DeviceMemory::ALIGNMENT as usize >= nvcomp_sys::nvcompZstdRequiredDecompressionAlignment);

/// The sum of what a call decodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    /// How many frames.
    pub count: u64,
    /// Decoded bytes of the largest.
    pub largest: u64,
    /// Decoded bytes of all.
    pub total: u64,
}

impl Frames {
    /// With one frame more.
    pub fn with(self, bytes: u64) -> Self {
        Self { count: self.count + 1, largest: self.largest.max(bytes), total: self.total + bytes }
    }
}

/// Frames on the device: addresses of arrays, of which `count` entries from `first` on are meant.
#[derive(Clone, Copy, Debug)]
pub struct FramesOnDevice {
    /// The first meant entry.
    pub first: usize,
    /// How many entries are meant.
    pub count: usize,
    /// Decoded bytes of the largest frame.
    pub largest: u64,
    /// Addresses of the encoded frames.
    pub encoded: u64,
    /// Their sizes.
    pub encoded_bytes: u64,
    /// Addresses of the decoded bytes.
    pub decoded: u64,
    /// How much room is there.
    pub decoded_bytes: u64,
    /// How much was written; filled by nvCOMP.
    pub actual_bytes: u64,
    /// 4 bytes for each frame; filled by nvCOMP.
    pub statuses: u64,
}

impl FramesOnDevice {
    /// Address of the first meant entry of an array of 8-byte entries.
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
    /// Sizes of frames that are remembered.
    const MOST_SIZES: usize = 4096;

    /// Loads nvCOMP.
    ///
    /// # Errors
    /// What the loader says.
    pub fn open() -> std::result::Result<Self, nvcomp_sys::LoadError> {
        Ok(Self { nvcomp: nvcomp_sys::open()?, scratch_of_one: Mutex::default() })
    }

    /// What calls usually need as scratch memory, for forming groups: so much for each frame as for the largest. Not a bound: nvCOMP 5.3 assumes fewer sequences
    /// than zstd makes at level 19 (measured: 877,872 bytes promised and 888,368 needed for a chunk of 288,000, which
    /// ended the CUDA context), so that [`Zstd::decompress`] asks again with the chunks at hand.
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
        let mut bytes = 0;
        let options = nvcompBatchedZstdDecompressOpts_t::default();
        // SAFETY: writes to a live value; does not touch the device.
        let status = unsafe {
            self.nvcomp.nvcompBatchedZstdDecompressGetTempSizeAsync(
                1,
                frames.largest as usize,
                options,
                &mut bytes,
                frames.largest as usize,
            )
        };
        self.check("nvcompBatchedZstdDecompressGetTempSizeAsync", status)?;
        // Sizes of frames are those of chunks or of Blosc's blocks; few.
        if known.len() < Self::MOST_SIZES {
            known.insert(frames.largest, bytes as u64);
        }
        Ok(bytes as u64 * frames.count)
    }

    /// Enqueues the decoding of frames, in as many calls as the scratch memory asks for. Waits for the stream, because
    /// nvCOMP looks at the frames to say what it needs; this took 0.05 ms for 48 of them (H200, 2026-11-20).
    ///
    /// # Errors
    /// What nvCOMP says, or scratch memory that is too small for one frame.
    ///
    /// # Safety
    /// The arrays have an entry for each frame, filled when the stream has come here, and stay with all that they
    /// point to until the stream has passed, as does `scratch`.
    pub unsafe fn decompress(
        &self,
        stream: &CudaStream,
        frames: &FramesOnDevice,
        scratch: Range<u64>,
    ) -> Result<()> {
        let room = scratch.end - scratch.start;
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
        if needed as u64 > room {
            if frames.count > 1 {
                let (front, back) = frames.halves();
                // SAFETY: parts of the same arrays; calls that share the scratch memory follow one another.
                unsafe { self.decompress(stream, &front, scratch.clone())? };
                // SAFETY: as above.
                return unsafe { self.decompress(stream, &back, scratch) };
            }
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: room,
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
        self.failure(status).map_or(Ok(()), |status| Err(Error::NvcompCall { operation, status }))
    }
}
