//! The only door between Rust and C++: what `cpp_shim/` may call, and nothing else. Beside it are functions for Python; those that lend
//! it stores are in [`crate::python`].
//!
//! # Contract
//! - One [`Reader`] handle per operator. Its calls never overlap, but may come from different threads.
//! - Every entry runs inside [`guarded`], which turns a panic into an error; cxx alone would abort the process.
//! - An error crosses as its full text behind one byte that says its kind: `A` for an argument the user gave
//!   (the shim throws `std::invalid_argument`, Python sees `ValueError`), `R` for anything found while running
//!   (`std::runtime_error`, `RuntimeError`).
//! - Output memory belongs to the caller. [`Reader::submit`] lends the memory of one batch to the reader, which
//!   writes to it from its own threads and streams until [`Reader::next_batch`] returns that batch, until it
//!   fails, or until the reader is dropped; each of the three waits for every write to have ended.

use crate::dataset::ElementType;
use crate::error::{Error, ErrorKind};
use crate::foreground;
use crate::info;
use crate::options::Arguments;
use crate::presence;
use crate::reader::{self, Status};
use crate::trace;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

#[allow(unused_qualifications, reason = "cxx qualifies what it generates")]
#[cxx::bridge(namespace = "zarr_dali::core")]
mod ffi {
    /// The operator's arguments as DALI delivered them, unchecked. Lists that were not given have `has_... = false`.
    struct ReaderArgs {
        paths: Vec<String>,
        /// `concat` or `separate`.
        join: String,
        /// JSON; empty: not given.
        per_store: String,
        arrays: Vec<String>,
        follow_links: bool,
        storage_options: String,
        stack: bool,
        stack_channels: bool,
        mask_and_scale: bool,
        /// DALI's name of the type; empty: not given.
        dtype: String,
        mean: Vec<f32>,
        std: Vec<f32>,
        /// JSON; empty: not given.
        normalize: String,
        has_window: bool,
        window: Vec<i64>,
        has_stride: bool,
        stride: Vec<i64>,
        has_dilation: bool,
        dilation: Vec<i64>,
        has_offsets: bool,
        offsets: Vec<i64>,
        /// JSON; empty: not given.
        dimension_offsets: String,
        has_roi_start: bool,
        roi_start: Vec<i64>,
        has_roi_end: bool,
        roi_end: Vec<i64>,
        /// JSON; empty: not given.
        select: String,
        exclude: Vec<i64>,
        breaks: Vec<i64>,
        /// JSON or the name of a file; empty: not given.
        samples: String,
        /// JSON or the name of a file; empty: not given.
        weights: String,
        /// 0: as many as there are.
        samples_per_epoch: i64,
        /// Empty: not given.
        mask: String,
        min_foreground: f32,
        /// Empty: none.
        mask_cache: String,
        return_index: bool,
        initial_fill: i64,
        /// Where to start, as `save_state` gives it; empty: at the start.
        position: String,
        random_shuffle: bool,
        seed: i64,
        shard_id: i64,
        num_shards: i64,
        stick_to_shard: bool,
        pad_last_batch: bool,
        prefetch_queue_depth: i64,
        /// `fill` or `error`.
        missing_chunks: String,
        /// `auto`, `gpu` or `cpu`.
        decode: String,
        /// `builtin` or `nvcomp`.
        gpu_zstd: String,
        /// `auto`, `posix` or `gds`.
        io: String,
        /// 0: chosen from the machine.
        num_io_threads: i64,
        /// 0: chosen from the machine.
        num_decode_threads: i64,
        /// Bytes; 0: none.
        cache_bytes: i64,
        /// Empty: none.
        cache_dir: String,
        /// Bytes.
        cache_dir_bytes: i64,
        /// Bytes; 0: chosen from the machine.
        device_memory_budget: i64,
        /// Bytes; 0: chosen from the machine.
        host_memory_budget: i64,
        /// DALI's max_batch_size.
        batch_size: i64,
        /// The GPU of the GPU backend, -1 for the CPU backend.
        device_id: i32,
    }

    /// Element types of outputs: the fixed-size numeric types that DALI has.
    enum ElementType {
        Bool,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
    }

    /// One output of the operator. Every sample of it has the same shape.
    struct OutputDesc {
        element_type: ElementType,
        /// Extents of one sample, in elements.
        shape: Vec<i64>,
        /// DALI layout with one letter per dimension, or empty.
        layout: String,
    }

    /// What DALI's `ReaderMeta` wants.
    struct Meta {
        epoch_size: i64,
        epoch_size_padded: i64,
        number_of_shards: i64,
        shard_id: i64,
        pad_last_batch: bool,
        stick_to_shard: bool,
    }

