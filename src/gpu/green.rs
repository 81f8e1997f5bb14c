//! SM partition: streams whose kernels run on some of the GPU's multiprocessors (SMs) and leave the others to the model. They
//! are CUDA's green contexts, which share memory, modules and events with the primary context.

use super::{Gpu, LentStream, StreamPool, driver};
use crate::error::{Error, Result, log_once};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;

/// The partition has one of `SHARE` equal parts of the multiprocessors. Neither an eighth nor a quarter took less from every
/// model that was measured (benches/NOTES.md).
const SHARE: u32 = 6;

/// What a driver has from CUDA 12.5 on.
const FUNCTIONS: [&str; 5] = [
    "cuDeviceGetDevResource",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
];

/// The partition of a GPU, one for all readers of the process. It and its streams are kept while the process lives: the driver
/// keeps almost a megabyte of each context that is destroyed.
pub struct GreenContext {
    gpu: Arc<Gpu>,
    context: sys::CUgreenCtx,
    streams: Arc<StreamPool>,
}

// SAFETY: handles that the driver lets every thread use.
unsafe impl Send for GreenContext {}
// SAFETY: as above.
unsafe impl Sync for GreenContext {}

impl GreenContext {
    /// The GPU's partition: a sixth of the multiprocessors, rounded up to what the driver can split off. `None` if the driver
    /// cannot split any off, which is logged once.
    pub fn of(gpu: &Arc<Gpu>) -> Option<Arc<Self>> {
        static ALL: Mutex<BTreeMap<i32, Arc<GreenContext>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let device = gpu.context.cu_device();
        if let Some(known) = all.get(&device) {
            return Some(known.clone());
        }
        if !driver::has(&FUNCTIONS) {
            let release = gpu.driver;
            log_once(&format!(
                "the GPU decodes on all multiprocessors: the driver, for CUDA {release}, has no green contexts"
            ));
            return None;
        }
        let new = Self::new(gpu).inspect_err(told).ok()?;
        all.insert(device, new.clone());
        Some(new)
    }

    fn new(gpu: &Arc<Gpu>) -> Result<Arc<Self>> {
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
        Ok(Arc::new(Self { gpu: gpu.clone(), context, streams: StreamPool::new(gpu.clone()) }))
    }

    /// A stream that does not wait for the default stream. `None` if the driver cannot create one, which is logged once.
    pub fn stream(&self) -> Option<LentStream> {
        // SAFETY: it is of this green context of the GPU, and is never destroyed.
        unsafe { self.streams.lend(|| self.new_stream()) }.inspect_err(told).ok()
    }

    fn new_stream(&self) -> Result<sys::CUstream> {
        self.gpu.bind()?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the green context lives.
        let created = unsafe { sys::cuGreenCtxStreamCreate(&raw mut stream, self.context, flags, 0) };
        created.result().map_err(Error::cuda("creating a stream"))?;
        Ok(stream)
    }
}

fn told(problem: &Error) {
    log_once(&format!("the GPU decodes on all multiprocessors: {problem}"));
}
