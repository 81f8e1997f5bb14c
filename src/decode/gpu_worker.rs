//! A GPU worker: a thread with a stream and an arena of device memory that decodes groups of chunks.
//!
//! ```text
//! host                                                           work list (streams, passes, regions)
//!                                                                     | copy
//! device  uploaded chunks  arena [areas          ][scratch]      [work list]
//!            '- decoders ------^ '- checks, unshuffling -> gather -> outputs of the batches
//! ```
//!
//! The last decoding step of a chunk writes to the chunk cache if the chunk is cached, or to the output if the whole chunk belongs in
//! one place there.
//!
//! A group is all chunks that wait when a GPU worker becomes free, as far as they fit into its arena. Its units may belong to several
//! batches. A decoder takes about as long for one chunk as for hundreds, so groups grow by themselves as the load does, and
//! several GPU workers overlap copies, decoding and the work of the host.

use super::Queue;
use super::chunk::Cached;
use super::gpu_task::{GpuTask, OnDevice, Payload};
use super::group::{self, CacheCopy, FrameOfTask, GroupPlan, Lists, Sizes, Target, WorkList};
use super::jobs::Jobs;
use super::nvcomp::{FramesOnDevice, Zstd};
use super::part::PartPlans;
use super::verified::VerifiedChunks;
use super::watchdog::Watchdog;
use crate::assemble::Conversion;
use crate::assemble::device::Source;
use crate::batch::Batch;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Error, GpuWork, Result};
use crate::gpu::{
    DeviceMemory, Gpu, GreenContext, Kernels, LentStream, PinnedMemory, StreamKernel, StreamStatus,
    status_text,
};
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, result};
use nvcomp_sys::nvcompStatus_t;

/// What all GPU workers of a reader share.
pub struct GpuWorkerContext {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// The kernels, loaded.
    pub kernels: Arc<Kernels>,
    /// The SM partition, if the driver gives one.
    pub green: Option<Arc<GreenContext>>,
    /// nvCOMP, if any array needs it and it decodes zstd; without it our own decoder does.
    pub nvcomp: Option<Arc<Zstd>>,
    /// The arrays.
    pub dataset: Arc<Dataset>,
    /// Chunks that need not be checked again.
    pub verified: Arc<VerifiedChunks>,
    /// How the chunks of the arrays are decoded.
    pub parts: Arc<PartPlans>,
    /// The queue of the GPU workers.
    pub queue: Arc<Queue<GpuTask>>,
    /// The queue of jobs: its policy is told what the GPU has decoded, and says on which multiprocessors the GPU decodes.
    pub jobs: Arc<Jobs>,
    /// The counters of the reader.
    pub counters: Arc<Counters>,
}

impl GpuWorkerContext {
    fn conversion(&self, task: &GpuTask) -> &Conversion {
        &self.parts[task.chunk.part()].conversion
    }
}

/// One GPU worker.
pub struct GpuWorker {
    /// Says whether the GPU still answers.
    pub watchdog: Arc<Watchdog>,
    context: Arc<GpuWorkerContext>,
    /// The stream of the present group.
    stream: Arc<CudaStream>,
    /// A stream on all multiprocessors.
    whole: Arc<CudaStream>,
    /// A stream on the SM partition.
    partition: Option<LentStream>,
    arena: DeviceMemory,
    /// Pinned memory for the work list, and behind it for the results.
    staging: Option<PinnedMemory>,
    /// Recorded between decoding and gathering.
    decoded: CudaEvent,
    /// Recorded at the end of the group.
    done: CudaEvent,
}

