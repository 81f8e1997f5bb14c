//! Random numbers, shuffled lists and permutations, the same on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Shuffles a list, as Fisher and Yates do.
pub(super) fn shuffle<T>(list: &mut [T], random: &mut ChaCha8Rng) {
    for i in (1..list.len()).rev() {
        list.swap(i, below(i as u64 + 1, random) as usize);
    }
}

/// A random number below `end`, or 0.
pub(super) fn below(end: u64, random: &mut ChaCha8Rng) -> u64 {
    scaled(random.next_u64(), end)
}

/// What comes to `place` when `count` entries are permuted by a key: a swap-or-not shuffle (Hoang, Morris and Rogaway), which
/// tells one place without listing the others.
///
/// Each round pairs the entries by a random number, and swaps the two of a pair or not.
pub(super) fn permuted(place: u64, count: u64, key: u64) -> u64 {
    let mut entry = place;
    let rounds = EXTRA_ROUNDS + 2 * u64::from(count.max(1).ilog2());
    for round in 0..rounds {
        let round_key = mixed(key.wrapping_add(round.wrapping_mul(GOLDEN)));
        let pivot = scaled(round_key, count);
        let partner = if pivot >= entry { pivot - entry } else { pivot + (count - entry) };
        if mixed(round_key ^ entry.max(partner).wrapping_mul(GOLDEN)) >> 63 == 1 {
            entry = partner;
        }
    }
    entry
}

/// Rounds of a permutation of a single entry. Fewer leave orders of a few entries unlike in frequency.
const EXTRA_ROUNDS: u64 = 24;
/// 2^64 divided by the golden ratio: its multiples are far from each other.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that looks random and is told by another: the output function of SplitMix64.
pub(super) fn mixed(number: u64) -> u64 {
    let mut number = number.wrapping_add(GOLDEN);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A number of 64 random bits, scaled to what is below `end`, or 0.
fn scaled(random: u64, end: u64) -> u64 {
    // The high half of a 128-bit product: uniform but for a bias below end / 2^64.
    ((u128::from(random) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use std::collections::HashMap;

    proptest! {
        #[test]
        fn each_entry_comes_to_one_place(count in 1u64..300, key: u64) {
            let mut entries: Vec<u64> = (0..count).map(|place| permuted(place, count, key)).collect();
            entries.sort_unstable();
            prop_assert_eq!(entries, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn of_any_number_of_entries_one_is_told(count in 1u64.., place: u64, key: u64) {
            prop_assert!(permuted(place % count, count, key) < count);
        }
    }

    /// Pearson's statistic of how often each order of a few entries came, over its degrees of freedom.
    fn unevenness(count: u64) -> f64 {
        const KEYS: u64 = 200_000;
        let mut times: HashMap<Vec<u64>, u64> = HashMap::new();
        for key in 0..KEYS {
            *times.entry((0..count).map(|place| permuted(place, count, key)).collect()).or_default() += 1;
        }
        let orders = (1..=count).product::<u64>();
        let expected = KEYS as f64 / orders as f64;
        let of = |times: u64| (times as f64 - expected).powi(2) / expected;
        let absent = (orders - times.len() as u64) as f64 * expected;
        (times.values().map(|&times| of(times)).sum::<f64>() + absent) / (orders - 1).max(1) as f64
    }

    #[test]
    fn all_orders_of_a_few_entries_are_as_frequent() {
        for count in 2..6 {
            let found = unevenness(count);
            // Of one degree of freedom, a value above 6.6 has a probability of 1 %; of more, values are nearer to 1.
            assert!(found < if count == 2 { 6.6 } else { 3.0 }, "{count} entries: {found}");
        }
    }

    #[test]
    fn neighbours_come_to_unrelated_places() {
        let count = 100_000u64;
        for key in 0..4 {
            let places: Vec<u64> = (0..count).map(|place| permuted(place, count, key)).collect();
            let distance = places.windows(2).map(|pair| pair[0].abs_diff(pair[1]) as f64).sum::<f64>();
            let mean = distance / (count - 1) as f64 / count as f64;
            // The mean distance of two random places is a third of the length.
            assert!((mean - 1.0 / 3.0).abs() < 0.005, "{mean}");
        }
    }
}
