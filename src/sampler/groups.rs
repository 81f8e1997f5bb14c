//! A shuffle that knows chunks: every sample comes once, and those that share chunks come near each other.
//!
//! Samples that start in the same chunks are a *group*. Where windows reach into the next group's chunks, the two are
//! *linked*: the chunks of both have to be in the chunk cache until both groups are read. The order of a visit is made so
//! that few chunks have to be cached, and each chunk is decoded once:
//!
//! ```text
//! groups       g0-g1-g2-g3   g4-g5   g6 ...      '-': linked
//! chain        runs of linked groups in random order, turned by a random number of groups
//! strands      the chain cut into equal parts, walked at the same time:   --> <-- --> <--
//! stages       the samples whose last chunk a walk has just reached, permuted
//! rounds       as many samples of each strand as its length tells, interleaved at random
//! ```
//!
//! A strand holds the chunks of one group, or as many as a window spans. Neighbouring strands walk in opposite
//! directions, so that both are at their common border at the same time, at the start of the visit or at its end.
//! Without links the order of groups is random altogether. How many strands there are is the size of the buffer.

use super::axis::Axis;
use super::grid::{Cells, Grid};
use super::windows::Windows;

use std::ops::Range;

/// How an order is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// How many leading dimensions cut samples into groups.
    pub depth: usize,
    /// Strands that are walked at the same time.
    pub strands: u64,
    /// Whether linked groups stay together.
    pub linked: bool,
}

/// The groups of all samples.
#[derive(Clone, Debug)]
pub struct Groups {
    axes: Vec<Cells>,
}

impl Groups {
    /// Groups of windows over grids, one for each dimension of the user's window.
    pub fn new(windows: &Windows, grids: &[Grid]) -> Self {
        let cells = |(axis, grid): (&Axis, &Grid)| Cells::new(axis, grid);
        Self { axes: windows.axes().iter().zip(grids).map(cells).collect() }
    }

    /// Makes the groups ready to be shuffled, which takes [`Groups::BYTES_PER_CELL`] for each cell that windows start in.
    ///
    /// # Errors
    /// How many cells a dimension has, if these are more than `most_cells`.
    pub fn cut(mut self, most_cells: u64) -> Result<Self, u64> {
        for cells in &mut self.axes {
            let count = cells.cut(most_cells);
            if count > most_cells {
                return Err(count);
            }
        }
        Ok(self)
    }

    /// Bytes that a group takes that one dimension cuts.
    pub const BYTES_PER_CELL: u64 = 8;

    /// Whether any chunk belongs to several samples.
    pub fn share(&self) -> bool {
        self.axes.iter().any(|cells| cells.share)
    }

    /// The most groups in a row that `windows` neighbouring windows of the first dimension touch.
    pub fn reach(&self, windows: u64) -> u64 {
        let cells = &self.axes[0];
        let last = |first: u64| cells.windows.min(first.saturating_add(windows)) - 1;
        let reach = |first| cells.touched(last(first)).1 - cells.touched(first).0 + 1;
        (0..cells.windows).map(reach).max().unwrap_or(1)
    }

    /// How many groups there are if the first `depth` dimensions cut them.
    pub fn count(&self, depth: usize) -> u64 {
        self.axes[..depth].iter().map(|cells| cells.borders.len() as u64 - 1).product()
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.axes.iter().map(|cells| cells.windows).product()
    }

    /// The most groups in a row that a window reaches over, along the last of the first `depth` dimensions.
    pub fn span(&self, depth: usize) -> u64 {
        self.axes[depth - 1].span
    }

    /// Chooses a buffer of at most `bytes`, if it can be had, and of `samples` samples. `group_bytes` says for each depth
    /// how large the decoded chunks of a group are.
    pub fn buffer(&self, group_bytes: &[u64], bytes: u64, samples: u64) -> Buffer {
        let fitting = |depth: usize| bytes / group_bytes[depth - 1].max(1);
        let depth = (1..=self.axes.len())
            .find(|&depth| fitting(depth) >= Self::LEAST_STRANDS * self.span(depth))
            .unwrap_or(self.axes.len());
        let span = self.span(depth);
        let linked = span > 1 && fitting(depth) >= Self::LEAST_LINKED_STRANDS * span;
        let held = self.held(Buffer { depth, strands: 0, linked });
        let asked = (u128::from(samples) * u128::from(self.count(depth))).div_ceil(self.samples().into());
        let groups = fitting(depth).min(u64::try_from(asked).unwrap_or(u64::MAX)).max(1);
        let strands = (groups / held).max(1);
        // The chain is a ring: its first and its last strand have to meet as the others do.
        let odd = if linked && strands > 1 { strands % 2 } else { 0 };
        Buffer { depth, strands: strands - odd, linked }
    }

