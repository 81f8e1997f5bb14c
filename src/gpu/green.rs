//! Streams that keep to a part of the GPU's multiprocessors, so that what runs there leaves the others to the model: CUDA's green
//! contexts, which share memory, modules and events with the primary context.

use super::Gpu;
use crate::error::{Error, Result};

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

/// One part in so many of the multiprocessors. Of an eighth and a quarter of them neither took less from a model throughout (benches/NOTES.md).
const SHARE: u32 = 6;

/// Some multiprocessors.
pub struct GreenContext {
    gpu: Arc<Gpu>,
    context: sys::CUgreenCtx,
}

// SAFETY: a handle that the driver lets every thread use.
unsafe impl Send for GreenContext {}
// SAFETY: as above.
unsafe impl Sync for GreenContext {}

impl GreenContext {
    /// Takes a sixth of the multiprocessors, or as many more as the GPU can be cut by.
    ///
    /// # Errors
    /// What the driver says, also where it cannot cut this GPU at all.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Arc<Self>> {
        gpu.bind()?;
        let device = gpu.context.cu_device();
        // SAFETY: plain values, for which nothing is a valid state; each call fills what the next one reads.
        let context = unsafe {
            let mut all: sys::CUdevResource = std::mem::zeroed();
            let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
            let asked = sys::cuDeviceGetDevResource(device, &raw mut all, kind);
            asked.result().map_err(Error::cuda("asking for multiprocessors"))?;
            let wanted = (all.__bindgen_anon_1.sm.smCount / SHARE).max(1);
            let (mut part, mut rest, mut groups) = (all, all, 1);
            let split = sys::cuDevSmResourceSplitByCount(
                &raw mut part,
                &raw mut groups,
                &raw const all,
                &raw mut rest,
                0,
                wanted,
            );
            split.result().map_err(Error::cuda("choosing multiprocessors"))?;
            let mut described = std::mem::zeroed();
            let described_by = sys::cuDevResourceGenerateDesc(&raw mut described, &raw mut part, 1);
            described_by.result().map_err(Error::cuda("describing multiprocessors"))?;
            let mut context = std::ptr::null_mut();
            let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
            let created = sys::cuGreenCtxCreate(&raw mut context, described, device, flags);
            created.result().map_err(Error::cuda("creating a green context"))?;
            context
        };
        Ok(Arc::new(Self { gpu: gpu.clone(), context }))
    }

    /// A stream that does not wait for the default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(self: &Arc<Self>) -> Result<GreenStream> {
        self.gpu.bind()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the green context lives.
        let created = unsafe { sys::cuGreenCtxStreamCreate(&raw mut stream, self.context, flags, 0) };
        created.result().map_err(Error::cuda("creating a stream"))?;
        // SAFETY: it was just created, and lives as long as the value that is returned.
        let stream = unsafe { self.gpu.context.wrap_borrowed_stream(stream) };
        Ok(GreenStream { stream, context: self.clone() })
    }
}

impl Drop for GreenContext {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created by `new`, and its streams are gone, as each keeps it.
            let _ = unsafe { sys::cuGreenCtxDestroy(self.context) };
        }
    }
}

/// A stream of a green context.
pub struct GreenStream {
    stream: Arc<CudaStream>,
    context: Arc<GreenContext>,
}

impl GreenStream {
    /// To be used while this value lives.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for GreenStream {
    fn drop(&mut self) {
        if self.context.gpu.bind().is_ok() {
            // SAFETY: created by `GreenContext::stream`, destroyed once; who used it waited for what it did there.
            let _ = unsafe { result::stream::destroy(self.stream.cu_stream()) };
        }
    }
}
