//! Ranges that profilers show, in NVTX's domain `zarr_dali`.
//!
//! NVTX is a C header; the shim includes it and gives its functions to [`install`]. Without a profiler, and in Rust's own tests,
//! a range costs a comparison.

use std::marker::PhantomData;
use std::sync::OnceLock;

/// What a range is about, and what its payload says.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A batch is planned: its number.
    Plan,
    /// A chunk is read, or a piece of it: its encoded bytes.
    Fetch,
    /// The CPU decodes a chunk: its decoded bytes.
    DecodeOnCpu,
    /// A group of chunks is decoded and gathered on the GPU, seen from the thread that waits for it: how many chunks.
    DecodeOnGpu,
    /// The consumer waits for a batch: its number.
    WaitForBatch,
}

/// The functions that begin and end a range on the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Tracer {
    /// Begins one, with its payload.
    pub push: extern "C" fn(u32, u64),
    /// Ends the one that began last.
    pub pop: extern "C" fn(),
}

static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Uses these functions from now on; the first call counts.
pub fn install(tracer: Tracer) {
    let _ = TRACER.set(tracer);
}

/// A range from now until it is dropped.
pub fn range(stage: Stage, payload: u64) -> Range {
    let tracer = TRACER.get();
    if let Some(tracer) = tracer {
        (tracer.push)(stage as u32, payload);
    }
    Range { tracer, of_this_thread: PhantomData }
}

/// Ends its range when dropped, on the thread that began it.
#[must_use]
pub struct Range {
    tracer: Option<&'static Tracer>,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer {
            (tracer.pop)();
        }
    }
}
