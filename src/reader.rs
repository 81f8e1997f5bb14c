//! Runs the road on its own threads and keeps the queue of batches.
//!
//! ```text
//! submit --> planner --> units --> workers --> (CPU backend) outputs
//!                                     |
//!                                     +------> (GPU backend) fetched units --> lanes --> outputs
//! next_batch <-- the oldest submitted batch, once its last unit is finished
//! ```
//!
//! A unit is one read chunk that one batch needs. Units of all submitted batches are in flight at once; batches are
//! handed over in order. Memory is bounded by what was submitted (outputs), by the pinned pool (encoded chunks) and by
//! the lanes' arenas (decoding).

use crate::assemble::{Conversion, OutputMemory, conversions, device};
use crate::batch::{Batch, Unit};
use crate::codec::{self, Road};
use crate::dataset::{ArrayInfo, Dataset, ElementType, Joined, stacked_layout};
use crate::decode::lane::{self, Lane, Lanes, Pulse};
use crate::decode::nvcomp::Zstd;
use crate::decode::worker::{Target, Workers, largest_pinned_bytes};
use crate::decode::{Queue, lane::Fetched};
use crate::error::{Error, Result, log_once};
use crate::fetch::{Locator, Posix};
use crate::gpu::{Gpu, Kernels, PinnedPool};
use crate::options::{Arguments, Decode, Options, argument};
use crate::plan::{ArrayGeometry, OutputGeometry, count_chunks, plan_batch};
use crate::sampler::{Order, OrderArguments, Windows};

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use cudarc::driver::CudaStream;

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
    roads: Vec<Vec<Road>>,
    /// One per part of each array.
    conversions: Arc<[Vec<Conversion>]>,
    device: Option<Device>,
    depth: u64,
    running: Option<Running>,
    submitted: VecDeque<Arc<Batch>>,
    /// Number of the next batch to be submitted.
    next: u64,
    /// Samples of the batch that was handed over last.
    current: Vec<u64>,
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
}

/// How GPU memory is shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Batches in flight.
    pub depth: u64,
    /// Lanes that decode.
    pub lanes: u64,
    /// Memory of each lane.
    pub arena_bytes: u64,
    largest_pinned_bytes: u64,
}