    /// The most groups that a strand holds: with links all groups from the first to the last that a window touches,
    /// without links the groups that a window touches.
    pub fn held(&self, buffer: Buffer) -> u64 {
        if buffer.linked { self.span(buffer.depth) } else { self.axes[buffer.depth - 1].most }
    }

    /// Fewer strands than this mix little; groups become smaller then.
    const LEAST_STRANDS: u64 = 4;
    /// Fewer linked strands than this go through a visit from one end to the other; links are given up then.
    const LEAST_LINKED_STRANDS: u64 = 2;

    /// The sample at a position of the list in which reader shards are cut: sorted by chunks in all dimensions.
    pub(super) fn sample(&self, position: u64) -> u64 {
        let (_, mut rest, boxes) = self.boxed(position, self.axes.len());
        let (mut sample, mut below) = (0, 1);
        for (cells, windows) in self.axes.iter().zip(boxes).rev() {
            let count = windows.end - windows.start;
            sample += (windows.start + rest % count) * below;
            rest /= count;
            below *= cells.windows;
        }
        sample
    }

    /// The group that a position is in, of groups that the first `depth` dimensions cut, the place that it has in the group, and
    /// the windows of the group along those dimensions.
    fn boxed(&self, position: u64, depth: usize) -> (u64, u64, Vec<Range<u64>>) {
        let (mut group, mut rest, mut outer, mut boxes) = (0, position, 1, vec![]);
        for (d, cells) in self.axes[..depth].iter().enumerate() {
            // Positions for each window of this dimension, as far as the cells are known.
            let each = outer * self.inner(d);
            let cell = cells.borders.partition_point(|&first| first * each <= rest) - 1;
            let (first, end) = (cells.borders[cell], cells.borders[cell + 1]);
            group = group * (cells.borders.len() as u64 - 1) + cell as u64;
            rest -= first * each;
            outer *= end - first;
            boxes.push(first..end);
        }
        (group, rest, boxes)
    }

    /// The group of a position, of groups that the first `depth` dimensions cut. Groups are numbered in the order of positions.
    pub(super) fn group_at(&self, position: u64, depth: usize) -> u64 {
        self.boxed(position, depth).0
    }

    /// The positions of a group.
    pub(super) fn positions(&self, group: u64, depth: usize) -> Range<u64> {
        let (mut start, mut outer) = (0, 1);
        for d in 0..depth {
            let Range { start: first, end } = self.windows_of(group, d, depth);
            start += first * outer * self.inner(d);
            outer *= end - first;
        }
        start..start + outer * self.inner(depth - 1)
    }

    /// The windows of a group along the dimension that cuts last.
    pub(super) fn windows(&self, group: u64, depth: usize) -> Range<u64> {
        self.windows_of(group, depth - 1, depth)
    }

    /// How many samples of a group have one of these windows along the dimension that cuts last.
    pub(super) fn samples_of(&self, group: u64, windows: &Range<u64>, depth: usize) -> u64 {
        let outer = (0..depth - 1).map(|d| self.windows_of(group, d, depth)).map(|all| all.end - all.start);
        outer.product::<u64>() * (windows.end - windows.start) * self.inner(depth - 1)
    }

    /// An entry of the list of those samples.
    pub(super) fn sample_of(&self, group: u64, windows: &Range<u64>, depth: usize, entry: u64) -> u64 {
        let (mut rest, mut sample, mut below) = (entry, 0, 1);
        for d in (0..self.axes.len()).rev() {
            let all = match d + 1 {
                cut if cut < depth => self.windows_of(group, d, depth),
                cut if cut == depth => windows.clone(),
                _ => 0..self.axes[d].windows,
            };
            let count = all.end - all.start;
            sample += (all.start + rest % count) * below;
            rest /= count;
            below *= self.axes[d].windows;
        }
        sample
    }

