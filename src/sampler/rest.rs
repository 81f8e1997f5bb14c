//! The samples of an epoch that readers with another number of reader shards or another batch size left. The list of these
//! samples is never made, because it may be as long as the array.
#![forbid(unsafe_code)]

use super::visit::{Visit, cut};

/// A part of an epoch that was read: the same number of batches of every reader shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// How many reader shards there were.
    pub shards: u64,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Batches of each reader shard.
    pub batches: u64,
}

/// The samples that are left of an epoch, in the order in which they are cut anew.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    epoch: u64,
    /// The lists of samples that were cut into reader shards and read in part, each what the one before left.
    parts: Vec<Part>,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// How many samples the list had.
    all: u64,
    /// How many reader shards the list was cut into.
    shards: u64,
    /// How many samples of each reader shard were read, no more than the smallest reader shard has.
    gone: u64,
}

impl Part {
    /// Where the samples that are left of a reader shard begin in the list of all samples that are left.
    fn first(&self, shard: u64) -> u64 {
        cut(self.all, self.shards, shard) - shard * self.gone
    }

    /// The reader shard of an entry of the list of all samples that are left, and the entry's place in that reader shard.
    fn place(&self, entry: u64) -> (u64, u64) {
        // The last reader shard that begins at or before the entry.
        let (mut shard, mut end) = (0, self.shards);
        while end - shard > 1 {
            let middle = shard + (end - shard) / 2;
            if self.first(middle) <= entry { shard = middle } else { end = middle }
        }
        (shard, self.gone + entry - self.first(shard))
    }
}

impl Rest {
    /// What is left of an epoch of `samples` samples.
    pub fn new(samples: u64, epoch: u64, played: &[Played]) -> Self {
        let (mut parts, mut len) = (vec![], samples);
        for part in played {
            let gone = part.batches.saturating_mul(part.batch_size);
            // Reader shards differ by one sample at most.
            let least = len / part.shards;
            parts.push(Part { all: len, shards: part.shards, gone: gone.min(least) });
            len = if gone > least { 0 } else { len - part.shards * gone };
        }
        Self { epoch, parts, len }
    }

    /// How many samples are left.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The visit that an entry of the list comes from, and its place there.
    pub fn place(&self, mut entry: u64) -> (Visit, u64) {
        let mut visit = Visit { epoch: self.epoch, shard: 0, shards: 1 };
        for (number, part) in self.parts.iter().enumerate().rev() {
            let (shard, place) = part.place(entry);
            if number == 0 {
                (visit, entry) = (Visit { epoch: self.epoch, shard, shards: part.shards }, place);
            } else {
                entry = cut(part.all, part.shards, shard) + place;
            }
        }
        (visit, entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The list itself, of entries of visits.
    fn listed(samples: u64, played: &[Played]) -> Vec<(u64, u64)> {
        let mut left: Option<Vec<(u64, u64)>> = None;
        for part in played {
            let all = left.as_ref().map_or(samples, |left| left.len() as u64);
            let mut next = vec![];
            for shard in 0..part.shards {
                let (start, end) = (cut(all, part.shards, shard), cut(all, part.shards, shard + 1));
                let gone = (part.batches * part.batch_size).min(end - start);
                match &left {
                    Some(left) => next.extend_from_slice(&left[(start + gone) as usize..end as usize]),
                    None => next.extend((gone..end - start).map(|place| (shard, place))),
                }
            }
            left = Some(next);
        }
        left.unwrap_or_default()
    }

    proptest! {
        #[test]
        fn places_are_those_of_the_list(
            samples in 1u64..90, parts in prop::collection::vec((1u64..12, 1u64..5, 0u64..5), 1..4),
        ) {
            let played: Vec<Played> =
                parts.iter().map(|&(shards, batch_size, batches)| Played { shards, batch_size, batches }).collect();
            let rest = Rest::new(samples, 3, &played);
            let places = (0..rest.len()).map(|entry| rest.place(entry));
            let places: Vec<_> = places.map(|(visit, place)| (visit.shard, place)).collect();
            prop_assert_eq!(places, listed(samples, &played));
        }
    }

    #[test]
    fn of_any_number_of_samples_nothing_is_listed() {
        let part = Played { shards: 1 << 20, batch_size: 1 << 10, batches: 7 };
        let rest = Rest::new(1 << 40, 0, &[part, Played { shards: 3, batch_size: 5, batches: 1 }]);
        assert_eq!(rest.len(), (1 << 40) - (7 << 30) - 15);
        let shard_left = (1 << 20) - (7 << 10);
        assert_eq!(rest.place(0), (Visit { epoch: 0, shard: 0, shards: 1 << 20 }, (7 << 10) + 5));
        let (visit, place) = rest.place(rest.len() - 1);
        assert_eq!((visit.shard, place), ((1 << 20) - 1, (7 << 10) + shard_left - 1));
        // More than there is, however it is counted.
        let all = Played { batches: u64::MAX, ..part };
        assert_eq!(Rest::new(1 << 40, 0, &[all, part]).len(), 0);
    }
}
