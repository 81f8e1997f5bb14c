//! The numbers of a setup that its memory plan is made from: sizes of chunks and batches, and how many chunks batches have.

use super::memory_plan::{
    BatchChunks, GpuMemoryPlan, GpuNeeds, HostBudget, HostShare, LargestChunk, MemoryPlan, Needs, Overhead,
    PartNeeds, check_batch,
};
use super::setup::Setup;
use crate::dataset::{ArrayInfo, Joined};
use crate::decode::cpu::scratch_bytes;
use crate::decode::group;
use crate::decode::nvcomp::Zstd;
use crate::decode::part::{PartPlan, Placement};
use crate::decode::upload::{largest_pinned_bytes, largest_upload_bytes};
use crate::error::{Result, log_once};
use crate::options::{DeviceBudget, GpuZstd};
use crate::plan::{count_chunks, touched_chunks};

use std::collections::HashSet;

/// Chunks of a batch that are listed to count each of them once; of more the number is only estimated.
const MAX_COUNTED_CHUNKS: u64 = 1 << 20;

/// Numbers of chunks for each part of each array.
pub type ChunkCounts = Vec<Vec<u64>>;

impl Setup {
    /// The memory plan of the CPU backend.
    ///
    /// # Errors
    /// Budgets that cannot hold the least that is needed.
    pub fn plan_on_cpu(&self) -> Result<MemoryPlan> {
        let needs = self.needs();
        let host = HostShare::on_cpu(&needs)?;
        log_threads(&needs, &host);
        Ok(MemoryPlan::on_cpu(&needs, host))
    }

    /// The memory plan of the GPU backend. Without nvCOMP its scratch memory is estimated.
    ///
    /// # Errors
    /// Budgets that cannot hold the least that is needed, and what nvCOMP says.
    pub fn plan_on_gpu(
        &self,
        budget: DeviceBudget,
        zstd: Option<&Zstd>,
    ) -> Result<(MemoryPlan, GpuMemoryPlan)> {
        let gpu = self.gpu_needs(zstd)?;
        let needs = self.needs();
        let host = HostShare::on_gpu(&needs, &gpu)?;
        log_threads(&needs, &host);
        MemoryPlan::on_gpu(&needs, &gpu, host, budget, || self.batch_chunks())
    }

    /// Refuses batches whose samples cannot even be listed.
    ///
    /// # Errors
    /// The host budget, and the least that would do.
    pub fn check_batch(&self) -> Result<()> {
        check_batch(self.options.batch_size, self.options.most_host_memory_bytes)
    }

    /// Arena bytes that a read chunk of each part of each array needs at most.
    ///
    /// # Errors
    /// What nvCOMP says, if it is asked.
    pub fn unit_bytes(&self, zstd: Option<&Zstd>) -> Result<Vec<u64>> {
        let boxes = self.boxes_of_chunk();
        let of = |plan: &PartPlan| group::unit_bytes(zstd, &plan.decode_path, &plan.conversion, boxes);
        self.planned_parts().map(|(_, plan)| of(plan)).collect()
    }

    /// How many read chunks of each part of each array the samples touch. Where there are more than
    /// [`MAX_COUNTED_CHUNKS`], chunks that several samples share count for each of them.
    pub fn chunks_of(&self, samples: &[u64]) -> ChunkCounts {
        let none: ChunkCounts = self.parts.arrays().iter().map(|parts| vec![0; parts.len()]).collect();
        let mut counts = none.clone();
        for &sample in samples {
            for (array, part, chunks) in count_chunks(&self.domains, &self.geometry, sample) {
                counts[array][part] = counts[array][part].saturating_add(chunks);
            }
        }
        if samples.len() > 1
            && counts.iter().flatten().fold(0, |all: u64, &chunks| all.saturating_add(chunks))
                <= MAX_COUNTED_CHUNKS
        {
            counts = none;
            let mut seen = HashSet::new();
            for &sample in samples {
                touched_chunks(&self.domains, &self.geometry, sample, |chunk, _| {
                    counts[chunk.array][chunk.part] += u64::from(seen.insert(chunk));
                });
            }
        }
        counts
    }

