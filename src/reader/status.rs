//! The numbers of a running reader, which any thread may ask for.

use super::checkpoint::{Cursor, Identity};
use crate::batch::Progress;
use crate::decode::device_pool::DevicePool;
use crate::decode::jobs::Jobs;
use crate::fetch::Slots;
use crate::gpu::PinnedPool;
use crate::sampler::Shuffle;
use crate::stats::Counters;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// Keys of [`Status::to_json`] that were renamed, each with its former name. Release 0.1 has both names, the next one only the
/// new ones. `python/zarr_dali/_stats.py` documents them.
const FORMER_KEYS: [(&str, &str); 3] = [
    ("chunks_decoded_sm_partition", "chunks_decoded_green"),
    ("chunk_cache_bytes", "resident_bytes"),
    ("chunk_cache_peak_bytes", "resident_peak_bytes"),
];

/// Counters, memory in use and position of a reader.
pub struct Status {
    /// Counts what the reader has done.
    pub counters: Arc<Counters>,
    /// Number of the batch that will be handed over next.
    next: AtomicU64,
    identity: Identity,
    /// What each channel is, if arrays are stacked to channels.
    channels: Value,
    details: Mutex<Details>,
}

struct Details {
    /// Where the reader started.
    start: Cursor,
    cache_pool: Option<Arc<DevicePool>>,
    memory: Option<MemoryInUse>,
    /// The requests in flight to stores that are not folders.
    requests: Option<Arc<Slots>>,
}

/// The owners of the memory that a running reader has, and its queue of jobs.
pub(super) struct MemoryInUse {
    /// GPU memory without outputs.
    pub device_bytes: u64,
    /// All outputs of a batch.
    pub batch_bytes: u64,
    /// Knows how many batches were submitted.
    pub progress: Arc<Progress>,
    /// Knows who decodes.
    pub jobs: Arc<Jobs>,
    /// GPU backend: pinned memory.
    pub pinned: Option<Arc<PinnedPool>>,
}

impl MemoryInUse {
    /// Bytes of GPU memory and of host memory, with this many batches in flight and `cached` bytes of cached chunks.
    fn bytes(&self, batches: u64, cached: u64) -> (u64, u64) {
        let outputs = batches * self.batch_bytes;
        match &self.pinned {
            Some(pinned) => (self.device_bytes + outputs, pinned.allocated_bytes()),
            None => (0, outputs + cached),
        }
    }
}

impl Status {
    /// The status of a reader that has done nothing yet.
    pub(super) fn new(start: Cursor, identity: Identity, channels: Value) -> Self {
        Self {
            counters: Arc::default(),
            next: AtomicU64::new(start.batch),
            identity,
            channels,
            details: Mutex::new(Details { start, cache_pool: None, memory: None, requests: None }),
        }
    }

    /// Everything as one JSON object, for people.
    pub fn to_json(&self) -> Value {
        let mut all = self.counters.to_json();
        let details = self.lock();
        let (capacity, peak) = details
            .cache_pool
            .as_ref()
            .map_or((0, 0), |cache_pool| (cache_pool.capacity_bytes(), cache_pool.peak_bytes()));
        // Includes the wait that is not over yet.
        let waited = details.memory.as_ref().map_or(0, |memory| memory.progress.waiting_consumer_us());
        all.insert("ms_waiting_consumer".into(), (waited as f64 / 1e3).into());
        let zero = ((0, 0), (0, 0));
        let (now, most) = details.memory.as_ref().map_or(zero, |memory| {
            let (batches, most) = (memory.progress.fill().1, memory.progress.most_submitted());
            (memory.bytes(batches, peak), memory.bytes(most, peak))
        });
        all.insert("device_memory_bytes".into(), now.0.into());
        all.insert("device_memory_peak_bytes".into(), most.0.into());
        all.insert("host_memory_bytes".into(), now.1.into());
        all.insert("host_memory_peak_bytes".into(), most.1.into());
        all.insert("chunk_cache_bytes".into(), capacity.into());
        all.insert("chunk_cache_peak_bytes".into(), peak.into());
        let in_flight = details.requests.as_ref();
        all.insert("requests_in_flight".into(), in_flight.map_or(0, |slots| slots.in_flight()).into());
        let most = in_flight.map_or(0, |slots| slots.most_in_flight());
        all.insert("requests_in_flight_peak".into(), most.into());
        let policy = details.memory.as_ref().map_or(Value::Null, |memory| memory.jobs.policy().into());
        all.insert("policy".into(), policy);
        let order = &details.start.order;
        all.insert("samples".into(), order.samples().into());
        all.insert("shuffle".into(), order.shuffle().map_or(Value::Null, shuffle_to_json));
        drop(details);
        let (fetched, delivered) = (self.counters.bytes_fetched.get(), self.counters.samples_delivered.get());
        let per_sample = (delivered > 0).then(|| fetched as f64 / delivered as f64);
        all.insert("bytes_fetched_per_sample".into(), per_sample.into());
        all.insert("position".into(), self.position());
        all.insert("channels".into(), self.channels.clone());
        for (name, former) in FORMER_KEYS {
            let value = all[name].clone();
            all.insert(former.into(), value);
        }
        all.into()
    }

