//! The order of samples: DALI's reader shards, epochs and padding, and a shuffle inside them.
//!
//! With N samples and P reader shards, shard `v` holds the samples `N*v/P .. N*(v+1)/P`. A reader starts with
//! its own shard and moves on to the next in every epoch, unless it sticks to its own. Without padding its
//! batches run on across epochs; with padding every epoch has the same number of batches on every shard, and
//! the last sample repeats. This is what DALI's `Loader` does; a batch number is therefore the whole state.
//!
//! The shuffle permutes the samples of one visit to a shard. It is a function of seed, epoch and shard alone,
//! so it needs no state, and it never moves a sample to another shard.

use crate::error::Result;
use crate::options::argument;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The sequence of batches of one reader.
#[derive(Clone, Debug)]
pub struct Order {
    samples: u64,
    shards: u64,
    shard: u64,
    stick: bool,
    pad: bool,
    batch_size: u64,
    seed: Option<u64>,
    /// The permutation of the visit that was asked for last.
    visit: Option<(Visit, Vec<u64>)>,
}

/// One pass over one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Visit {
    epoch: u64,
    shard: u64,
}

/// The arguments that decide an order.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct OrderArguments {
    pub shard_id: i64,
    pub num_shards: i64,
    pub stick_to_shard: bool,
    pub pad_last_batch: bool,
    pub batch_size: u64,
    pub seed: Option<i64>,
}

impl Order {
    /// An order over `samples` samples, shuffled if a seed is given.
    ///
    /// # Errors
    /// Reader shards that do not exist, or more of them than samples.
    pub fn new(samples: u64, arguments: &OrderArguments) -> Result<Self> {
        let &OrderArguments { shard_id, num_shards, .. } = arguments;
        let shards = u64::try_from(num_shards)
            .ok()
            .filter(|&shards| shards > 0)
            .ok_or_else(|| argument("num_shards", format!("{num_shards} is too small; give 1 or more")))?;
        let shard = u64::try_from(shard_id).ok().filter(|&shard| shard < shards).ok_or_else(|| {
            argument(
                "shard_id",
                format!("{shard_id} is not a shard; num_shards={shards} allows 0 to {}", shards - 1),
            )
        })?;
        if shards > samples {
            let problem = format!(
                "{shards} reader shards cannot share {samples} sample(s); give at most {samples}, or a smaller window or stride"
            );
            return Err(argument("num_shards", problem));
        }
        Ok(Self {
            samples,
            shards,
            shard,
            stick: arguments.stick_to_shard,
            pad: arguments.pad_last_batch,
            batch_size: arguments.batch_size,
            seed: arguments.seed.map(|seed| seed as u64),
            visit: None,
        })
    }

    /// How many samples all shards hold together.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// `samples`, counted as if every shard were as large as the largest.
    pub fn padded_samples(&self) -> u64 {
        if self.pad { self.largest_shard() * self.shards } else { self.samples }
    }

    /// How many shards there are.
    pub fn shards(&self) -> u64 {
        self.shards
    }

    /// The shard this reader starts with.
    pub fn shard(&self) -> u64 {
        self.shard
    }

    /// Whether this reader stays with its shard.
    pub fn sticks(&self) -> bool {
        self.stick
    }

    /// Whether epochs are padded.
    pub fn pads(&self) -> bool {
        self.pad
    }

    /// Whether samples are shuffled.
    pub fn shuffles(&self) -> bool {
        self.seed.is_some()
    }

    /// Shuffles by another seed from now on, if at all.
    pub fn reseed(&mut self, seed: i64) {
        self.seed = self.seed.map(|_| seed as u64);
        self.visit = None;
    }

    /// The samples of batch number `batch`, counted from 0 over all epochs.
    pub fn batch(&mut self, batch: u64) -> Vec<u64> {
        if self.pad {
            let batches = self.largest_shard().div_ceil(self.batch_size);
            let (epoch, batch) = (batch / batches, batch % batches);
            let shard =
                if self.stick { self.shard } else { (self.shard + epoch % self.shards) % self.shards };
            let visit = Visit { epoch, shard };
            let last = self.size(shard) - 1;
            (0..self.batch_size)
                .map(|i| self.sample(visit, (batch * self.batch_size + i).min(last)))
                .collect()
        } else {
            let first = u128::from(batch) * u128::from(self.batch_size);
            (0..self.batch_size).map(|i| self.running_sample(first + u128::from(i))).collect()
        }
    }

    /// The `t`-th sample of a reader whose batches run on across epochs.
    fn running_sample(&mut self, t: u128) -> u64 {
        let period = if self.stick { self.size(self.shard) } else { self.samples };
        let (cycle, rest) = ((t / u128::from(period)) as u64, (t % u128::from(period)) as u64);
        if self.stick {
            return self.sample(Visit { epoch: cycle, shard: self.shard }, rest);
        }
        let position = (self.start(self.shard) + rest) % self.samples;
        let shard = self.shard_of(position);
        let steps = (shard + self.shards - self.shard) % self.shards;
        let visit = Visit { epoch: cycle * self.shards + steps, shard };
        self.sample(visit, position - self.start(shard))
    }

    /// The sample at a place of a visit.
    fn sample(&mut self, visit: Visit, place: u64) -> u64 {
        let start = self.start(visit.shard);
        let Some(seed) = self.seed else { return start + place };
        if self.visit.as_ref().is_none_or(|(known, _)| *known != visit) {
            self.visit = Some((visit, permutation(self.size(visit.shard), seed, visit)));
        }
        let (_, permutation) = self.visit.as_ref().expect("was just set");
        start + permutation[place as usize]
    }