impl GpuWorker {
    /// A GPU worker with an arena of `arena_bytes` bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: Arc<GpuWorkerContext>, arena_bytes: u64) -> Result<Self> {
        let whole = context.gpu.stream()?;
        Ok(Self {
            watchdog: Arc::default(),
            stream: whole.clone(),
            whole,
            partition: context.green.as_ref().and_then(|green| green.stream()),
            arena: DeviceMemory::new(&context.gpu, arena_bytes)?,
            staging: None,
            decoded: context.gpu.event()?,
            done: context.gpu.event()?,
            context,
        })
    }

    /// Waits for the next group and processes it. Returns false once the queue is closed.
    pub fn step(&mut self) -> bool {
        let Some(mut group) = self.take() else { return false };
        let _range = trace::range(Stage::DecodeOnGpu, group.len() as u64);
        let watchdog = self.watchdog.clone();
        let _waiting = watchdog.waits(GpuWork::Decoding, Some(&group[0].at), group.len());
        let done = catch_unwind(AssertUnwindSafe(|| self.process(&mut group)));
        let done = done.unwrap_or_else(|payload| Err(Error::panic("a GPU worker", &*payload)));
        if let Err(error) = done {
            self.settle(&group);
            fail_all(&group, error);
        }
        true
    }

    fn array(&self, task: &GpuTask) -> &ArrayInfo {
        let (array, part) = task.chunk.part();
        self.context.dataset.part(array, part)
    }

    /// Takes as many waiting tasks as the arena holds.
    fn take(&self) -> Option<Vec<GpuTask>> {
        let zstd = self.context.nvcomp.as_deref();
        let mut sizes = Sizes::default();
        let mut kind = None;
        self.context.queue.pop_group(|task| {
            // Units of cached chunks do not wait for chunks that have to be decoded.
            let cached = matches!(task.payload, Payload::Cached);
            if *kind.get_or_insert(cached) != cached {
                return false;
            }
            let more = sizes.with(task, self.context.conversion(task));
            // `enqueue` gets the same error from nvCOMP and can report it.
            let scratch = more.scratch(zstd).unwrap_or(0);
            let fits = more.arena_bytes(scratch) <= self.arena.bytes();
            if fits || sizes.work_list == 0 {
                sizes = more;
            }
            fits
        })
    }

    /// After an error: waits until nothing of a group is in flight, so that its memory can be given back.
    fn settle(&self, group: &[GpuTask]) {
        // Work that was enqueued before the error still uses the group's memory, and copies that the stream does not wait for yet
        // still write to it. If these waits fail, the context is broken and nothing runs any more.
        for task in group {
            if let Payload::OnDevice(OnDevice { arrived: Some(arrived), .. }) = &task.payload {
                let _ = arrived.synchronize();
            }
        }
        let _ = self.stream.synchronize();
    }

    /// Decodes and gathers a group, and waits for it.
    fn process(&mut self, group: &mut [GpuTask]) -> Result<()> {
        // The group before is done, so the two streams need not wait for each other.
        self.stream = match &self.partition {
            // Gathering alone is over soonest on all multiprocessors, and takes less from the model there (benches/NOTES.md).
            Some(partition)
                if group.iter().any(|task| task.by_gpu) && self.context.jobs.keeps_to_sm_partition() =>
            {
                partition.stream().clone()
            }
            _ => self.whole.clone(),
        };
        let results = self.enqueue(group)?;
        self.done.synchronize().map_err(Error::cuda("decoding a group of chunks"))?;
        // The events tell how long gathering took, so decoding ended before that.
        let gathering = self.decoded.elapsed_ms(&self.done).unwrap_or(0.0);
        let decoded = Instant::now().checked_sub(Duration::from_secs_f32(gathering.max(0.0) / 1e3));
        let by_gpu = group.iter_mut().filter(|task| task.by_gpu);
        by_gpu.flat_map(|task| &mut task.units).for_each(|unit| unit.times.decoded = decoded);
        let by_gpu = || group.iter().filter(|task| task.by_gpu);
        if let Some(first) = by_gpu().filter_map(|task| task.arrived).min() {
            let bytes = by_gpu().map(|task| self.array(task).read_chunk_bytes()).sum();
            self.context.jobs.decoded_on_gpu(bytes, first);
        }
        self.report(group, &results);
        Ok(())
    }

    /// Enqueues everything that a group needs.
    fn enqueue(&mut self, group: &[GpuTask]) -> Result<Results> {
        let context = self.context.clone();
        context.gpu.bind()?;
        let add = |sizes: Sizes, task| sizes.with(task, context.conversion(task));
        let sizes = group.iter().fold(Sizes::default(), add);
        let scratch_bytes = sizes.scratch(context.nvcomp.as_deref())?;
        if sizes.arena_bytes(scratch_bytes) > self.arena.bytes() {
            return Err(Error::Budget {
                name: "device_memory_budget",
                budget_bytes: self.arena.bytes(),
                needed_bytes: sizes.arena_bytes(scratch_bytes),
                what: "one chunk while it is decoded".into(),
            });
        }
        let layout = sizes.layout(self.arena.address(), self.arena.bytes());
        let mut list = WorkList::new(layout.work_list);
        let statuses = list.put(&vec![0 as StreamStatus; group.len()]);
        self.wait_for_chunks(group)?;
        let mut plan = self.plan(group, layout.areas, statuses);
        let lists = plan.put(&mut list, sizes.zstd.largest);
        self.upload(&list)?;
        self.wait_for_outputs(group)?;
        self.launch(&lists, layout.scratch)?;
        for CacheCopy { to, from, bytes } in plan.cache_copies {
            // SAFETY: the decoded chunk lies in the arena, its allocation has its size and belongs to the chunk alone.
            unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream.cu_stream()) }
                .map_err(Error::cuda("copying a chunk to the chunk cache"))?;
        }
        let results =
            self.download(statuses, group.len(), &lists.frames, plan.frames.frames, list.bytes().len())?;
        self.done.record(&self.stream).map_err(Error::cuda("recording an event"))?;
        Ok(results)
    }

    /// Makes the stream wait for the copies of the group's chunks to the GPU.
    fn wait_for_chunks(&self, group: &[GpuTask]) -> Result<()> {
        let mut last = None;
        for task in group {
            let Payload::OnDevice(on_device) = &task.payload else { continue };
            // Neighbours were often submitted together.
            let event = on_device.arrived.as_ref().map(Arc::as_ptr);
            if let (Some(arrived), true) = (&on_device.arrived, event != last) {
                self.stream.wait(arrived).map_err(Error::cuda("waiting for a chunk to arrive"))?;
                last = event;
            }
        }
        Ok(())
    }

    /// Plans what the kernels do with a group, with areas from `areas` on and the tasks' statuses at `statuses`.
    fn plan(&self, group: &[GpuTask], areas: u64, statuses: u64) -> GroupPlan {
        let context = &self.context;
        let builtin_zstd = context.nvcomp.is_none();
        let mut plan = GroupPlan { areas, builtin_zstd, ..GroupPlan::default() };
        for (number, task) in group.iter().enumerate() {
            let array = self.array(task);
            let fill = Source::Fill(array.fill_element().unwrap_or_default());
            let conversion = context.conversion(task);
            let target = group::target(task, conversion);
            let source = match &task.payload {
                Payload::Missing => fill,
                Payload::Cached => match (task.chunk.cached(), task.chunk.allocation()) {
                    (Some(Cached::Missing), _) => fill,
                    (Some(Cached::Device { swaps_bytes }), Some(allocation)) => {
                        Source::Decoded { address: allocation.address(), swaps_bytes }
                    }
                    _ => {
                        let message = "a cached chunk is not in device memory".into();
                        task.fail(Error::Panic { place: "a GPU worker".into(), message });
                        continue;
                    }
                },
                Payload::OnDevice(on_device) => {
                    let status = statuses + (number * size_of::<StreamStatus>()) as u64;
                    let verified = task.identity.is_some_and(|identity| context.verified.contains(identity));
                    let to = target.map(|target| target.address());
                    let address =
                        plan.chunk(number, status, on_device.address, &on_device.work, verified, to);
                    match (task.chunk.allocation(), target) {
                        (_, Some(Target::Output(_))) => continue,
                        (Some(allocation), _) if allocation.address() != address => {
                            let (to, bytes) = (allocation.address(), array.read_chunk_bytes());
                            plan.cache_copies.push(CacheCopy { to, from: address, bytes });
                        }
                        _ => {}
                    }
                    Source::Decoded { address, swaps_bytes: on_device.work.swaps_bytes }
                }
            };
            for unit in &task.units {
                let output = unit.batch.outputs[unit.output].address;
                plan.regions.add(source, &unit.boxes, conversion, output);
            }
        }
        plan
    }

    /// Makes the stream wait until the outputs may be written.
    fn wait_for_outputs(&self, group: &[GpuTask]) -> Result<()> {
        let mut waited_for: Vec<*const Batch> = vec![];
        for unit in group.iter().flat_map(|task| &task.units) {
            let batch = Arc::as_ptr(&unit.batch);
            if let (Some(writable), false) = (&unit.batch.writable, waited_for.contains(&batch)) {
                self.stream.wait(writable).map_err(Error::cuda("waiting for output memory"))?;
                waited_for.push(batch);
            }
        }
        Ok(())
    }

    /// Enqueues the kernels and nvCOMP's calls.
    fn launch(&self, lists: &Lists, scratch: Range<u64>) -> Result<()> {
        let kernels = &self.context.kernels;
        for (kernel, (list, count)) in StreamKernel::ALL.into_iter().zip(lists.streams) {
            // SAFETY: `upload` put the list into this GPU worker's arena; the streams lie in the arena.
            unsafe { kernels.decode(&self.stream, kernel, list, count)? };
        }
        if let (Some(decoder), true) = (&self.context.nvcomp, lists.frames.count > 0) {
            // SAFETY: as above; the check may change nvCOMP's arrays.
            unsafe { kernels.check_zstd(&self.stream, &lists.checked)? };
            // SAFETY: as above, for the arrays and the frames; the scratch memory lies between areas and work list.
            unsafe { decoder.decompress(&self.stream, &lists.frames, scratch.clone())? };
        }
        if lists.decoded.count > 0 {
            // SAFETY: as above; `enqueue` has checked that the scratch memory is large enough.
            unsafe { kernels.decode_zstd(&self.stream, &lists.decoded, scratch.start)? };
        }
        for level in &lists.levels {
            // SAFETY: as above; the kernels before on the stream have written what these read.
            unsafe {
                kernels.check(&self.stream, level.checks.0, level.checks.1)?;
                kernels.unshuffle(&self.stream, level.shuffled.0, level.shuffled.1, level.tiles)?;
            }
        }
        // SAFETY: as above.
        unsafe { kernels.undo_delta(&self.stream, lists.deltas.0, lists.deltas.1)? };
        self.decoded.record(&self.stream).map_err(Error::cuda("recording an event"))?;
        // SAFETY: `upload` put the regions into this GPU worker's arena. Their sources lie in the arena, in the upload pool or in the
        // chunk cache, their destinations in outputs. Outputs live until their units are finished, which is after `process` waited.
        unsafe { kernels.gather(&self.stream, lists.regions.0, lists.regions.1, lists.region_tiles) }
    }

    /// Copies the work list to the device, through the staging memory. Leaves space behind it for the results.
    fn upload(&mut self, list: &WorkList) -> Result<()> {
        let (bytes, to) = (list.bytes(), list.address());
        let wanted = bytes.len() * 2;
        if self.staging.as_ref().is_none_or(|staging| staging.bytes() < wanted) {
            self.staging =
                Some(PinnedMemory::new(&self.context.gpu, wanted.next_power_of_two().max(64 << 10))?);
        }
        let Some(staging) = &self.staging else { return Ok(()) };
        // SAFETY: the staging memory is at least that long and belongs to this GPU worker, whose last group was waited for.
        let staged = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), staging.address(), bytes.len());
            std::slice::from_raw_parts(staging.address(), bytes.len())
        };
        // SAFETY: the work list fits there, as `enqueue` has checked; the staging memory lives until this GPU worker's next group.
        unsafe { result::memcpy_htod_async(to, staged, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying the work list to the GPU"))
    }

    /// Enqueues the copy of sizes and statuses back to the host, into the staging memory from byte `offset` on.
    fn download(
        &self,
        statuses: u64,
        tasks: usize,
        frames: &FramesOnDevice,
        frame_list: Vec<FrameOfTask>,
        offset: usize,
    ) -> Result<Results> {
        let count = frames.count;
        let Some(staging) = self.staging.as_ref() else { return Ok(Results::default()) };
        let offset = offset.next_multiple_of(8);
        // SAFETY: `upload` made the staging memory twice as long as its contents, of which these are a part.
        let results = unsafe {
            let sizes = staging.address().add(offset).cast::<u64>();
            let frame_statuses = sizes.add(count).cast::<nvcompStatus_t>();
            let statuses = frame_statuses.add(count).cast::<StreamStatus>();
            Results { tasks, statuses, frames: frame_list, sizes, frame_statuses }
        };
        for (from, to, bytes) in [
            (frames.actual_bytes, results.sizes.cast::<u8>(), count * size_of::<u64>()),
            (frames.statuses, results.frame_statuses.cast(), count * size_of::<nvcompStatus_t>()),
            (statuses, results.statuses.cast(), tasks * size_of::<StreamStatus>()),
        ] {
            if bytes == 0 {
                continue;
            }
            // SAFETY: as above; nothing reads the memory before `report`, which comes after the wait.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.cast_mut(), bytes);
                result::memcpy_dtoh_async(to, from, self.stream.cu_stream())
            }
            .map_err(Error::cuda("copying the decoders' results back"))?;
        }
        Ok(results)
    }

    /// Fails the tasks whose chunks are damaged, remembers the other chunks as valid and finishes their tasks.
    fn report(&self, group: &[GpuTask], results: &Results) {
        let mut problems: Vec<Option<String>> = vec![None; group.len()];
        for (task, problem) in problems.iter_mut().enumerate().take(results.tasks) {
            // SAFETY: there is an entry for each task in the GPU worker's staging memory, and the copy into it has ended.
            let status = unsafe { *results.statuses.add(task) };
            *problem = (status != 0).then(|| problem_text(status));
        }
        for (i, frame) in results.frames.iter().enumerate() {
            // SAFETY: as above, for each frame.
            let (bytes, status) = unsafe { (*results.sizes.add(i), *results.frame_statuses.add(i)) };
            let failure = self.context.nvcomp.as_ref().and_then(|zstd| zstd.failure(status));
            let problem = match failure {
                Some(failure) => format!("nvCOMP cannot decode it ({failure})"),
                None if bytes != frame.bytes => {
                    format!("a zstd frame decodes to {bytes} bytes instead of {}", frame.bytes)
                }
                None => continue,
            };
            problems[frame.task].get_or_insert(problem);
        }
        let valid = group.iter().zip(&problems).filter(|(_, problem)| problem.is_none());
        self.context.verified.extend(valid.filter_map(|(task, _)| task.identity));
        for (task, problem) in group.iter().zip(problems) {
            match problem {
                Some(problem) => task.fail(Error::Damaged { at: task.at.clone(), problem }),
                None => self.finish(task),
            }
        }
    }

    /// Counts a decoded chunk, and queues the units that were added to it meanwhile.
    fn finish(&self, task: &GpuTask) {
        let cached = match &task.payload {
            Payload::Missing => Cached::Missing,
            Payload::OnDevice(on_device) => {
                if task.by_gpu {
                    let green = !Arc::ptr_eq(&self.stream, &self.whole);
                    self.context.counters.chunks_decoded_sm_partition.add(green.into());
                    self.context.counters.decoded(self.array(task).read_chunk_bytes(), true);
                }
                Cached::Device { swaps_bytes: on_device.work.swaps_bytes }
            }
            Payload::Cached => return,
        };
        if task.chunk.allocation().is_some() {
            let later = task.chunk.ready(cached).into_iter();
            self.context.queue.push_front(later.map(|unit| GpuTask::cached(task.chunk.clone(), unit)));
        }
    }
}

/// What a status says about a chunk.
fn problem_text(status: StreamStatus) -> String {
    match (status_text(status), status >> 8) {
        (text, 0) => text.into(),
        (text, block) => format!("{text}, in block {block} of a zstd frame"),
    }
}

/// Fails all tasks of a group.
fn fail_all(group: &[GpuTask], error: Error) {
    let error = Arc::new(error);
    group.iter().for_each(|task| task.fail(Error::Sticky(error.clone())));
}

/// The results of a group in the staging memory: a status for each task, a size and a status for each frame.
struct Results {
    tasks: usize,
    statuses: *const StreamStatus,
    frames: Vec<FrameOfTask>,
    sizes: *const u64,
    frame_statuses: *const nvcompStatus_t,
}

impl Default for Results {
    fn default() -> Self {
        Self {
            tasks: 0,
            statuses: std::ptr::null(),
            frames: vec![],
            sizes: std::ptr::null(),
            frame_statuses: std::ptr::null(),
        }
    }
}
