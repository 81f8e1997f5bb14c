//! Runs the decode path on its own threads and keeps the queue of batches.
//!
//! ```text
//! submit --> planner --> jobs --> decoders --> (CPU backend) outputs
//!               |          |          '-------------.
//!               |          '----> feeders --> (GPU backend) landed chunks --> GPU workers --> outputs
//!               '-- units whose chunk is there already ----------------------^
//! next_batch <-- the oldest submitted batch, once its last unit is finished
//! ```
//!
//! A unit is what one batch needs of one read chunk. Chunks of all submitted batches are in flight at once, each once
//! for all batches that need it as long as there is room for it to stay; batches are handed over in order. Memory is
//! bounded by what was submitted (outputs), by the pinned pool (bytes on their way to the GPU), by where chunks land there,
//! by the GPU workers' arenas (decoding) and by the rooms (decoded chunks that stay).

use crate::assemble::{Conversion, OutputMemory, conversions, device};
use crate::batch::{Batch, Progress};
use crate::codec::{self, DecodePath};
use crate::dataset::{ArrayInfo, Dataset, ElementType, Joined, stacked_layout};
use crate::decode::Queue;
use crate::decode::chunk_cache::ChunkCache;
use crate::decode::cpu::{CpuDecoder, scratch_bytes};
use crate::decode::device_pool::DevicePool;
use crate::decode::fetching::Fetching;
use crate::decode::gpu_task::GpuTask;
use crate::decode::gpu_worker::{GpuWorker, GpuWorkerContext};
use crate::decode::group;
use crate::decode::jobs::Jobs;
use crate::decode::nvcomp::Zstd;
use crate::decode::part::{Kind, PartPlan, PartPlans};
use crate::decode::planner::{self, Planner};
use crate::decode::prefetch::Prefetcher;
use crate::decode::upload::{
    GdsStaging, UploadContext, Uploader, UploaderParts, largest_pinned_bytes, largest_upload_bytes,
};
use crate::decode::watchdog::{self, Watchdog};
use crate::decode::worker::{Target, WorkerContext, WorkerState};
use crate::error::{Error, GpuWork, Result, log_once};
use crate::fetch::cufile::{Driver, Memory};
use crate::fetch::scheduler::Limits;
use crate::fetch::{self, Fetch, Gds, Locator, Posix};
use crate::gpu::{DeviceMemory, Gpu, GreenContext, Kernels, PinnedPool};
use crate::options::{Arguments, Decode, DeviceBudget, Io, Options, argument};
use crate::plan::{ArrayGeometry, OutputGeometry, PartGeometry, count_chunks, touched_chunks};
use crate::sampler::{
    self, Axis, Buffer, Drawn, Grid, Groups, Order, OrderArguments, Played, Position, Run, Shuffle,
    WindowArguments, Windows,
};
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use cudarc::driver::{CudaStream, result};
use serde_json::{Value, json};

/// One output of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Type of the elements.
    pub element: ElementType,
    /// Shape of one sample.
    pub shape: Vec<u64>,
    /// DALI layout of a sample, or empty.
    pub layout: String,
}

/// A reader of one dataset.
pub struct Reader {
    dataset: Arc<Dataset>,
    windows: Windows,
    geometry: Arc<[ArrayGeometry]>,
    placing: Arc<[OutputGeometry]>,
    order: Order,
    seed: i64,
    stacked: bool,
    options: Options,
    /// Of the lists that a shuffle makes.
    order_bytes: u64,
    /// Host memory that it may use: for outputs and chunks that stay on the CPU backend, pinned on the GPU backend.
    host_bytes: u64,
    /// Bytes of decoded chunks that may stay for later batches, once budgets are known.
    chunk_cache_bytes: u64,
    /// Those that can be of use.
    staying: Staying,
    /// Whether samples are given out with their indices.
    indexed: bool,
    status: Arc<Status>,
    /// The process that opened it; threads and CUDA do not survive a fork.
    process: u32,
    parts: Arc<PartPlans>,
    device: Option<Device>,
    depth: u64,
    running: Option<Running>,
    submitted: VecDeque<Arc<Batch>>,
    /// Number of the next batch to be submitted.
    next: u64,
    /// Samples of the batch that was handed over last.
    current: Vec<Drawn>,
    failed: Option<Arc<Error>>,
}

/// What the GPU backend needs besides, and how much of it.
struct Device {
    gpu: Arc<Gpu>,
    /// nvCOMP, if any array needs it.
    zstd: Option<Arc<Zstd>>,
    shares: Shares,
    /// On which the consumer allocates output memory.
    allocation: Arc<CudaStream>,
    /// cuFile, if it reads.
    cufile: Option<Arc<Driver>>,
}

/// What is in host memory besides outputs, pinned memory and chunks that stay.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// Of a thread that decodes.
    scratch_bytes: u64,
    /// To plan a batch.
    planning_bytes: u64,
    /// Of each batch that was planned.
    planned_bytes: u64,
    /// Of the lists that a shuffle makes.
    order_bytes: u64,
    /// To open a shard.
    index_bytes: u64,
}

impl Needs {
    /// Bytes for each chunk of a planned batch, of which 530 were measured with 2^18 chunks of one byte in each of eight
    /// batches, and besides for each chunk of the batch that is planned and the three that are noted ahead of it.
    const PLANNED_CHUNK_BYTES: u64 = 700;
    const PLANNING_CHUNK_BYTES: u64 = 1400;
    /// A shard's index as it is read, decoded and kept.
    const INDEX_COPIES: u64 = 4;

    /// What counts of it, with so many threads that decode and batches in flight.
    fn bytes(&self, threads: u64, depth: u64) -> u64 {
        let all = [
            self.scratch_bytes.saturating_mul(threads),
            self.planned_bytes.saturating_mul(depth),
            self.planning_bytes,
            self.order_bytes,
            self.index_bytes,
        ];
        all.into_iter().fold(0, u64::saturating_add).saturating_sub(Options::UNCOUNTED_HOST_BYTES)
    }

    /// The largest of it, for an error; `array` has the largest chunks.
    fn describe(&self, array: &ArrayInfo) -> String {
        let plan = self.planning_bytes.saturating_add(self.planned_bytes);
        let all = [
            (
                self.scratch_bytes,
                format!(
                    "a read chunk of {} bytes of {} while it is decoded, which takes {} (smaller chunks take less)",
                    array.read_chunk_bytes(),
                    array.context(),
                    self.scratch_bytes
                ),
            ),
            (
                plan,
                format!(
                    "the plan of a batch, which takes {plan} (larger chunks, smaller samples or batches take less)"
                ),
            ),
            (self.order_bytes, format!("the order of shuffled samples, which takes {}", self.order_bytes)),
            (
                self.index_bytes,
                format!("the index of a shard, which takes {} (smaller shards take less)", self.index_bytes),
            ),
        ];
        all.into_iter()
            .max_by_key(|(bytes, _)| *bytes)
            .map(|(_, text)| format!(", and {text}"))
            .unwrap_or_default()
    }
}

/// How GPU memory is shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// All of it.
    pub budget_bytes: u64,
    /// Batches in flight.
    pub depth: u64,
    /// GPU workers that decode.
    pub gpu_workers: u64,
    /// Memory of each GPU worker.
    pub arena_bytes: u64,
    /// Where chunks land.
    pub upload_pool_bytes: u64,
    /// What small chunks go together in; none if there is no room for that.
    pub packed_bytes: u64,
    /// What cuFile reads to; none if it does not read.
    pub staging_bytes: u64,
    largest_pinned_bytes: u64,
}

impl Reader {
    /// Each has a stream and an arena; with four, copies, decoding and the host's part overlap, and groups are full (benches/NOTES.md).
    const MAX_GPU_WORKERS: u64 = 4;
    /// One part in so many of the device budget is for outputs in flight; the rest is for decoding.
    const OUTPUT_SHARE: u64 = 4;
    /// Batches that DALI holds besides, as it is set up by default: two in its queue and one that is used.
    const HANDED_OVER: u64 = 3;
    /// One part in so many of the device budget is for what allocations are rounded up to. With it the budget holds when it is
    /// watched from outside (`benches/budgets.py`).
    const ROUNDING_SHARE: u64 = 32;
    /// Batches in flight on the CPU backend, where latency is short: enough to keep every thread busy.
    const MAX_CPU_DEPTH: u64 = 8;
    /// So many parts in so many of the memory for chunks that stay are for the shuffle, the rest for those ahead of it.
    const SHUFFLE_SHARE: (u64, u64) = (3, 4);
    /// A packed buffer of fewer bytes is of no use.
    const LEAST_PACKED: u64 = 64 << 10;
    /// One part in so many of the device budget is for what cuFile reads to.
    const STAGING_SHARE: u64 = 16;
    /// So many chunks land for each that GPU workers work on, so that these find some when they are done.
    const LANDED_AHEAD: u64 = 2;
    /// One part in so many of the host budget may be plans of batches in flight,
    const PLAN_SHARE: u64 = 4;
    /// one in so many chunks that were fetched and wait to be decoded,
    const FETCH_SHARE: u64 = 4;
    /// one in so many indexes of shards that stay open,
    const INDEX_SHARE: u64 = 8;
    /// and one in so many notes of which chunks later batches need.
    const NOTE_SHARE: u64 = 8;
    /// More chunks of a batch than this are not listed to know their number beforehand.
    const MAX_COUNTED_CHUNKS: u64 = 1 << 20;

    /// Opens the store and checks everything that can be checked without reading a chunk. Starts no thread.
    ///
    /// # Errors
    /// Arguments and stores that cannot be read, a GPU or nvCOMP that is needed and not there, and budgets that
    /// cannot hold the least that is needed.
    pub fn open(arguments: &Arguments) -> Result<Self> {
        let mut reader = Self::without_memory(arguments)?;
        match reader.options.device {
            None => reader.depth = reader.host_depth()?,
            Some(ordinal) => {
                let device = reader.open_device(ordinal)?;
                reader.depth = device.shares.depth;
                reader.device = Some(device);
                reader.log_decode_paths();
            }
        }
        Ok(reader)
    }

