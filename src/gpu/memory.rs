//! Memory that frees itself.

use super::Gpu;
use crate::error::{Error, Result};

use std::sync::Arc;

use cudarc::driver::result;

/// A block of device memory.
#[derive(Debug)]
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: u64,
}

impl DeviceMemory {
    /// What CUDA aligns allocations to, at least.
    pub const ALIGNMENT: u64 = 256;

    /// Allocates.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the context is current; the memory is written before it is read.
        let address = unsafe { result::malloc_sync(bytes as usize) };
        let address = address.map_err(Error::cuda("allocating device memory"))?;
        Ok(Self { gpu: gpu.clone(), address, bytes })
    }

    /// Address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once. cuMemFree waits for work that uses the memory. An error here
            // means that the context is gone and the memory with it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// A block of page-locked host memory.
#[derive(Debug)]
pub struct PinnedMemory {
    gpu: Arc<Gpu>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, which is read and written only through the borrows of the methods below.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates; the contents are whatever the driver gives.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_host(bytes, 0) };
        let address = address.map_err(Error::cuda("allocating pinned host memory"))?.cast::<u8>();
        Ok(Self { gpu: gpu.clone(), address, bytes })
    }

    /// Address on the host.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once; copies that use it have ended, as its users wait for them.
            let _ = unsafe { result::free_host(self.address.cast()) };
        }
    }
}
