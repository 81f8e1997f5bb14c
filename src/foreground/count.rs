//! Counts the foreground of all windows of a block, dimension by dimension.

use super::blocks::Piece;
use super::mask::{Along, Mask};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::reader::Setup;
use crate::sampler::{Axis, Domain, Run};

use std::ops::Range;

/// Flags in the order of windows.
pub(super) struct Flags(Vec<u64>);

impl Flags {
    /// Whether a flag is set.
    pub fn get(&self, number: u64) -> bool {
        self.0[(number / 64) as usize] >> (number % 64) & 1 == 1
    }

    fn set(&mut self, number: u64) {
        self.0[(number / 64) as usize] |= 1 << (number % 64);
    }
}

/// Finds the windows of a domain that have enough foreground.
pub(super) struct Counter {
    along: Vec<Dimension>,
    /// How many elements of a window have to be foreground.
    least: u64,
    flags: Flags,
}

/// A dimension of the mask.
enum Dimension {
    Windows(Axis),
    Same(Vec<Run>),
}

impl Counter {
    /// # Errors
    /// More windows than memory holds flags of.
    pub fn new(mask: &Mask, domain: &Domain, min_foreground: f64, setup: &Setup) -> Result<Self> {
        let dimension = |along: &Along| match along {
            Along::Windows(axis) => Dimension::Windows(domain.windows.axes()[*axis].clone()),
            Along::Same(runs) => Dimension::Same(runs.clone()),
        };
        let along: Vec<Dimension> = mask.along.iter().map(dimension).collect();
        let elements = along.iter().map(|dimension| match dimension {
            Dimension::Windows(axis) => axis.extent(),
            Dimension::Same(runs) => runs.iter().map(|run| run.count).sum(),
        });
        let elements = elements.fold(1, u64::saturating_mul);
        let windows = mask.windowed(domain).map(|(_, axis)| axis.count()).fold(1, u64::saturating_mul);
        let needed = (windows / 8).saturating_sub(Options::UNCOUNTED_HOST_BYTES);
        if needed > setup.options.most_host_memory_bytes {
            return Err(Error::Budget {
                name: "host_memory_budget",
                budget_bytes: setup.options.most_host_memory_bytes,
                needed_bytes: needed,
                what: format!("a bit for each of {windows} windows of the mask (a larger stride has fewer)"),
            });
        }
        let flags = Flags(vec![0; windows.div_ceil(64) as usize]);
        Ok(Self { along, least: least(min_foreground, elements), flags })
    }

    /// Counts a block, of which `bytes` are the elements: 0 or 1.
    pub fn count(&mut self, bytes: &[u8], extents: &[u64], pieces: &[Piece]) {
        let mut shape: Vec<usize> = extents.iter().map(|&extent| extent as usize).collect();
        let mut counts: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte != 0)).collect();
        // The first dimension first: what lies behind is added up many at a time.
        for (d, (dimension, piece)) in self.along.iter().zip(pieces).enumerate() {
            let windows: Vec<Vec<Range<usize>>> = match dimension {
                Dimension::Windows(axis) => {
                    piece.windows.clone().map(|window| ranges(axis.runs(window), piece.start)).collect()
                }
                Dimension::Same(runs) => vec![ranges(runs.iter().copied(), piece.start)],
            };
            let (outer, inner) = (shape[..d].iter().product(), shape[d + 1..].iter().product());
            counts = summed(&counts, (outer, shape[d], inner), &windows);
            shape[d] = windows.len();
        }
        self.flag(&counts, pieces);
    }

    /// Flags the windows of a block that have enough.
    fn flag(&mut self, counts: &[u32], pieces: &[Piece]) {
        let all: Vec<u64> = self
            .along
            .iter()
            .map(|dimension| match dimension {
                Dimension::Windows(axis) => axis.count(),
                Dimension::Same(_) => 1,
            })
            .collect();
        for (entry, &count) in counts.iter().enumerate() {
            if u64::from(count) < self.least {
                continue;
            }
            let (mut rest, mut flag, mut below) = (entry as u64, 0, 1);
            for (piece, all) in pieces.iter().zip(&all).rev() {
                let windows = piece.windows.end - piece.windows.start;
                flag += (piece.windows.start + rest % windows) * below;
                rest /= windows;
                below *= all;
            }
            self.flags.set(flag);
        }
    }

    /// Which windows have enough.
    pub fn finish(self) -> Flags {
        self.flags
    }
}

