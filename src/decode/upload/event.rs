//! Waits for CUDA events by polling, so that the waiting thread leaves its core to others.

use crate::error::{Error, Result};
use crate::gpu::Gpu;

use std::time::Duration;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaEvent, DriverError, result};

/// Time between two queries of an event.
const POLL: Duration = Duration::from_micros(30);

/// Waits for an event of a copy.
///
/// # Errors
/// What the driver says about the copy.
pub fn wait_for(gpu: &Gpu, event: &CudaEvent) -> Result<()> {
    gpu.bind()?;
    while !has_happened(event)? {
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Whether the copy before an event is complete.
///
/// # Errors
/// What the driver says about the copy.
pub fn has_happened(event: &CudaEvent) -> Result<bool> {
    // SAFETY: the event lives; the call only asks.
    match unsafe { result::event::query(event.cu_event()) } {
        Ok(()) => Ok(true),
        Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
        Err(error) => Err(Error::cuda("copying a chunk to the GPU")(error)),
    }
}
