//! The planner turns batches into jobs and shares chunks between batches.

use super::Queue;
use super::chunk::Chunk;
use super::chunk_cache::ChunkCache;
use super::device_pool::DevicePool;
use super::flush::Flush;
use super::gpu_task::GpuTask;
use super::job::Job;
use super::jobs::Jobs;
use super::part::PartPlans;
use crate::batch::Batch;
use crate::fetch::{self, Wanted};
use crate::plan::{ChunkKey, ChunkTask, Dims, Geometry, OutputGeometry, plan_batch, touched_chunks};
use crate::sampler::{Domains, Order};
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::collections::HashSet;
use std::sync::Arc;

/// The parts of arrays whose chunks are not in files of this machine.
pub struct Remote {
    /// Fetches the chunks, and queues each when its bytes have arrived.
    pub fetcher: Arc<fetch::Remote<Arc<Chunk>>>,
    /// Array and part.
    pub parts: HashSet<(usize, usize)>,
    /// The batch with which fetching ahead begins: when it is planned a batch has been handed over, which nothing has delayed.
    pub begin_ahead: u64,
    /// The next batch whose chunks are fetched before it is planned.
    pub ahead: u64,
}

impl Remote {
    /// Takes the jobs out that read chunks of these parts, and fetches the chunks for a batch.
    fn take_from(&self, jobs: &mut Vec<Job>, batch: u64) {
        let is_remote = |job: &mut Job| job.read().is_some_and(|chunk| self.parts.contains(&chunk.part()));
        let wanted = jobs.extract_if(.., is_remote).filter_map(|job| match job {
            Job::Read(chunk) => {
                let (part, cell) = (chunk.part(), chunk.read_chunk.clone());
                Some(Wanted { chunk, part, cell })
            }
            Job::Assemble(..) => None,
        });
        self.fetcher.fetch(batch, wanted);
    }

    /// The most batches that are looked at ahead.
    const MOST_BATCHES_AHEAD: u64 = 256;
}

/// Plans batches one after the other.
pub struct Planner {
    /// The window of each sample.
    pub domains: Domains,
    /// Shapes and chunk grids of the arrays.
    pub geometry: Arc<Geometry>,
    /// Where windows are placed in the outputs.
    pub placing: Arc<[OutputGeometry]>,
    /// How the chunks of the arrays are decoded.
    pub parts: Arc<PartPlans>,
    /// Number of samples in a batch.
    pub batch_size: u64,
    /// The order of samples, to look ahead in.
    pub order: Order,
    /// Decides which chunks are cached.
    pub chunk_cache: ChunkCache,
    /// Whether chunks are cached across epochs.
    pub caches: bool,
    /// The memory of cached chunks.
    pub cache_pool: Arc<DevicePool>,
    /// The queue of the worker threads.
    pub jobs: Arc<Jobs>,
    /// Fetches the chunks that are not in files of this machine, before they are queued.
    pub remote: Option<Remote>,
    /// GPU backend: the queue of the GPU workers, for units whose chunks are on the GPU already.
    pub gpu_tasks: Option<Arc<Queue<GpuTask>>>,
    /// The counters of the reader.
    pub counters: Arc<Counters>,
}

impl Planner {
    /// Plans a batch and queues its jobs.
    pub fn plan(&mut self, batch: &Arc<Batch>) {
        let _range = trace::range(Stage::Plan, batch.number);
        while let Some(ahead) = self.chunk_cache.wants(batch.number, self.batch_size) {
            self.look_at(ahead);
        }
        let samples = batch.samples.iter().map(|drawn| drawn.sample);
        let tasks = plan_batch(&self.domains, &self.geometry, &self.placing, samples);
        let mut epochs: Vec<u64> = batch.samples.iter().map(|drawn| drawn.epoch).collect();
        epochs.dedup();
        let mut planned = PlannedJobs {
            list: vec![],
            batch: batch.number,
            jobs: &self.jobs,
            gpu_tasks: self.gpu_tasks.as_deref(),
            remote: self.remote.as_ref(),
        };
        let mut used = vec![];
        let now = epochs.last().copied().unwrap_or_default();
        for ChunkTask { output, chunk: key, read_chunk, boxes } in tasks {
            let (bytes, epochs) = (self.parts[(key.array, key.part)].chunk_bytes, self.epochs(key, &epochs));
            if self.chunk_cache.is_enabled() {
                used.extend(epochs.iter().map(|&epoch| (key, epoch, bytes)));
            }
            let unit = batch.unit(output, boxes);
            if let Some(chunk) = epochs.iter().find_map(|&epoch| self.chunk_cache.find(key, epoch)) {
                self.counters.chunks_reused.add(1);
                if self.caches && self.chunk_cache.touch(key, 0, now) {
                    self.counters.cache_hits.add(1);
                }
                if let Some(unit) = chunk.add(unit) {
                    planned.list.push(Job::Assemble(chunk, Box::new(unit)));
                }
                continue;
            }
            let epoch = self.chunk_cache.claim(key, epochs, batch.number, bytes);
            let allocation = epoch.and_then(|_| {
                // Allocations come back when the jobs of evicted chunks are done, so the planned jobs have to be queued first.
                self.cache_pool.take(bytes, self.chunk_cache.kept_bytes(), &mut planned)
            });
            let is_cached = allocation.is_some();
            let chunk = Chunk::new(key, read_chunk, allocation, unit);
            if let (Some(epoch), true) = (epoch, is_cached) {
                self.chunk_cache.keep(chunk.clone(), epoch, batch.number, bytes);
                if self.caches {
                    self.chunk_cache.touch(key, epoch, now);
                }
            }
            planned.list.push(Job::Read(chunk));
        }
        planned.flush();
        for (key, epoch, bytes) in used {
            self.chunk_cache.used(key, epoch, batch.number, bytes);
        }
        self.fetch_ahead(batch.number, now);
    }

