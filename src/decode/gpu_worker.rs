//! The GPU side: a GPU worker is a thread with a stream and a piece of device memory, and takes groups of fetched units.
//!
//! ```text
//! host                                                           staging (streams, passes, regions)
//!                                                                     | copy
//! device  landed chunks    arena [areas          ][scratch]      [staging]
//!            '- decoders ------^ '- checks, unshuffling -> gather -> outputs of the batches
//! ```
//!
//! What the last step writes goes straight to where the chunk stays or, if that is one contiguous place that takes it as it is,
//! to the output.
//!
//! A group is whatever waits when a GPU worker becomes free, as far as it fits into the GPU worker's arena; its units may belong
//! to several batches. A decoder takes about as long for one chunk as for hundreds, so groups grow by themselves as the
//! load does, and several GPU workers overlap copies, decoding and the host's part. Where there is time, chunks wait a little for
//! others, because each group interrupts the model that trains.

use super::Queue;
use super::chunk::{Cached, Chunk};
use super::device_pool::Allocation;
use super::jobs::Jobs;
use super::nvcomp::{Frames, FramesOnDevice, Zstd};
use super::part::PartPlans;
use super::verified::{Identity, VerifiedChunks};
use super::watchdog::Watchdog;
use crate::assemble::device::{ConversionOnDevice, Region, Regions, Source};
use crate::assemble::{Conversion, whole_chunk};
use crate::batch::{PendingUnit, PendingUnits};
use crate::codec::work::{Checksum, Decoder, Expected, Pass};
use crate::codec::zstd::{Block, CheckedFrame, SUMMARY_BYTES, VALID_FRAME};
use crate::codec::{DecodePath, Work};
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, GpuWork, Result};
use crate::gpu::{
    CheckOnDevice, DeltaOnDevice, DeviceMemory, FramesToCheck, Gpu, GreenContext, GreenStream, Kernels,
    PinnedMemory, ShuffledOnDevice, StreamKernel, StreamOnDevice, StreamStatus, status_text,
};
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, result};
use nvcomp_sys::nvcompStatus_t;
use smallvec::smallvec;

/// A chunk whose bytes are on the GPU, or on their way there.
pub struct GpuTask {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Who gets its elements.
    pub units: PendingUnits,
    /// Its bytes.
    pub payload: Payload,
    /// Its place, for errors.
    pub at: Context,
    /// The chunk, once it is found valid to be remembered.
    pub identity: Option<Identity>,
    /// Whether it is the GPU that decodes it.
    pub by_gpu: bool,
    /// When it was read.
    pub arrived: Option<Instant>,
}

impl GpuTask {
    /// A chunk for which nobody waits yet.
    pub fn new(chunk: Arc<Chunk>, payload: Payload, at: Context) -> Self {
        Self { chunk, units: PendingUnits::new(), payload, at, identity: None, by_gpu: false, arrived: None }
    }

    /// Its bytes are there when this event has happened.
    pub fn arrives_with(&mut self, event: &Arc<CudaEvent>) {
        if let Payload::OnDevice(on_device) = &mut self.payload {
            on_device.arrived = Some(event.clone());
        }
    }

    /// It cannot be read: so every batch fails that needs it.
    pub fn fail(&self, error: Error) {
        let error = Arc::new(error);
        self.units.iter().for_each(|unit| unit.batch.fail(Error::Sticky(error.clone())));
        self.chunk.fail(Error::Sticky(error));
    }

    /// A chunk that is in its room, for a further unit.
    pub fn cached(chunk: Arc<Chunk>, unit: PendingUnit) -> Self {
        Self { units: smallvec![unit], ..Self::new(chunk, Payload::Cached, Context::default()) }
    }
}

/// What was fetched of a chunk.
pub enum Payload {
    /// Nothing: the fill value is meant.
    Missing,
    /// Nothing: the decoded chunk is in its room.
    Cached,
    /// Its bytes.
    OnDevice(OnDevice),
}

/// Bytes of a chunk on the GPU.
pub struct OnDevice {
    /// Where they are.
    pub address: u64,
    /// What they are in, if that is not where the chunk stays.
    pub allocation: Option<Arc<Allocation>>,
    /// What is to be done with them.
    pub work: Work,
    /// When they are there; known from their departure on.
    pub arrived: Option<Arc<CudaEvent>>,
}

/// How far behind an aligned address the bytes of a chunk begin on which this work is to be done in place, so that its elements
/// are aligned.
pub fn misalignment(work: &Work) -> u64 {
    (ELEMENT_ALIGNMENT - work.elements.start % ELEMENT_ALIGNMENT) % ELEMENT_ALIGNMENT
}