    /// The same as far as neither a GPU nor memory budgets matter: the reader can tell, but not read.
    pub(crate) fn without_memory(arguments: &Arguments) -> Result<Self> {
        let options = Options::check(arguments)?;
        codec::register();
        let dataset = Arc::new(Dataset::open(&arguments.paths, &arguments.arrays, &arguments.access()?)?);
        if let Some(scalar) = dataset.arrays.iter().find(|array| array.shape.is_empty()) {
            let at = scalar.context();
            let problem =
                format!("{at} has no dimensions, so there is nothing to take samples along; leave it out");
            return Err(argument("arrays", problem));
        }
        let moves = |array: &Joined| array.axes.first() == Some(&Some(0));
        let reference = dataset.arrays.iter().position(moves).unwrap_or(0);
        let windows = Windows::new(
            &dataset.arrays[reference].shape,
            &WindowArguments {
                window: arguments.window.as_deref(),
                stride: arguments.stride.as_deref(),
                dilation: arguments.dilation.as_deref(),
                offsets: arguments.offsets.as_deref(),
                roi_start: arguments.roi_start.as_deref(),
                roi_end: arguments.roi_end.as_deref(),
                exclude: &arguments.exclude,
                most_listed: Some(
                    options.most_host_memory_bytes.saturating_add(Options::UNCOUNTED_HOST_BYTES)
                        / Windows::LISTED_BYTES,
                ),
            },
        )
        .map_err(|error| name_array(error, &dataset.arrays[reference]))?;
        let conversions = conversions(&dataset, arguments)?;
        if arguments.stack {
            check_stack(&dataset, &conversions)?;
        }
        let geometry: Arc<[ArrayGeometry]> =
            dataset.arrays.iter().map(|array| array.geometry(windows.axes().len())).collect();
        check_shapes(&dataset, &geometry, reference, windows.axes().len())?;
        let count = dataset.arrays.len();
        let place = |(number, geometry): (usize, &ArrayGeometry)| {
            let extents = geometry.sample_extents(&windows);
            match arguments.stack {
                true => OutputGeometry::stacked(number, count, &extents),
                false => OutputGeometry::alone(number, &extents),
            }
        };
        let placing = geometry.iter().enumerate().map(place).collect();
        let plan = |(part, conversion): (&ArrayInfo, Conversion)| {
            let decode_path = decode_path(part, &options)?;
            Ok(PartPlan::new(part, decode_path, conversion, options.device.is_some()))
        };
        let arrays = dataset.arrays.iter().zip(conversions);
        let plans =
            arrays.map(|(array, conversions)| array.parts.iter().zip(conversions).map(plan).collect());
        let parts = Arc::new(PartPlans::new(plans.collect::<Result<_>>()?));

        if arguments.random_shuffle && windows.len() > Order::MOST_SHUFFLED {
            let problem = format!(
                "{} samples are too many to be shuffled, {} are not; give a larger stride or a smaller region, or read them in order",
                windows.len(),
                Order::MOST_SHUFFLED
            );
            return Err(argument("random_shuffle", problem));
        }
        let shard_samples = windows.len().div_ceil(u64::try_from(arguments.num_shards).unwrap_or(1).max(1));
        let order_bytes = |grouped| match arguments.random_shuffle {
            true => Order::shuffle_bytes(shard_samples, grouped),
            false => 0,
        };
        let check_order = |bytes: u64| match bytes.saturating_sub(Options::UNCOUNTED_HOST_BYTES) {
            counted if counted > options.most_host_memory_bytes => Err(Error::Budget {
                name: "host_memory_budget",
                budget_bytes: options.most_host_memory_bytes,
                needed_bytes: counted,
                what: format!(
                    "the order of {shard_samples} shuffled samples (a larger stride, a smaller region, more reader shards or reading in order takes less)"
                ),
            }),
            _ => Ok(bytes),
        };
        check_order(order_bytes(false))?;
        let in_order = (!arguments.random_shuffle).then_some(options.batch_size);
        let sharing = Sharing::new(&dataset, &geometry, &windows, in_order);
        let order_bytes = check_order(order_bytes(sharing.groups.is_some()))?;
        let shuffle = arguments.random_shuffle.then(|| {
            let bytes = options.shuffle_bytes().saturating_sub(sharing.always_bytes);
            // The rest is for chunks that are fetched ahead.
            let bytes = bytes / Self::SHUFFLE_SHARE.1 * Self::SHUFFLE_SHARE.0;
            let groups = sharing.groups.clone().map(|groups| {
                let buffer = groups.buffer(&sharing.group_bytes, bytes, options.initial_fill);
                (groups, buffer)
            });
            Shuffle { seed: arguments.seed as u64, groups }
        });
        let order = Order::new(
            windows.len(),
            OrderArguments {
                shard_id: arguments.shard_id,
                num_shards: arguments.num_shards,
                stick_to_shard: arguments.stick_to_shard,
                pad_last_batch: arguments.pad_last_batch,
                batch_size: options.batch_size,
                shuffle,
            },
        )?;
        let mut reader = Self {
            order_bytes,
            host_bytes: options.host_memory_bytes,
            chunk_cache_bytes: 0,
            staying: sharing.staying,
            indexed: arguments.return_index,
            status: Arc::default(),
            process: std::process::id(),
            dataset,
            windows,
            geometry,
            placing,
            order,
            seed: arguments.seed,
            stacked: arguments.stack,
            options,
            parts,
            device: None,
            depth: 1,
            running: None,
            submitted: VecDeque::new(),
            next: 0,
            current: vec![],
            failed: None,
        };
        let fingerprint = reader.fingerprint();
        reader.status.lock().positions = Some(Positions {
            order: reader.order.clone(),
            seed: reader.seed,
            batch_size: reader.options.batch_size,
            fingerprint,
        });
        if !arguments.position.is_empty() {
            let restored = reader.restore_state(arguments.position.as_bytes());
            restored.map_err(|error| match error {
                Error::Checkpoint { problem } => argument("position", problem),
                error => error,
            })?;
        }
        Ok(reader)
    }

    /// One per array, or a single one if they are stacked.
    pub fn outputs(&self) -> Vec<Output> {
        let describe = |number: usize| {
            let (array, geometry) = (&self.dataset.arrays[number], &self.geometry[number]);
            let dropped = usize::from(self.windows.drops_first && geometry.follows_samples());
            Output {
                element: self.parts[(number, 0)].conversion.output(),
                shape: geometry.sample_extents(&self.windows)[dropped..].to_vec(),
                // Layouts are ASCII, one letter for each dimension of the array.
                layout: array.layout.get(dropped..).unwrap_or_default().to_string(),
            }
        };
        let mut outputs: Vec<Output> = (0..self.dataset.arrays.len()).map(describe).collect();
        if self.stacked {
            let axis = usize::from(!self.windows.drops_first);
            outputs.truncate(1);
            outputs[0].shape.insert(axis, self.dataset.arrays.len() as u64);
            outputs[0].layout = stacked_layout(&outputs[0].layout, axis);
        }
        if self.indexed {
            let shape = vec![self.windows.dimensions() as u64];
            outputs.push(Output { element: ElementType::Int64, shape, layout: String::new() });
        }
        outputs
    }

    /// What can be told of it at any time.
    pub fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// The order of samples.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// What is read.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// How its arrays lie.
    pub fn geometry(&self) -> &[ArrayGeometry] {
        &self.geometry
    }

    /// The windows that samples are.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// How the chunks of each part of each array are decoded.
    pub fn part_plans(&self) -> &PartPlans {
        &self.parts
    }

    /// How many batches should be submitted ahead of the one that is asked for.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// GPU backend: the stream that orders the consumer's allocations.
    pub fn allocation_stream(&self) -> Option<&Arc<CudaStream>> {
        self.device.as_ref().map(|device| &device.allocation)
    }

    /// Lends the memory of the next batch. The first call starts the threads.
    ///
    /// # Errors
    /// An earlier error, or threads and GPU memory that cannot be had.
    ///
    /// # Safety
    /// Each address points to the memory of `batch_size` samples of its output, on the host or on the GPU as the
    /// backend says, which nobody else touches until [`Reader::next_batch`] returned the batch or the reader was
    /// dropped.
    pub unsafe fn submit(&mut self, addresses: &[usize]) -> Result<()> {
        self.check_failed()?;
        if self.running.is_none() {
            let running = self.start();
            self.running = Some(running.map_err(|error| self.fail(Arc::new(error)))?);
        }
        let samples = self.order.batch(self.next);
        let outputs: Vec<OutputMemory> = self
            .outputs()
            .iter()
            .zip(addresses)
            .map(|(output, &address)| OutputMemory {
                address: address as u64,
                bytes: output.sample_bytes() * samples.len() as u64,
            })
            .collect();
        if self.indexed
            && let Some(output) = outputs.last()
        {
            let indices: Vec<i64> =
                samples.iter().flat_map(|drawn| self.windows.index(drawn.sample)).collect();
            // SAFETY: the memory of the last output, which has this size, is lent to the reader.
            unsafe { self.write_indices(&indices, output) }?;
        }
        let writable = match &self.device {
            None => None,
            Some(device) => {
                let event = device.gpu.event()?;
                event.record(&device.allocation).map_err(Error::cuda("recording an event"))?;
                Some(event)
            }
        };
        if let Some(running) = &self.running {
            let batch = Batch::new(self.next, samples, outputs, writable, running.progress.clone());
            self.submitted.push_back(batch.clone());
            self.next += 1;
            running.plan(batch);
        }
        Ok(())
    }

    /// Writes the indices of a batch to its last output.
    ///
    /// # Safety
    /// The output has their size and is writable.
    unsafe fn write_indices(&self, indices: &[i64], output: &OutputMemory) -> Result<()> {
        let Some(device) = &self.device else {
            // SAFETY: the caller's duty.
            unsafe {
                std::ptr::copy_nonoverlapping(indices.as_ptr(), output.address as *mut i64, indices.len())
            };
            return Ok(());
        };
        device.gpu.bind()?;
        // SAFETY: the caller's duty. The source is pageable, so that the driver has copied it when the call returns.
        unsafe { result::memcpy_htod_async(output.address, indices, device.allocation.cu_stream()) }
            .map_err(Error::cuda("copying the indices of samples to the GPU"))
    }

