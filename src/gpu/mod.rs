//! Owners over cudarc: the context, pinned and device memory, and the loaded kernels.
//!
//! The driver is loaded at run time; nothing here is touched on a machine without one.

mod driver;
mod event_pool;
mod green;
mod image;
mod kernels;
mod memory;
mod pinned;
mod stream_pool;
mod zstd;

pub use event_pool::{EventPool, LentEvent};
pub use green::GreenContext;
pub use kernels::{
    CheckOnDevice, DeltaOnDevice, FramesToCheck, HeadersOnDevice, Kernels, ShuffledOnDevice, StreamKernel,
    StreamOnDevice, StreamStatus, status_text,
};
pub use memory::{DeviceMemory, PinnedMemory};
pub use pinned::{PinnedBuffer, PinnedPool};
pub use stream_pool::{LentStream, StreamPool, allocation_stream};
pub use zstd::{ChunkOfFrames, FramesToDecode, zstd_scratch_bytes};

use crate::error::{Error, Result};
use driver::CudaRelease;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};

/// A GPU that the reader may use: its primary context, which DALI and PyTorch share.
#[derive(Debug)]
pub struct Gpu {
    /// The context.
    pub context: Arc<CudaContext>,
    /// The release of CUDA that the driver is for.
    driver: CudaRelease,
    /// Memory of the system can be registered, and has the same addresses on the GPU then.
    registers_memory: bool,
}

impl Gpu {
    /// Opens GPU number `ordinal`.
    ///
    /// # Errors
    /// [`Error::NoGpu`] says what is missing.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        let driver = CudaRelease::of_driver()?;
        let context = CudaContext::new(ordinal).map_err(|source| Error::NoGpu {
            problem: format!(
                "GPU {ordinal} cannot be opened by the driver, which is for CUDA {driver} ({source})"
            ),
        })?;
        // SAFETY: cudarc's own slices, which the tracking is for, are not used here; ordering is by our events.
        unsafe { context.disable_event_tracking() };
        let same_addresses =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        let registers_memory = context.attribute(same_addresses).is_ok_and(|yes| yes == 1);
        Ok(Arc::new(Self { context, driver, registers_memory }))
    }

    /// Free memory in bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free_bytes(&self) -> Result<u64> {
        let (free, _) = self.context.mem_get_info().map_err(Error::cuda("asking for free memory"))?;
        Ok(free as u64)
    }

    /// A stream that does not wait for the default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Result<Arc<CudaStream>> {
        self.context.new_stream().map_err(Error::cuda("creating a stream"))
    }

    /// An event for other streams to wait for, and for the host to look at. What waits for it on the host polls: an event whose
    /// waiters sleep makes the GPU interrupt the host each time, which a virtual machine does not do often
    /// (benches/NOTES.md).
    ///
    /// # Errors
    /// What the driver says.
    pub fn quiet_event(&self) -> Result<CudaEvent> {
        self.context
            .new_event(Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING))
            .map_err(Error::cuda("creating an event"))
    }

    /// An event on which threads wait asleep. It also takes an unused time stamp: cudarc takes one flag only.
    ///
    /// # Errors
    /// What the driver says.
    pub fn event(&self) -> Result<CudaEvent> {
        self.context
            .new_event(Some(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC))
            .map_err(Error::cuda("creating an event"))
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(Error::cuda("making the context current"))
    }
}
