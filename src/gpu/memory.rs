//! Memory that frees itself.

use super::Gpu;
use crate::error::{Error, Result};

use std::sync::Arc;

use cudarc::driver::{result, sys};
use memmap2::{Advice, MmapMut, MmapOptions};

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
///
/// Its pages are made before the driver locks them, huge ones where the system has such. The driver's own allocation takes three times as long, and
/// no copy to or from the GPU runs meanwhile (benches/NOTES.md).
#[derive(Debug)]
pub struct PinnedMemory {
    gpu: Arc<Gpu>,
    address: *mut u8,
    bytes: usize,
    /// Memory that the driver has locked. `None` if the driver has allocated it.
    registered: Option<MmapMut>,
}

// SAFETY: plain memory, which is read and written only through the borrows of the methods below.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates; all bytes are zero or what an earlier owner has left.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        if gpu.registers_memory {
            if let Some(mut memory) = registered(bytes) {
                let address = memory.as_mut_ptr();
                return Ok(Self { gpu: gpu.clone(), address, bytes, registered: Some(memory) });
            }
        }
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_host(bytes, 0) };
        let address = address.map_err(Error::cuda("allocating pinned host memory"))?.cast::<u8>();
        Ok(Self { gpu: gpu.clone(), address, bytes, registered: None })
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

/// Memory that the driver has locked. `None` if the system does not give it or the driver does not lock it.
fn registered(bytes: usize) -> Option<MmapMut> {
    let mut memory = MmapOptions::new().len(bytes).map_anon().ok()?;
    // A process that is forked off would get a copy of locked pages at once.
    memory.advise(Advice::DontFork).ok()?;
    // Systems that do not know these leave it to the driver to make the pages.
    let _ = memory.advise(Advice::HugePage);
    let _ = memory.advise(Advice::PopulateWrite);
    // SAFETY: the memory is mapped, and stays so until the driver has unlocked it.
    let locked = unsafe { sys::cuMemHostRegister_v2(memory.as_mut_ptr().cast(), bytes, 0) };
    locked.result().ok().map(|()| memory)
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.gpu.bind().is_err() {
            return;
        }
        // Copies that use the memory have ended, as its users wait for them. An error means that the context is gone.
        let address = self.address.cast();
        match self.registered {
            // SAFETY: locked by `new`, unlocked once.
            Some(_) => _ = unsafe { sys::cuMemHostUnregister(address) },
            // SAFETY: allocated by `new`, freed once.
            None => _ = unsafe { result::free_host(address) },
        }
    }
}