    /// Waits for the oldest submitted batch; its values are in memory then.
    ///
    /// # Errors
    /// The first error of any of its chunks. An error stays: later calls give it again.
    pub fn next_batch(&mut self) -> Result<()> {
        self.check_failed()?;
        let Some(batch) = self.submitted.pop_front() else {
            let message = "next_batch was called before submit".to_string();
            return Err(Error::Panic { place: "the operator".into(), message });
        };
        let running = &self.running;
        let waits = !batch.is_ready();
        running.iter().for_each(|running| running.jobs.wanted(waits));
        let _range = trace::range(Stage::WaitForBatch, batch.number);
        let hopeless = || running.as_ref().and_then(Running::stuck);
        let handed_over = batch.wait(hopeless);
        // The indices are on the allocation stream, in front of the event.
        let indexed = batch.writable.as_ref().filter(|_| self.indexed && handed_over.is_ok());
        let copied =
            indexed.map_or(Ok(()), |event| event.synchronize().map_err(Error::cuda("copying indices")));
        running.iter().filter(|_| waits).for_each(|running| running.jobs.handed_over());
        // Behind all of the batch's look-ups, so that a store that went away in front of one of them is noticed.
        let part = |(array, part): &(usize, usize)| self.dataset.part(*array, *part).check_present();
        let present = || batch.absent().iter().try_for_each(part);
        match handed_over.and_then(|()| copied.and_then(|()| present()).map_err(Arc::new)) {
            Ok(()) => {
                self.status.counters.batches.add(1);
                self.status.next.store(self.next - self.submitted.len() as u64, Ordering::Relaxed);
                self.current.clone_from(&batch.samples);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Names a sample of the batch that was handed over last: the array, or all arrays of a stack, and the indices it
    /// came from.
    pub fn source_info(&self, output: usize, index: usize) -> Option<String> {
        let sample = self.current.get(index)?.sample;
        let Some(array) = self.dataset.arrays.get(output).filter(|_| !self.stacked || output == 0) else {
            let indices: Vec<String> = self.windows.index(sample).iter().map(i64::to_string).collect();
            return Some(format!("index[{}]", indices.join(", ")));
        };
        let geometry = &self.geometry[output];
        let runs = geometry.runs(&self.windows, &self.windows.places(sample));
        let ranges: Vec<String> = runs[..array.first().stored_dimensions()]
            .iter()
            .enumerate()
            .map(|(d, runs)| match &runs[..] {
                [only] if d == 0 && self.windows.drops_first && geometry.follows_samples() => {
                    only.start.to_string()
                }
                [Run { start, count: 1, .. }] => format!("{start}:{}", start + 1),
                [Run { start, step: 1, count, .. }] => format!("{start}:{}", start + count),
                [run @ Run { start, step, .. }] => format!("{start}:{}:{step}", run.last() + 1),
                several => {
                    let steps =
                        several.iter().flat_map(|run| (0..run.count).map(|i| run.start + i * run.step));
                    format!("[{}]", steps.map(|step| step.to_string()).collect::<Vec<_>>().join(","))
                }
            })
            .collect();
        let names = match self.stacked {
            true if !array.first().name.is_empty() => {
                let names: Vec<_> = self.dataset.arrays.iter().map(|a| a.first().name.as_str()).collect();
                format!("[{}]", names.join(","))
            }
            _ => array.first().name.clone(),
        };
        Some(format!("{}[{}]", array.place(&names), ranges.join(", ")))
    }

    /// The position after the batch that was handed over last, for a checkpoint.
    pub fn save_state(&self) -> Vec<u8> {
        self.status.position().to_string().into_bytes()
    }

    /// Continues from a saved position. If it was saved with other reader shards or batches, the rest of its epoch is
    /// cut anew.
    ///
    /// # Errors
    /// A state of another reader, or one that comes after the first `submit`.
    pub fn restore_state(&mut self, state: &[u8]) -> Result<()> {
        let refused = |problem: String| Error::Checkpoint { problem };
        if self.running.is_some() {
            return Err(refused("the reader has started already".into()));
        }
        let state: Value = serde_json::from_slice(state)
            .map_err(|error| refused(format!("its state is no JSON ({error})")))?;
        let Some(entries) = state.as_object() else {
            return Err(refused(format!("its state is {state}, not an object")));
        };
        if state["version"] != STATE_VERSION {
            let version = &state["version"];
            return Err(refused(format!(
                "its version is {version}, not {STATE_VERSION}: another release of zarr-dali wrote it, whose states say less or other things; finish the epoch with that release, or begin a new one"
            )));
        }
        if let Some(unknown) = entries.keys().find(|name| !STATE_ENTRIES.contains(&name.as_str())) {
            return Err(refused(format!("its state has \"{unknown}\", which nobody knows")));
        }
        let ours = self.status.fingerprint();
        if let Some(theirs) = entries.get("reader") {
            // What is only known by a digest comes last, because it says the least.
            let said = [
                "sampler",
                "arrays",
                "stack",
                "stick_to_shard",
                "pad_last_batch",
                "random_shuffle",
                "window",
            ];
            let differs = |name: &str| theirs[name] != ours[name];
            if let Some(name) = said.into_iter().find(|name| differs(name)) {
                let (theirs, ours) = (&theirs[name], &ours[name]);
                return Err(refused(format!("it was written with {name}={theirs}, this reader has {ours}")));
            }
            if differs("samples") || differs("windows") {
                return Err(refused(format!(
                    "it was written for {} samples, this reader has {}: stride, dilation, offsets, roi_start, roi_end, exclude or the extents of the arrays were others",
                    theirs["samples"], ours["samples"]
                )));
            }
            if differs("shapes") {
                let what = "data types or shapes of the arrays, or the stores that are joined,";
                return Err(refused(format!("{what} were others when it was written")));
            }
            if differs("chunks") {
                let said = |chunks: &Value| match chunks {
                    Value::Null => "of which each belongs to one sample".to_string(),
                    chunks => format!("of {chunks} along the sampled dimensions"),
                };
                let (theirs, ours) = (said(&theirs["chunks"]), said(&ours["chunks"]));
                return Err(refused(format!(
                    "it was written for read chunks {theirs}, this reader has read chunks {ours}, and a shuffled order depends on them; go on with the store that it was written for, or begin a new epoch"
                )));
            }
        }
        let number = |name: &str, default: Option<u64>| match (entries.get(name), default) {
            (None, Some(default)) => Ok(default),
            (value, _) => value.and_then(Value::as_u64).filter(|&value| value < 1 << 62).ok_or_else(|| {
                let value = value.unwrap_or(&Value::Null);
                refused(format!("its state has {name}={value}, which is no number that can be used"))
            }),
        };
        let own = (self.order.shards(), self.options.batch_size);
        let theirs = (number("num_shards", Some(own.0))?, number("batch_size", Some(own.1))?);
        let mut position =
            Position { epoch: number("epoch", None)?, batch: number("batch", None)?, ..Position::default() };
        let played = state.get("played").cloned().unwrap_or_else(|| json!([]));
        let played: Vec<[u64; 3]> = serde_json::from_value(played)
            .map_err(|error| refused(format!("its state has \"played\" that cannot be read ({error})")))?;
        for [shards, batch_size, batches] in played {
            position.played.push(Played { shards, batch_size, batches });
        }
        if !self.order.pads() && theirs != own {
            return Err(refused(format!(
                "it was written with {} reader shard(s) and batches of {}, this reader has {} and {}; only readers with pad_last_batch=True can change num_shards and batch_size",
                theirs.0, theirs.1, own.0, own.1
            )));
        }
        if !self.order.pads() && (!position.played.is_empty() || position.epoch > 0) {
            let problem =
                "its \"epoch\" and \"played\" count epochs, which only readers with pad_last_batch=True do";
            return Err(refused(problem.into()));
        }
        for (name, value) in [("num_shards", theirs.0), ("batch_size", theirs.1)] {
            if value == 0 {
                return Err(refused(format!("its state has {name}=0")));
            }
        }
        if theirs != own && position.batch > 0 {
            let (shards, batch_size) = theirs;
            position.played.push(Played { shards, batch_size, batches: position.batch });
            position.batch = 0;
        }
        let most = self.order.samples();
        if position.played.iter().any(|part| part.shards == 0 || part.shards > most || part.batch_size == 0) {
            return Err(refused("its \"played\" counts reader shards or batches that cannot be".into()));
        }
        let buffer = match state.get("shuffle") {
            None => None,
            Some(value) => {
                let (depth, strands, linked) = serde_json::from_value(value.clone()).map_err(|error| {
                    refused(format!("its state has \"shuffle\" that cannot be read ({error})"))
                })?;
                let depth = Some(depth).filter(|depth| (1..=self.windows.dimensions()).contains(depth));
                let Some((depth, strands)) = depth.zip(Some(strands).filter(|&strands| strands > 0)) else {
                    return Err(refused(format!("its state has shuffle={value}, which cannot be")));
                };
                Some(Buffer { depth, strands, linked })
            }
        };
        if let Some(seed) = state.get("seed") {
            self.seed = seed.as_i64().ok_or_else(|| refused(format!("its state has seed={seed}")))?;
        }
        self.order.reshuffle(self.seed as u64, buffer);
        self.order.start_at(&position);
        if self.order.pads()
            && position.batch > 0
            && self.order.position(position.batch - 1).epoch != position.epoch
        {
            return Err(refused(format!("its state has batch={}, and the epoch is shorter", position.batch)));
        }
        self.next = position.batch;
        self.status.next.store(self.next, Ordering::Relaxed);
        if let Some(positions) = &mut self.status.lock().positions {
            (positions.order, positions.seed) = (self.order.clone(), self.seed);
        }
        Ok(())
    }

    /// What a position is only meaningful together with.
    fn fingerprint(&self) -> Value {
        let arrays = &self.dataset.arrays;
        let shapes: Vec<Value> = arrays
            .iter()
            .map(|array| {
                let shapes: Vec<_> = array.parts.iter().map(|part| &part.shape).collect();
                json!([array.first().element.name(), shapes])
            })
            .collect();
        // Not for safety: it only has to differ where somebody mixes readers up.
        let digest = |text: String| {
            let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
        };
        // Words as long as they are few.
        let short = |value: Value| match value.to_string() {
            text if text.len() > 300 => digest(text).into(),
            _ => value,
        };
        let names = short(json!(arrays.iter().map(|array| array.first().name.as_str()).collect::<Vec<_>>()));
        let window: Vec<u64> = self.windows.axes().iter().map(Axis::extent).collect();
        json!({
            "sampler": sampler::VERSION,
            "arrays": names,
            "shapes": digest(json!(shapes).to_string()),
            "chunks": short(self.shuffled_chunks()),
            "samples": self.windows.len(),
            "window": window,
            "windows": digest(format!("{:?}", self.windows)),
            "stack": self.stacked,
            "stick_to_shard": self.order.sticks(),
            "pad_last_batch": self.order.pads(),
            "random_shuffle": self.order.shuffle().is_some(),
        })
    }

    /// The chunk grids that a shuffled order depends on: for each array that samples are taken along, and each store that
    /// is joined, the extents of its read chunks along the sampled dimensions; once if they are the same in all stores. Null
    /// for readers in order, and where no chunk belongs to several samples.
    fn shuffled_chunks(&self) -> Value {
        if self.order.shuffle().is_none_or(|shuffle| shuffle.groups.is_none()) {
            return Value::Null;
        }
        let dimensions = self.windows.dimensions();
        let sampled = self.geometry.iter().filter(|geometry| geometry.follows_samples());
        let chunks = |geometry: &ArrayGeometry| {
            let of_part = |part: &PartGeometry| part.read_chunk_shape[..dimensions].to_vec();
            let mut parts: Vec<Vec<u64>> = geometry.parts.iter().map(of_part).collect();
            if parts.windows(2).all(|pair| pair[0] == pair[1]) {
                parts.truncate(1);
            }
            parts
        };
        json!(sampled.map(chunks).collect::<Vec<_>>())
    }

    fn check_failed(&self) -> Result<()> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        self.failed.as_ref().map_or(Ok(()), |error| Err(Error::Sticky(error.clone())))
    }

    fn fail(&mut self, error: Arc<Error>) -> Error {
        self.failed = Some(error.clone());
        Error::Sticky(error)
    }

    /// The samples of the first batch.
    pub(crate) fn first_batch(&mut self) -> Vec<u64> {
        self.order.batch(self.next).iter().map(|drawn| drawn.sample).collect()
    }

    /// How many read chunks of each part of each array the samples touch. Where there are more than
    /// [`Reader::MAX_COUNTED_CHUNKS`], those that several samples share count for each.
    pub(crate) fn chunks_of(&self, samples: &[u64]) -> Vec<Vec<u64>> {
        let none: Vec<Vec<u64>> = self.parts.arrays().iter().map(|parts| vec![0; parts.len()]).collect();
        let mut counts = none.clone();
        for &sample in samples {
            for (counts, geometry) in counts.iter_mut().zip(&*self.geometry) {
                for (part, chunks) in count_chunks(&self.windows, geometry, sample) {
                    counts[part] = counts[part].saturating_add(chunks);
                }
            }
        }
        if samples.len() > 1
            && counts.iter().flatten().fold(0, |all: u64, &chunks| all.saturating_add(chunks))
                <= Self::MAX_COUNTED_CHUNKS
        {
            counts = none;
            let mut seen = HashSet::new();
            for &sample in samples {
                touched_chunks(&self.windows, &self.geometry, sample, |chunk| {
                    counts[chunk.array][chunk.part] += u64::from(seen.insert(chunk));
                });
            }
        }
        counts
    }

    /// Bytes of all outputs of a batch.
    pub(crate) fn batch_bytes(&self) -> u64 {
        let sizes = self.outputs();
        let sample = sizes.iter().fold(0u64, |all, output| all.saturating_add(output.sample_bytes()));
        sample.saturating_mul(self.options.batch_size)
    }

    /// CPU backend: batches in flight.
    pub(crate) fn host_depth(&mut self) -> Result<u64> {
        let (batch, least) = (self.batch_bytes(), self.options.min_depth);
        let cache = self.options.cache_bytes;
        let cached = if cache > 0 { format!(", and {cache} bytes of cache") } else { String::new() };
        let fixed = batch.saturating_mul(least).saturating_add(cache);
        let needs =
            self.settle_host(fixed, &format!("{least} batch(es) of {batch} bytes in flight{cached}"))?;
        let (budget, threads) = (self.host_bytes, self.decoders() as u64);
        let depth_in = |bytes: u64| {
            let fits = |depth: &u64| {
                batch.saturating_mul(*depth).saturating_add(needs.bytes(threads, *depth)) <= bytes
            };
            (least..=Self::MAX_CPU_DEPTH).rev().find(fits).unwrap_or(least)
        };
        let depth = depth_in(budget);
        let needed = batch.saturating_mul(least).saturating_add(needs.bytes(threads, least));
        self.settle_chunk_cache(budget, needed, depth);
        Ok(depth_in(budget - self.chunk_cache_bytes))
    }

    /// What is in host memory besides.
    fn needs(&self) -> Needs {
        /// Samples that stand for all.
        const LOOKED_AT: u64 = 64;
        let (samples, looked_at) = (self.windows.len(), self.windows.len().min(LOOKED_AT));
        let spread = |i: u64| (u128::from(i) * u128::from(samples) / u128::from(looked_at)) as u64;
        // Samples of a batch share chunks, but there are no more of them than an array has.
        let of_array = |(array, geometry): (&Joined, &ArrayGeometry)| {
            let of_sample = |sample| {
                let counts = count_chunks(&self.windows, geometry, sample);
                counts.into_iter().fold(0, |all: u64, (_, chunks)| all.saturating_add(chunks))
            };
            let most = (0..looked_at).map(spread).map(of_sample).max().unwrap_or(0);
            let of_part = |part: &ArrayInfo| {
                let extents = part.shape.iter().zip(part.read_chunk_shape());
                extents.map(|(extent, chunk)| extent.div_ceil(*chunk)).fold(1, u64::saturating_mul)
            };
            let all = array.parts.iter().map(of_part).fold(0, u64::saturating_add);
            most.saturating_mul(self.options.batch_size).min(all)
        };
        let arrays = self.dataset.arrays.iter().zip(&*self.geometry);
        let chunks = arrays.map(of_array).fold(0, u64::saturating_add).max(1);
        let scratch = |(array, _): (&ArrayInfo, &PartPlan)| {
            let decoded = if self.options.device.is_none() { array.read_chunk_bytes() } else { 0 };
            scratch_bytes(array, decoded)
        };
        let index = |(array, _): (&ArrayInfo, &PartPlan)| {
            array.sharding.as_ref().map_or(0, |sharding| sharding.index_bytes)
        };
        Needs {
            scratch_bytes: self.planned_parts().map(scratch).max().unwrap_or(0),
            planned_bytes: chunks.saturating_mul(Needs::PLANNED_CHUNK_BYTES),
            planning_bytes: chunks.saturating_mul(Needs::PLANNING_CHUNK_BYTES),
            order_bytes: self.order_bytes,
            index_bytes: self
                .planned_parts()
                .map(index)
                .max()
                .unwrap_or(0)
                .saturating_mul(Needs::INDEX_COPIES),
        }
    }

    /// Chooses the host memory budget, and as many threads that decode as have room in it besides `fixed` bytes, which are
    /// for what `what` says.
    ///
    /// # Errors
    /// Budgets that cannot hold the least that is needed.
    fn settle_host(&mut self, fixed: u64, what: &str) -> Result<Needs> {
        let (bytes, most) = (self.options.host_memory_bytes, self.options.most_host_memory_bytes);
        let (needs, depth) = (self.needs(), self.options.min_depth);
        let threads = self.decoders() as u64;
        let needed = |threads: u64| fixed.saturating_add(needs.bytes(threads, depth));
        let least = needed(threads.min(1));
        if least > most {
            let besides = needs.bytes(threads.min(1), depth);
            let largest =
                self.planned_parts().map(|(array, _)| array).max_by_key(|array| array.read_chunk_bytes());
            let largest =
                largest.filter(|_| besides > 0).map(|array| needs.describe(array)).unwrap_or_default();
            return Err(Error::Budget {
                name: "host_memory_budget",
                budget_bytes: most,
                needed_bytes: least,
                what: format!("{what}{largest}"),
            });
        }
        // As much again as threads have for themselves is for what they decode to.
        let generous = |threads: u64| needed((2 * threads).saturating_sub(1));
        self.host_bytes = bytes.max(generous(threads).min(most)).max(least);
        let fitting = (1..=threads).rev().find(|&threads| generous(threads) <= self.host_bytes).unwrap_or(1);
        if fitting < threads {
            log_once(&format!(
                "{fitting} of {threads} threads decode, because host_memory_budget has no room for what more of them need; give at least {}",
                generous(threads)
            ));
        }
        self.options.decode_threads = self.options.decode_threads.min(fitting as usize);
        Ok(needs)
    }

    /// Every part of every array with its plan.
    fn planned_parts(&self) -> impl Iterator<Item = (&ArrayInfo, &PartPlan)> {
        self.dataset.arrays.iter().flat_map(|array| &array.parts).zip(self.parts.iter())
    }

    fn open_device(&mut self, ordinal: usize) -> Result<Device> {
        let gpu = Gpu::open(ordinal)?;
        let zstd = match self.planned_parts().find(|(_, plan)| plan.decode_path.needs_nvcomp()) {
            None => None,
            Some((array, _)) => Some(Arc::new(
                Zstd::open().map_err(|error| Error::Nvcomp { at: array.context(), source: error.into() })?,
            )),
        };
        let cufile = match self.reads_with_cufile() {
            false => None,
            true => match (Driver::open(), self.options.io) {
                (Ok(driver), _) => Some(driver),
                (Err(problem), Io::Gds) => {
                    return Err(argument(
                        "io",
                        format!("\"gds\" cannot be done: {problem}; give io=\"auto\""),
                    ));
                }
                (Err(problem), _) => {
                    log_once(&format!("chunks are read without cuFile: {problem}"));
                    None
                }
            },
        };
        let budget = self.options.device_budget(|| gpu.free_bytes())?;
        let shares = self.share(budget, zstd.as_deref())?;
        Ok(Device { zstd, shares, allocation: gpu.stream()?, gpu, cufile })
    }

    /// Whether cuFile is to read, if it can be used.
    pub(crate) fn reads_with_cufile(&self) -> bool {
        self.chooses_cufile(Driver::reads_directly())
    }

    /// The same for a machine where cuFile reads directly to the GPU, or through the host.
    fn chooses_cufile(&self, directly: bool) -> bool {
        match self.options.io {
            Io::Posix => false,
            Io::Gds => true,
            // Through the host it is slower than the page cache. Of encoded chunks the host needs the headers, which have to be
            // copied back to it: 5.0 GB/s of zstd in place of 37.9 (H200, compatibility mode, 2026-11-22). Whether that pays where
            // it reads directly has not been measured.
            Io::Auto => {
                let has = |kind| self.planned_parts().any(|(_, plan)| plan.kind == kind);
                directly && has(Kind::Plain) && !has(Kind::Either)
            }
        }
    }

    /// Boxes of a chunk that one group assembles at most: as many as a batch can have in it, and those of some more batches
    /// that wait for it.
    fn boxes_of_chunk(&self) -> u64 {
        const LEAST: u64 = 16;
        // Offsets that are no regular sequence make several boxes of one sample.
        let runs = self.windows.axes()[0].runs(0).count() as u64;
        self.options.batch_size.saturating_mul(runs).max(LEAST)
    }

    /// Arena bytes that a read chunk of each part of each array needs at most.
    ///
    /// # Errors
    /// What nvCOMP says, if it is asked.
    pub(crate) fn unit_bytes(&self, zstd: Option<&Zstd>) -> Result<Vec<u64>> {
        let boxes = self.boxes_of_chunk();
        self.planned_parts().map(|(_, plan)| group::unit_bytes(zstd, &plan.decode_path, boxes)).collect()
    }

    /// Shares a budget out: outputs of `depth` batches, and an arena for each GPU worker.
    ///
    /// # Errors
    /// Budgets that cannot hold the least that is needed.
    pub(crate) fn share(&mut self, budget: DeviceBudget, zstd: Option<&Zstd>) -> Result<Shares> {
        let units = self.unit_bytes(zstd)?;
        let largest_unit = units.iter().copied().max().unwrap_or(0);
        let pinned = self.planned_parts().map(|(array, plan)| largest_pinned_bytes(array, &plan.decode_path));
        let largest_pinned = pinned.max().unwrap_or(0);
        let needs = self.settle_host(largest_pinned, "the largest encoded chunk")?;
        let uploads: Vec<u64> = self
            .planned_parts()
            .map(|(array, plan)| largest_upload_bytes(array, &plan.decode_path))
            .collect();
        let largest_upload = uploads.iter().copied().max().unwrap_or(0);
        let batch = self.batch_bytes().max(1);
        let least_depth = self.options.min_depth;
        let least_batches = least_depth.saturating_add(Self::HANDED_OVER);
        let cache = self.options.cache_bytes;
        let fixed =
            batch.saturating_mul(least_batches).saturating_add(largest_unit).saturating_add(largest_upload);
        let budget_bytes = self.least_budget(fixed.saturating_add(cache), budget.bytes);
        if budget_bytes > budget.most_bytes {
            let cached = if cache > 0 { format!(", and {cache} bytes of cache") } else { String::new() };
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: budget.bytes,
                needed_bytes: budget_bytes,
                what: format!(
                    "{least_batches} batches of {batch} bytes, of which {held} are in DALI's hands, and one chunk while it is \
                     decoded{cached}",
                    held = Self::HANDED_OVER,
                ),
            });
        }
        let staging = self.staging_bytes(budget_bytes);
        let usable = Self::usable_bytes(budget_bytes);
        let (chunks, new_chunks) = self.chunks_of_batches();
        let planned = (self.host_bytes / Self::PLAN_SHARE).saturating_add(Options::UNCOUNTED_HOST_BYTES);
        let most_depth =
            self.useful_depth(&new_chunks).min(planned / needs.planned_bytes.max(1)).max(least_depth);
        let likely_depth = (usable / Self::OUTPUT_SHARE / batch).min(most_depth).max(least_depth);
        self.settle_chunk_cache(usable, fixed + staging, likely_depth);
        let budget = usable - self.chunk_cache_bytes - staging - batch * Self::HANDED_OVER;
        // One chunk always fits beside the outputs.
        let fits = (budget - largest_unit - largest_upload) / batch;
        let depth = (budget / Self::OUTPUT_SHARE / batch).min(most_depth).min(fits).max(least_depth);

        // Small stores do not need the whole budget: no more than all batches in flight can use at once.
        let useful = |sizes: &[u64]| {
            let of_batch: u64 = chunks.iter().flatten().zip(sizes).map(|(chunks, size)| chunks * size).sum();
            of_batch.saturating_mul(depth)
        };
        let rest = budget - batch * depth;
        let parts = largest_unit + Self::LANDED_AHEAD * largest_upload;
        let arenas = (u128::from(rest) * u128::from(largest_unit) / u128::from(parts.max(1))) as u64;
        let arenas = arenas.min(useful(&units)).max(largest_unit);
        let upload_pool = (rest - arenas).min(useful(&uploads)).max(largest_upload);
        // What was not given is raised by what there is besides.
        let besides = needs.bytes(self.decoders() as u64, depth);
        let host = self.host_bytes.max(
            self.options.host_memory_bytes.saturating_add(besides).min(self.options.most_host_memory_bytes),
        );
        self.host_bytes = host.saturating_sub(besides).max(largest_pinned);
        let gpu_workers = (arenas / largest_unit).clamp(1, Self::MAX_GPU_WORKERS.min(depth.max(2)));
        Ok(Shares {
            budget_bytes,
            depth,
            gpu_workers,
            arena_bytes: arenas / gpu_workers,
            upload_pool_bytes: upload_pool,
            packed_bytes: self.packed_bytes(upload_pool),
            staging_bytes: staging,
            largest_pinned_bytes: largest_pinned,
        })
    }

