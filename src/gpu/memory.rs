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
/// Its pages are made before it is registered with the driver, which locks them; huge ones where the system has such. The driver's own allocation takes
/// three times as long, and no copy to or from the GPU runs during all of it (benches/NOTES.md).
#[derive(Debug)]
pub struct PinnedMemory {
    gpu: Arc<Gpu>,
    address: *mut u8,
    bytes: usize,
    /// Memory that is registered. `None` if the driver has allocated it.
    registered: Option<MmapMut>,
}

// SAFETY: plain memory, which is read and written only through the borrows of the methods below.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates. What the bytes are is not known.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        if gpu.registers_memory
            && let Some(mut memory) = registered(bytes)
        {
            let address = memory.as_mut_ptr();
            return Ok(Self { gpu: gpu.clone(), address, bytes, registered: Some(memory) });
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

/// Registered memory. `None` if the system does not give any or the driver does not register it.
fn registered(bytes: usize) -> Option<MmapMut> {
    /// Whole pages are registered.
    const PAGE_BYTES: usize = 4096;
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    let mut memory = MmapOptions::new().len(bytes).map_anon().ok()?;
    // A process that is forked off would get a copy of locked pages at once.
    memory.advise(Advice::DontFork).ok()?;
    // Systems that do not know these leave it to the driver to make the pages.
    let _ = memory.advise(Advice::HugePage);
    let _ = memory.advise(Advice::PopulateWrite);
    // Nor are the driver's allocations in core dumps.
    let _ = memory.advise(Advice::DontDump);
    // SAFETY: the memory is mapped, and stays so until it is unregistered.
    let registered = unsafe { sys::cuMemHostRegister_v2(memory.as_mut_ptr().cast(), bytes, 0) };
    registered.result().ok().map(|()| memory)
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // Copies that use the memory have ended, as its users wait for them.
        let (bound, address) = (self.gpu.bind(), self.address.cast());
        match self.registered.take() {
            Some(memory) => {
                // SAFETY: registered by `new`, unregistered once.
                let unregistered = unsafe { sys::cuMemHostUnregister(address) };
                if unregistered.result().is_err() {
                    // The driver takes what is mapped there later for registered memory, so nothing may be.
                    std::mem::forget(memory);
                }
            }
            // SAFETY: allocated by `new`, freed once. An error means that the context is gone.
            None if bound.is_ok() => _ = unsafe { result::free_host(address) },
            None => {}
        }
    }
}
