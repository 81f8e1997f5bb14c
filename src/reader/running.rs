//! The threads of a reader: how they are started, what they share, and how they stop.

use super::checkpoint::Cursor;
use super::device::Device;
use super::memory_plan::MemoryPlan;
use super::setup::Setup;
use super::status::{MemoryInUse, Status};
use crate::batch::{Batch, Progress};
use crate::decode::Queue;
use crate::decode::chunk::Chunk;
use crate::decode::chunk_cache::ChunkCache;
use crate::decode::chunk_source::ChunkSource;
use crate::decode::cpu::CpuDecoder;
use crate::decode::device_pool::DevicePool;
use crate::decode::gpu_task::GpuTask;
use crate::decode::gpu_worker::{GpuWorker, GpuWorkerContext};
use crate::decode::jobs::Jobs;
use crate::decode::part::Placement;
use crate::decode::planner::{self, Planner};
use crate::decode::prefetch::Prefetcher;
use crate::decode::upload::{GdsStaging, PinnedBodies, UploadContext, Uploader, UploaderParts};
use crate::decode::watchdog::{self, Watchdog};
use crate::decode::worker::{Target, WorkerContext, WorkerState};
use crate::error::{Error, GpuWork, Result, log_once};
use crate::fetch::cufile::Memory;
use crate::fetch::scheduler::Limits;
use crate::fetch::{self, DiskCache, Fetch, Gds, Locator, Posix};
use crate::gpu::{DeviceMemory, EventPool, GreenContext, Kernels, PinnedPool};
use crate::options::{self, Io, MissingChunks, Options, argument};
use crate::store::{BodyMemory, Buffers};

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

/// The threads of a reader. Dropping it stops and joins them; nothing writes to outputs afterwards.
pub(super) struct Running {
    planner: Option<mpsc::Sender<Arc<Batch>>>,
    /// Knows which submitted batches are complete.
    pub progress: Arc<Progress>,
    /// The queues of chunks to read and to decode.
    pub jobs: Arc<Jobs>,
    gpu_tasks: Arc<Queue<GpuTask>>,
    pinned: Option<Arc<PinnedPool>>,
    /// Each thread with its watchdog, which knows whether the thread is stuck in a call of the GPU.
    threads: Vec<(Arc<Watchdog>, JoinHandle<()>)>,
    upload_pool: Option<Arc<DevicePool>>,
    cache_pool: Option<Arc<DevicePool>>,
    /// The device memory that is registered with cuFile; given back first.
    registered: Option<Memory>,
    /// Device memory.
    memory: Vec<DeviceMemory>,
}

/// What starting threads needs of their reader.
pub(super) struct Start<'a> {
    /// What is read.
    pub setup: &'a Setup,
    /// How memory is shared out.
    pub plan: &'a MemoryPlan,
    /// GPU backend: the GPU.
    pub device: Option<&'a Device>,
    /// Where the reader starts in the order of samples.
    pub cursor: &'a Cursor,
    /// What the threads count in.
    pub status: &'a Status,
}

/// What the [`Uploader`] of a worker thread is made of.
type UploaderSetup = (UploaderParts, Option<GdsStaging>);

