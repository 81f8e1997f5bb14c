//! Passes over reader shards, each with random numbers of its own.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// One pass over one reader shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub epoch: u64,
    pub shard: u64,
    pub shards: u64,
}

impl Visit {
    /// ChaCha8: the same on every machine and with every version of the random crates.
    pub fn random(&self, seed: u64) -> ChaCha8Rng {
        let mut key = [0; 32];
        for (bytes, value) in key.chunks_exact_mut(8).zip([seed, self.epoch, self.shard, 0x7a61_7272]) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        ChaCha8Rng::from_seed(key)
    }
}

/// The first position of reader shard `shard` of `shards`. In 128 bits, because samples times shards may exceed 64.
pub(super) fn cut(samples: u64, shards: u64, shard: u64) -> u64 {
    (u128::from(samples) * u128::from(shard) / u128::from(shards)) as u64
}