    /// Each thread fills one packed buffer while others are decoded.
    fn packed_bytes(&self, upload_pool: u64) -> u64 {
        let threads = (self.feeders() + self.decoders()) as u64;
        let host = self.host_bytes / (4 * threads).max(1);
        let bytes = (upload_pool / (4 * threads).max(1)).min(host).min(Uploader::PIECE_BYTES as u64);
        if bytes < Self::LEAST_PACKED { 0 } else { bytes - bytes % PinnedPool::ALIGNMENT }
    }

    /// What may be taken of a budget.
    fn usable_bytes(budget: u64) -> u64 {
        budget - budget / Self::ROUNDING_SHARE
    }

    /// The least budget from `budget` on of which so many bytes can be taken besides what cuFile reads to.
    fn least_budget(&self, bytes: u64, mut budget: u64) -> u64 {
        loop {
            // Grows with the budget, up to a limit.
            let bytes = u128::from(bytes) + u128::from(self.staging_bytes(budget));
            let whole = u128::from(Self::ROUNDING_SHARE);
            let least = u64::try_from((bytes * whole).div_ceil(whole - 1)).unwrap_or(u64::MAX);
            if least <= budget {
                return budget;
            }
            budget = least;
        }
    }

    /// Memory that cuFile reads to, for all feeders; none if it does not read.
    fn staging_bytes(&self, budget: u64) -> u64 {
        if !self.reads_with_cufile() {
            return 0;
        }
        let threads = self.feeders() as u64;
        let half = (budget / Self::STAGING_SHARE / (2 * threads).max(1)).min(GdsStaging::MOST_BYTES);
        2 * threads * (half - half % GdsStaging::ALIGNMENT).max(GdsStaging::ALIGNMENT)
    }