/// The least count whose part of `elements` is `part` or more, and not 0.
fn least(part: f64, elements: u64) -> u64 {
    let enough = |count: u64| count as f64 / elements as f64 >= part;
    let mut least = (part * elements as f64) as u64;
    while least > 0 && enough(least - 1) {
        least -= 1;
    }
    while !enough(least) {
        least += 1;
    }
    least.max(1)
}

/// The indices of runs in a block, as ranges; neighbours are in one.
fn ranges(runs: impl Iterator<Item = Run>, start: u64) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = vec![];
    for run in runs {
        let first = (run.start - start) as usize;
        if run.step == 1 {
            ranges.push(first..first + run.count as usize);
            continue;
        }
        ranges.extend((0..run.count).map(|i| first + (i * run.step) as usize).map(|index| index..index + 1));
    }
    ranges
}

/// Sums along the middle one of three dimensions: over the indices of each window.
fn summed(
    counts: &[u32],
    (outer, extent, inner): (usize, usize, usize),
    windows: &[Vec<Range<usize>>],
) -> Vec<u32> {
    /// So many columns at a time, whose sums stay in the cache of a core.
    const COLUMNS: usize = 1 << 11;
    let mut sums = vec![0u32; outer * windows.len() * inner];
    let strip = inner.min(COLUMNS);
    // Sums of all elements before an index; differences of them are right even where they wrap around.
    let mut before = vec![0u32; (extent + 1) * strip];
    for o in 0..outer {
        for first in (0..inner).step_by(strip) {
            let width = strip.min(inner - first);
            let row = |i: usize| (o * extent + i) * inner + first;
            if width == 1 {
                let mut sum = 0u32;
                for i in 0..extent {
                    sum = sum.wrapping_add(counts[row(i)]);
                    before[i + 1] = sum;
                }
            } else {
                for i in 0..extent {
                    let (known, next) = before.split_at_mut((i + 1) * width);
                    let rows = known[i * width..].iter().zip(&counts[row(i)..row(i) + width]);
                    for (next, (last, row)) in next.iter_mut().zip(rows) {
                        *next = last.wrapping_add(*row);
                    }
                }
            }
            for (window, ranges) in windows.iter().enumerate() {
                let at = (o * windows.len() + window) * inner + first;
                for range in ranges {
                    let starts = &before[range.start * width..(range.start + 1) * width];
                    let ends = &before[range.end * width..(range.end + 1) * width];
                    for ((sum, start), end) in sums[at..at + width].iter_mut().zip(starts).zip(ends) {
                        *sum = sum.wrapping_add(end.wrapping_sub(*start));
                    }
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_least_count_is_the_first_that_is_enough(part in 0.0f64..=1.0, elements in 1u64..5000) {
            let enough = |count: u64| count > 0 && count as f64 / elements as f64 >= part;
            prop_assert_eq!(least(part, elements), (0..=elements).find(|&count| enough(count)).unwrap());
        }

        #[test]
        fn sums_are_those_of_the_elements(
            (outer, extent, inner) in (1usize..4, 1usize..9, prop_oneof![1usize..4, 2046usize..2052, Just(4097)]),
            windows in prop::collection::vec(prop::collection::vec((0usize..9, 0usize..5), 1..3), 1..4),
            seed: u64,
        ) {
            let element = |i: usize| (seed >> (i % 60)) as u32 & 7;
            let counts: Vec<u32> = (0..outer * extent * inner).map(element).collect();
            let inside = |&(start, length): &(usize, usize)| start.min(extent)..(start + length).min(extent).max(start.min(extent));
            let windows: Vec<Vec<_>> = windows.iter().map(|ranges| ranges.iter().map(inside).collect()).collect();
            let found = summed(&counts, (outer, extent, inner), &windows);
            for o in 0..outer {
                for (w, ranges) in windows.iter().enumerate() {
                    for i in 0..inner {
                        let indices = ranges.iter().flat_map(Clone::clone);
                        let sum: u32 = indices.map(|e| counts[(o * extent + e) * inner + i]).sum();
                        prop_assert_eq!(found[(o * windows.len() + w) * inner + i], sum);
                    }
                }
            }
        }
    }

    #[test]
    fn five_percent_of_a_hundred_are_five() {
        assert_eq!([least(0.05, 100), least(0.05, 400), least(0.0, 9), least(1.0, 9)], [5, 20, 1, 9]);
    }
}