    extern "Rust" {
        type Reader;

        /// Opens the store, checks everything that can be checked, starts no thread.
        fn open_reader(args: &ReaderArgs) -> Result<Box<Reader>>;
        /// One description per output, in the order of `arrays`.
        fn outputs(self: &Reader) -> Result<Vec<OutputDesc>>;
        fn meta(self: &Reader) -> Result<Meta>;
        /// Makes this the reader of which [`zarr_dali_stats`] tells on this thread.
        fn tell(self: &Reader) -> Result<()>;
        /// How many batches the caller should keep submitted ahead of the one it asks for; at least 1.
        fn depth(self: &Reader) -> i64;
        /// GPU backend: the `CUstream` on which the caller's allocations of output memory are ordered; else 0.
        fn allocation_stream(self: &Reader) -> usize;
        /// Lends the memory of the next batch: for each output the address of `batch_size` contiguous samples,
        /// on the GPU or the host as the backend says. The first call starts the threads.
        ///
        /// # Safety
        /// Each address points to that much writable memory, which stays untouched until `next_batch` returned it.
        unsafe fn submit(self: &mut Reader, addresses: &[usize]) -> Result<()>;
        /// Waits for the oldest submitted batch. Its values are then in memory, whatever stream looks at them.
        /// An error stays: every later call returns it again.
        fn next_batch(self: &mut Reader) -> Result<()>;
        /// `source_info` of sample `index` of output `output` in the batch that `next_batch` returned last.
        fn source_info(self: &Reader, output: usize, index: usize) -> Result<String>;
        /// The position after the batch that `next_batch` returned last, as bytes to put into a checkpoint.
        fn save_state(self: &Reader) -> Result<Vec<u8>>;
        /// Continues from a saved position. Only before the first `submit`.
        fn restore_state(self: &mut Reader, state: &[u8]) -> Result<()>;
    }
}

thread_local! {
    static TOLD: RefCell<Weak<Status>> = const { RefCell::new(Weak::new()) };
}

/// The handle that C++ holds.
pub struct Reader(reader::Reader);

/// An error as it crosses: its kind in one byte, then its text.
struct Crossing(Error);

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0.kind() {
            ErrorKind::Argument => 'A',
            ErrorKind::Runtime => 'R',
        };
        write!(f, "{kind}{}", self.0)
    }
}

type Result<T> = std::result::Result<T, Crossing>;

/// Runs an entry and turns a panic into an error.
fn guarded<T>(entry: &str, work: impl FnOnce() -> crate::error::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Crossing),
        Err(payload) => Err(Crossing(Error::panic(entry, &*payload))),
    }
}

fn open_reader(args: &ffi::ReaderArgs) -> Result<Box<Reader>> {
    guarded("open_reader", || {
        let mut arguments = Arguments {
            paths: args.paths.clone(),
            join: args.join.clone(),
            per_store: args.per_store.clone(),
            arrays: args.arrays.clone(),
            follow_links: args.follow_links,
            storage_options: args.storage_options.clone(),
            stack: args.stack,
            stack_channels: args.stack_channels,
            mask_and_scale: args.mask_and_scale,
            dtype: Some(args.dtype.clone()).filter(|dtype| !dtype.is_empty()),
            mean: args.mean.iter().copied().map(f64::from).collect(),
            std: args.std.iter().copied().map(f64::from).collect(),
            normalize: args.normalize.clone(),
            window: args.has_window.then(|| args.window.clone()),
            stride: args.has_stride.then(|| args.stride.clone()),
            dilation: args.has_dilation.then(|| args.dilation.clone()),
            offsets: args.has_offsets.then(|| args.offsets.clone()),
            dimension_offsets: args.dimension_offsets.clone(),
            roi_start: args.has_roi_start.then(|| args.roi_start.clone()),
            roi_end: args.has_roi_end.then(|| args.roi_end.clone()),
            select: args.select.clone(),
            exclude: args.exclude.clone(),
            breaks: args.breaks.clone(),
            samples: args.samples.clone(),
            weights: args.weights.clone(),
            samples_per_epoch: args.samples_per_epoch,
            mask: args.mask.clone(),
            min_foreground: as_written(args.min_foreground),
            mask_cache: args.mask_cache.clone(),
            kept: None,
            return_index: args.return_index,
            initial_fill: args.initial_fill,
            position: args.position.clone(),
            random_shuffle: args.random_shuffle,
            seed: args.seed,
            shard_id: args.shard_id,
            num_shards: args.num_shards,
            stick_to_shard: args.stick_to_shard,
            pad_last_batch: args.pad_last_batch,
            prefetch_queue_depth: args.prefetch_queue_depth,
            missing_chunks: args.missing_chunks.clone(),
            decode: args.decode.clone(),
            gpu_zstd: args.gpu_zstd.clone(),
            io: args.io.clone(),
            num_io_threads: args.num_io_threads,
            num_decode_threads: args.num_decode_threads,
            cache_bytes: args.cache_bytes,
            cache_dir: args.cache_dir.clone(),
            cache_dir_bytes: args.cache_dir_bytes,
            device_memory_budget: args.device_memory_budget,
            host_memory_budget: args.host_memory_budget,
            batch_size: args.batch_size,
            device_id: args.device_id,
        };
        foreground::resolve(&mut arguments)?;
        presence::resolve(&mut arguments)?;
        Ok(Box::new(Reader(reader::Reader::open(&arguments)?)))
    })
}

/// The number that a user wrote whom DALI gave 32 bits for it: 0.05, and not what is next to it.
fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

