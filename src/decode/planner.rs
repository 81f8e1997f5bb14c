//! The planner's thread: turns batches into work, and shares chunks between them.

use super::Queue;
use super::chunk::Chunk;
use super::chunk_cache::ChunkCache;
use super::device_pool::DevicePool;
use super::gpu_worker::GpuTask;
use super::jobs::Jobs;
use super::part::PartPlans;
use super::worker::Job;
use crate::batch::Batch;
use crate::fetch;
use crate::plan::{ArrayGeometry, ChunkTask, OutputGeometry, plan_batch, touched_chunks};
use crate::sampler::{Order, Windows};
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::collections::HashSet;
use std::sync::Arc;

/// The parts of arrays that are not in files of this machine, and who fetches their chunks.
pub struct Remote {
    /// Fetches chunks, which then come to the jobs.
    pub fetcher: Arc<fetch::Remote<Arc<Chunk>>>,
    /// By array and part.
    pub parts: HashSet<(usize, usize)>,
}

impl Remote {
    fn has(&self, part: (usize, usize)) -> bool {
        self.parts.contains(&part)
    }
}

/// Plans batches one after the other.
pub struct Planner {
    /// The windows that samples are.
    pub windows: Windows,
    /// The arrays.
    pub geometry: Arc<[ArrayGeometry]>,
    /// Where they go.
    pub placing: Arc<[OutputGeometry]>,
    /// How their chunks are decoded.
    pub parts: Arc<PartPlans>,
    /// Samples of a batch.
    pub batch_size: u64,
    /// To look ahead in.
    pub order: Order,
    /// What stays.
    pub chunk_cache: ChunkCache,
    /// Whether chunks stay from epoch to epoch.
    pub caches: bool,
    /// Where it stays.
    pub cache_pool: Arc<DevicePool>,
    /// Where work goes.
    pub jobs: Arc<Jobs>,
    /// Where chunks go first that are not in files of this machine.
    pub remote: Option<Remote>,
    /// GPU backend: where units go whose chunks are on the GPU already.
    pub gpu_tasks: Option<Arc<Queue<GpuTask>>>,
    /// What is counted.
    pub counters: Arc<Counters>,
}

impl Planner {
    /// Plans a batch.
    pub fn plan(&mut self, batch: &Arc<Batch>) {
        let _range = trace::range(Stage::Plan, batch.number);
        while let Some(ahead) = self.chunk_cache.wants(batch.number, self.batch_size) {
            self.look_at(ahead);
        }
        let samples = batch.samples.iter().map(|drawn| drawn.sample);
        let tasks = plan_batch(&self.windows, &self.geometry, &self.placing, samples);
        let mut epochs: Vec<u64> = batch.samples.iter().map(|drawn| drawn.epoch).collect();
        epochs.dedup();
        let mut jobs = vec![];
        let mut used = vec![];
        let now = epochs.last().copied().unwrap_or_default();
        for ChunkTask { output, chunk: key, read_chunk, boxes } in tasks {
            let (bytes, epochs) =
                (self.parts[(key.array, key.part)].chunk_bytes, self.epochs(key.array, &epochs));
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
                    jobs.push(Job::Assemble(chunk, Box::new(unit)));
                }
                continue;
            }
            let epoch = self.chunk_cache.claim(key, epochs, batch.number, bytes);
            let allocation = epoch.and_then(|_| {
                // Rooms that are given back are those of units on their way, so these have to be.
                self.cache_pool.take(bytes, self.chunk_cache.kept_bytes(), || self.push(&mut jobs))
            });
            let stays = allocation.is_some();
            let chunk = Chunk::new(key, read_chunk, allocation, unit);
            if let (Some(epoch), true) = (epoch, stays) {
                self.chunk_cache.keep(chunk.clone(), epoch, batch.number, bytes);
                if self.caches {
                    self.chunk_cache.touch(key, epoch, now);
                }
            }
            jobs.push(Job::Read(chunk));
        }
        self.push(&mut jobs);
        for (key, epoch, bytes) in used {
            self.chunk_cache.used(key, epoch, batch.number, bytes);
        }
    }

    /// The epochs that uses of an array are counted in: none if it is the same for every sample.
    fn epochs<'a>(&self, array: usize, epochs: &'a [u64]) -> &'a [u64] {
        if self.counts_epochs(array) { epochs } else { &[0] }
    }

    fn counts_epochs(&self, array: usize) -> bool {
        self.geometry[array].follows_samples() && !self.caches
    }

    /// Notes which chunks a later batch needs.
    fn look_at(&mut self, ahead: u64) {
        for drawn in self.order.batch(ahead) {
            touched_chunks(&self.windows, &self.geometry, drawn.sample, |key| {
                let epoch =
                    if self.geometry[key.array].follows_samples() && !self.caches { drawn.epoch } else { 0 };
                self.chunk_cache.note(key, epoch, self.parts[(key.array, key.part)].chunk_bytes);
            });
        }
        self.chunk_cache.noted();
    }

    /// Sends work on its way.
    fn push(&self, jobs: &mut Vec<Job>) {
        if let Some(remote) = &self.remote {
            for job in jobs.extract_if(.., |job| job.read().is_some_and(|chunk| remote.has(chunk.place()))) {
                if let Job::Read(chunk) = job {
                    let (place, cell) = (chunk.place(), chunk.read_chunk.clone());
                    remote.fetcher.fetch(chunk, place, &cell);
                }
            }
        }
        let Some(gpu_tasks) = &self.gpu_tasks else {
            self.jobs.push(std::mem::take(jobs));
            return;
        };
        let (mut reads, mut cached) = (vec![], vec![]);
        for job in jobs.drain(..) {
            match job {
                Job::Assemble(chunk, unit) => cached.push(GpuTask::cached(chunk, *unit)),
                read @ Job::Read(_) => reads.push(read),
            }
        }
        gpu_tasks.push_front(cached.into_iter());
        self.jobs.push(reads);
    }
}
