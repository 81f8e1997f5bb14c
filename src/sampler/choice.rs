//! Samples by choice: which of all samples an epoch has, and how often.
//!
//! An epoch has all samples, or those of a list, or so many of them:
//!
//! ```text
//! listed               the samples of the list, as often as they are in it
//! per_epoch            the next part of a pass over these: each comes once before one comes again
//! weighted             draws of these, each with a probability of its own, with replacement
//! ```
//!
//! In what order they come and who reads them is decided behind that, as it is for all samples.

use super::random::mixed;

use std::sync::Arc;

/// Which samples an epoch has.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The numbers of the samples that are chosen, in their order; none: all samples.
    pub listed: Option<Arc<[u64]>>,
    /// What draws them; none: each comes once in a pass.
    pub weights: Option<Arc<Weights>>,
    /// How many samples an epoch has; none: as many as there are to choose from.
    pub per_epoch: Option<u64>,
}

impl Choice {
    /// Bytes for each sample that is listed: its number, and its place among the samples sorted by chunk.
    pub const LISTED_BYTES: u64 = 16;
    /// Bytes for each draw of an epoch, of which two are kept.
    pub const DRAWN_BYTES: u64 = 16;
    /// Bytes for each sample that is listed or drawn, in the order of a visit, of which two are kept.
    pub const ORDERED_BYTES: u64 = 8;
    /// The most samples that are listed or drawn for an epoch.
    pub const MOST_LISTED: u64 = u32::MAX as u64;

    /// Whether every epoch has all samples, each once.
    pub fn is_all(&self) -> bool {
        self.listed.is_none() && self.weights.is_none() && self.per_epoch.is_none()
    }

    /// How many samples there are to choose from, of `all`.
    pub fn len(&self, all: u64) -> u64 {
        self.listed.as_ref().map_or(all, |listed| listed.len() as u64)
    }

    /// How many samples an epoch has, of `all`.
    pub fn per_epoch(&self, all: u64) -> u64 {
        self.per_epoch.unwrap_or_else(|| self.len(all))
    }

    /// Whether a sample may come several times in an epoch, besides where a pass ends and the next begins.
    pub fn repeats(&self) -> bool {
        let twice = |listed: &Arc<[u64]>| {
            if listed.is_sorted_by(|one, next| one < next) {
                return false;
            }
            let mut sorted = listed.to_vec();
            sorted.sort_unstable();
            sorted.windows(2).any(|pair| pair[0] == pair[1])
        };
        self.weights.is_some() || self.listed.as_ref().is_some_and(twice)
    }

    /// The number of the sample at a place of the list.
    pub(super) fn sample(&self, place: u64) -> u64 {
        self.listed.as_ref().map_or(place, |listed| listed[place as usize])
    }

    /// Whether an epoch is a part of a pass.
    pub(super) fn cuts_passes(&self) -> bool {
        self.per_epoch.is_some() && self.weights.is_none()
    }
}

/// How likely each of several samples is to be drawn.
#[derive(Debug)]
pub struct Weights {
    /// Sums of the weights up to each sample, that of the sample itself included.
    sums: Vec<f64>,
}

impl Weights {
    /// Bytes of a weight.
    pub const BYTES: u64 = 8;

    /// Weights that are finite and not negative. `None` if all are 0.
    pub fn new(weights: &[f64]) -> Option<Self> {
        // So that no sum is infinite.
        let most = weights.iter().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return None;
        }
        let mut sum = 0.0;
        let add = |weight: &f64| {
            sum += weight / most;
            sum
        };
        Some(Self { sums: weights.iter().map(add).collect() })
    }

    /// What decides all draws of an epoch.
    pub(super) fn key(seed: u64, epoch: u64) -> u64 {
        /// So that draws have nothing to do with the numbers that shuffles are made of.
        const DRAWS: u64 = 0x6472_6177_7321_7a61;
        mixed(mixed(seed ^ DRAWS).wrapping_add(epoch))
    }

    /// One draw of an epoch: the place of a sample in the list.
    pub(super) fn draw(&self, key: u64, number: u64) -> u64 {
        let at = self.at(random(key, number));
        // The first sample whose sum is above: never one whose weight is 0.
        self.sums.partition_point(|&sum| sum <= at) as u64
    }

    /// The first `count` draws of an epoch, sorted. A search for each would take many times as long.
    pub(super) fn draws(&self, key: u64, count: u64) -> Vec<u64> {
        let mut draws: Vec<u64> = (0..count).map(|number| random(key, number)).collect();
        draws.sort_unstable();
        let mut place = 0;
        for draw in &mut draws {
            let at = self.at(*draw);
            while self.sums[place] <= at {
                place += 1;
            }
            *draw = place as u64;
        }
        draws
    }

    /// Where among the sums a random number falls: below the last of them.
    fn at(&self, random: u64) -> f64 {
        let sum = self.sums.last().copied().unwrap_or(0.0);
        random as f64 / (1u64 << RANDOM_BITS) as f64 * sum
    }
}

/// As many bits as a floating-point number holds.
const RANDOM_BITS: u32 = 53;

/// A random number of an epoch.
fn random(key: u64, number: u64) -> u64 {
    mixed(mixed(key.wrapping_add(number)) ^ number) >> (u64::BITS - RANDOM_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn samples_of_no_weight_are_never_drawn(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-300f64..1e300, Just(1.0)], 1..40), key: u64,
        ) {
            match Weights::new(&weights) {
                None => prop_assert!(weights.iter().all(|&weight| weight == 0.0)),
                Some(drawn) => {
                    let mut draws: Vec<u64> = (0..200).map(|number| drawn.draw(key, number)).collect();
                    prop_assert!(draws.iter().all(|&draw| weights[draw as usize] > 0.0));
                    draws.sort_unstable();
                    prop_assert_eq!(drawn.draws(key, 200), draws);
                }
            }
        }
    }

    #[test]
    fn samples_come_as_often_as_their_weights_say() {
        const DRAWS: u64 = 400_000;
        let weights: Vec<f64> = (0..50).map(|i| f64::from(i % 7)).collect();
        let drawn = Weights::new(&weights).unwrap();
        let sum: f64 = weights.iter().sum();
        for epoch in 0..3 {
            let key = Weights::key(11, epoch);
            let mut times = [0u64; 50];
            (0..DRAWS).for_each(|number| times[drawn.draw(key, number) as usize] += 1);
            let off = |(&times, weight): (&u64, &f64)| {
                let expected = DRAWS as f64 * weight / sum;
                if expected > 0.0 { (times as f64 - expected).powi(2) / expected } else { times as f64 }
            };
            let statistic: f64 = times.iter().zip(&weights).map(off).sum();
            // Pearson's statistic of 41 degrees of freedom: above 74 with a probability of 0.1 %.
            assert!(statistic < 74.0, "epoch {epoch}: {statistic}");
        }
        // Draws of one epoch are unlike those of the next.
        let draws = |epoch| (0..100).map(|n| drawn.draw(Weights::key(11, epoch), n)).collect::<Vec<_>>();
        assert_ne!(draws(0), draws(1));
        assert_eq!(draws(1), draws(1));
    }

    #[test]
    fn only_lists_with_a_sample_twice_repeat() {
        let listed = |listed: &[u64]| Choice { listed: Some(listed.into()), ..Choice::default() };
        assert!(!listed(&[1, 5, 9]).repeats() && !listed(&[9, 1, 5]).repeats());
        assert!(listed(&[9, 1, 9]).repeats());
        assert!(Choice::default().is_all() && !Choice::default().repeats());
    }
}