impl Running {
    /// Starts all threads, and allocates device memory for as long as they live.
    ///
    /// # Errors
    /// Threads and GPU memory that cannot be had.
    pub fn start(start: &Start) -> Result<Self> {
        let progress = Progress::new(start.status.counters.clone());
        let prefetcher = Arc::<Prefetcher>::default();
        let (io_threads, decoders) = (start.setup.io_threads(), start.plan.decode_threads);
        let jobs = Jobs::new(start.setup.parts.clone(), decoders, progress.clone(), prefetcher.clone());
        let mut running = Self::without_threads(jobs, progress);
        let mut base = 0;
        let mut uploaders = vec![];
        let remote_parts = start.remote_parts();
        let device = start.device.filter(|_| !remote_parts.is_empty());
        let bodies = device.and_then(|device| start.pinned_bodies(device));
        let target = match start.device {
            None => Target::Host,
            Some(device) => {
                base = running.allocate(device, start.plan.chunk_cache_bytes)?;
                running.start_gpu(start, device, bodies.as_deref(), &mut uploaders)?
            }
        };
        let remote = start.remote(&running.jobs, remote_parts, bodies)?;
        let fetcher = remote.as_ref().map(|remote| remote.fetcher.clone());
        let workers = Arc::new(start.worker_context(target, prefetcher, fetcher));
        for number in 0..io_threads + decoders {
            running.start_worker(workers.clone(), uploaders.pop(), number >= io_threads)?;
        }
        let cache_pool = DevicePool::new(base, start.plan.chunk_cache_bytes);
        running.cache_pool = Some(cache_pool.clone());
        start.status.started(cache_pool.clone(), running.memory_in_use(start));
        running.start_planner(start, cache_pool, remote)?;
        Ok(running)
    }

    fn without_threads(jobs: Arc<Jobs>, progress: Arc<Progress>) -> Self {
        Self {
            jobs,
            progress,
            gpu_tasks: Arc::default(),
            planner: None,
            pinned: None,
            threads: vec![],
            upload_pool: None,
            cache_pool: None,
            registered: None,
            memory: vec![],
        }
    }

    /// Allocates the upload pool, pinned memory and staging buffers, and starts the GPU workers. What the worker threads
    /// make their uploaders of goes to `uploaders`, the first thread's last.
    fn start_gpu(
        &mut self,
        start: &Start,
        device: &Device,
        bodies: Option<&PinnedBodies>,
        uploaders: &mut Vec<UploaderSetup>,
    ) -> Result<Target> {
        let (io_threads, decoders) = (start.setup.io_threads(), start.plan.decode_threads);
        let upload_pool = device.memory.upload_pool_bytes;
        let upload_pool = DevicePool::new(self.allocate(device, upload_pool)?, upload_pool);
        self.upload_pool = Some(upload_pool.clone());
        let largest = device.memory.largest_pinned_bytes;
        let pinned = PinnedPool::new(&device.gpu, start.plan.host_bytes, largest);
        self.pinned = Some(pinned.clone());
        let staging = self.allocate(device, device.memory.staging_bytes)?;
        if let Some(driver) = &device.cufile {
            // SAFETY: it is given back before the memory, see `Running`.
            let memory = unsafe { driver.memory(staging, device.memory.staging_bytes) };
            let memory = memory.map_err(|problem| argument("io", problem))?;
            self.registered = Some(memory);
        }
        let half = device.memory.staging_bytes / (2 * io_threads as u64).max(1);
        let kernels = Arc::new(Kernels::load(&device.gpu)?);
        let uploader = UploaderParts {
            gpu: device.gpu.clone(),
            kernels: kernels.clone(),
            events: EventPool::new(&device.gpu),
            pinned,
            received: bodies.map(|bodies| bodies.pool().clone()),
            queue: self.gpu_tasks.clone(),
            upload_pool: upload_pool.clone(),
            packed_bytes: device.memory.packed_bytes,
        };
        for number in 0..io_threads + decoders {
            let reads = device.cufile.is_some() && number < io_threads;
            let staging = reads.then(|| GdsStaging::new(staging, number as u64, half));
            uploaders.push((uploader.clone(), staging));
        }
        uploaders.reverse();
        self.start_gpu_workers(start, device, kernels)?;
        let most_boxes = usize::try_from(start.setup.boxes_of_chunk()).unwrap_or(usize::MAX);
        Ok(Target::Gpu(UploadContext { upload_pool, most_boxes }))
    }

