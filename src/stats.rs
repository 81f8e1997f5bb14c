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
            /// All of them by name.
            pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
                let mut all = serde_json::Map::new();
                $(all.insert(stringify!($name).into(), self.$name.get().into());)+
                all
            }
        }
    };
}

counters! {
    /// Batches that were handed over.
    batches,
    /// Read chunks whose encoded bytes were read.
    chunks_read,
    /// Read chunks that are not in the store, each time one was looked for.
    chunks_missing,
    /// Read chunks that were decoded, wherever.
    chunks_decoded,
    /// Those of them that the GPU decoded.
    chunks_decoded_gpu,
    /// Times that a batch found a chunk there, or on its way, for an earlier batch.
    chunks_reused,
    /// Encoded bytes that were read.
    bytes_read,
    /// Bytes that they decoded to.
    bytes_decoded,
}