/// What all GPU workers of a reader share.
pub struct GpuWorkerContext {
    /// The GPU.
    pub gpu: Arc<Gpu>,
    /// Its kernels.
    pub kernels: Kernels,
    /// A part of its multiprocessors, if that can be had.
    pub green: Option<Arc<GreenContext>>,
    /// nvCOMP, if any array needs it.
    pub nvcomp: Option<Arc<Zstd>>,
    /// What is read.
    pub dataset: Arc<Dataset>,
    /// Chunks that need not be checked again.
    pub verified: Arc<VerifiedChunks>,
    /// How its chunks are decoded.
    pub parts: Arc<PartPlans>,
    /// Work.
    pub queue: Arc<Queue<GpuTask>>,
    /// Who decides what the GPU takes.
    pub jobs: Arc<Jobs>,
    /// What is counted.
    pub counters: Arc<Counters>,
}

impl GpuWorkerContext {
    fn conversion(&self, task: &GpuTask) -> &Conversion {
        &self.parts[task.chunk.place()].conversion
    }
}

/// Staging bytes of a unit, apart from its streams, passes and regions: its status, and what aligning may cost.
const UNIT_BYTES: u64 = 16;
/// Staging bytes of a stream: a [`StreamOnDevice`], or for zstd two pointers, three sizes and a status.
const STREAM_BYTES: u64 = 48;
/// Staging bytes of a zstd frame besides, for its check.
const FRAME_BYTES: u64 = size_of::<CheckedFrame>() as u64;
/// Staging bytes of a block of such a frame: what the host read of it, and what the GPU found out.
const BLOCK_BYTES: u64 = size_of::<Block>() as u64 + SUMMARY_BYTES;
/// Staging bytes of a pass, whichever it is; a stream may have a check of its own.
const PASS_BYTES: u64 = 48;
/// What aligning the parts of a whole arena may cost.
const ARENA_SLACK: u64 = 16 << 10;
/// A chunk's elements start at a multiple of this, so that they are gathered with wide accesses.
pub const ELEMENT_ALIGNMENT: u64 = 16;

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(DeviceMemory::ALIGNMENT)
}

fn aligned_down(address: u64) -> u64 {
    address - address % DeviceMemory::ALIGNMENT
}

/// Size of an area in the arena, with room to move its start.
fn area_bytes(bytes: u64) -> u64 {
    aligned(bytes + ELEMENT_ALIGNMENT)
}

/// Arena bytes that a unit on a decode path needs with up to `boxes` boxes, alone in a group. Groups need at most the sum.
/// Without nvCOMP the bound for zstd's scratch memory stands alone.
///
/// # Errors
/// What nvCOMP says.
pub fn unit_bytes(zstd: Option<&Zstd>, decode_path: &DecodePath, boxes: u64) -> Result<u64> {
    let regions = boxes * size_of::<Region>() as u64 + size_of::<ConversionOnDevice>() as u64;
    let least = UNIT_BYTES + regions + ARENA_SLACK;
    let DecodePath::Gpu(chain) = decode_path else { return Ok(least) };
    let most = chain.most();
    let scratch = match most.zstd_blocks {
        0 => 0,
        _ => {
            let one = Frames::default().with(most.area_bytes);
            let usual = zstd.map_or(Ok(0), |zstd| zstd.usual_scratch_bytes(one))?;
            usual.max(crate::codec::zstd::gpu_scratch_bound(most.area_bytes))
        }
    };
    Ok(least
        + area_bytes(most.area_bytes) * most.areas
        + aligned(scratch)
        + most.streams * (STREAM_BYTES + FRAME_BYTES + PASS_BYTES)
        + most.zstd_blocks * BLOCK_BYTES
        + most.areas * 2 * PASS_BYTES)
}

/// Sizes of the parts of an arena.
#[derive(Clone, Copy, Default)]
struct Sizes {
    areas: u64,
    work_list: u64,
    zstd: Frames,
}

impl Sizes {
    fn with(mut self, task: &GpuTask, conversion: &Conversion) -> Self {
        if let Payload::OnDevice(OnDevice { work, .. }) = &task.payload {
            self = self.with_work(work, target(task, conversion).is_some());
        }
        self.work_list += UNIT_BYTES;
        self.work_list += task.units.iter().map(|unit| Regions::bytes(&unit.boxes)).sum::<u64>();
        // The units of a chunk share it.
        self.work_list += Regions::conversion_bytes(conversion);
        self
    }

    /// With a chunk whose last area is elsewhere or not.
    fn with_work(mut self, work: &Work, has_target: bool) -> Self {
        // Bytes that are not decoded are an area themselves.
        let areas = work.areas() - u64::from(work.streams.is_empty());
        self.areas += area_bytes(work.bytes) * areas.saturating_sub(u64::from(has_target));
        for stream in &work.streams {
            if let Decoder::Zstd(_) = stream.decoder {
                self.zstd = self.zstd.with(stream.to.end - stream.to.start);
                self.work_list += FRAME_BYTES;
            }
        }
        self.work_list += work.zstd_blocks() * BLOCK_BYTES;
        self.work_list += work.streams.len() as u64 * STREAM_BYTES + work.passes.len() as u64 * PASS_BYTES;
        self
    }