    /// First sample of a shard. In 128 bits, because samples times shards may exceed 64.
    fn start(&self, shard: u64) -> u64 {
        (u128::from(self.samples) * u128::from(shard) / u128::from(self.shards)) as u64
    }

    fn size(&self, shard: u64) -> u64 {
        self.start(shard + 1) - self.start(shard)
    }

    fn largest_shard(&self) -> u64 {
        self.samples.div_ceil(self.shards)
    }

    /// The shard that holds a sample: the last one that starts at or before it.
    fn shard_of(&self, sample: u64) -> u64 {
        let shard = (u128::from(sample) + 1) * u128::from(self.shards) - 1;
        (shard / u128::from(self.samples)) as u64
    }
}

/// Fisher and Yates with ChaCha8: the same on every machine and with every version of the random crates.
fn permutation(len: u64, seed: u64, visit: Visit) -> Vec<u64> {
    let mut key = [0; 32];
    for (bytes, value) in key.chunks_exact_mut(8).zip([seed, visit.epoch, visit.shard, 0x7a61_7272]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    let mut random = ChaCha8Rng::from_seed(key);
    let mut permutation: Vec<u64> = (0..len).collect();
    for i in (1..len).rev() {
        // The high half of a 128-bit product: uniform but for a bias below len / 2^64.
        let j = (u128::from(random.next_u64()) * u128::from(i + 1)) >> 64;
        permutation.swap(i as usize, j as usize);
    }
    permutation
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(
        samples: u64,
        shards: i64,
        shard: i64,
        stick: bool,
        pad: bool,
        batch: u64,
        seed: Option<i64>,
    ) -> Order {
        let arguments = OrderArguments {
            shard_id: shard,
            num_shards: shards,
            stick_to_shard: stick,
            pad_last_batch: pad,
            batch_size: batch,
            seed,
        };
        Order::new(samples, &arguments).unwrap()
    }

    /// What DALI's loader does, step by step: walk the samples, moving on at the end of each shard.
    fn walk(order: &Order, batches: usize) -> Vec<Vec<u64>> {
        let (n, p, b) = (order.samples, order.shards, order.batch_size);
        let start = |v: u64| n * v / p;
        let mut shard = order.shard;
        let mut next = start(shard);
        let mut result = vec![];
        let mut left_in_epoch = n.div_ceil(p).div_ceil(b);
        while result.len() < batches {
            let mut batch = vec![];
            while batch.len() < b as usize {
                if next == start(shard + 1) {
                    if order.pad {
                        batch.push(next - 1);
                        continue;
                    }
                    shard = if order.stick { shard } else { (shard + 1) % p };
                    next = start(shard);
                }
                batch.push(next);
                next += 1;
            }
            result.push(batch);
            left_in_epoch -= 1;
            if order.pad && left_in_epoch == 0 {
                left_in_epoch = n.div_ceil(p).div_ceil(b);
                shard = if order.stick { shard } else { (shard + 1) % p };
                next = start(shard);
            }
        }
        result
    }

    proptest! {
        #[test]
        fn batches_equal_a_walk(
            samples in 1u64..60, shards in 1i64..8, shard in 0i64..8, stick: bool, pad: bool, batch in 1u64..12,
        ) {
            prop_assume!(shard < shards && shards as u64 <= samples);
            let mut order = order(samples, shards, shard, stick, pad, batch, None);
            for (number, expected) in walk(&order, 40).into_iter().enumerate() {
                prop_assert_eq!(order.batch(number as u64), expected, "batch {}", number);
            }
        }

        #[test]
        fn a_shuffled_visit_is_a_permutation_of_its_shard(
            samples in 1u64..60, shards in 1i64..5, stick: bool, seed: i64,
        ) {
            prop_assume!(shards as u64 <= samples);
            for shard in 0..shards {
                let mut shuffled = order(samples, shards, shard, stick, true, 7, Some(seed));
                let mut plain = order(samples, shards, shard, stick, true, 7, None);
                let batches = samples.div_ceil(shards as u64).div_ceil(7);
                for epoch in 0..3 {
                    let collect = |order: &mut Order| {
                        let mut all: Vec<_> = (0..batches).flat_map(|b| order.batch(epoch * batches + b)).collect();
                        all.sort_unstable();
                        all.dedup();
                        all
                    };
                    prop_assert_eq!(collect(&mut shuffled), collect(&mut plain));
                }
            }
        }
    }

    #[test]
    fn orders_differ_by_seed_and_epoch_and_repeat_otherwise() {
        let mut a = order(100, 1, 0, false, false, 100, Some(1));
        let mut b = order(100, 1, 0, false, false, 100, Some(2));
        let first = a.batch(0);
        assert_ne!(first, b.batch(0));
        assert_ne!(first, a.batch(1));
        assert_eq!(first, a.batch(0));
    }

    /// The order is a promise: runs must be repeatable with later versions of this crate.
    #[test]
    fn the_order_of_a_seed_is_pinned() {
        assert_eq!(order(8, 1, 0, false, false, 8, Some(42)).batch(0), PINNED);
    }

    const PINNED: [u64; 8] = [0, 2, 7, 3, 5, 4, 1, 6];

    #[test]
    fn shards_that_do_not_exist_are_refused() {
        let new = |num_shards, shard_id| {
            let arguments = OrderArguments {
                shard_id,
                num_shards,
                stick_to_shard: false,
                pad_last_batch: false,
                batch_size: 1,
                seed: None,
            };
            Order::new(5, &arguments).unwrap_err().to_string()
        };
        assert!(new(0, 0).contains("`num_shards`"));
        assert!(new(2, 2).contains("`shard_id`"));
        assert!(new(2, -1).contains("`shard_id`"));
        assert!(new(6, 0).contains("at most 5"));
    }
}
