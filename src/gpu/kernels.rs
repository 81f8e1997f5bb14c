//! The kernels of `src/kernels/`, compiled at build time and loaded from inside this library.

use super::Gpu;
use crate::error::{Error, Result};

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

/// Machine code for every architecture that CUDA 13.0 supports, and PTX for later ones.
static FATBIN: &[u8] = include_bytes!(env!("ZARR_DALI_FATBIN"));

/// Threads of a block of the gather kernel, as its launch bounds say.
const GATHER_THREADS: u32 = 256;

/// The loaded kernels.
#[derive(Debug)]
pub struct Kernels {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    gather: sys::CUfunction,
}

// SAFETY: handles of the driver, which may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads the kernels into a context.
    ///
    /// # Errors
    /// What the driver says, for example of an architecture older than all that were compiled for.
    pub fn load(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the image is a fatbin from nvcc.
        let module = unsafe { result::module::load_data(FATBIN.as_ptr().cast()) };
        let module = module.map_err(Error::cuda("loading the kernels"))?;
        // SAFETY: the module was just loaded and is unloaded in `drop` only.
        let gather = unsafe { result::module::get_function(module, c"gather".to_owned()) };
        let gather = gather.map_err(Error::cuda("finding the gather kernel"))?;
        Ok(Self { gpu: gpu.clone(), module, gather })
    }

    /// Enqueues the copies of `count` regions, which together have `tiles` tiles.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// `regions` is the device address of so many [`Region`](crate::assemble::device::Region)s, in device memory until the stream has passed, and
    /// so are all sources and destinations they name.
    pub unsafe fn gather(
        &self,
        stream: &CudaStream,
        mut regions: u64,
        count: usize,
        tiles: u64,
    ) -> Result<()> {
        let mut count = count as u32;
        let mut arguments = [std::ptr::from_mut(&mut regions).cast(), std::ptr::from_mut(&mut count).cast()];
        // SAFETY: the arguments are those of the kernel (a pointer and a 32-bit number) and live until the launch
        // returns; memory is the caller's duty.
        let launched = unsafe {
            result::launch_kernel(
                self.gather,
                (tiles as u32, 1, 1),
                (GATHER_THREADS, 1, 1),
                0,
                stream.cu_stream(),
                &mut arguments,
            )
        };
        launched.map_err(Error::cuda("launching the gather kernel"))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once, after the streams that use it were waited for.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