    /// Fetches chunks of batches that are not planned yet, as far as there is memory and no more than those of one epoch: a store that answers late
    /// is asked early. `batch` was planned last, and its last sample is of `epoch`.
    fn fetch_ahead(&mut self, batch: u64, epoch: u64) {
        let Self { remote: Some(remote), order, domains, geometry, chunk_cache, caches, batch_size, .. } =
            self
        else {
            return;
        };
        remote.fetcher.planned(batch);
        if batch < remote.begin_ahead {
            return;
        }
        // Where a cache on the disk keeps what is fetched, the next epoch finds it there.
        let within_epoch = remote.fetcher.has_disk_cache();
        let batches_of_epoch = (order.padded_samples() / order.shards()).div_ceil(*batch_size);
        let most = Remote::MOST_BATCHES_AHEAD.min(batches_of_epoch);
        remote.ahead = remote.ahead.max(batch + 1);
        while remote.ahead <= batch + most {
            let samples = order.batch(remote.ahead);
            if within_epoch && samples.iter().any(|drawn| drawn.epoch > epoch) {
                return;
            }
            let mut cells = vec![];
            for drawn in samples {
                touched_chunks(domains, geometry, drawn.sample, |key, cell| {
                    let epoch = if counts_epochs(geometry, key, *caches) { drawn.epoch } else { 0 };
                    if remote.parts.contains(&(key.array, key.part)) && chunk_cache.find(key, epoch).is_none()
                    {
                        cells.push(((key.array, key.part), Dims::from_slice(cell)));
                    }
                });
            }
            if !remote.fetcher.fetch_ahead(remote.ahead, cells) {
                return;
            }
            remote.ahead += 1;
        }
    }

    /// The epochs in which uses of a chunk count. Epoch 0 stands for all if epochs play no part for its array.
    fn epochs<'a>(&self, key: ChunkKey, epochs: &'a [u64]) -> &'a [u64] {
        if counts_epochs(&self.geometry, key, self.caches) { epochs } else { &[0] }
    }

    /// Notes which chunks batch number `ahead` uses.
    fn look_at(&mut self, ahead: u64) {
        for drawn in self.order.batch(ahead) {
            touched_chunks(&self.domains, &self.geometry, drawn.sample, |key, _| {
                let epoch = if counts_epochs(&self.geometry, key, self.caches) { drawn.epoch } else { 0 };
                self.chunk_cache.note(key, epoch, self.parts[(key.array, key.part)].chunk_bytes);
            });
        }
        self.chunk_cache.noted();
    }
}

/// Whether a chunk is decoded anew in each epoch, unless chunks are cached across epochs.
fn counts_epochs(geometry: &Geometry, key: ChunkKey, caches: bool) -> bool {
    geometry[0][key.array].follows_samples() && !caches
}

/// The jobs of a batch that are not queued yet. Flushing queues them.
struct PlannedJobs<'a> {
    list: Vec<Job>,
    /// Number of the batch.
    batch: u64,
    jobs: &'a Jobs,
    gpu_tasks: Option<&'a Queue<GpuTask>>,
    remote: Option<&'a Remote>,
}

impl Flush for PlannedJobs<'_> {
    fn flush(&mut self) {
        if let Some(remote) = self.remote {
            remote.take_from(&mut self.list, self.batch);
        }
        let Some(gpu_tasks) = self.gpu_tasks else {
            self.jobs.push(std::mem::take(&mut self.list));
            return;
        };
        let (mut reads, mut cached) = (vec![], vec![]);
        for job in self.list.drain(..) {
            match job {
                Job::Assemble(chunk, unit) => cached.push(GpuTask::cached(chunk, *unit)),
                read @ Job::Read(_) => reads.push(read),
            }
        }
        gpu_tasks.push_front(cached.into_iter());
        self.jobs.push(reads);
    }
}
