//! How many bytes encoded read chunks have, as far as it is known.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The lengths of encoded read chunks, by array and part of the dataset.
#[derive(Default)]
pub(super) struct Lengths(Mutex<HashMap<(usize, usize), Known>>);

/// The read chunks of a part whose length is known: how many, their bytes, and those of the shortest and the longest one.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub count: u64,
    pub sum: u64,
    pub shortest: u64,
    pub longest: u64,
}

impl Lengths {
    /// Notes how many bytes an encoded read chunk has.
    pub fn note(&self, part: (usize, usize), bytes: u64) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = parts.entry(part).or_insert(Known { count: 0, sum: 0, shortest: bytes, longest: bytes });
        known.count += 1;
        known.sum += bytes;
        known.shortest = bytes.min(known.shortest);
        known.longest = bytes.max(known.longest);
    }

    /// What is known of a part.
    pub fn of(&self, part: (usize, usize)) -> Option<Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&part).copied()
    }
}