    /// How many chunks of each part of each array a batch touches, and how many of them the batch before it does not.
    fn chunks_of_batches(&mut self) -> (Vec<Vec<u64>>, Vec<Vec<u64>>) {
        // Counting more than this takes long, and it is enough for anything.
        const MANY: u64 = 1 << 16;
        // The first may be the last of an epoch, of few samples.
        let mut samples =
            |batch| self.order.batch(batch).iter().map(|drawn| drawn.sample).collect::<Vec<u64>>();
        let (first, second) = (samples(self.next), samples(self.next + 1));
        let (one, other) = (self.chunks_of(&first), self.chunks_of(&second));
        let combined = |a: &[Vec<u64>], b: &[Vec<u64>], of: fn(u64, u64) -> u64| -> Vec<Vec<u64>> {
            let rows = a.iter().zip(b);
            rows.map(|(a, b)| a.iter().zip(b).map(|(&a, &b)| of(a, b)).collect()).collect()
        };
        let most = combined(&one, &other, u64::max);
        if most.iter().flatten().sum::<u64>() > MANY {
            return (most.clone(), most);
        }
        let both = self.chunks_of(&[first, second].concat());
        let new = combined(&both, &combined(&one, &other, u64::min), u64::saturating_sub);
        // Epochs of one batch: each of them decodes its chunks.
        if new.iter().flatten().all(|&chunks| chunks == 0) { (most.clone(), most) } else { (most, new) }
    }

    /// How many batches in flight are of use, if each needs so many new chunks of each part of each array.
    fn useful_depth(&self, chunks: &[Vec<u64>]) -> u64 {
        let (mut count, mut bytes) = (0u64, 0u64);
        for (&chunks, (_, plan)) in chunks.iter().flatten().zip(self.planned_parts()) {
            if plan.kind == Kind::Either {
                count = count.saturating_add(chunks);
                bytes = bytes.saturating_add(chunks.saturating_mul(plan.chunk_bytes));
            }
        }
        if count == 0 {
            return Options::MAX_DEPTH;
        }
        let wanted =
            Options::CHUNKS_IN_FLIGHT.div_ceil(count).max(Options::BYTES_IN_FLIGHT.div_ceil(bytes.max(1)));
        wanted.clamp(Options::MAX_DEPTH, Options::MOST_DEPTH)
    }

    /// Limits what stays to what `depth` batches in flight can use, and to its share of a budget of which so much is needed for
    /// other things.
    fn settle_chunk_cache(&mut self, budget: u64, least: u64, depth: u64) {
        let cache = self.options.cache_bytes;
        let shared = self.staying.useful_bytes(depth).min(budget / Options::CHUNK_CACHE_SHARE);
        self.chunk_cache_bytes =
            shared.saturating_add(cache).min(budget - least).min(self.staying.all_bytes.max(shared));
    }