impl Reader {
    fn outputs(&self) -> Result<Vec<ffi::OutputDesc>> {
        guarded("outputs", || {
            let describe = |output: &reader::Output| ffi::OutputDesc {
                element_type: output.element.into(),
                shape: output.shape.iter().map(|&extent| extent as i64).collect(),
                layout: output.layout.clone(),
            };
            Ok(self.0.outputs().iter().map(describe).collect())
        })
    }

    fn meta(&self) -> Result<ffi::Meta> {
        guarded("meta", || {
            let order = self.0.order();
            Ok(ffi::Meta {
                epoch_size: order.samples() as i64,
                epoch_size_padded: order.padded_samples() as i64,
                number_of_shards: order.shards() as i64,
                shard_id: order.shard() as i64,
                pad_last_batch: order.pads(),
                stick_to_shard: order.sticks(),
            })
        })
    }

    fn tell(&self) -> Result<()> {
        guarded("tell", || {
            TOLD.set(Arc::downgrade(self.0.status()));
            Ok(())
        })
    }

    fn depth(&self) -> i64 {
        self.0.depth() as i64
    }

    fn allocation_stream(&self) -> usize {
        self.0.allocation_stream().map_or(0, |stream| stream.cu_stream() as usize)
    }

    /// # Safety
    /// See the declaration.
    unsafe fn submit(&mut self, addresses: &[usize]) -> Result<()> {
        // SAFETY: the caller's duty is the same.
        guarded("submit", || unsafe { self.0.submit(addresses) })
    }

    fn next_batch(&mut self) -> Result<()> {
        guarded("next_batch", || self.0.next_batch())
    }

    fn source_info(&self, output: usize, index: usize) -> Result<String> {
        guarded("source_info", || {
            self.0.source_info(output, index).ok_or_else(|| Error::Panic {
                place: "source_info".into(),
                message: format!("there is no sample {index} of output {output}"),
            })
        })
    }

    fn save_state(&self) -> Result<Vec<u8>> {
        guarded("save_state", || Ok(self.0.save_state()))
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<()> {
        guarded("restore_state", || self.0.restore_state(state))
    }
}

impl From<ElementType> for ffi::ElementType {
    fn from(element: ElementType) -> Self {
        match element {
            ElementType::Bool => Self::Bool,
            ElementType::Int8 => Self::Int8,
            ElementType::Int16 => Self::Int16,
            ElementType::Int32 => Self::Int32,
            ElementType::Int64 => Self::Int64,
            ElementType::UInt8 => Self::UInt8,
            ElementType::UInt16 => Self::UInt16,
            ElementType::UInt32 => Self::UInt32,
            ElementType::UInt64 => Self::UInt64,
            ElementType::Float16 => Self::Float16,
            ElementType::Float32 => Self::Float32,
            ElementType::Float64 => Self::Float64,
        }
    }
}

/// Describes a store: see [`info::describe`]. For Python, which calls it through the plugin's library.
///
/// Takes the arguments as JSON and returns JSON, to be given back to [`zarr_dali_free_text`]: the description, or
/// `{"error": ..., "kind": "argument" | "runtime"}`.
///
/// # Safety
/// `arguments` is null or points to a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_describe(arguments: *const c_char) -> *mut c_char {
    let described = guarded("zarr_dali_describe", || {
        let text = match arguments.is_null() {
            true => c"",
            // SAFETY: the caller's duty.
            false => unsafe { CStr::from_ptr(arguments) },
        };
        info::describe(&info::arguments(&text.to_string_lossy())?)
    });
    let answer = described.unwrap_or_else(|Crossing(error)| {
        let kind = match error.kind() {
            ErrorKind::Argument => "argument",
            ErrorKind::Runtime => "runtime",
        };
        serde_json::json!({"error": error.to_string(), "kind": kind})
    });
    // JSON has no zero bytes: it writes them as escapes.
    CString::new(answer.to_string()).unwrap_or_default().into_raw()
}

/// What the reader has done so far whose metadata were asked for last on this thread; null if there is none. For Python,
/// which cannot reach an operator otherwise. JSON, to be given back to [`zarr_dali_free_text`].
#[unsafe(no_mangle)]
pub extern "C" fn zarr_dali_stats() -> *mut c_char {
    let status = guarded("zarr_dali_stats", || Ok(TOLD.take().upgrade().map(|status| status.to_json())));
    match status {
        Ok(Some(status)) => CString::new(status.to_string()).unwrap_or_default().into_raw(),
        _ => std::ptr::null_mut(),
    }
}

/// Makes these the functions that begin a range of a profiler, with a stage's number and a payload, and end it. For the shim.
#[unsafe(no_mangle)]
pub extern "C" fn zarr_dali_trace(push: extern "C" fn(u32, u64), pop: extern "C" fn()) {
    trace::install(trace::Tracer { push, pop });
}

/// Frees what [`zarr_dali_describe`] or [`zarr_dali_stats`] returned.
///
/// # Safety
/// `text` is null or comes from one of them and was not given back before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's duty.
        drop(unsafe { CString::from_raw(text) });
    }
}