    fn start_gpu_workers(&mut self, start: &Start, device: &Device, kernels: Arc<Kernels>) -> Result<()> {
        let gpu_workers = Arc::new(GpuWorkerContext {
            gpu: device.gpu.clone(),
            kernels,
            green: start.sm_partition(device),
            nvcomp: device.zstd.clone(),
            dataset: start.setup.dataset.clone(),
            verified: Arc::default(),
            parts: start.setup.parts.clone(),
            queue: self.gpu_tasks.clone(),
            jobs: self.jobs.clone(),
            counters: start.status.counters.clone(),
        });
        for _ in 0..device.memory.gpu_workers {
            let mut gpu_worker = GpuWorker::new(gpu_workers.clone(), device.memory.arena_bytes)?;
            let watchdog = gpu_worker.watchdog.clone();
            self.spawn("zarr GPU worker", watchdog.clone(), move || {
                while gpu_worker.step() {}
                let _waiting = watchdog.waits(GpuWork::Freeing, None, 0);
                drop(gpu_worker);
            })?;
        }
        Ok(())
    }

    /// Starts a thread that reads, or one that reads and decodes, on the GPU backend with what its uploader is made of.
    fn start_worker(
        &mut self,
        workers: Arc<WorkerContext>,
        mut uploader: Option<UploaderSetup>,
        decodes: bool,
    ) -> Result<()> {
        let jobs = self.jobs.clone();
        let is_beside_training = uploader.is_some();
        // The GPU can decode what is queued. Only a chunk that was begun is waited for.
        let can_be_spared = workers.decoder.parts.iter().all(|plan| plan.placement != Placement::Cpu);
        let name = if decodes { "zarr decoder" } else { "zarr I/O" };
        let watchdog = Arc::<Watchdog>::default();
        self.spawn(name, watchdog.clone(), move || {
            if decodes && is_beside_training {
                lower_priority(can_be_spared);
            }
            let mut state = WorkerState::new(decodes);
            loop {
                let job = if decodes { jobs.decode(&mut state) } else { jobs.feed(&mut state) };
                let Some(job) = job else { break };
                let (chunk, since) = (job.chunk().clone(), Instant::now());
                // Streams take time to make, and many threads of a small reader never need theirs.
                if let Some((parts, staging)) = &mut uploader {
                    match Uploader::new(parts.clone(), staging, watchdog.clone()) {
                        Ok(ready) => {
                            state.upload_with(ready);
                            uploader = None;
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

    fn start_planner(
        &mut self,
        start: &Start,
        cache_pool: Arc<DevicePool>,
        remote: Option<planner::Remote>,
    ) -> Result<()> {
        let setup = start.setup;
        let caches = setup.options.cache_bytes > 0;
        let mut plans = Planner {
            domains: setup.domains.clone(),
            geometry: setup.geometry.clone(),
            placing: setup.placing.clone(),
            parts: setup.parts.clone(),
            batch_size: setup.options.batch_size,
            order: start.cursor.order.clone(),
            chunk_cache: ChunkCache::new(
                start.plan.chunk_cache_bytes,
                start.cursor.batch,
                caches,
                start.plan.chunk_use_bytes(),
            ),
            caches,
            cache_pool,
            jobs: self.jobs.clone(),
            remote,
            gpu_tasks: start.device.is_some().then(|| self.gpu_tasks.clone()),
            counters: start.status.counters.clone(),
        };
        let (planner, batches) = mpsc::channel::<Arc<Batch>>();
        self.spawn("zarr planner", Arc::default(), move || {
            for batch in batches {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| plans.plan(&batch))) {
                    batch.fail(Error::panic("the planner", &*payload));
                    // Chunks that were to be cached may not have been queued.
                    plans.chunk_cache = ChunkCache::new(0, batch.number + 1, false, 0);
                }
                batch.planned();
            }
        })?;
        self.planner = Some(planner);
        Ok(())
    }

    /// Queues a batch for the planner.
    pub fn plan(&self, batch: Arc<Batch>) {
        // Sending fails only if the planner has ended, which it does when this value is dropped.
        let _ = self.planner.as_ref().map(|planner| planner.send(batch));
    }

    /// The error of a thread whose call of the GPU does not end.
    pub fn stuck(&self) -> Option<Error> {
        self.threads.iter().find_map(|(watchdog, _)| watchdog.stuck())
    }

    /// Allocates device memory that is freed behind the threads. Returns its address.
    fn allocate(&mut self, device: &Device, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let memory = DeviceMemory::new(&device.gpu, bytes)?;
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }

    fn memory_in_use(&self, start: &Start) -> MemoryInUse {
        let gpu_workers =
            start.device.map_or(0, |device| device.memory.gpu_workers * device.memory.arena_bytes);
        MemoryInUse {
            device_bytes: gpu_workers + self.memory.iter().map(DeviceMemory::bytes).sum::<u64>(),
            batch_bytes: start.setup.batch_bytes(),
            progress: self.progress.clone(),
            jobs: self.jobs.clone(),
            pinned: self.pinned.clone(),
        }
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
}

impl Start<'_> {
    fn worker_context(
        &self,
        target: Target,
        prefetcher: Arc<Prefetcher>,
        remote: Option<Arc<fetch::Remote<Arc<Chunk>>>>,
    ) -> WorkerContext {
        let setup = self.setup;
        let fetch: Arc<dyn Fetch> = match self.device.and_then(|device| device.cufile.clone()) {
            Some(driver) => Arc::new(Gds::new(driver, setup.options.io == Io::Gds)),
            None => Arc::new(Posix),
        };
        let chunk_source = ChunkSource {
            dataset: setup.dataset.clone(),
            locator: Locator::new(fetch, self.kept_indexes()),
            remote,
            prefetcher,
            missing_chunks: setup.options.missing_chunks,
            host_memory_bytes: setup.options.most_host_memory_bytes,
            counters: self.status.counters.clone(),
        };
        let decoder = CpuDecoder { chunk_source, parts: setup.parts.clone() };
        WorkerContext { decoder, target }
    }

    /// How many shard indexes are kept.
    fn kept_indexes(&self) -> NonZeroUsize {
        let parts = self.setup.planned_parts();
        let largest = parts.filter_map(|(array, _)| Some(array.sharding.as_ref()?.index_bytes)).max();
        fetch::kept_indexes(largest.unwrap_or(0), self.plan.shard_index_bytes())
    }

    /// Array and part of all stores that are not folders of this machine.
    fn remote_parts(&self) -> HashSet<(usize, usize)> {
        let dataset = &self.setup.dataset;
        let arrays = dataset.arrays.iter().enumerate();
        let parts = arrays.flat_map(|(number, array)| (0..array.parts.len()).map(move |part| (number, part)));
        parts.filter(|&(array, part)| dataset.part(array, part).objects.folder().is_none()).collect()
    }

    /// Pinned memory for answers of stores, where the GPU copies and decodes what was received.
    fn pinned_bodies(&self, device: &Device) -> Option<Arc<PinnedBodies>> {
        let by_gpu = self.setup.parts.iter().any(|plan| plan.placement != Placement::Cpu);
        // Not all memory for answers: one that finds no room there takes other memory, for which the rest is.
        let budget = self.plan.fetched_bytes / 4 * 3;
        by_gpu.then(|| PinnedBodies::new(&device.gpu, budget)).flatten().map(Arc::new)
    }

    /// Starts what fetches the chunks of `parts`, those of stores that are not folders of this machine, if there are any.
    fn remote(
        &self,
        jobs: &Arc<Jobs>,
        parts: HashSet<(usize, usize)>,
        bodies: Option<Arc<PinnedBodies>>,
    ) -> Result<Option<planner::Remote>> {
        let dataset = &self.setup.dataset;
        if parts.is_empty() {
            return Ok(None);
        }
        let disk_cache = self.disk_cache();
        // What waits to be written to the disk takes its part.
        let queued_bytes = if disk_cache.is_some() { self.plan.disk_queue_bytes() } else { 0 };
        let limits = Limits {
            threads: options::network_threads(),
            requests: Options::REQUESTS_IN_FLIGHT,
            bytes: self.plan.fetched_bytes - queued_bytes,
            split_above_bytes: Options::SPLIT_ABOVE_BYTES,
        };
        let pinned_bytes = bodies.as_ref().map_or(0, |bodies| bodies.pool().budget_bytes());
        let bodies = bodies.map(|bodies| -> Arc<dyn BodyMemory> { bodies });
        let options = &self.setup.options;
        let settings = fetch::Settings {
            limits,
            buffers: Buffers::beside(bodies, limits.bytes.saturating_sub(pinned_bytes)),
            kept_indexes: self.kept_indexes(),
            most_bytes: options.most_host_memory_bytes,
            forbidden_is_missing: options.missing_chunks == MissingChunks::FillForbidden,
        };
        let counters = self.status.counters.clone();
        let fetcher = fetch::Remote::new(dataset.clone(), settings, disk_cache, jobs.clone(), counters);
        let fetcher = fetcher.map_err(|source| Error::Thread { source })?;
        self.status.requests(fetcher.slots());
        let begin_ahead = self.cursor.batch + self.plan.depth;
        Ok(Some(planner::Remote { fetcher, parts, begin_ahead, ahead: 0 }))
    }

    /// Opens the cache on the local disk. That it cannot be had is no reason not to read.
    fn disk_cache(&self) -> Option<DiskCache> {
        let options = self.setup.options.disk_cache.as_ref()?;
        let counters = self.status.counters.clone();
        let queue_bytes = self.plan.disk_queue_bytes();
        DiskCache::start(options, &self.setup.dataset, queue_bytes, counters).unwrap_or_else(|error| {
            log_once(&format!("the disk cache \"{}\" is not used ({error})", options.folder));
            None
        })
    }

    /// A partition of the GPU's multiprocessors that leaves the others to the model, where the GPU decodes and can be cut.
    fn sm_partition(&self, device: &Device) -> Option<Arc<GreenContext>> {
        let decodes = self.setup.parts.iter().any(|plan| plan.placement == Placement::Either);
        if decodes { GreenContext::of(&device.gpu) } else { None }
    }
}

/// Lowers the priority of the calling thread below that of a training's own threads, which launch kernels on the same cores. `can_be_spared`: others
/// can do its work, so that it gets only cores that nobody else wants.
fn lower_priority(can_be_spared: bool) {
    /// A thread with this niceness gets a tenth of a core that a usual thread wants as well.
    const NICENESS: i32 = 10;
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: changes nothing but the priority of this thread, which on Linux is what 0 means. If that is not allowed,
    // nothing changes.
    unsafe {
        if !can_be_spared || libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
        }
    }
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
    use crate::decode::part::PartPlans;

    use std::time::Duration;

    #[test]
    fn a_gpu_that_never_answers_holds_up_neither_the_consumer_nor_the_destructor() {
        let (watchdog, progress) = (Arc::<Watchdog>::default(), Progress::new(Arc::default()));
        let jobs = Jobs::new(Arc::new(PartPlans::new(vec![])), 0, progress.clone(), Arc::default());
        let mut running = Running::without_threads(jobs, progress);
        let (release, held) = mpsc::channel::<()>();
        running.spawn("zarr GPU worker", watchdog.clone(), move || _ = held.recv()).unwrap();
        assert!(running.stuck().is_none());
        watchdog::tests::set_stuck(&watchdog);
        assert!(running.stuck().is_some_and(|error| error.to_string().contains("end this process")));
        let since = Instant::now();
        drop(running);
        assert!(since.elapsed() < Duration::from_secs(10));
        drop(release);
    }
}
