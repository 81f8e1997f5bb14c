//! What a reader has done so far, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// What it is now.
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
            /// All of them by name; microseconds become milliseconds.
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
    /// Counts a decoded chunk.
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
    /// Those of them that the system was asked to fetch from storage before a thread came to them.
    chunks_prefetched,
    /// Read chunks that are not in the store, each time one was looked for.
    chunks_missing,
    /// Read chunks that were decoded, wherever.
    chunks_decoded,
    /// Those of them that the GPU decoded.
    chunks_decoded_gpu,
    /// Those of them that it decoded in a green context, on few multiprocessors, to leave the others to the model.
    chunks_decoded_sm_partition,
    /// Read chunks that the CPU decoded.
    chunks_decoded_cpu,
    /// Times that a batch found a chunk there, or on its way, for an earlier batch.
    chunks_reused,
    /// Encoded bytes that were read.
    bytes_read,
    /// Those of them that cuFile read.
    bytes_read_gds,
    /// Bytes that they decoded to.
    bytes_decoded,
    /// Those of them that the GPU decoded.
    bytes_decoded_gpu,
    /// Those of them that the CPU decoded.
    bytes_decoded_cpu,
    /// Times that a chunk was there from an earlier epoch.
    cache_hits,
    /// Microseconds that the consumer waited for chunks to be read.
    us_waiting_fetch,
    /// That it waited for the CPU to decode.
    us_waiting_cpu,
    /// That it waited for the GPU to decode.
    us_waiting_gpu,
    /// That it waited for the rest: copies, gathering and handing over.
    us_waiting_gather,
    /// In which everything submitted was complete, and the reader waited for the consumer.
    us_waiting_consumer,
}