    /// Host memory that it may use, once budgets are known: on the GPU backend for pinned memory.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host_bytes
    }

    /// Whether the samples of a batch can be listed.
    ///
    /// # Errors
    /// Batches that could not even be planned if each of their samples had one chunk.
    pub(crate) fn check_batch(&self) -> Result<()> {
        let (samples, most) = (self.options.batch_size, self.options.most_host_memory_bytes);
        let plan = samples.saturating_mul(Needs::PLANNED_CHUNK_BYTES + Needs::PLANNING_CHUNK_BYTES);
        let plan = plan.saturating_sub(Options::UNCOUNTED_HOST_BYTES);
        if plan <= most {
            return Ok(());
        }
        Err(Error::Budget {
            name: "host_memory_budget",
            budget_bytes: most,
            needed_bytes: plan,
            what: format!("the plan of a batch of {samples} samples (smaller batches take less)"),
        })
    }

    /// Bytes of decoded chunks that may stay for later batches.
    pub(crate) fn chunk_cache_bytes(&self) -> u64 {
        self.chunk_cache_bytes
    }

    /// How many threads only read.
    fn feeders(&self) -> usize {
        let mut kinds = self.parts.iter().map(|plan| plan.kind);
        if kinds.any(|kind| kind != Kind::Cpu) { self.options.io_threads } else { 0 }
    }

    /// How many threads decode on the CPU.
    pub(crate) fn decoders(&self) -> usize {
        let kinds = || self.parts.iter().map(|plan| plan.kind);
        let by_cpu =
            |kind| kind == Kind::Cpu || (kind == Kind::Either && self.options.decode == Decode::Auto);
        if kinds().any(by_cpu) { self.options.decode_threads } else { 0 }
    }

    /// Says once per process which decode path each array takes.
    fn log_decode_paths(&self) {
        for (array, plans) in self.dataset.arrays.iter().zip(self.parts.arrays()) {
            // Of joined stores only those whose decode path differs from that of the one before.
            for (number, (part, plan)) in array.parts.iter().zip(plans).enumerate() {
                if number == 0 || plan.decode_path != plans[number - 1].decode_path {
                    log_once(&format!("{}: {}", part.context(), plan.decode_path));
                }
            }
        }
    }

    fn start(&self) -> Result<Running> {
        let (feeders, decoders) = (self.feeders(), self.decoders());
        let progress = Progress::new(self.status.counters.clone());
        let prefetcher = Arc::<Prefetcher>::default();
        let mut running = Running {
            jobs: Jobs::new(self.parts.clone(), decoders, progress.clone(), prefetcher.clone()),
            progress,
            gpu_tasks: Arc::default(),
            planner: None,
            pinned: None,
            threads: vec![],
            upload_pool: None,
            cache_pool: None,
            registered: None,
            memory: vec![],
        };
        let mut base = 0;
        let mut senders = vec![];
        let target = match &self.device {
            None => Target::Host,
            Some(device) => {
                base = running.allocate(device, self.chunk_cache_bytes)?;
                let upload_pool = device.shares.upload_pool_bytes;
                let upload_pool = DevicePool::new(running.allocate(device, upload_pool)?, upload_pool);
                running.upload_pool = Some(upload_pool.clone());
                let largest = device.shares.largest_pinned_bytes;
                let pinned = PinnedPool::new(&device.gpu, self.host_bytes, largest);
                running.pinned = Some(pinned.clone());
                let staging = running.allocate(device, device.shares.staging_bytes)?;
                if let Some(driver) = &device.cufile {
                    // SAFETY: it is given back before the memory, see `Running`.
                    let memory = unsafe { driver.memory(staging, device.shares.staging_bytes) };
                    let memory = memory.map_err(|problem| argument("io", problem))?;
                    running.registered = Some(memory);
                }
                let half = device.shares.staging_bytes / (2 * feeders as u64).max(1);
                let sender = UploaderParts {
                    gpu: device.gpu.clone(),
                    pinned,
                    queue: running.gpu_tasks.clone(),
                    upload_pool: upload_pool.clone(),
                    packed_bytes: device.shares.packed_bytes,
                };
                for number in 0..feeders + decoders {
                    let reads = device.cufile.is_some() && number < feeders;
                    let staging = reads.then(|| GdsStaging::new(staging, number as u64, half));
                    senders.push((sender.clone(), staging));
                }
                senders.reverse();
                self.start_gpu_workers(device, &mut running)?;
                let most_boxes = usize::try_from(self.boxes_of_chunk()).unwrap_or(usize::MAX);
                Target::Gpu(UploadContext { upload_pool, most_boxes, pace: running.jobs.clone() })
            }
        };
        let fetch: Arc<dyn Fetch> = match self.device.as_ref().and_then(|device| device.cufile.clone()) {
            Some(driver) => Arc::new(Gds::new(driver, self.options.io == Io::Gds)),
            None => Arc::new(Posix),
        };
        let index_bytes =
            self.planned_parts().filter_map(|(array, _)| Some(array.sharding.as_ref()?.index_bytes));
        let fetching = Fetching {
            dataset: self.dataset.clone(),
            locator: Locator::new(fetch, index_bytes.max().unwrap_or(0), self.host_bytes / Self::INDEX_SHARE),
            prefetcher,
            missing_chunks: self.options.missing_chunks,
            host_memory_bytes: self.options.most_host_memory_bytes,
            counters: self.status.counters.clone(),
        };
        let decoder = CpuDecoder { fetching, parts: self.parts.clone() };
        let workers = Arc::new(WorkerContext { decoder, target });
        for number in 0..feeders + decoders {
            running.start_worker(workers.clone(), senders.pop(), number >= feeders)?;
        }
        let cache_pool = DevicePool::new(base, self.chunk_cache_bytes);
        running.cache_pool = Some(cache_pool.clone());
        {
            let mut about = self.status.lock();
            about.cache_pool = Some(cache_pool.clone());
            let gpu_workers = self
                .device
                .as_ref()
                .map_or(0, |device| device.shares.gpu_workers * device.shares.arena_bytes);
            about.memory = Some(InUse {
                device_bytes: gpu_workers + running.memory.iter().map(DeviceMemory::bytes).sum::<u64>(),
                batch_bytes: self.batch_bytes(),
                progress: running.progress.clone(),
                pinned: running.pinned.clone(),
            });
        }
        let mut plans = Planner {
            windows: self.windows.clone(),
            geometry: self.geometry.clone(),
            placing: self.placing.clone(),
            parts: self.parts.clone(),
            batch_size: self.options.batch_size,
            order: self.order.clone(),
            chunk_cache: ChunkCache::new(
                self.chunk_cache_bytes,
                self.next,
                self.options.cache_bytes > 0,
                (self.host_bytes / Self::NOTE_SHARE).max(Options::UNCOUNTED_HOST_BYTES / Self::NOTE_SHARE),
            ),
            caches: self.options.cache_bytes > 0,
            cache_pool,
            jobs: running.jobs.clone(),
            remote: self.remote(&running)?,
            gpu_tasks: self.device.is_some().then(|| running.gpu_tasks.clone()),
            counters: self.status.counters.clone(),
        };
        let (planner, batches) = mpsc::channel::<Arc<Batch>>();
        running.spawn("zarr planner", Arc::default(), move || {
            for batch in batches {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| plans.plan(&batch))) {
                    batch.fail(Error::panic("the planner", &*payload));
                    // Chunks that were to stay may not have been sent on their way.
                    plans.chunk_cache = ChunkCache::new(0, batch.number + 1, false, 0);
                }
                batch.planned();
            }
        })?;
        running.planner = Some(planner);
        Ok(running)
    }

    /// Fetches the chunks of stores that are not folders of this machine, if there are any.
    fn remote(&self, running: &Running) -> Result<Option<planner::Remote>> {
        let arrays = self.dataset.arrays.iter().enumerate();
        let parts = arrays.flat_map(|(number, array)| (0..array.parts.len()).map(move |part| (number, part)));
        let is_remote =
            |&(array, part): &(usize, usize)| self.dataset.part(array, part).objects.folder().is_none();
        let parts: HashSet<_> = parts.filter(is_remote).collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let limits = Limits {
            threads: Options::NETWORK_THREADS,
            requests: Options::REQUESTS_IN_FLIGHT,
            bytes: self.host_bytes / Self::FETCH_SHARE,
        };
        let index_bytes =
            self.planned_parts().filter_map(|(array, _)| Some(array.sharding.as_ref()?.index_bytes));
        let kept = Locator::kept_indexes(index_bytes.max().unwrap_or(0), self.host_bytes / Self::INDEX_SHARE);
        let most_bytes = self.options.most_host_memory_bytes;
        let fetcher =
            fetch::Remote::new(self.dataset.clone(), limits, kept, most_bytes, running.jobs.clone());
        let fetcher = fetcher.map_err(|source| Error::Thread { source })?;
        Ok(Some(planner::Remote { fetcher, parts }))
    }

    /// Multiprocessors for what should leave the model alone, where the GPU decodes and can be cut.
    fn green_context(&self, device: &Device) -> Option<Arc<GreenContext>> {
        let decodes = self.planned_parts().any(|(_, plan)| plan.kind == Kind::Either);
        if decodes { GreenContext::of(&device.gpu) } else { None }
    }

    fn start_gpu_workers(&self, device: &Device, running: &mut Running) -> Result<()> {
        let gpu_workers = Arc::new(GpuWorkerContext {
            gpu: device.gpu.clone(),
            kernels: Kernels::load(&device.gpu)?,
            green: self.green_context(device),
            nvcomp: device.zstd.clone(),
            dataset: self.dataset.clone(),
            verified: Arc::default(),
            parts: self.parts.clone(),
            queue: running.gpu_tasks.clone(),
            pace: running.jobs.clone(),
            counters: self.status.counters.clone(),
        });
        for _ in 0..device.shares.gpu_workers {
            let mut gpu_worker = GpuWorker::new(gpu_workers.clone(), device.shares.arena_bytes)?;
            let watchdog = gpu_worker.watchdog.clone();
            running.spawn("zarr GPU lane", watchdog.clone(), move || {
                while gpu_worker.step() {}
                let _waiting = watchdog.waits(GpuWork::Freeing, None, 0);
                drop(gpu_worker);
            })?;
        }
        Ok(())
    }
}

/// What can be told of a reader from any thread, while it runs.
#[derive(Default)]
pub struct Status {
    /// What it has done so far.
    pub counters: Arc<Counters>,
    /// The batch behind the one that was handed over last.
    next: AtomicU64,
    about: Mutex<About>,
}

#[derive(Default)]
struct About {
    positions: Option<Positions>,
    cache_pool: Option<Arc<DevicePool>>,
    memory: Option<InUse>,
}

/// What memory is counted from while a reader runs.
struct InUse {
    /// GPU memory, without outputs.
    device_bytes: u64,
    batch_bytes: u64,
    progress: Arc<Progress>,
    /// GPU backend: through which bytes go.
    pinned: Option<Arc<PinnedPool>>,
}

impl InUse {
    /// Bytes with so many batches on their way: of GPU memory and of host memory. `held` bytes of chunks stay.
    fn bytes(&self, batches: u64, held: u64) -> (u64, u64) {
        let outputs = batches * self.batch_bytes;
        match &self.pinned {
            Some(pinned) => (self.device_bytes + outputs, pinned.allocated_bytes()),
            None => (0, outputs + held),
        }
    }
}