    /// Whether a group is the first along the dimension that cuts last.
    pub(super) fn begins_row(&self, group: u64, depth: usize) -> bool {
        self.cell(group, depth - 1, depth) == 0
    }

    /// Whether windows of the group before this one, in the same row, reach into its chunks.
    pub(super) fn is_linked(&self, group: u64, depth: usize) -> bool {
        !self.begins_row(group, depth)
            && self.first_reaching(group - 1, group, depth) < self.windows(group - 1, depth).end
    }

    /// The first window of a group that reaches into the chunks of another behind it in its row, along the dimension that
    /// cuts last; the end of the windows if none does.
    pub(super) fn first_reaching(&self, group: u64, into: u64, depth: usize) -> u64 {
        let cells = &self.axes[depth - 1];
        let (windows, into) = (self.windows(group, depth), cells.touched(self.windows(into, depth).start).0);
        let (mut first, mut end) = (windows.start, windows.end);
        while first < end {
            let middle = first + (end - first) / 2;
            if cells.touched(middle).1 >= into { end = middle } else { first = middle + 1 }
        }
        first
    }

    /// Samples for each combination of windows of the dimensions up to `d`.
    fn inner(&self, d: usize) -> u64 {
        self.axes[d + 1..].iter().map(|cells| cells.windows).product()
    }

    /// The number of a group's cell along a dimension, of the cells that windows start in.
    fn cell(&self, group: u64, d: usize, depth: usize) -> usize {
        let cells = |d: usize| self.axes[d].borders.len() as u64 - 1;
        let below: u64 = (d + 1..depth).map(cells).product();
        (group / below % cells(d)) as usize
    }

