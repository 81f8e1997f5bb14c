//! The windows along one dimension, and the indices that each of them takes.

use std::sync::Arc;

/// Indices `start`, `start + step`, ... that go to neighbouring places of a sample, the first to `place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Run {
    pub start: u64,
    pub step: u64,
    pub count: u64,
    pub place: u64,
}

impl Run {
    /// Neighbouring indices.
    pub fn whole(extent: u64) -> Self {
        Self { start: 0, step: 1, count: extent, place: 0 }
    }

    /// The last of its indices.
    pub fn last(&self) -> u64 {
        self.start + (self.count - 1) * self.step
    }

    /// As many of its indices as lie in `from..to`.
    pub fn within(&self, from: u64, to: u64) -> Option<Self> {
        let before = |bound: u64| bound.saturating_sub(self.start).div_ceil(self.step).min(self.count);
        let (skipped, end) = (before(from), before(to));
        (skipped < end).then(|| Self {
            start: self.start + skipped * self.step,
            count: end - skipped,
            place: self.place + skipped,
            ..*self
        })
    }

    /// As many of its indices as are places of another run, as the indices that are there.
    pub fn through(&self, other: &Self) -> Option<Self> {
        let inside = self.within(other.place, other.place + other.count)?;
        let start = other.start + (inside.start - other.place) * other.step;
        Some(Self { start, step: inside.step * other.step, ..inside })
    }
}

/// The windows along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Where windows start: at the least index that they touch.
    starts: Starts,
    /// The indices of a window that starts at 0.
    runs: Vec<Run>,
    /// From a window's start to the index that it is named by.
    anchor: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Starts {
    Regular { first: u64, step: u64, count: u64 },
    Listed(Arc<[u64]>),
}

impl Axis {
    /// How many windows there are.
    pub fn count(&self) -> u64 {
        match &self.starts {
            Starts::Regular { count, .. } => *count,
            Starts::Listed(starts) => starts.len() as u64,
        }
    }

    /// The least index that a window touches.
    pub fn start(&self, window: u64) -> u64 {
        match &self.starts {
            Starts::Regular { first, step, .. } => first + window * step,
            Starts::Listed(starts) => starts[window as usize],
        }
    }

    /// From the first index that a window touches to behind the last.
    pub fn span(&self) -> u64 {
        self.runs.iter().map(Run::last).max().map_or(0, |last| last + 1)
    }

    /// How many elements a window has.
    pub fn extent(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// The indices of a window.
    pub fn runs(&self, window: u64) -> impl Iterator<Item = Run> {
        let start = self.start(window);
        self.runs.iter().map(move |run| Run { start: run.start + start, ..*run })
    }

    /// The index that a window is named by: its start, or where offset 0 would be.
    pub fn index(&self, window: u64) -> i64 {
        self.start(window) as i64 + self.anchor
    }

    /// The window that is named by an index.
    pub fn window(&self, index: i64) -> Option<u64> {
        let start = u64::try_from(index.checked_sub(self.anchor)?).ok()?;
        match &self.starts {
            Starts::Regular { first, step, count } => {
                let ahead = start.checked_sub(*first)?;
                (ahead % step == 0 && ahead / step < *count).then(|| ahead / step)
            }
            Starts::Listed(starts) => starts.binary_search(&start).ok().map(|window| window as u64),
        }
    }

    /// Which indices name windows, in words.
    pub fn describe(&self) -> String {
        let (first, last) = (self.index(0), self.index(self.count() - 1));
        match &self.starts {
            Starts::Regular { step: 1, .. } => format!("{first} to {last}"),
            Starts::Regular { step, .. } => format!("{first} to {last} in steps of {step}, the `stride`"),
            Starts::Listed(_) => format!("{first} to {last} without those left out"),
        }
    }

    /// Windows with these runs in the region `from..to`, a step apart. `None` if there is no room for one.
    pub(super) fn new(runs: Vec<Run>, anchor: i64, (from, to): (u64, u64), step: u64) -> Option<Self> {
        let mut axis = Self { starts: Starts::Listed([].into()), runs, anchor };
        let room = (to - from).checked_sub(axis.span())?;
        axis.starts = Starts::Regular { first: from, step, count: room / step + 1 };
        Some(axis)
    }

    /// Leaves out the windows that touch one of these indices, and those with indices on both sides of a break: before it, and
    /// at or behind it.
    pub(super) fn exclude(&mut self, indices: &[u64], breaks: &[u64]) {
        let sorted = |indices: &[u64]| {
            let mut sorted = indices.to_vec();
            sorted.sort_unstable();
            sorted
        };
        let (indices, breaks) = (sorted(indices), sorted(breaks));
        let touches = |window: &u64| {
            let start = self.start(*window);
            let from = indices.partition_point(|&index| index < start);
            let reaches_over = breaks.get(breaks.partition_point(|&index| index <= start));
            reaches_over.is_some_and(|&index| index < start + self.span())
                || indices[from..].iter().take_while(|&&index| index < start + self.span()).any(|&index| {
                    let relative = index - start;
                    self.runs.iter().any(|run| run.within(relative, relative + 1).is_some())
                })
        };
        let left = (0..self.count()).filter(|window| !touches(window)).map(|window| self.start(window));
        self.starts = Starts::Listed(left.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_of_a_run_are_its_indices_inside(
            start in 0u64..20, step in 1u64..5, count in 1u64..8, from in 0u64..40, length in 0u64..20,
        ) {
            let run = Run { start, step, count, place: 3 };
            let all = |run: Run| (0..run.count).map(move |i| (run.place + i, run.start + i * run.step));
            let expected: Vec<_> = all(run).filter(|(_, i)| (from..from + length).contains(i)).collect();
            let inside: Vec<_> = run.within(from, from + length).into_iter().flat_map(all).collect();
            prop_assert_eq!(inside, expected);
        }

        #[test]
        fn a_run_through_others_takes_what_is_at_its_places(
            pieces in prop::collection::vec((0u64..20, 1u64..4, 1u64..6), 1..5),
            (start, step, count) in (0u64..8, 1u64..4, 1u64..6),
        ) {
            let (mut others, mut chosen) = (vec![], vec![]);
            for (start, step, count) in pieces {
                others.push(Run { start, step, count, place: chosen.len() as u64 });
                chosen.extend((0..count).map(|i| start + i * step));
            }
            let run = Run { start, step, count, place: 5 };
            prop_assume!(run.last() < chosen.len() as u64);
            let all = |run: Run| (0..run.count).map(move |i| (run.place + i, run.start + i * run.step));
            let expected: Vec<_> = all(run).map(|(place, i)| (place, chosen[i as usize])).collect();
            let mut found: Vec<_> = others.iter().filter_map(|other| run.through(other)).flat_map(all).collect();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
