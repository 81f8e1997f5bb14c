//! The counters of a reader.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows; relaxed atomic, so it orders nothing else.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `more` to the counter.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The counters of a reader.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: Counter,)+
        }

        impl Counters {
            /// All counters by name; microseconds become milliseconds, and `us_` in a name `ms_`.
            pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
                let mut all = serde_json::Map::new();
                $(
                    let (name, value) = (stringify!($name), self.$name.get());
                    match name.strip_prefix("us_") {
                        Some(rest) => all.insert(format!("ms_{rest}"), (value as f64 / 1e3).into()),
                        None => all.insert(name.into(), value.into()),
                    };
                )+
                all
            }
        }
    };
}

impl Counters {
    /// Counts a decoded chunk of this many decoded bytes.
    pub fn decoded(&self, bytes: u64, by_gpu: bool) {
        self.chunks_decoded.add(1);
        self.bytes_decoded.add(bytes);
        let (chunks, side) = match by_gpu {
            true => (&self.chunks_decoded_gpu, &self.bytes_decoded_gpu),
            false => (&self.chunks_decoded_cpu, &self.bytes_decoded_cpu),
        };
        chunks.add(1);
        side.add(bytes);
    }
}

counters! {
    /// Batches that were handed over.
    batches,
    /// Read chunks whose encoded bytes were read.
    chunks_read,
    /// Read chunks that the system was asked to fetch from storage before a thread came to read them.
    chunks_prefetched,
    /// Read chunks that are not in the store, counted for each look-up.
    chunks_missing,
    /// Read chunks that were decoded, by the GPU or the CPU.
    chunks_decoded,
    /// Read chunks that the GPU decoded.
    chunks_decoded_gpu,
    /// Read chunks that the GPU decoded on an SM partition, which leaves the other multiprocessors to the model.
    chunks_decoded_sm_partition,
    /// Read chunks that the CPU decoded.
    chunks_decoded_cpu,
    /// How often a batch found a chunk in memory, or on its way there for an earlier batch.
    chunks_reused,
    /// Encoded bytes that were read.
    bytes_read,
    /// Encoded bytes that cuFile read.
    bytes_read_gds,
    /// Decoded bytes of the decoded chunks.
    bytes_decoded,
    /// Decoded bytes of the chunks that the GPU decoded.
    bytes_decoded_gpu,
    /// Decoded bytes of the chunks that the CPU decoded.
    bytes_decoded_cpu,
    /// How often a batch found a chunk that an earlier epoch had left in memory.
    cache_hits,
    /// Requests for chunks, parts of chunks and shard indexes of stores that are not folders, those made twice or again not counted.
    requests,
    /// Requests that failed for a reason that may pass, and that were made again.
    requests_repeated,
    /// Requests that were made a second time, because the first was late.
    requests_doubled,
    /// Encoded bytes that came in answer to requests, with those between chunks that were asked for together.
    bytes_fetched,
    /// Chunks and shard indexes of stores that are not folders that were found in the cache on the local disk.
    disk_cache_hits,
    /// Those that were looked for there and were not.
    disk_cache_misses,
    /// Entries of that cache that could not be used and were removed.
    disk_cache_discarded,
    /// Chunks and shard indexes that were not written to it, because the disk was too slow, a lock was held, or there was no room.
    disk_cache_dropped,
    /// Bytes that were read from it.
    disk_cache_bytes_read,
    /// Bytes that were written to it.
    disk_cache_bytes_written,
    /// Microseconds that the consumer waited for chunks to be read.
    us_waiting_fetch,
    /// Microseconds that the consumer waited for the CPU to decode.
    us_waiting_cpu,
    /// Microseconds that the consumer waited for the GPU to decode.
    us_waiting_gpu,
    /// Microseconds that the consumer waited for copies, gathering and the hand-over.
    us_waiting_gather,
    /// Microseconds in which all submitted batches were complete, and the reader waited for the consumer.
    us_waiting_consumer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_chunk_counts_for_its_side_and_times_are_milliseconds() {
        let counters = Counters::default();
        counters.decoded(100, true);
        counters.decoded(30, false);
        counters.decoded(3, false);
        counters.us_waiting_cpu.add(2500);
        let all = counters.to_json();
        let of = |name: &str| all[name].as_f64().unwrap();
        assert_eq!(["chunks_decoded", "chunks_decoded_gpu", "chunks_decoded_cpu"].map(of), [3.0, 1.0, 2.0]);
        assert_eq!(["bytes_decoded", "bytes_decoded_gpu", "bytes_decoded_cpu"].map(of), [133.0, 100.0, 33.0]);
        assert!(of("ms_waiting_cpu") == 2.5 && !all.contains_key("us_waiting_cpu"));
    }
}