    /// How many chunks in their stores, sharded ones counted once each, the samples touch of each part of each array. Those that several samples
    /// share count once if there are no more than [`MAX_COUNTED_CHUNKS`]; `None` if there are.
    pub fn objects_of(&self, samples: &[u64]) -> Option<ChunkCounts> {
        let mut counts: ChunkCounts = self.parts.arrays().iter().map(|parts| vec![0; parts.len()]).collect();
        let (mut seen, mut touched) = (HashSet::new(), 0);
        for &sample in samples {
            let of_sample = count_chunks(&self.domains, &self.geometry, sample);
            touched += of_sample.into_iter().fold(0u64, |all, (.., chunks)| all.saturating_add(chunks));
            if touched > MAX_COUNTED_CHUNKS {
                return None;
            }
            touched_chunks(&self.domains, &self.geometry, sample, |chunk, _| {
                let array = self.dataset.part(chunk.array, chunk.part);
                let object = object_of(array, chunk.number);
                let of_part = (chunk.array, chunk.part);
                counts[chunk.array][chunk.part] += u64::from(seen.insert((of_part, object)));
            });
        }
        Some(counts)
    }

    fn needs(&self) -> Needs<'_> {
        let arrays = self.planned_parts().map(|(array, _)| array);
        let largest = arrays.max_by_key(|array| array.read_chunk_bytes()).map(|array| LargestChunk {
            bytes: array.read_chunk_bytes(),
            array: array.context().to_string(),
        });
        Needs {
            batch_bytes: self.batch_bytes(),
            least_depth: self.options.min_depth,
            cache_bytes: self.options.cache_bytes,
            io_threads: self.io_threads() as u64,
            decode_threads: self.decode_threads() as u64,
            host: HostBudget {
                bytes: self.options.host_memory_bytes,
                most_bytes: self.options.most_host_memory_bytes,
            },
            overhead: self.overhead(),
            largest_chunk: largest,
            reusable_bytes: Box::new(|depth| self.reuse.useful_bytes(depth)),
            all_chunk_bytes: self.reuse.all_bytes,
        }
    }

    fn gpu_needs(&self, zstd: Option<&Zstd>) -> Result<GpuNeeds> {
        let by_nvcomp = zstd.is_some() || self.options.gpu_zstd == GpuZstd::Nvcomp;
        let part = |((array, plan), unit_bytes): ((&ArrayInfo, &PartPlan), u64)| PartNeeds {
            unit_bytes,
            upload_bytes: largest_upload_bytes(array, &plan.decode_path),
            chunk_bytes: plan.chunk_bytes,
            gpu_decodes: plan.placement == Placement::Either,
            is_sequential: plan.decode_path.is_sequential(by_nvcomp),
        };
        let pinned = self.planned_parts().map(|(array, plan)| largest_pinned_bytes(array, &plan.decode_path));
        Ok(GpuNeeds {
            parts: self.planned_parts().zip(self.unit_bytes(zstd)?).map(part).collect(),
            largest_pinned_bytes: pinned.max().unwrap_or(0),
            uses_cufile: self.reads_with_cufile(),
        })
    }

    /// Host memory beside outputs, pinned memory and cached chunks.
    fn overhead(&self) -> Overhead {
        let scratch = |(array, _): (&ArrayInfo, &PartPlan)| {
            let decoded = if self.options.device.is_none() { array.read_chunk_bytes() } else { 0 };
            scratch_bytes(array, decoded)
        };
        let index = |(array, _): (&ArrayInfo, &PartPlan)| {
            array.sharding.as_ref().map_or(0, |sharding| sharding.index_bytes)
        };
        Overhead::new(
            self.most_batch_chunks().max(1),
            self.planned_parts().map(scratch).max().unwrap_or(0),
            self.order_bytes,
            self.planned_parts().map(index).max().unwrap_or(0),
        )
    }

    /// The most chunks in a batch, from a few samples. Samples of a batch share chunks, but an array has no more than all of its
    /// chunks.
    fn most_batch_chunks(&self) -> u64 {
        /// Samples looked at, which stand for all.
        const LOOKED_AT: u64 = 64;
        let samples = self.domains.len();
        let looked_at = samples.min(LOOKED_AT);
        let spread = |i: u64| (u128::from(i) * u128::from(samples) / u128::from(looked_at)) as u64;
        let mut most = vec![0; self.dataset.arrays.len()];
        for sample in (0..looked_at).map(spread) {
            let mut of_sample = vec![0; most.len()];
            for (array, _, chunks) in count_chunks(&self.domains, &self.geometry, sample) {
                of_sample[array] = chunks.saturating_add(of_sample[array]);
            }
            most.iter_mut().zip(of_sample).for_each(|(most, chunks)| *most = chunks.max(*most));
        }
        let of_part = |part: &ArrayInfo| {
            let extents = part.shape.iter().zip(part.read_chunk_shape());
            extents.map(|(extent, chunk)| extent.div_ceil(*chunk)).fold(1, u64::saturating_mul)
        };
        let of_batch = |(array, most): (&Joined, u64)| {
            let all = array.parts.iter().map(of_part).fold(0, u64::saturating_add);
            most.saturating_mul(self.options.batch_size).min(all)
        };
        self.dataset.arrays.iter().zip(most).map(of_batch).fold(0, u64::saturating_add)
    }

    /// Counts the chunks of the first two batches: the first may be the last of an epoch, of few samples.
    fn batch_chunks(&self) -> BatchChunks {
        // Counting more than this takes long, and it is enough for anything.
        const MANY: u64 = 1 << 16;
        let (first, second) =
            (self.start.samples(self.start.batch), self.start.samples(self.start.batch + 1));
        let (one, other) = (self.chunks_of(&first).concat(), self.chunks_of(&second).concat());
        let combined = |a: &[u64], b: &[u64], of: fn(u64, u64) -> u64| -> Vec<u64> {
            a.iter().zip(b).map(|(&a, &b)| of(a, b)).collect()
        };
        let touched = combined(&one, &other, u64::max);
        if touched.iter().sum::<u64>() > MANY {
            return BatchChunks { new: touched.clone(), touched };
        }
        let both = self.chunks_of(&[first, second].concat()).concat();
        let new = combined(&both, &combined(&one, &other, u64::min), u64::saturating_sub);
        // Epochs of one batch: each of them decodes its chunks.
        let new = if new.iter().all(|&chunks| chunks == 0) { touched.clone() } else { new };
        BatchChunks { touched, new }
    }
}

/// Logs that fewer threads decode than were asked for.
fn log_threads(needs: &Needs, host: &HostShare) {
    if host.decode_threads < needs.decode_threads {
        log_once(&format!(
            "{} of {} threads decode, because host_memory_budget has no room for what more of them need; give at least {}",
            host.decode_threads, needs.decode_threads, host.all_threads_bytes
        ));
    }
}

/// The chunk in its store that read chunk `number` of an array is, or is in: its coordinates.
fn object_of(array: &ArrayInfo, mut number: u128) -> Vec<u64> {
    let mut cell: Vec<u64> = vec![0; array.shape.len()];
    let grid =
        array.shape.iter().zip(array.read_chunk_shape()).map(|(extent, chunk)| extent.div_ceil(*chunk));
    for (place, count) in cell.iter_mut().zip(grid).rev() {
        let count = u128::from(count.max(1));
        (*place, number) = ((number % count) as u64, number / count);
    }
    array.sharding.as_ref().map_or(cell.clone(), |sharding| sharding.chunk_of(&cell))
}

#[cfg(test)]
pub(super) mod tests;