    fn scratch(&self, zstd: Option<&Zstd>) -> Result<u64> {
        zstd.map_or(Ok(0), |zstd| zstd.usual_scratch_bytes(self.zstd))
    }

    fn arena_bytes(&self, scratch: u64) -> u64 {
        self.areas + self.work_list + aligned(scratch) + ARENA_SLACK
    }
}

/// One GPU worker.
pub struct GpuWorker {
    /// Says whether the GPU still comes to an end with its groups.
    pub watchdog: Arc<Watchdog>,
    context: Arc<GpuWorkerContext>,
    /// Where the present group is worked on.
    stream: Arc<CudaStream>,
    /// On all multiprocessors, and on a part of them, if that can be had.
    whole: Arc<CudaStream>,
    partition: Option<GreenStream>,
    arena: DeviceMemory,
    work_list: Option<PinnedMemory>,
    decoded: CudaEvent,
    done: CudaEvent,
}

impl GpuWorker {
    /// A GPU worker with an arena of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: Arc<GpuWorkerContext>, arena_bytes: u64) -> Result<Self> {
        let whole = context.gpu.stream()?;
        Ok(Self {
            watchdog: Arc::default(),
            stream: whole.clone(),
            whole,
            partition: context.green.as_ref().and_then(|green| green.stream(&context.gpu)),
            arena: DeviceMemory::new(&context.gpu, arena_bytes)?,
            work_list: None,
            decoded: context.gpu.event()?,
            done: context.gpu.event()?,
            context,
        })
    }

    /// Waits for the next group and processes it. False once the queue is closed.
    pub fn step(&mut self) -> bool {
        let Some(mut group) = self.take() else { return false };
        let _range = trace::range(Stage::DecodeOnGpu, group.len() as u64);
        let watchdog = self.watchdog.clone();
        let _waiting = watchdog.waits(GpuWork::Decoding, Some(&group[0].at), group.len());
        let done = catch_unwind(AssertUnwindSafe(|| self.process(&mut group)));
        let done = done.unwrap_or_else(|payload| Err(Error::panic("a GPU lane", &*payload)));
        if let Err(error) = done {
            self.settle(&group);
            fail_all(&group, error);
        }
        true
    }

    fn array(&self, task: &GpuTask) -> &ArrayInfo {
        let (array, part) = task.chunk.place();
        self.context.dataset.part(array, part)
    }

    /// Takes as many waiting units as the arena holds.
    fn take(&self) -> Option<Vec<GpuTask>> {
        let zstd = self.context.nvcomp.as_deref();
        let mut sizes = Sizes::default();
        let mut kind = None;
        let patient = |waited| self.context.jobs.has_time(waited);
        self.context.queue.pop_group(patient, |task| {
            // Chunks that only have to be copied do not wait for others to be decoded.
            let cached = matches!(task.payload, Payload::Cached);
            if *kind.get_or_insert(cached) != cached {
                return false;
            }
            let more = sizes.with(task, self.context.conversion(task));
            // An error of nvCOMP's comes back when the group is laid out, where it can be reported.
            let scratch = more.scratch(zstd).unwrap_or(0);
            let fits = more.arena_bytes(scratch) <= self.arena.bytes();
            if fits || sizes.work_list == 0 {
                sizes = more;
            }
            fits
        })
    }

    /// Waits until nothing of a group is in flight any more, where something went wrong, so that its memory may go to others.
    fn settle(&self, group: &[GpuTask]) {
        // What was enqueued before the error still uses the group's memory, and what was not waited for is on its way there. If
        // even this fails, the context is broken and nothing runs any more.
        for task in group {
            if let Payload::OnDevice(OnDevice { arrived: Some(arrived), .. }) = &task.payload {
                let _ = arrived.synchronize();
            }
        }
        let _ = self.stream.synchronize();
    }

    /// Decodes and gathers a group, and waits for it.
    fn process(&mut self, group: &mut [GpuTask]) -> Result<()> {
        // The group before has come to its end, so that the streams need not wait for each other.
        self.stream = match &self.partition {
            Some(partition) if self.context.jobs.keeps_to_few(group.iter().any(|task| task.by_gpu)) => {
                partition.stream().clone()
            }
            _ => self.whole.clone(),
        };
        let results = self.enqueue(group)?;
        self.done.synchronize().map_err(Error::cuda("decoding a group of chunks"))?;
        // The rest of the time was gathering.
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

        // The parts of the arena, one behind the other.
        let areas = self.arena.address();
        let scratch = areas + sizes.areas;
        // At the end of the arena, so that the scratch memory has all that is left. The arena may be of any size.
        let end = self.arena.address() + self.arena.bytes();
        let work_list = aligned_down(end - sizes.work_list - ARENA_SLACK / 2);

        let mut plan = Plan { areas, ..Plan::default() };
        let mut builder = WorkList { bytes: vec![], device: work_list };
        let statuses = builder.put(&vec![0 as StreamStatus; group.len()]);
        let mut regions = Regions::default();
        let mut staying = vec![];
        let mut last_arrival = None;
        for (number, task) in group.iter().enumerate() {
            let array = self.array(task);
            let fill = Source::Fill(array.fill_element().unwrap_or_default());
            let conversion = context.conversion(task);
            let target = target(task, conversion);
            let source = match &task.payload {
                Payload::Missing => fill,
                Payload::Cached => match (task.chunk.cached(), task.chunk.allocation()) {
                    (Some(Cached::Device { swaps_bytes }), Some(allocation)) => {
                        Source::Decoded { address: allocation.address(), swaps_bytes }
                    }
                    _ => fill,
                },
                Payload::OnDevice(on_device) => {
                    let status = statuses + (number * size_of::<StreamStatus>()) as u64;
                    let verified = task.identity.is_some_and(|identity| context.verified.contains(identity));
                    // Neighbours often arrive together.
                    let arrival = on_device.arrived.as_ref().map(Arc::as_ptr);
                    if let (Some(arrived), true) = (&on_device.arrived, arrival != last_arrival) {
                        self.stream.wait(arrived).map_err(Error::cuda("waiting for a chunk to arrive"))?;
                        last_arrival = arrival;
                    }
                    let to = target.map(|target| target.address());
                    let address =
                        plan.chunk(number, status, on_device.address, &on_device.work, verified, to);
                    match (task.chunk.allocation(), target) {
                        (_, Some(Target::Output(_))) => continue,
                        (Some(allocation), _) if allocation.address() != address => {
                            staying.push((allocation.address(), address, array.read_chunk_bytes()));
                        }
                        _ => {}
                    }
                    Source::Decoded { address, swaps_bytes: on_device.work.swaps_bytes }
                }
            };
            for unit in &task.units {
                let output = unit.batch.outputs[unit.output].address;
                regions.add(source, &unit.boxes, conversion, output);
            }
        }

        let known_frames = std::mem::take(&mut plan.known_frames);
        plan.frames.append(known_frames);
        let streams = plan.streams.each_ref().map(|list| (builder.put(list), list.len()));
        let frames = FramesOnDevice {
            first: 0,
            count: plan.frames.encoded.len(),
            largest: sizes.zstd.largest,
            encoded: builder.put(&plan.frames.encoded),
            encoded_bytes: builder.put(&plan.frames.encoded_bytes),
            decoded: builder.put(&plan.frames.decoded),
            decoded_bytes: builder.put(&plan.frames.decoded_bytes),
            actual_bytes: builder.put(&vec![0u64; plan.frames.encoded.len()]),
            statuses: builder.put(&vec![0u32; plan.frames.encoded.len()]),
        };
        let checked = FramesToCheck {
            frames: builder.put(&plan.checked),
            count: plan.checked.len(),
            blocks: builder.put(&plan.blocks),
            block_count: plan.blocks.len(),
            summaries: builder.put(&vec![[0u8; SUMMARY_BYTES as usize]; plan.blocks.len()]),
            encoded: frames.encoded,
            encoded_bytes: frames.encoded_bytes,
            valid: builder.put(&VALID_FRAME),
            valid_bytes: VALID_FRAME.len() as u64,
        };
        let levels: Vec<_> = plan
            .levels
            .iter()
            .map(|level| {
                let checks = (builder.put(&level.checks), level.checks.len());
                let shuffled = (builder.put(&level.shuffled), level.shuffled.len());
                (checks, shuffled, level.tiles)
            })
            .collect();
        let deltas = (builder.put(&plan.deltas), plan.deltas.len());
        let region_list = builder.put(regions.list());
        // Right behind the regions, whose size is a multiple of the arrays' alignment.
        builder.put(&regions.conversions());
        self.upload(&builder.bytes, work_list)?;
        let mut waited_for: Vec<*const crate::batch::Batch> = vec![];
        for unit in group.iter().flat_map(|task| &task.units) {
            let batch = Arc::as_ptr(&unit.batch);
            if let (Some(writable), false) = (&unit.batch.writable, waited_for.contains(&batch)) {
                self.stream.wait(writable).map_err(Error::cuda("waiting for output memory"))?;
                waited_for.push(batch);
            }
        }

        let kernels = &context.kernels;
        for (kernel, (list, count)) in StreamKernel::ALL.into_iter().zip(streams) {
            // SAFETY: the list was put into this GPU worker's arena by the copy above; the streams lie in the arena.
            unsafe { kernels.decode(&self.stream, kernel, list, count)? };
        }
        if let (Some(decoder), true) = (&context.nvcomp, frames.count > 0) {
            // SAFETY: as above; nvCOMP's arrays are those that the check may change.
            unsafe { kernels.check_zstd(&self.stream, &checked)? };
            // SAFETY: as above, for the arrays and the frames; the scratch memory lies between areas and staging.
            unsafe { decoder.decompress(&self.stream, &frames, scratch..work_list)? };
        }
        for (checks, shuffled, tiles) in levels {
            // SAFETY: as above; what they read was written by what precedes them on the stream.
            unsafe {
                kernels.check(&self.stream, checks.0, checks.1)?;
                kernels.unshuffle(&self.stream, shuffled.0, shuffled.1, tiles)?;
            }
        }
        // SAFETY: as above.
        unsafe { kernels.undo_delta(&self.stream, deltas.0, deltas.1)? };
        self.decoded.record(&self.stream).map_err(Error::cuda("recording an event"))?;
        // SAFETY: the regions were put into this GPU worker's arena by the copy above; their sources lie in the arena, where chunks
        // landed or where they stay, their destinations in outputs that stay until their units are finished, which is after `process` waited.
        unsafe { kernels.gather(&self.stream, region_list, regions.list().len(), regions.tiles())? };
        for (allocation, from, bytes) in staying {
            // SAFETY: the decoded chunk lies in the arena, its room has its size and belongs to the chunk alone.
            unsafe { result::memcpy_dtod_async(allocation, from, bytes as usize, self.stream.cu_stream()) }
                .map_err(Error::cuda("copying a chunk to where it stays"))?;
        }

        let results =
            self.download(statuses, group.len(), &frames, plan.frames.frames, builder.bytes.len())?;
        self.done.record(&self.stream).map_err(Error::cuda("recording an event"))?;
        Ok(results)
    }

    /// Copies the work list to the device, through pinned memory of this GPU worker. Keeps room behind it for what comes back.
    fn upload(&mut self, bytes: &[u8], to: u64) -> Result<()> {
        let wanted = bytes.len() * 2;
        if self.work_list.as_ref().is_none_or(|work_list| work_list.bytes() < wanted) {
            self.work_list =
                Some(PinnedMemory::new(&self.context.gpu, wanted.next_power_of_two().max(64 << 10))?);
        }
        let Some(work_list) = &self.work_list else { return Ok(()) };
        // SAFETY: the staging memory is at least that long and belongs to this GPU worker, whose last group was waited for.
        let staged = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), work_list.address(), bytes.len());
            std::slice::from_raw_parts(work_list.address(), bytes.len())
        };
        // SAFETY: the work list fits there, as `enqueue` has checked; the staging memory stays until the GPU worker's next group.
        unsafe { result::memcpy_htod_async(to, staged, self.stream.cu_stream()) }
            .map_err(Error::cuda("copying the work list to the GPU"))
    }

    /// Enqueues the way back of sizes and statuses, into the second half of the staging memory, from `offset` on.
    fn download(
        &self,
        statuses: u64,
        units: usize,
        frames: &FramesOnDevice,
        frame_list: Vec<FrameOfUnit>,
        offset: usize,
    ) -> Result<Results> {
        let count = frames.count;
        let Some(work_list) = self.work_list.as_ref() else { return Ok(Results::default()) };
        let offset = offset.next_multiple_of(8);
        // SAFETY: `upload` made the staging memory twice as long as its contents, of which these are a part.
        let results = unsafe {
            let sizes = work_list.address().add(offset).cast::<u64>();
            let frame_statuses = sizes.add(count).cast::<nvcompStatus_t>();
            let statuses = frame_statuses.add(count).cast::<StreamStatus>();
            Results { units, statuses, frames: frame_list, sizes, frame_statuses }
        };
        for (from, to, bytes) in [
            (frames.actual_bytes, results.sizes.cast::<u8>(), count * size_of::<u64>()),
            (frames.statuses, results.frame_statuses.cast(), count * size_of::<nvcompStatus_t>()),
            (statuses, results.statuses.cast(), units * size_of::<StreamStatus>()),
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

    /// Fails the units whose chunks were not decoded as they should, and remembers the others.
    fn report(&self, group: &[GpuTask], results: &Results) {
        let mut problems: Vec<Option<String>> = vec![None; group.len()];
        for (unit, problem) in problems.iter_mut().enumerate().take(results.units) {
            // SAFETY: there is an entry for each unit in the GPU worker's staging memory, and the copy into it has ended.
            let status = unsafe { *results.statuses.add(unit) };
            *problem = (status != 0).then(|| status_text(status).into());
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
            problems[frame.unit].get_or_insert(problem);
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

    /// Counts a chunk, and lets those have it who came for it meanwhile.
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

/// Where the last step of decoding a chunk writes, if not to the arena.
#[derive(Clone, Copy)]
enum Target {
    /// To where it stays.
    Allocation(u64),
    /// To the output of the only unit.
    Output(u64),
}

impl Target {
    fn address(self) -> u64 {
        match self {
            Self::Allocation(address) | Self::Output(address) => address,
        }
    }
}

fn target(task: &GpuTask, conversion: &Conversion) -> Option<Target> {
    let Payload::OnDevice(OnDevice { work, .. }) = &task.payload else { return None };
    let in_place = work.streams.is_empty() && work.areas() == 1;
    if in_place || work.elements != (0..work.bytes) {
        return None;
    }
    if let Some(allocation) = task.chunk.allocation() {
        return Some(Target::Allocation(allocation.address()));
    }
    let [unit] = &task.units[..] else { return None };
    let output = unit.batch.outputs[unit.output];
    let address = whole_chunk(&unit.boxes, conversion, work.bytes, output)?;
    // Differences are added up in place, which may as well be there. Decoders need no other alignment.
    (!work.swaps_bytes && address.is_multiple_of(ELEMENT_ALIGNMENT)).then_some(Target::Output(address))
}

/// An error of a whole group: the first batch gets it, the others its text.
fn fail_all(group: &[GpuTask], error: Error) {
    let error = Arc::new(error);
    group.iter().for_each(|task| task.fail(Error::Sticky(error.clone())));
}

/// What the kernels of a group do, in device addresses.
#[derive(Default)]
struct Plan {
    /// Where the next area begins.
    areas: u64,
    streams: [Vec<StreamOnDevice>; StreamKernel::ALL.len()],
    /// Frames that have to be checked, and behind them in the end those that need not.
    frames: FrameArrays,
    known_frames: FrameArrays,
    /// One for each frame that has to be checked.
    checked: Vec<CheckedFrame>,
    blocks: Vec<Block>,
    levels: Vec<Level>,
    deltas: Vec<DeltaOnDevice>,
}

/// Passes that can run at the same time: the checks of areas, then the unshuffling of some of them into others.
#[derive(Default)]
struct Level {
    checks: Vec<CheckOnDevice>,
    shuffled: Vec<ShuffledOnDevice>,
    /// Of all that is shuffled.
    tiles: u64,
}

/// What nvCOMP wants to know of frames.
#[derive(Default)]
struct FrameArrays {
    frames: Vec<FrameOfUnit>,
    encoded: Vec<u64>,
    encoded_bytes: Vec<u64>,
    decoded: Vec<u64>,
    decoded_bytes: Vec<u64>,
}

impl FrameArrays {
    fn append(&mut self, mut others: Self) {
        self.frames.append(&mut others.frames);
        self.encoded.append(&mut others.encoded);
        self.encoded_bytes.append(&mut others.encoded_bytes);
        self.decoded.append(&mut others.decoded);
        self.decoded_bytes.append(&mut others.decoded_bytes);
    }
}

/// A frame, for its result.
struct FrameOfUnit {
    unit: usize,
    bytes: u64,
}

impl Plan {
    /// Plans the work on a chunk that landed at `on_device`. Returns where its elements will be: in its last area, which is at
    /// `target` if that is given. Frames of chunks that are `verified` to be valid are not checked.
    fn chunk(
        &mut self,
        unit: usize,
        status: u64,
        on_device: u64,
        work: &Work,
        verified: bool,
        target: Option<u64>,
    ) -> u64 {
        // Bytes that are not decoded are the first area themselves.
        let mut areas_left = work.areas() - u64::from(work.streams.is_empty());
        let mut next_area = |plan: &mut Self| {
            areas_left -= 1;
            target.filter(|_| areas_left == 0).unwrap_or_else(|| plan.area(work))
        };
        let mut area = if work.streams.is_empty() { on_device } else { next_area(self) };
        for stream in &work.streams {
            let (from, from_bytes) = (on_device + stream.from.start, stream.from.end - stream.from.start);
            let (to, to_bytes) = (area + stream.to.start, stream.to.end - stream.to.start);
            let kernel = match &stream.decoder {
                Decoder::Stored => StreamKernel::Stored,
                Decoder::Lz4 => StreamKernel::Lz4,
                Decoder::BloscLz => StreamKernel::BloscLz,
                Decoder::Snappy => StreamKernel::Snappy,
                Decoder::Inflate => StreamKernel::Inflate,
                Decoder::Zstd(blocks) => {
                    let frames = if verified { &mut self.known_frames } else { &mut self.frames };
                    frames.frames.push(FrameOfUnit { unit, bytes: to_bytes });
                    frames.encoded.push(from);
                    frames.encoded_bytes.push(from_bytes);
                    frames.decoded.push(to);
                    frames.decoded_bytes.push(to_bytes);
                    if !verified {
                        self.checked.push(CheckedFrame {
                            from,
                            status,
                            to_bytes: to_bytes as u32,
                            first_block: self.blocks.len() as u32,
                            blocks: blocks.len() as u32,
                            padding: 0,
                        });
                        self.blocks.extend(blocks);
                    }
                    continue;
                }
            };
            let (from_bytes, to_bytes) = (from_bytes as u32, to_bytes as u32);
            self.streams[kernel as usize].push(StreamOnDevice { from, to, from_bytes, to_bytes, status });
        }
        let mut level = 0;
        for pass in &work.passes {
            if self.levels.len() == level {
                self.levels.push(Level::default());
            }
            match *pass {
                Pass::Check { checksum, start, end, expected } => {
                    let (expected, is_at) = match expected {
                        Expected::Value(value) => (value.into(), 0),
                        Expected::At(at) => (area + at, 1),
                    };
                    self.levels[level].checks.push(CheckOnDevice {
                        from: area + start,
                        bytes: end - start,
                        expected,
                        status,
                        kind: kind(checksum),
                        is_at,
                    });
                }
                Pass::Unshuffle { bits, start, end, element_bytes, block_bytes } => {
                    let next = next_area(self);
                    let level_list = &mut self.levels[level];
                    let shuffled = ShuffledOnDevice {
                        from: area + start,
                        to: next,
                        bytes: end - start,
                        block_bytes,
                        element_bytes,
                        kind: if bits { 2 } else { 1 },
                        first_tile: level_list.tiles,
                        reserved: 0,
                    };
                    level_list.tiles += shuffled.tiles();
                    level_list.shuffled.push(shuffled);
                    area = next;
                    level += 1;
                }
                Pass::UndoDelta { element_bytes } => self.deltas.push(DeltaOnDevice {
                    address: area + work.elements.start,
                    elements: (work.elements.end - work.elements.start) / u64::from(element_bytes),
                    element_bytes,
                    reserved: 0,
                }),
            }
        }
        area + work.elements.start
    }

    /// The start of a new area, such that the elements are aligned should they end up in it.
    fn area(&mut self, work: &Work) -> u64 {
        let area = self.areas + misalignment(work);
        self.areas += area_bytes(work.bytes);
        area
    }
}

/// The number of a checksum in `checks.cuh`.
fn kind(checksum: Checksum) -> u32 {
    match checksum {
        Checksum::Crc32 => 1,
        Checksum::Adler32 => 2,
        Checksum::Xxh64 => 3,
        Checksum::Crc32c => 4,
        Checksum::Fletcher32 => 5,
    }
}

/// Where results arrive, in the GPU worker's staging memory: a status for each unit, a size and a status for each frame.
struct Results {
    units: usize,
    statuses: *const StreamStatus,
    frames: Vec<FrameOfUnit>,
    sizes: *const u64,
    frame_statuses: *const nvcompStatus_t,
}

impl Default for Results {
    fn default() -> Self {
        Self {
            units: 0,
            statuses: std::ptr::null(),
            frames: vec![],
            sizes: std::ptr::null(),
            frame_statuses: std::ptr::null(),
        }
    }
}

/// Collects small arrays that go to the device in one copy.
struct WorkList {
    bytes: Vec<u8>,
    device: u64,
}

/// Plain data that may be copied to the device byte by byte.
trait Plain: Copy {}
impl Plain for u64 {}
impl Plain for u32 {}
impl Plain for u8 {}
impl Plain for [u8; SUMMARY_BYTES as usize] {}
impl Plain for Block {}
impl Plain for CheckedFrame {}
impl Plain for Region {}
impl Plain for ConversionOnDevice {}
impl Plain for StreamOnDevice {}
impl Plain for CheckOnDevice {}
impl Plain for ShuffledOnDevice {}
impl Plain for DeltaOnDevice {}

impl WorkList {
    /// Adds an array; returns its address on the device.
    fn put<T: Plain>(&mut self, values: &[T]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let address = self.device + self.bytes.len() as u64;
        // SAFETY: `Plain` types have no padding and no invalid bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        self.bytes.extend_from_slice(bytes);
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Progress};
    use crate::codec::work::Stream;
    use crate::dataset::{ElementType, StoredType};
    use crate::plan::{ChunkKey, CopyBox, Dims};
    use proptest::prelude::*;
    use std::ops::Range;

    /// Work with streams and passes of all kinds; whether it makes sense does not matter here.
    fn work() -> impl Strategy<Value = Work> {
        let decoder = prop::sample::select(vec![
            Decoder::Stored,
            Decoder::Lz4,
            Decoder::BloscLz,
            Decoder::Snappy,
            Decoder::Inflate,
            Decoder::Zstd(crate::codec::zstd::blocks(&VALID_FRAME, 0).unwrap()),
        ]);
        let pass = prop_oneof![
            Just(Pass::UndoDelta { element_bytes: 4 }),
            Just(Pass::Unshuffle { bits: true, start: 0, end: 8, element_bytes: 4, block_bytes: 8 }),
            Just(Pass::Check { checksum: Checksum::Crc32, start: 0, end: 8, expected: Expected::At(4) }),
        ];
        let streams = prop::collection::vec((decoder, 0u64..50, 0u64..900), 0..6);
        (1u64..2000, 0u64..9, streams, prop::collection::vec(pass, 0..5)).prop_map(
            |(bytes, start, streams, passes)| Work {
                streams: streams
                    .into_iter()
                    .map(|(decoder, from, size)| Stream {
                        decoder,
                        from: from..from + 40,
                        to: 0..size.min(bytes),
                    })
                    .collect(),
                passes,
                bytes: bytes + start,
                elements: start..bytes + start,
                swaps_bytes: false,
            },
        )
    }

    #[test]
    fn an_arena_for_so_many_boxes_holds_them_whoever_they_are_for() {
        const BOXES: u64 = 16;
        let read = StoredType::Element(ElementType::Float32);
        let conversion = Conversion::new(read, None, None, None, Some(ElementType::Float16)).unwrap();
        assert!(Regions::conversion_bytes(&conversion) > 0);
        let batch = Batch::new(0, vec![], vec![], None, Progress::new(Arc::default()));
        let piece = CopyBox {
            from: 0,
            to: 0,
            extents: smallvec![2, 2],
            from_strides: smallvec![3, 1],
            to_strides: smallvec![4, 1],
        };
        let unit = || batch.unit(0, smallvec![piece.clone()]);
        let key = ChunkKey { array: 0, part: 0, number: 0 };
        let chunk = Chunk::new(key, Dims::new(), None, unit());
        let units = (0..BOXES).map(|_| unit()).collect();
        let task = GpuTask { units, ..GpuTask::new(chunk, Payload::Missing, Context::default()) };
        let needed = Sizes::default().with(&task, &conversion).arena_bytes(0);
        assert!(needed <= unit_bytes(None, &DecodePath::Cpu(String::new()), BOXES).unwrap());
    }

    proptest! {
        #[test]
        fn chunks_of_a_group_have_their_own_places_and_fit(works in prop::collection::vec((work(), any::<bool>()), 1..8)) {
            const LANDED: u64 = 1 << 20;
            const TARGET: u64 = 1 << 10;
            let start = 1 << 30;
            let mut plan = Plan { areas: start, ..Plan::default() };
            let mut sizes = Sizes::default();
            let mut taken: Vec<Range<u64>> = vec![];
            for (unit, (work, has_target)) in works.iter().enumerate() {
                sizes = sizes.with_work(work, *has_target);
                let areas = plan.areas;
                let target = has_target.then_some(TARGET);
                let elements = plan.chunk(unit, 0, LANDED, work, unit % 3 == 0, target);
                let in_place = work.streams.is_empty() && work.areas() == 1;
                match (in_place, has_target) {
                    (true, _) => prop_assert_eq!(elements, LANDED + work.elements.start),
                    (_, true) => prop_assert_eq!(elements, TARGET + work.elements.start),
                    (_, false) => {
                        prop_assert_eq!(elements % ELEMENT_ALIGNMENT, 0);
                        prop_assert!(elements >= areas && elements + work.elements.end - work.elements.start <= plan.areas);
                    }
                }
                taken.push(areas..plan.areas);
            }
            prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert_eq!(plan.areas - start, sizes.areas);
            let known_frames = std::mem::take(&mut plan.known_frames);
            plan.frames.append(known_frames);
            prop_assert_eq!(plan.frames.frames.len() as u64, sizes.zstd.count);
            // Entry i of nvCOMP's arrays is the frame that check number i may take out of them.
            for (i, checked) in plan.checked.iter().enumerate() {
                prop_assert_eq!(plan.frames.encoded[i], checked.from);
            }

            // What goes through the staging memory.
            let mut work_list = WorkList { bytes: vec![], device: 0 };
            for list in &plan.streams {
                work_list.put(list);
            }
            for list in [&plan.frames.encoded; 5] {
                work_list.put(list);
            }
            work_list.put(&vec![0u32; plan.frames.frames.len()]);
            work_list.put(&plan.checked);
            work_list.put(&plan.blocks);
            work_list.put(&vec![[0u8; SUMMARY_BYTES as usize]; plan.blocks.len()]);
            for level in &plan.levels {
                work_list.put(&level.checks);
                work_list.put(&level.shuffled);
            }
            work_list.put(&plan.deltas);
            prop_assert!(work_list.bytes.len() as u64 <= sizes.work_list + ARENA_SLACK / 4);
        }
    }
}