/// What positions are told from.
struct Positions {
    order: Order,
    seed: i64,
    batch_size: u64,
    fingerprint: Value,
}

impl Status {
    /// Everything, for people.
    pub fn to_json(&self) -> Value {
        let mut all = self.counters.to_json();
        let about = self.lock();
        let (capacity, peak) = about
            .cache_pool
            .as_ref()
            .map_or((0, 0), |cache_pool| (cache_pool.capacity_bytes(), cache_pool.peak_bytes()));
        // With the time that is not over yet.
        let waited = about.memory.as_ref().map_or(0, |memory| memory.progress.waiting_consumer_us());
        all.insert("ms_waiting_consumer".into(), (waited as f64 / 1e3).into());
        let zero = ((0, 0), (0, 0));
        let (now, most) = about.memory.as_ref().map_or(zero, |memory| {
            let (batches, most) = (memory.progress.fill().1, memory.progress.most_submitted());
            (memory.bytes(batches, peak), memory.bytes(most, peak))
        });
        all.insert("device_memory_bytes".into(), now.0.into());
        all.insert("device_memory_peak_bytes".into(), most.0.into());
        all.insert("host_memory_bytes".into(), now.1.into());
        all.insert("host_memory_peak_bytes".into(), most.1.into());
        all.insert("resident_bytes".into(), capacity.into());
        all.insert("resident_peak_bytes".into(), peak.into());
        let order = about.positions.as_ref().map(|positions| &positions.order);
        all.insert("samples".into(), order.map(Order::samples).into());
        all.insert("shuffle".into(), order.and_then(Order::shuffle).map_or(Value::Null, shuffle_to_json));
        drop(about);
        all.insert("position".into(), self.position());
        all.into()
    }

    /// The position after the batch that was handed over last: what a checkpoint holds.
    fn position(&self) -> Value {
        let about = self.lock();
        let Some(Positions { order, seed, batch_size, fingerprint }) = &about.positions else {
            return Value::Null;
        };
        let Position { epoch, played, batch } = order.position(self.next.load(Ordering::Relaxed));
        let played: Vec<[u64; 3]> =
            played.iter().map(|part| [part.shards, part.batch_size, part.batches]).collect();
        let mut position = json!({
            "version": STATE_VERSION,
            "epoch": epoch,
            "played": played,
            "batch": batch,
            "num_shards": order.shards(),
            "batch_size": batch_size,
            "seed": seed,
            "reader": fingerprint,
        });
        if let Some((_, buffer)) = order.shuffle().and_then(|shuffle| shuffle.groups.as_ref()) {
            position["shuffle"] = json!([buffer.depth, buffer.strands, buffer.linked]);
        }
        position
    }

    fn fingerprint(&self) -> Value {
        self.lock().positions.as_ref().map_or(Value::Null, |positions| positions.fingerprint.clone())
    }

    fn lock(&self) -> MutexGuard<'_, About> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a shuffle mixes.
pub(crate) fn shuffle_to_json(shuffle: &Shuffle) -> Value {
    let Some((groups, buffer)) = &shuffle.groups else { return Value::Null };
    let count = groups.count(buffer.depth);
    json!({
        "groups_in_buffer": (buffer.strands * groups.held(*buffer)).min(count),
        "strands": buffer.strands.min(count),
        "linked": buffer.linked,
        "depth": buffer.depth,
        "groups": count,
        "group_samples": groups.samples() as f64 / count as f64,
    })
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child has neither the threads nor the GPU's context: there is nothing to wait for or to free.
            std::mem::forget((self.running.take(), self.device.take(), std::mem::take(&mut self.submitted)));
        }
    }
}

impl Output {
    /// Size of one sample, or `u64::MAX` if it is larger than that.
    pub fn sample_bytes(&self) -> u64 {
        let size = self.element.size_bytes() as u64;
        self.shape.iter().fold(size, |bytes, &extent| bytes.saturating_mul(extent))
    }
}

/// Version of the checkpoint's state.
const STATE_VERSION: u64 = 3;
/// What it may hold.
const STATE_ENTRIES: [&str; 9] =
    ["version", "epoch", "played", "batch", "num_shards", "batch_size", "seed", "reader", "shuffle"];

/// Chooses the decode path of an array's read chunks on the backend and with the `decode` of the options.
///
/// # Errors
/// Arrays that this backend cannot read, or not as `decode` wants it.
pub(crate) fn decode_path(array: &ArrayInfo, options: &Options) -> Result<DecodePath> {
    if options.device.is_none() {
        return Ok(DecodePath::Cpu("the CPU backend".into()));
    }
    if array.read_chunk_bytes() > device::MAX_CHUNK_BYTES {
        let reason = format!(
            "its read chunks decode to {} bytes, and at most {} are supported",
            array.read_chunk_bytes(),
            device::MAX_CHUNK_BYTES
        );
        return Err(Error::NotOnGpu { at: array.context(), reason });
    }
    match (options.decode, codec::decode_path(array)) {
        (Decode::Cpu, _) => Ok(DecodePath::Cpu("decode=\"cpu\"".into())),
        (Decode::Gpu, DecodePath::Cpu(reason)) => Err(Error::NotOnGpu { at: array.context(), reason }),
        (_, decode_path) => Ok(decode_path),
    }
}

/// Names the array in an error about its shape.
fn name_array(error: Error, array: &Joined) -> Error {
    match error {
        Error::Argument { name, problem } => {
            let at = array.context().to_string();
            Error::Argument { name, problem: problem.replacen("the array", &at, 1) }
        }
        error => error,
    }
}

/// Whether all arrays have the dimensions that the windows cover, with the same extents.
fn check_shapes(
    dataset: &Dataset,
    geometry: &[ArrayGeometry],
    reference: usize,
    dimensions: usize,
) -> Result<()> {
    let first = &dataset.arrays[reference];
    for (array, geometry) in dataset.arrays.iter().zip(geometry) {
        let (at, shape) = (array.context(), &array.shape);
        if !geometry.follows_samples() {
            continue;
        }
        let Some(covered) = shape.get(..dimensions) else {
            let problem = format!(
                "it has {dimensions} extents, but {at} has the shape {shape:?}; give at most {} extents",
                shape.len()
            );
            return Err(argument("window", problem));
        };
        if first.shape.get(..dimensions) != Some(covered) {
            return Err(Error::ArraysDisagree {
                at: first.context(),
                shape: first.shape.clone(),
                other: array.first().name.clone(),
                other_shape: shape.clone(),
                dimensions,
            });
        }
    }
    Ok(())
}

/// Whether all arrays can be stacked: whole arrays, since later dimensions belong to every sample.
fn check_stack(dataset: &Dataset, conversions: &[Vec<Conversion>]) -> Result<()> {
    let first = &dataset.arrays[0];
    for (number, other) in dataset.arrays.iter().enumerate().skip(1) {
        let unlike = |what: &str, here: String, there: String| Error::Unlike {
            at: first.context(),
            difference: format!("its {what} is {here}, but {there} in {}", other.context()),
            remedy: "arrays that are stacked need the same: leave one of them out, or read them without `stack`",
        };
        if first.shape != other.shape || first.axes != other.axes {
            return Err(unlike("shape", format!("{:?}", first.shape), format!("{:?}", other.shape)));
        }
        let (here, there) = (conversions[0][0].output(), conversions[number][0].output());
        if here != there {
            return Err(unlike("element type", here.name().into(), there.name().into()));
        }
    }
    Ok(())
}

/// Which chunks belong to several samples.
struct Sharing {
    /// Samples by chunk; `None` if no chunk belongs to several.
    groups: Option<Arc<Groups>>,
    /// Decoded bytes of a group, if that many dimensions cut samples into groups; from one on.
    group_bytes: Vec<u64>,
    /// Decoded bytes of the arrays that are the same for every sample.
    always_bytes: u64,
    /// What is worth keeping.
    staying: Staying,
}

/// Which decoded bytes are worth keeping for later batches.
struct Staying {
    /// Those of the arrays that are the same for every sample.
    always_bytes: u64,
    /// Those of all arrays.
    all_bytes: u64,
    samples: SamplesShare,
}

/// Which samples share chunks.
enum SamplesShare {
    /// None.
    Nothing,
    /// Only those near each other.
    Near {
        /// Samples by chunk.
        groups: Arc<Groups>,
        /// Decoded bytes of a group.
        group_bytes: u64,
        batch_size: u64,
    },
    /// Any.
    Anything,
}

impl Staying {
    /// The most for which there can be any use within an epoch, with so many batches in flight.
    fn useful_bytes(&self, depth: u64) -> u64 {
        match &self.samples {
            SamplesShare::Nothing => self.always_bytes,
            SamplesShare::Near { groups, group_bytes, batch_size } => {
                // What is in flight is still in memory when the planner is done with it. Of large batches only what windows
                // across the borders between them touch.
                let all = groups.reach(batch_size.saturating_mul(depth.saturating_add(1)));
                let at_borders = groups.span(1).saturating_mul(depth.saturating_add(2));
                let bytes = group_bytes.saturating_mul(all.min(at_borders));
                self.always_bytes.saturating_add(bytes).min(self.all_bytes)
            }
            SamplesShare::Anything => self.all_bytes,
        }
    }
}

impl Sharing {
    /// Windows along a dimension that are looked at one by one.
    const MOST_WINDOWS: u64 = 1 << 26;

