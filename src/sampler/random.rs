//! Random numbers and shuffled lists, the same on every machine.

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
    // The high half of a 128-bit product: uniform but for a bias below end / 2^64.
    ((u128::from(random.next_u64()) * u128::from(end)) >> 64) as u64
}
