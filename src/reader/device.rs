//! The GPU of a reader, and the libraries that it is used with.

use super::memory_plan::{GpuMemoryPlan, MemoryPlan};
use super::setup::Setup;
use crate::assemble::OutputMemory;
use crate::codec::DecodePath;
use crate::codec::zstd::MAX_BUILTIN_CHUNK_BYTES;
use crate::dataset::ArrayInfo;
use crate::decode::nvcomp::Zstd;
use crate::error::{Error, Result, log_once};
use crate::fetch::cufile::Driver;
use crate::gpu::{Gpu, LentStream, allocation_stream};
use crate::options::{GpuZstd, Io, argument};

use std::sync::Arc;

use cudarc::driver::{CudaEvent, result};

/// What the GPU backend has besides.
pub(super) struct Device {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// nvCOMP, if any array needs it and our own decoder does not take its place.
    pub zstd: Option<Arc<Zstd>>,
    /// How its memory is shared out.
    pub memory: GpuMemoryPlan,
    /// The stream on which the consumer allocates output memory.
    pub allocation: LentStream,
    /// cuFile, if it reads.
    pub cufile: Option<Arc<Driver>>,
}

impl Device {
    /// Opens a GPU, loads the libraries that the setup needs, and shares the memory out.
    pub fn open(setup: &Setup, ordinal: usize) -> Result<(Self, MemoryPlan)> {
        let gpu = Gpu::open(ordinal)?;
        let zstd = match setup.planned_parts().find(|(_, plan)| plan.decode_path.has_zstd()) {
            None => None,
            Some((array, _)) => open_nvcomp(setup, array)?,
        };
        let cufile = open_cufile(setup)?;
        let budget = setup.options.device_budget(|| gpu.free_bytes())?;
        let (plan, memory) = setup.plan_on_gpu(budget, zstd.as_deref())?;
        Ok((Self { zstd, memory, allocation: allocation_stream(&gpu)?, gpu, cufile }, plan))
    }

    /// Copies the indices of a batch to the output for them, on the allocation stream.
    ///
    /// # Safety
    /// The output has their size and is writable.
    pub unsafe fn write_indices(&self, indices: &[i64], output: &OutputMemory) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: the caller's duty. The source is pageable, so that the driver has copied it when the call returns.
        unsafe { result::memcpy_htod_async(output.address, indices, self.allocation.stream().cu_stream()) }
            .map_err(Error::cuda("copying the indices of samples to the GPU"))
    }

    /// An event behind everything that is on the allocation stream now.
    pub fn record_allocation(&self) -> Result<CudaEvent> {
        let event = self.gpu.event()?;
        event.record(self.allocation.stream()).map_err(Error::cuda("recording an event"))?;
        Ok(event)
    }
}

/// nvCOMP, where it was asked for or a chunk is too large for our own decoder. `first` is an array with zstd.
fn open_nvcomp(setup: &Setup, first: &ArrayInfo) -> Result<Option<Arc<Zstd>>> {
    let is_large = |path: &DecodePath| match path {
        DecodePath::Gpu(chain) => chain.most().area_bytes > MAX_BUILTIN_CHUNK_BYTES,
        DecodePath::Cpu(_) => false,
    };
    let large = setup.planned_parts().find(|(_, plan)| is_large(&plan.decode_path));
    let array = match (setup.options.gpu_zstd, large) {
        (GpuZstd::Nvcomp, _) => first,
        (GpuZstd::Builtin, None) => return Ok(None),
        (GpuZstd::Builtin, Some((array, _))) => {
            log_once(&format!(
                "{}: nvCOMP decodes zstd, because a chunk has more than {MAX_BUILTIN_CHUNK_BYTES} bytes",
                array.context()
            ));
            array
        }
    };
    match Zstd::open() {
        Ok(zstd) => Ok(Some(Arc::new(zstd))),
        Err(error) => Err(Error::Nvcomp { at: array.context(), source: error.into() }),
    }
}

fn open_cufile(setup: &Setup) -> Result<Option<Arc<Driver>>> {
    if !setup.reads_with_cufile() {
        return Ok(None);
    }
    match (Driver::open(), setup.options.io) {
        (Ok(driver), _) => Ok(Some(driver)),
        (Err(problem), Io::Gds) => {
            Err(argument("io", format!("\"gds\" cannot be done: {problem}; give io=\"auto\"")))
        }
        (Err(problem), _) => {
            log_once(&format!("chunks are read without cuFile: {problem}"));
            Ok(None)
        }
    }
}