    /// `in_order`: the batch size, if samples are not shuffled.
    fn new(dataset: &Dataset, geometry: &[ArrayGeometry], windows: &Windows, in_order: Option<u64>) -> Self {
        let follows = |number: &usize| geometry[*number].follows_samples();
        let numbers: Vec<usize> = (0..geometry.len()).filter(follows).collect();
        let parts = numbers.first().map_or(0, |&number| geometry[number].parts.len());
        let extents = |d: usize, parts: std::ops::Range<usize>| {
            let chunks = numbers.iter().flat_map(|&number| &geometry[number].parts[parts.clone()]);
            chunks.map(|part| part.read_chunk_shape[d]).collect::<Vec<u64>>()
        };
        let largest = |d: usize| extents(d, 0..parts).into_iter().max().unwrap_or(1);
        let grids: Vec<Grid> = (0..windows.dimensions())
            .map(|d| match (d, numbers.first()) {
                (0, Some(&number)) => {
                    let starts = geometry[number].parts.iter().map(|part| part.start);
                    Grid::new(starts.enumerate().map(|(part, start)| (start, extents(0, part..part + 1))))
                }
                _ => Grid::new([(0, extents(d, 0..parts))]),
            })
            .collect();
        let countable = windows.axes().iter().all(|axis| axis.count() <= Self::MOST_WINDOWS);
        let groups = countable.then(|| Groups::new(windows, &grids));

        // Decoded bytes of the chunks in a box: as large as the largest chunks in the first dimensions, in the others
        // all that any sample touches.
        let bytes = |number: usize, cut: usize| {
            let array = &geometry[number];
            let of_part = |part: usize| {
                let chunk = &array.parts[part].read_chunk_shape;
                let along = |d: usize| {
                    let extent = match array.axes[d] {
                        Some(axis) if axis < cut => largest(axis),
                        Some(axis) => {
                            let axis = &windows.axes()[axis];
                            axis.start(axis.count() - 1) + axis.span() - axis.start(0)
                        }
                        None => array.shape[d],
                    };
                    extent.div_ceil(chunk[d])
                };
                let chunks = (0..chunk.len()).map(along).fold(1, u64::saturating_mul);
                chunks.saturating_mul(DevicePool::padded(dataset.part(number, part).read_chunk_bytes()))
            };
            (0..array.parts.len()).map(of_part).max().unwrap_or(0)
        };
        let all_of =
            |cut: usize| numbers.iter().map(|&number| bytes(number, cut)).fold(0, u64::saturating_add);
        let always = (0..geometry.len()).filter(|number| !follows(number));
        let always_bytes = always.map(|number| bytes(number, 0)).fold(0, u64::saturating_add);
        let shares = groups.as_ref().is_none_or(Groups::share);
        let cut = |groups: Groups| Arc::new(if in_order.is_none() { groups.cut() } else { groups });
        let groups = groups.filter(|_| shares).map(cut);
        let samples = match (shares, in_order, &groups) {
            (false, ..) => SamplesShare::Nothing,
            // In order along one dimension only neighbouring batches share chunks.
            (true, Some(batch_size), Some(groups)) if windows.dimensions() == 1 => {
                SamplesShare::Near { groups: groups.clone(), group_bytes: all_of(1), batch_size }
            }
            (true, ..) => SamplesShare::Anything,
        };
        Self {
            group_bytes: (1..=windows.dimensions()).map(all_of).collect(),
            groups,
            always_bytes,
            staying: Staying { always_bytes, all_bytes: always_bytes.saturating_add(all_of(0)), samples },
        }
    }
}

/// The threads of a reader. Dropping it stops and joins them; nothing writes to outputs afterwards.
struct Running {
    planner: Option<mpsc::Sender<Arc<Batch>>>,
    progress: Arc<Progress>,
    jobs: Arc<Jobs>,
    gpu_tasks: Arc<Queue<GpuTask>>,
    pinned: Option<Arc<PinnedPool>>,
    /// Each with what says whether it is stuck in the GPU.
    threads: Vec<(Arc<Watchdog>, JoinHandle<()>)>,
    upload_pool: Option<Arc<DevicePool>>,
    cache_pool: Option<Arc<DevicePool>>,
    /// The part of the memory that cuFile knows; given back first.
    registered: Option<Memory>,
    /// Device memory.
    memory: Vec<DeviceMemory>,
}

impl Running {
    /// Device memory for as long as the threads live. Returns its address.
    fn allocate(&mut self, device: &Device, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let memory = DeviceMemory::new(&device.gpu, bytes)?;
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }

    /// Starts a thread that reads, or one that reads and decodes, with what its way to the GPU is made of.
    fn start_worker(
        &mut self,
        workers: Arc<WorkerContext>,
        mut way: Option<(UploaderParts, Option<GdsStaging>)>,
        decodes: bool,
    ) -> Result<()> {
        let jobs = self.jobs.clone();
        let is_beside_training = way.is_some();
        let name = if decodes { "zarr decoder" } else { "zarr reader" };
        let watchdog = Arc::<Watchdog>::default();
        self.spawn(name, watchdog.clone(), move || {
            if decodes && is_beside_training {
                run_when_idle();
            }
            let mut state = WorkerState::new(decodes);
            loop {
                let job = if decodes { jobs.decode(&mut state) } else { jobs.feed(&mut state) };
                let Some(job) = job else { break };
                let (chunk, since) = (job.chunk().clone(), Instant::now());
                // Streams take time to make, and many threads of a small reader never need theirs.
                if let Some((parts, staging)) = &mut way {
                    match Uploader::new(parts.clone(), staging, watchdog.clone()) {
                        Ok(sender) => {
                            state.upload_with(sender);
                            way = None;
                        }
                        Err(error) => chunk.fail(error),
                    }
                }
                let worked = catch_unwind(AssertUnwindSafe(|| workers.process(job, &mut state)));
                let decoded = worked.unwrap_or_else(|payload| {
                    chunk.fail(Error::panic("a worker", &*payload));
                    false
                });
                if decodes {
                    jobs.decoder_done(decoded.then(|| chunk.part()), since);
                }
            }
        })
    }

    fn plan(&self, batch: Arc<Batch>) {
        // The planner only ends with this value.
        let _ = self.planner.as_ref().map(|planner| planner.send(batch));
    }

    fn spawn(
        &mut self,
        name: &str,
        watchdog: Arc<Watchdog>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        self.threads.push((watchdog, thread.map_err(|source| Error::Thread { source })?));
        Ok(())
    }

    /// The error of a thread for which the GPU does not come to an end.
    fn stuck(&self) -> Option<Error> {
        self.threads.iter().find_map(|(watchdog, _)| watchdog.stuck())
    }
}

/// Lowers the priority of the calling thread, so that it takes cores only from those that have nothing more urgent to do.
fn run_when_idle() {
    /// Such a thread gets a tenth of a core that a usual one wants as well.
    const NICENESS: i32 = 10;
    // SAFETY: changes nothing but the priority of this thread, which on Linux is what 0 means. If that is not allowed,
    // nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
}

impl Drop for Running {
    fn drop(&mut self) {
        self.planner = None;
        for cache_pool in [&self.cache_pool, &self.upload_pool].into_iter().flatten() {
            cache_pool.close();
        }
        self.jobs.close();
        self.gpu_tasks.close();
        if let Some(pinned) = &self.pinned {
            pinned.close();
        }
        // Panics were caught inside and reported to their batch.
        let threads = std::mem::take(&mut self.threads);
        let (watchdogs, threads): (Vec<_>, Vec<_>) = threads.into_iter().unzip();
        if !watchdog::join(watchdogs.iter().map(|watchdog| &**watchdog).zip(threads)) {
            // The GPU may still use its memory, and freeing it would wait for the GPU. The process is to be ended.
            std::mem::forget((self.registered.take(), std::mem::take(&mut self.memory), self.pinned.take()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    /// Arguments of a reader on a GPU for an array that is an uncompressed one, with further codecs.
    fn on_gpu(folder: &tempfile::TempDir, codecs: &str) -> Arguments {
        let metadata = r#"{"zarr_format": 3, "node_type": "array", "shape": [64, 1000], "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1000]}}, "fill_value": 0,
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}} CODECS]}"#;
        std::fs::write(folder.path().join("zarr.json"), metadata.replace("CODECS", codecs)).unwrap();
        let mut arguments = Arguments::new(folder.path().to_str().unwrap());
        (arguments.batch_size, arguments.device_id) = (16, 0);
        arguments
    }

    #[test]
    fn cufile_reads_by_itself_only_what_needs_no_look_at_its_bytes() {
        const ZSTD: &str = r#", {"name": "zstd", "configuration": {"level": 0, "checksum": false}}"#;
        let folder = tempfile::tempdir().unwrap();
        let chooses = |codecs: &str, io: &str, decode: &str, directly: bool| {
            let mut arguments = on_gpu(&folder, codecs);
            (arguments.io, arguments.decode) = (io.into(), decode.into());
            Reader::without_memory(&arguments).unwrap().chooses_cufile(directly)
        };
        assert!(chooses("", "auto", "auto", true) && !chooses("", "auto", "auto", false));
        for decode in ["auto", "gpu", "cpu"] {
            assert!(!chooses(ZSTD, "auto", decode, true), "{decode}");
            assert!(chooses(ZSTD, "gds", decode, false) && !chooses(ZSTD, "posix", decode, true), "{decode}");
        }
    }

    #[test]
    fn a_gpu_that_never_answers_holds_up_neither_the_consumer_nor_the_destructor() {
        let (watchdog, progress) = (Arc::<Watchdog>::default(), Progress::new(Arc::default()));
        let mut running = Running {
            jobs: Jobs::new(Arc::new(PartPlans::new(vec![])), 0, progress.clone(), Arc::default()),
            progress,
            gpu_tasks: Arc::default(),
            planner: None,
            pinned: None,
            threads: vec![],
            upload_pool: None,
            cache_pool: None,
            registered: None,
            memory: vec![],
        };
        let (release, held) = mpsc::channel::<()>();
        running.spawn("zarr GPU lane", watchdog.clone(), move || _ = held.recv()).unwrap();
        assert!(running.stuck().is_none());
        watchdog::tests::set_stuck(&watchdog);
        assert!(running.stuck().is_some_and(|error| error.to_string().contains("end this process")));
        let since = Instant::now();
        drop(running);
        assert!(since.elapsed() < Duration::from_secs(10));
        drop(release);
    }

    #[test]
    fn an_automatic_budget_is_raised_as_far_as_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = on_gpu(&folder, "");
        let mut reader = Reader::without_memory(&arguments).unwrap();
        let batch = reader.batch_bytes();
        let mut share = |bytes, most_bytes| reader.share(DeviceBudget { bytes, most_bytes }, None);

        let raised = share(batch, 10 * batch).unwrap();
        assert!((4 * batch..6 * batch).contains(&raised.budget_bytes) && raised.depth == 1, "{raised:?}");
        let enough = share(raised.budget_bytes, raised.budget_bytes).unwrap();
        assert_eq!((enough.budget_bytes, enough.depth), (raised.budget_bytes, 1));
        assert_eq!(share(64 * batch, 128 * batch).unwrap().budget_bytes, 64 * batch);
        let refused = share(batch, raised.budget_bytes - 1).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("give at least {}", raised.budget_bytes)), "{refused}");
        // What no memory can hold is refused, too.
        reader.options.cache_bytes = u64::MAX;
        for bytes in [1 << 20, u64::MAX / 2] {
            assert!(reader.share(DeviceBudget { bytes, most_bytes: bytes }, None).is_err());
        }
    }
}