impl Reader {
    /// Each has a stream and an arena; eight overlap copies, decoding and the host's part (benches/NOTES.md).
    const MAX_LANES: u64 = 8;
    /// One part in so many of the device budget is for outputs in flight; the rest is for decoding.
    const OUTPUT_SHARE: u64 = 4;
    /// Batches in flight on the CPU backend, where latency is short: enough to keep every thread busy.
    const MAX_CPU_DEPTH: u64 = 8;
    /// More chunks of a batch than this are not planned to know their number beforehand.
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
                reader.log_roads();
            }
        }
        Ok(reader)
    }

    /// The same as far as neither a GPU nor memory budgets matter: the reader can tell, but not read.
    pub(crate) fn without_memory(arguments: &Arguments) -> Result<Self> {
        let options = Options::check(arguments)?;
        codec::register();
        let dataset = Arc::new(Dataset::open(&arguments.paths, &arguments.arrays)?);
        let window = arguments.window.as_deref();
        check_shapes(&dataset, window.unwrap_or(&[1]))?;
        let conversions: Arc<[Vec<Conversion>]> = conversions(&dataset, arguments)?.into();
        if arguments.stack {
            check_stack(&dataset, &conversions)?;
        }
        let windows = Windows::new(&dataset.arrays[0].shape, window, arguments.stride.as_deref())?;
        let order = Order::new(
            windows.len(),
            &OrderArguments {
                shard_id: arguments.shard_id,
                num_shards: arguments.num_shards,
                stick_to_shard: arguments.stick_to_shard,
                pad_last_batch: arguments.pad_last_batch,
                batch_size: options.batch_size,
                seed: arguments.random_shuffle.then_some(arguments.seed),
            },
        )?;
        let geometry = dataset.arrays.iter().map(Joined::geometry).collect();
        let count = dataset.arrays.len();
        let place = |(number, array): (usize, &Joined)| {
            let (_, extents) = windows.region(0, &array.shape);
            match arguments.stack {
                true => OutputGeometry::stacked(number, count, &extents),
                false => OutputGeometry::alone(number, &extents),
            }
        };
        let placing = dataset.arrays.iter().enumerate().map(place).collect();
        let road = |part| road(part, &options);
        let roads = dataset
            .arrays
            .iter()
            .map(|array| array.parts.iter().map(road).collect())
            .collect::<Result<_>>()?;
        Ok(Self {
            dataset,
            windows,
            geometry,
            placing,
            order,
            seed: arguments.seed,
            stacked: arguments.stack,
            options,
            roads,
            conversions,
            device: None,
            depth: 1,
            running: None,
            submitted: VecDeque::new(),
            next: 0,
            current: vec![],
            failed: None,
        })
    }

    /// One per array, or a single one if they are stacked.
    pub fn outputs(&self) -> Vec<Output> {
        let describe = |(array, conversions): (&Joined, &Vec<Conversion>)| Output {
            element: conversions[0].output(),
            shape: self.windows.sample_shape(&array.shape),
            // Layouts are ASCII, one letter for each dimension of the array.
            layout: match array.layout.get(usize::from(self.windows.drops_first)..) {
                Some(layout) => layout.to_string(),
                None => String::new(),
            },
        };
        let mut outputs: Vec<Output> =
            self.dataset.arrays.iter().zip(&*self.conversions).map(describe).collect();
        if self.stacked {
            let axis = usize::from(!self.windows.drops_first);
            outputs.truncate(1);
            outputs[0].shape.insert(axis, self.dataset.arrays.len() as u64);
            outputs[0].layout = stacked_layout(&outputs[0].layout, axis);
        }
        outputs
    }

    /// The order of samples.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// What is read.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The windows that samples are.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// How the chunks of each part of each array are decoded.
    pub fn roads(&self) -> &[Vec<Road>] {
        &self.roads
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
        let outputs = self
            .outputs()
            .iter()
            .zip(addresses)
            .map(|(output, &address)| OutputMemory {
                address: address as u64,
                bytes: output.sample_bytes() * samples.len() as u64,
            })
            .collect();
        let writable = match &self.device {
            None => None,
            Some(device) => {
                let event = device.gpu.event()?;
                event.record(&device.allocation).map_err(Error::cuda("recording an event"))?;
                Some(event)
            }
        };
        let batch = Batch::new(samples, outputs, writable);
        self.submitted.push_back(batch.clone());
        self.next += 1;
        if let Some(running) = &self.running {
            running.plan(batch);
        }
        Ok(())
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
        let hopeless = || running.as_ref().and_then(Running::stuck);
        match batch.wait(hopeless) {
            Ok(()) => {
                self.current.clone_from(&batch.samples);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Names a sample of the batch that was handed over last: the array, or all arrays of a stack, and the indices it
    /// came from.
    pub fn source_info(&self, output: usize, index: usize) -> Option<String> {
        let array = self.dataset.arrays.get(output)?;
        let sample = *self.current.get(index)?;
        let (start, extent) = self.windows.region(sample, &array.shape);
        let ranges: Vec<String> = (0..array.first().stored_dimensions())
            .map(|d| match d {
                0 if self.windows.drops_first => start[0].to_string(),
                _ => format!("{}:{}", start[d], start[d] + extent[d]),
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
        let batches = self.next - self.submitted.len() as u64;
        let state = serde_json::json!({
            "version": STATE_VERSION,
            "batches": batches,
            "seed": self.seed,
            "dataset": self.fingerprint(),
        });
        state.to_string().into_bytes()
    }

    /// Continues from a saved position.
    ///
    /// # Errors
    /// A state of another reader, or one that comes after the first `submit`.
    pub fn restore_state(&mut self, state: &[u8]) -> Result<()> {
        let refused = |problem: String| Error::Checkpoint { problem };
        if self.running.is_some() {
            return Err(refused("the reader has started already".into()));
        }
        let state: serde_json::Value = serde_json::from_slice(state)
            .map_err(|error| refused(format!("its state cannot be read ({error})")))?;
        if state["version"] != STATE_VERSION {
            return Err(refused(format!("its version is {}, not {STATE_VERSION}", state["version"])));
        }
        let expected = self.fingerprint();
        if state["dataset"] != expected {
            return Err(refused(format!("it was written for {}, this is {expected}", state["dataset"])));
        }
        let (Some(batches), Some(seed)) = (state["batches"].as_u64(), state["seed"].as_i64()) else {
            return Err(refused("its state has no position".into()));
        };
        self.next = batches;
        self.seed = seed;
        self.order.reseed(seed);
        Ok(())
    }

    /// What a position is only meaningful together with.
    fn fingerprint(&self) -> serde_json::Value {
        let arrays: Vec<_> = self
            .dataset
            .arrays
            .iter()
            .map(|array| {
                let shapes: Vec<_> = array.parts.iter().map(|part| &part.shape).collect();
                serde_json::json!([array.first().name, array.first().element.name(), shapes])
            })
            .collect();
        serde_json::json!({
            "arrays": arrays,
            "stack": self.stacked,
            "window": self.windows.window,
            "stride": self.windows.stride,
            "num_shards": self.order.shards(),
            "batch_size": self.options.batch_size,
            "stick_to_shard": self.order.sticks(),
            "pad_last_batch": self.order.pads(),
            "random_shuffle": self.order.shuffles(),
        })
    }

    fn check_failed(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(Error::Sticky(error.clone())))
    }

    fn fail(&mut self, error: Arc<Error>) -> Error {
        self.failed = Some(error.clone());
        Error::Sticky(error)
    }

    /// The samples of the first batch.
    pub(crate) fn first_batch(&mut self) -> Vec<u64> {
        self.order.batch(0)
    }

    /// How many read chunks of each part of each array the samples touch. Where there are more than
    /// [`Reader::MAX_COUNTED_CHUNKS`], those that several samples share count for each.
    pub(crate) fn chunks_of(&self, samples: &[u64]) -> Vec<Vec<u64>> {
        let none: Vec<Vec<u64>> = self.roads.iter().map(|parts| vec![0; parts.len()]).collect();
        let mut counts = none.clone();
        for &sample in samples {
            for (counts, geometry) in counts.iter_mut().zip(&*self.geometry) {
                for (part, chunks) in count_chunks(&self.windows, geometry, sample) {
                    counts[part] += chunks;
                }
            }
        }
        if samples.len() > 1 && counts.iter().flatten().sum::<u64>() <= Self::MAX_COUNTED_CHUNKS {
            counts = none;
            for task in plan_batch(&self.windows, &self.geometry, &self.placing, samples) {
                counts[task.array][task.part] += 1;
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
    pub(crate) fn host_depth(&self) -> Result<u64> {
        let (budget, batch) = (self.options.host_memory_bytes, self.batch_bytes());
        let least = self.options.min_depth;
        if batch.saturating_mul(least) > budget {
            return Err(Error::Budget {
                name: "host_memory_budget",
                budget_bytes: budget,
                needed_bytes: batch.saturating_mul(least),
                what: format!("{least} batch(es) of {batch} bytes in flight"),
            });
        }
        Ok((budget / batch.max(1)).min(Self::MAX_CPU_DEPTH).max(least))
    }

    /// Every part of every array with its road.
    fn parts(&self) -> impl Iterator<Item = (&ArrayInfo, &Road)> {
        self.dataset.arrays.iter().flat_map(|array| &array.parts).zip(self.roads.iter().flatten())
    }

    fn open_device(&mut self, ordinal: usize) -> Result<Device> {
        let gpu = Gpu::open(ordinal)?;
        let zstd = match self.parts().find(|(_, road)| road.needs_nvcomp()) {
            None => None,
            Some((array, _)) => Some(Arc::new(
                Zstd::open().map_err(|error| Error::Nvcomp { at: array.context(), source: error.into() })?,
            )),
        };
        let budget = self.options.device_budget(|| gpu.free_bytes())?;
        let shares = self.share(budget, zstd.as_deref())?;
        Ok(Device { zstd, shares, allocation: gpu.stream()?, gpu })
    }

    /// Arena bytes that a read chunk of each part of each array needs at most.
    ///
    /// # Errors
    /// What nvCOMP says, if it is asked.
    pub(crate) fn unit_bytes(&self, zstd: Option<&Zstd>) -> Result<Vec<u64>> {
        let boxes = self.options.batch_size;
        self.parts().map(|(array, road)| lane::unit_bytes(zstd, array, road, boxes)).collect()
    }

    /// Shares a budget out: outputs of `depth` batches, and an arena for each lane.
    ///
    /// # Errors
    /// Budgets that cannot hold the least that is needed.
    pub(crate) fn share(&mut self, budget: u64, zstd: Option<&Zstd>) -> Result<Shares> {
        let units = self.unit_bytes(zstd)?;
        let largest_unit = units.iter().copied().max().unwrap_or(0);
        let pinned = self.parts().map(|(array, road)| largest_pinned_bytes(array, road));
        let largest_pinned = pinned.max().unwrap_or(0);
        if self.options.host_memory_bytes < largest_pinned {
            return Err(Error::Budget {
                name: "host_memory_budget",
                budget_bytes: self.options.host_memory_bytes,
                needed_bytes: largest_pinned,
                what: "the largest encoded chunk".into(),
            });
        }

        let batch = self.batch_bytes().max(1);
        let least_depth = self.options.min_depth;
        let least = batch.saturating_mul(least_depth).saturating_add(largest_unit);
        if least > budget {
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: budget,
                needed_bytes: least,
                what: format!("{least_depth} batch(es) of {batch} bytes and one chunk while it is decoded"),
            });
        }
        let depth = (budget / Self::OUTPUT_SHARE / batch).min(Options::MAX_DEPTH).max(least_depth);

        // Small stores do not need the whole budget: no more than all batches in flight can use at once.
        let first = self.first_batch();
        let chunks = self.chunks_of(&first);
        let batch_arena: u64 = chunks.iter().flatten().zip(&units).map(|(chunks, unit)| chunks * unit).sum();
        let useful = batch_arena.saturating_mul(depth);
        let arenas = (budget - batch * depth).min(useful).max(largest_unit);
        let lanes = (arenas / largest_unit).clamp(1, Self::MAX_LANES.min(depth.max(2)));
        Ok(Shares { depth, lanes, arena_bytes: arenas / lanes, largest_pinned_bytes: largest_pinned })
    }

    /// Says once per process which road each array takes.
    fn log_roads(&self) {
        for (array, roads) in self.dataset.arrays.iter().zip(&self.roads) {
            // Of joined stores only those whose road differs from that of the one before.
            for (number, part) in array.parts.iter().enumerate() {
                if number == 0 || roads[number] != roads[number - 1] {
                    log_once(&format!("{}: {}", part.context(), roads[number]));
                }
            }
        }
    }

    fn start(&self) -> Result<Running> {
        let mut running = Running::default();
        let target = match &self.device {
            None => Target::Host,
            Some(device) => {
                let largest = device.shares.largest_pinned_bytes;
                let pinned = PinnedPool::new(&device.gpu, self.options.host_memory_bytes, largest);
                running.pinned = Some(pinned.clone());
                self.start_lanes(device, &mut running)?;
                Target::Lanes { pinned, queue: running.fetched.clone() }
            }
        };
        let workers = Arc::new(Workers {
            dataset: self.dataset.clone(),
            roads: self.roads.clone(),
            conversions: self.conversions.clone(),
            locator: Locator::new(Arc::new(Posix)),
            missing_chunks: self.options.missing_chunks,
            target,
        });
        for _ in 0..self.options.threads {
            let (workers, units) = (workers.clone(), running.units.clone());
            running.spawn("zarr worker", move || {
                let mut scratch = vec![];
                while let Some(unit) = units.pop() {
                    let batch = unit.batch.clone();
                    let worked = catch_unwind(AssertUnwindSafe(|| workers.process(unit, &mut scratch)));
                    if let Err(payload) = worked {
                        batch.fail(Error::panic("a worker", &*payload));
                    }
                }
            })?;
        }
        let (planner, batches) = mpsc::channel::<Arc<Batch>>();
        let (windows, geometry, placing) =
            (self.windows.clone(), self.geometry.clone(), self.placing.clone());
        let units = running.units.clone();
        running.spawn("zarr planner", move || {
            for batch in batches {
                let planned = catch_unwind(|| plan_batch(&windows, &geometry, &placing, &batch.samples));
                let tasks = planned.unwrap_or_else(|payload| {
                    batch.fail(Error::panic("the planner", &*payload));
                    vec![]
                });
                units.push(batch.units(tasks));
            }
        })?;
        running.planner = Some(planner);
        Ok(running)
    }

    fn start_lanes(&self, device: &Device, running: &mut Running) -> Result<()> {
        let lanes = Arc::new(Lanes {
            gpu: device.gpu.clone(),
            kernels: Kernels::load(&device.gpu)?,
            nvcomp: device.zstd.clone(),
            dataset: self.dataset.clone(),
            conversions: self.conversions.clone(),
            queue: running.fetched.clone(),
        });
        for _ in 0..device.shares.lanes {
            let mut lane = Lane::new(lanes.clone(), device.shares.arena_bytes)?;
            let pulse = lane.pulse.clone();
            let thread = spawn("zarr GPU lane", move || while lane.step() {})?;
            running.lanes.push((pulse, thread));
        }
        Ok(())
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
const STATE_VERSION: u64 = 1;

/// Chooses the road of an array's read chunks on the backend and with the `decode` of the options.
///
/// # Errors
/// Arrays that this backend cannot read, or not as `decode` wants it.
pub(crate) fn road(array: &ArrayInfo, options: &Options) -> Result<Road> {
    if options.device.is_none() {
        return Ok(Road::Cpu("the CPU backend".into()));
    }
    if array.read_chunk_bytes() > device::MAX_CHUNK_BYTES {
        let reason = format!(
            "its read chunks decode to {} bytes, and at most {} are supported",
            array.read_chunk_bytes(),
            device::MAX_CHUNK_BYTES
        );
        return Err(Error::NotOnGpu { at: array.context(), reason });
    }
    match (options.decode, codec::road(array)) {
        (Decode::Cpu, _) => Ok(Road::Cpu("decode=\"cpu\"".into())),
        (Decode::Gpu, Road::Cpu(reason)) => Err(Error::NotOnGpu { at: array.context(), reason }),
        (_, road) => Ok(road),
    }
}

/// Whether all arrays have the dimensions that the window covers, with room for it and with the same extents.
fn check_shapes(dataset: &Dataset, window: &[i64]) -> Result<()> {
    let first = &dataset.arrays[0];
    let dimensions = window.len();
    for array in &dataset.arrays {
        let (at, shape) = (array.context(), &array.shape);
        if shape.is_empty() {
            let problem =
                format!("{at} has no dimensions, so there is nothing to take samples along; leave it out");
            return Err(argument("arrays", problem));
        }
        let Some(covered) = shape.get(..dimensions) else {
            let problem = format!(
                "it has {dimensions} extents, but {at} has the shape {shape:?}; give at most {} extents",
                shape.len()
            );
            return Err(argument("window", problem));
        };
        if covered.contains(&0) {
            let problem = format!("{at} has the shape {shape:?} and so no samples; write to it first");
            return Err(argument("arrays", problem));
        }
        if let Some(d) =
            (0..dimensions).find(|&d| u64::try_from(window[d]).is_ok_and(|extent| extent > covered[d]))
        {
            let problem = format!(
                "{window:?} does not fit into {at} with the shape {shape:?}: {} steps are asked for in dimension {d}, which has {}",
                window[d], covered[d]
            );
            return Err(argument("window", problem));
        }
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
    for (other, converted) in dataset.arrays.iter().zip(conversions).skip(1) {
        let unlike = |what: &str, here: String, there: String| Error::Unlike {
            at: first.context(),
            difference: format!("its {what} is {here}, but {there} in {}", other.context()),
            remedy: "arrays that are stacked need the same: leave one of them out, or read them without `stack`",
        };
        if first.shape != other.shape {
            return Err(unlike("shape", format!("{:?}", first.shape), format!("{:?}", other.shape)));
        }
        let (here, there) = (conversions[0][0].output(), converted[0].output());
        if here != there {
            return Err(unlike("element type", here.name().into(), there.name().into()));
        }
    }
    Ok(())
}

/// The threads of a reader. Dropping it stops and joins them; nothing writes to outputs afterwards.
#[derive(Default)]
struct Running {
    planner: Option<mpsc::Sender<Arc<Batch>>>,
    units: Arc<Queue<Unit>>,
    fetched: Arc<Queue<Fetched>>,
    pinned: Option<Arc<PinnedPool>>,
    threads: Vec<JoinHandle<()>>,
    lanes: Vec<(Arc<Pulse>, JoinHandle<()>)>,
}

impl Running {
    fn plan(&self, batch: Arc<Batch>) {
        // The planner only ends with this value.
        let _ = self.planner.as_ref().map(|planner| planner.send(batch));
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.threads.push(spawn(name, work)?);
        Ok(())
    }

    /// The error of a lane that does not come to an end.
    fn stuck(&self) -> Option<Error> {
        self.lanes.iter().find_map(|(pulse, _)| pulse.stuck())
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(|source| Error::Thread { source })
}

impl Drop for Running {
    fn drop(&mut self) {
        self.planner = None;
        self.units.close();
        self.fetched.close();
        if let Some(pinned) = &self.pinned {
            pinned.close();
        }
        // A lane that is stuck in the GPU never returns. It keeps what it uses; the process is to be ended.
        let lanes =
            self.lanes.drain(..).filter(|(pulse, _)| pulse.stuck().is_none()).map(|(_, thread)| thread);
        for thread in self.threads.drain(..).chain(lanes) {
            // Panics were caught inside and reported to their batch.
            let _ = thread.join();
        }
    }
}
