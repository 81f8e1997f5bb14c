//! Streams that are never destroyed, because something may refer to them later than their user lives.

use super::Gpu;
use crate::error::Result;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaStream, sys};

/// Streams of one GPU that are lent to one user after another.
#[derive(Default)]
pub struct StreamPool {
    /// Those that nobody uses.
    idle: Mutex<Vec<sys::CUstream>>,
}

// SAFETY: handles that the driver lets every thread use.
unsafe impl Send for StreamPool {}
// SAFETY: as above.
unsafe impl Sync for StreamPool {}

impl StreamPool {
    /// A stream that nobody uses, made by `create` if there is none.
    ///
    /// # Errors
    /// Those of `create`.
    pub fn lend(
        self: &Arc<Self>,
        gpu: &Gpu,
        create: impl FnOnce() -> Result<sys::CUstream>,
    ) -> Result<LentStream> {
        let idle = self.lock().pop();
        let stream = idle.map_or_else(create, Ok)?;
        // SAFETY: it is of the GPU's primary context or of a green context of it, and is never destroyed.
        let stream = unsafe { gpu.context.wrap_borrowed_stream(stream) };
        Ok(LentStream { stream, pool: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<sys::CUstream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream of a pool, which gets it back on drop. The user of the stream waits for its own work there.
pub struct LentStream {
    stream: Arc<CudaStream>,
    pool: Arc<StreamPool>,
}

impl LentStream {
    /// The stream, which this value's owner alone uses while the value lives.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for LentStream {
    fn drop(&mut self) {
        self.pool.lock().push(self.stream.cu_stream());
    }
}