    /// The windows of a group along a dimension that cuts.
    fn windows_of(&self, group: u64, d: usize, depth: usize) -> Range<u64> {
        let (cell, borders) = (self.cell(group, d, depth), &self.axes[d].borders);
        borders[cell]..borders[cell + 1]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sampler::WindowArguments;
    use proptest::prelude::*;

    use std::collections::HashSet;

    /// Windows of single steps apart, over chunks along one dimension.
    pub(in super::super) fn along_one(steps: u64, window: i64, chunk: u64) -> Groups {
        let given = WindowArguments { window: Some(&[window]), ..WindowArguments::default() };
        Groups::new(&Windows::new(&[steps], &given).unwrap(), &[Grid::new([(0, vec![chunk])])])
            .cut(u64::MAX)
            .unwrap()
    }

    #[test]
    fn the_buffer_is_as_large_as_memory_and_initial_fill_allow() {
        let single = along_one(1000, 1, 10);
        assert_eq!(single.buffer(&[1], 16, 1024), Buffer { depth: 1, strands: 16, linked: false });
        assert_eq!(single.buffer(&[1], 1 << 40, 1024), Buffer { depth: 1, strands: 103, linked: false });
        assert_eq!(single.buffer(&[1], 1 << 40, 25), Buffer { depth: 1, strands: 3, linked: false });
        assert_eq!(single.buffer(&[100], 16, 1024), Buffer { depth: 1, strands: 1, linked: false });
        let overlapping = along_one(1000, 4, 10);
        assert_eq!(overlapping.buffer(&[1], 16, 1024), Buffer { depth: 1, strands: 8, linked: true });
        assert_eq!(overlapping.buffer(&[1], 7, 1024), Buffer { depth: 1, strands: 2, linked: true });
        assert_eq!(overlapping.buffer(&[1], 3, 1024), Buffer { depth: 1, strands: 1, linked: false });
        assert_eq!(overlapping.buffer(&[1], 16, 1), Buffer { depth: 1, strands: 1, linked: true });
        // Each strand holds three groups; linked groups need two strands.
        let wide = along_one(1000, 21, 10);
        assert_eq!(wide.buffer(&[1], 6, 1024), Buffer { depth: 1, strands: 2, linked: true });
        assert_eq!(wide.buffer(&[1], 5, 1024), Buffer { depth: 1, strands: 1, linked: false });
    }

    #[test]
    fn neighbouring_windows_reach_over_the_groups_that_they_touch() {
        let single = along_one(1000, 1, 10);
        assert_eq!(
            [1, 2, 11, 12, 1000, u64::MAX].map(|windows| single.reach(windows)),
            [1, 2, 2, 3, 100, 100]
        );
        let overlapping = along_one(1000, 4, 10);
        assert_eq!([1, 8, 9].map(|windows| overlapping.reach(windows)), [2, 2, 3]);
    }

    /// Chunks of 4 x 8, patches of 2 x 4 that overlap.
    pub(in super::super) fn patches() -> Groups {
        let given =
            WindowArguments { window: Some(&[2, 4]), stride: Some(&[1, 2]), ..WindowArguments::default() };
        let windows = Windows::new(&[21, 40], &given).unwrap();
        Groups::new(&windows, &[Grid::new([(0, vec![4])]), Grid::new([(0, vec![8])])]).cut(u64::MAX).unwrap()
    }

    #[test]
    fn groups_are_cut_along_more_dimensions_where_memory_is_short() {
        let groups = patches();
        assert_eq!(groups.buffer(&[5, 1], 64, 1 << 20).depth, 1);
        assert_eq!(groups.buffer(&[500, 100], 1000, 1 << 20).depth, 2);
    }

    #[test]
    fn groups_are_numbered_as_positions_are() {
        let given = WindowArguments { window: Some(&[1, 2, 2, 1]), ..WindowArguments::default() };
        let windows = Windows::new(&[4, 6, 8, 3], &given).unwrap();
        let grids = [2, 2, 4, 1].map(|chunk| Grid::new([(0, vec![chunk])]));
        let groups = Groups::new(&windows, &grids).cut(u64::MAX).unwrap();
        for depth in 1..=4 {
            let mut next = 0;
            for group in 0..groups.count(depth) {
                let positions = groups.positions(group, depth);
                assert_eq!(positions.start, next, "group {group}");
                next = positions.end;
                let mut listed: Vec<u64> = positions.map(|position| groups.sample(position)).collect();
                let all = groups.windows(group, depth);
                assert_eq!(groups.samples_of(group, &all, depth), listed.len() as u64);
                listed.sort_unstable();
                let entries = 0..listed.len() as u64;
                let mut samples: Vec<u64> =
                    entries.map(|entry| groups.sample_of(group, &all, depth, entry)).collect();
                samples.sort_unstable();
                assert_eq!(samples, listed, "group {group}");
                for sample in samples {
                    let window = windows.places(sample)[depth - 1];
                    assert!(all.contains(&window), "group {group}");
                }
            }
            assert_eq!(next, groups.samples());
            let first_of_rows = (0..groups.count(depth)).filter(|&group| groups.begins_row(group, depth));
            assert_eq!(first_of_rows.count(), [2, 3, 2, 3][..depth - 1].iter().product::<usize>().max(1));
        }
    }

    proptest! {
        #[test]
        fn positions_sort_samples_by_chunk(depth in 1usize..3) {
            let groups = patches();
            let all = groups.samples();
            let samples: Vec<u64> = (0..all).map(|position| groups.sample(position)).collect();
            prop_assert_eq!(samples.iter().collect::<HashSet<_>>().len() as u64, all);
            let across = groups.axes[1].windows;
            let cell = |sample: u64| {
                let along = |axis: usize, window: u64| groups.axes[axis].touched(window).0;
                (along(0, sample / across), along(1, sample % across))
            };
            prop_assert!(samples.windows(2).all(|pair| (cell(pair[0]), pair[0]) < (cell(pair[1]), pair[1])));
            for position in 0..all {
                let group = groups.group_at(position, depth);
                prop_assert!(groups.positions(group, depth).contains(&position));
            }
        }

        #[test]
        fn windows_reach_as_far_as_they_touch(steps in 12u64..80, window in 1i64..12, chunk in 1u64..20) {
            let groups = along_one(steps, window, chunk);
            let touched = |window| groups.axes[0].touched(window);
            for group in 0..groups.count(1) {
                let windows = groups.windows(group, 1);
                for into in group + 1..groups.count(1) {
                    let cell = touched(groups.windows(into, 1).start).0;
                    let first = windows.clone().find(|&window| touched(window).1 >= cell);
                    prop_assert_eq!(groups.first_reaching(group, into, 1), first.unwrap_or(windows.end));
                }
            }
        }
    }
}
