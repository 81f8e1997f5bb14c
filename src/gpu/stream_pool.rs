//! Streams that are never destroyed, because something may refer to them later than their user lives.

use super::Gpu;
use crate::error::{Error, Result};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaStream, result, sys};

/// Streams of one GPU that are lent to one user after another. The pool keeps the GPU's context, with which they would end.
pub struct StreamPool {
    gpu: Arc<Gpu>,
    /// Those that nobody uses.
    idle: Mutex<Vec<sys::CUstream>>,
}

// SAFETY: handles that the driver lets every thread use.
unsafe impl Send for StreamPool {}
// SAFETY: as above.
unsafe impl Sync for StreamPool {}

impl StreamPool {
    /// A pool without streams.
    pub fn new(gpu: Arc<Gpu>) -> Arc<Self> {
        Arc::new(Self { gpu, idle: Mutex::default() })
    }

    /// A stream that nobody uses, made by `create` if there is none.
    ///
    /// # Errors
    /// Those of `create`.
    ///
    /// # Safety
    /// `create` makes a stream of the pool's GPU, of its primary context or of a green context, that is never destroyed.
    pub unsafe fn lend(
        self: &Arc<Self>,
        create: impl FnOnce() -> Result<sys::CUstream>,
    ) -> Result<LentStream> {
        let idle = self.lock().pop();
        let stream = idle.map_or_else(create, Ok)?;
        // SAFETY: the caller's duty; the pool keeps the context.
        let stream = unsafe { self.gpu.context.wrap_borrowed_stream(stream) };
        Ok(LentStream { stream, pool: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<sys::CUstream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream for the consumer to allocate memory on, which no other reader uses. It outlives its user, because the memory may: DALI 2.0 frees
/// what is shared with others on the stream on which it was allocated, whatever order its owner has given it since.
///
/// # Errors
/// What the driver says.
pub fn allocation_stream(gpu: &Arc<Gpu>) -> Result<LentStream> {
    static ALL: Mutex<BTreeMap<i32, Arc<StreamPool>>> = Mutex::new(BTreeMap::new());
    let device = gpu.context.cu_device();
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = all.entry(device).or_insert_with(|| StreamPool::new(gpu.clone())).clone();
    drop(all);
    let create = || {
        gpu.bind()?;
        let kind = result::stream::StreamKind::NonBlocking;
        result::stream::create(kind).map_err(Error::cuda("creating a stream"))
    };
    // SAFETY: it is of the GPU's primary context, and nothing destroys it.
    unsafe { pool.lend(create) }
}

/// A stream of a pool, which gets it back on drop. The user of the stream waits for its own work there.
pub struct LentStream {
    stream: Arc<CudaStream>,
    pool: Arc<StreamPool>,
}

impl LentStream {
    /// The stream, which is lent to nobody else while this value lives.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for LentStream {
    fn drop(&mut self) {
        self.pool.lock().push(self.stream.cu_stream());
    }
}