    /// The state behind the batch that was handed over last, for a checkpoint.
    pub(super) fn position(&self) -> Value {
        self.lock().start.save(&self.identity, self.next.load(Ordering::Relaxed))
    }

    /// Notes which batch will be handed over next.
    pub(super) fn handed_over(&self, next: u64) {
        self.next.store(next, Ordering::Relaxed);
    }

    /// Notes that the reader starts somewhere else.
    pub(super) fn restored(&self, start: Cursor) {
        self.handed_over(start.batch);
        self.lock().start = start;
    }

    /// Notes that the threads run, with this memory.
    pub(super) fn started(&self, cache_pool: Arc<DevicePool>, memory: MemoryInUse) {
        let mut details = self.lock();
        (details.cache_pool, details.memory) = (Some(cache_pool), Some(memory));
    }

    /// Notes that requests are made.
    pub(super) fn requests(&self, slots: Option<Arc<Slots>>) {
        self.lock().requests = slots;
    }

    fn lock(&self) -> MutexGuard<'_, Details> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a shuffle mixes samples.
fn shuffle_to_json(shuffle: &Shuffle) -> Value {
    let Some((groups, buffer)) = &shuffle.groups else { return Value::Null };
    let count = groups.count(buffer.depth);
    json!({
        "groups_in_buffer": (buffer.strands * groups.held(*buffer)).min(count),
        "strands": buffer.strands.min(count),
        "linked": buffer.linked,
        "passes": buffer.passes,
        "depth": buffer.depth,
        "groups": count,
        "group_samples": groups.samples() as f64 / count as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::part::PartPlans;
    use crate::sampler::{Choice, Order, OrderArguments};

    #[test]
    fn keys_that_were_renamed_have_both_names() {
        let order = OrderArguments {
            shard_id: 0,
            num_shards: 1,
            stick_to_shard: false,
            pad_last_batch: false,
            batch_size: 2,
            shuffle: None,
            choice: Choice::default(),
        };
        let start = Cursor { order: Order::new(8, order).unwrap(), seed: 0, batch: 3 };
        let identity = Identity { fingerprint: Value::Null, batch_size: 2, dimensions: 1 };
        let status = Status::new(start, identity, Value::Null);
        let cache_pool = DevicePool::new(0, 1 << 20);
        let progress = Progress::new(status.counters.clone());
        let memory = MemoryInUse {
            device_bytes: 0,
            batch_bytes: 100,
            jobs: Jobs::new(Arc::new(PartPlans::new(vec![])), 0, progress.clone(), Arc::default()),
            progress,
            pinned: None,
        };
        status.started(cache_pool, memory);
        status.counters.chunks_decoded_sm_partition.add(7);
        let all = status.to_json();
        assert_eq!(
            (&all["chunks_decoded_sm_partition"], &all["chunk_cache_bytes"]),
            (&json!(7), &json!(1 << 20))
        );
        for (name, former) in FORMER_KEYS {
            assert!(all[name].is_u64() && all[name] == all[former], "{name}");
        }
        assert_eq!(all["position"]["batch"], 3);
    }
}
