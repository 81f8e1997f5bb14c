//! The counters of a reader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// How often each duration was seen, in a fixed number of classes: from one microsecond on, 16 classes for each power of two, so that
/// what it tells is at most 1/32 off.
#[derive(Debug)]
pub struct Histogram([Counter; Self::CLASSES]);

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl Histogram {
    /// Classes of a power of two, and their number as a power of two.
    const PARTS: u64 = 1 << Self::PART_BITS;
    const PART_BITS: u32 = 4;
    /// Up to 2^32 microseconds, which is more than an hour.
    const CLASSES: usize = ((32 - Self::PART_BITS as usize) + 1) << Self::PART_BITS;

    /// Counts a duration.
    pub fn note(&self, duration: Duration) {
        if let Some(class) = self.0.get(Self::class(duration)) {
            class.add(1);
        }
    }

    /// The milliseconds that this share of all durations do not exceed; `None` before the first.
    pub fn ms_of_share(&self, share: f64) -> Option<f64> {
        let counts: Vec<u64> = self.0.iter().map(Counter::get).collect();
        let all: u64 = counts.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        let class = counts.into_iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        let middle = (Self::start(class) + Self::start(class + 1) - 1) as f64 / 2.0;
        Some(middle / 1e3)
    }

    /// The class of a duration; the last one if it is longer than all.
    fn class(duration: Duration) -> usize {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // Below, a class is one microsecond.
        let power = us.max(1).ilog2().saturating_sub(Self::PART_BITS);
        let class = u64::from(power) * Self::PARTS + (us >> power);
        (class as usize).min(Self::CLASSES - 1)
    }

    /// The least number of microseconds of a class.
    fn start(class: usize) -> u64 {
        let power = (class as u64 / Self::PARTS).saturating_sub(1);
        (class as u64 - power * Self::PARTS) << power
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The counters of a reader.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: Counter,)+
            /// How long answers to requests took to begin, from the moment that a request was sent first, repeats included.
            pub time_to_first_byte: Histogram,
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
                for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
                    let ms = self.time_to_first_byte.ms_of_share(share);
                    all.insert(format!("ms_time_to_first_byte_{name}"), ms.into());
                }
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
    /// Samples of these batches.
    samples_delivered,
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
    /// Requests for chunks, parts of chunks and shard indexes of stores that are not folders, hedged and retried ones not counted.
    requests,
    /// Requests that failed for a reason that may pass, or whose answer was longer than there was memory for, and that were made again.
    requests_retried,
    /// Hedged requests, made beside others for the same bytes, because those were late; there may be two for one.
    requests_hedged,
    /// Encoded bytes that came in answer to requests, with those between chunks that were asked for together.
    bytes_fetched,
    /// Those of the bytes that came which are encoded bytes of chunks that were wanted.
    bytes_fetched_useful,
    /// Encoded bytes of chunks that were received in pinned memory, and copied to the GPU from there.
    bytes_received_pinned,
    /// Connections that were opened to stores at URLs and that an answer came over.
    connections_opened,
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
    use proptest::prelude::*;

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

    #[test]
    fn shares_of_durations_are_told_within_a_class() {
        let all = Counters::default();
        assert!(all.to_json()["ms_time_to_first_byte_p50"].is_null());
        (0..980).for_each(|i| all.time_to_first_byte.note(Duration::from_micros(20_000 + i)));
        (0..20).for_each(|_| all.time_to_first_byte.note(Duration::from_millis(700)));
        let of = |name: &str| all.to_json()[name].as_f64().unwrap();
        assert!((of("ms_time_to_first_byte_p50") / 20.5 - 1.0).abs() < 0.04);
        assert!((of("ms_time_to_first_byte_p99") / 700.0 - 1.0).abs() < 0.04);
    }

    proptest! {
        #[test]
        fn every_duration_is_in_the_class_that_begins_at_or_below_it(us in 0u64..1 << 32) {
            let class = Histogram::class(Duration::from_micros(us));
            prop_assert!(class < Histogram::CLASSES);
            let (start, end) = (Histogram::start(class), Histogram::start(class + 1));
            prop_assert!((start..end).contains(&us), "{us} {start} {end}");
            prop_assert!(end - start <= 1.max(start / 16));
        }
    }

    #[test]
    fn a_duration_that_is_longer_than_all_classes_is_in_the_last() {
        let histogram = Histogram::default();
        histogram.note(Duration::MAX);
        assert!(histogram.ms_of_share(0.5).unwrap() > 4e6);
    }
}
