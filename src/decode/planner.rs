//! The planner's thread: turns batches into work, and shares chunks between them.

use super::Queue;
use super::chunk::Chunk;
use super::jobs::Jobs;
use super::lane::Fetched;
use super::residents::Residents;
use super::rooms::Rooms;
use super::worker::Job;
use crate::batch::Batch;
use crate::plan::{ArrayGeometry, ChunkTask, OutputGeometry, plan_batch, touched_chunks};
use crate::sampler::{Order, Windows};
use crate::stats::Counters;
use crate::trace::{self, Stage};

use std::sync::Arc;

/// Plans batches one after the other.
pub struct Planner {
    /// The windows that samples are.
    pub windows: Windows,
    /// The arrays.
    pub geometry: Arc<[ArrayGeometry]>,
    /// Where they go.
    pub placing: Arc<[OutputGeometry]>,
    /// Size of a decoded read chunk of each part of each array.
    pub chunk_bytes: Vec<Vec<u64>>,
    /// Samples of a batch.
    pub batch_size: u64,
    /// To look ahead in.
    pub order: Order,
    /// What stays.
    pub residents: Residents,
    /// Whether chunks stay from epoch to epoch.
    pub caches: bool,
    /// Where it stays.
    pub rooms: Arc<Rooms>,
    /// Where work goes.
    pub jobs: Arc<Jobs>,
    /// GPU backend: where units go whose chunks are on the GPU already.
    pub fetched: Option<Arc<Queue<Fetched>>>,
    /// What is counted.
    pub counters: Arc<Counters>,
}

impl Planner {
    /// Plans a batch.
    pub fn plan(&mut self, batch: &Arc<Batch>) {
        let _range = trace::range(Stage::Plan, batch.number);
        while let Some(ahead) = self.residents.wants(batch.number, self.batch_size) {
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
            let (bytes, epochs) = (self.chunk_bytes[key.array][key.part], self.epochs(key.array, &epochs));
            if self.residents.is_enabled() {
                used.extend(epochs.iter().map(|&epoch| (key, epoch, bytes)));
            }
            let unit = batch.unit(output, boxes);
            if let Some(chunk) = epochs.iter().find_map(|&epoch| self.residents.find(key, epoch)) {
                self.counters.chunks_reused.add(1);
                if self.caches && self.residents.touch(key, 0, now) {
                    self.counters.cache_hits.add(1);
                }
                if let Some(unit) = chunk.add(unit) {
                    jobs.push(Job::Assemble(chunk, Box::new(unit)));
                }
                continue;
            }
            let epoch = self.residents.claim(key, epochs, batch.number, bytes);
            let room = epoch.and_then(|_| {
                // Rooms that are given back are those of units on their way, so these have to be.
                self.rooms.take(bytes, self.residents.kept_bytes(), || self.push(&mut jobs))
            });
            let stays = room.is_some();
            let chunk = Chunk::new(key, read_chunk, room, unit);
            if let (Some(epoch), true) = (epoch, stays) {
                self.residents.keep(chunk.clone(), epoch, batch.number, bytes);
                if self.caches {
                    self.residents.touch(key, epoch, now);
                }
            }
            jobs.push(Job::Read(chunk));
        }
        self.push(&mut jobs);
        for (key, epoch, bytes) in used {
            self.residents.used(key, epoch, batch.number, bytes);
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
                self.residents.note(key, epoch, self.chunk_bytes[key.array][key.part]);
            });
        }
        self.residents.noted();
    }

    /// Sends work on its way.
    fn push(&self, jobs: &mut Vec<Job>) {
        let Some(fetched) = &self.fetched else {
            self.jobs.push(std::mem::take(jobs));
            return;
        };
        let (mut reads, mut held) = (vec![], vec![]);
        for job in jobs.drain(..) {
            match job {
                Job::Assemble(chunk, unit) => held.push(Fetched::held(chunk, *unit)),
                read @ Job::Read(_) => reads.push(read),
            }
        }
        fetched.push_front(held.into_iter());
        self.jobs.push(reads);
    }
}
