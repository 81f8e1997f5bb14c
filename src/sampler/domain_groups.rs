//! The groups of the samples of one domain, see `groups.rs`.

use super::axis::Axis;
use super::grid::{Cells, Grid};
use super::windows::Windows;

use std::ops::Range;

/// The groups of the samples of one domain.
#[derive(Clone, Debug)]
pub(super) struct DomainGroups {
    axes: Vec<Cells>,
}

impl DomainGroups {
    /// Groups of windows over grids, one for each dimension of the user's window.
    pub(super) fn new(windows: &Windows, grids: &[Grid]) -> Self {
        let cells = |(axis, grid): (&Axis, &Grid)| Cells::new(axis, grid);
        Self { axes: windows.axes().iter().zip(grids).map(cells).collect() }
    }

    /// Makes the groups ready to be shuffled.
    ///
    /// # Errors
    /// How many cells a dimension has, if these are more than `most_cells`.
    pub(super) fn cut(mut self, most_cells: u64) -> Result<Self, u64> {
        for cells in &mut self.axes {
            let count = cells.cut(most_cells);
            if count > most_cells {
                return Err(count);
            }
        }
        Ok(self)
    }

    /// Whether any chunk belongs to several samples.
    pub(super) fn share(&self) -> bool {
        self.axes.iter().any(|cells| cells.share)
    }

    /// The most groups in a row that `windows` neighbouring windows of the first dimension touch.
    pub(super) fn reach(&self, windows: u64) -> u64 {
        let cells = &self.axes[0];
        let last = |first: u64| cells.windows.min(first.saturating_add(windows)) - 1;
        let reach = |first| cells.touched(last(first)).1 - cells.touched(first).0 + 1;
        // All of them are the most.
        let firsts = if windows < cells.windows { cells.windows } else { 1 };
        (0..firsts).map(reach).max().unwrap_or(1)
    }

    /// How many groups there are if the first `depth` dimensions cut them.
    pub(super) fn count(&self, depth: usize) -> u64 {
        self.axes[..depth].iter().map(|cells| cells.borders.len() as u64 - 1).product()
    }

    /// How many dimensions the user's window has.
    pub(super) fn dimensions(&self) -> usize {
        self.axes.len()
    }

    /// How many windows the first dimension has.
    pub(super) fn windows(&self) -> u64 {
        self.axes[0].windows
    }

    /// How many cells each dimension has, once they are cut.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        self.axes.iter().map(|cells| cells.borders.len() as u64 - 1)
    }

    /// The most groups that a window has elements in, along the last of the first `depth` dimensions.
    pub(super) fn most(&self, depth: usize) -> u64 {
        self.axes[depth - 1].most
    }

    /// How many samples there are.
    pub(super) fn samples(&self) -> u64 {
        self.axes.iter().map(|cells| cells.windows).product()
    }

    /// The most groups in a row that a window reaches over, along the last of the first `depth` dimensions.
    pub(super) fn span(&self, depth: usize) -> u64 {
        self.axes[depth - 1].span
    }

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

    /// The position of a sample in that list.
    pub(super) fn position(&self, sample: u64) -> u64 {
        let (mut below, mut rest) = (self.samples(), sample);
        let (mut position, mut outer, mut place) = (0, 1, 0);
        for (d, cells) in self.axes.iter().enumerate() {
            below /= cells.windows;
            let window = rest / below;
            rest %= below;
            let cell = cells.borders.partition_point(|&first| first <= window) - 1;
            let (first, end) = (cells.borders[cell], cells.borders[cell + 1]);
            position += first * outer * self.inner(d);
            outer *= end - first;
            place = place * (end - first) + window - first;
        }
        position + place
    }

    /// The first and the last chunk, of those that cells are, that the sample at a position has along the dimension that cuts last.
    pub(super) fn touched(&self, position: u64, depth: usize) -> (u64, u64) {
        let window = self.sample(position) / self.inner(depth - 1) % self.axes[depth - 1].windows;
        self.axes[depth - 1].touched(window)
    }

    /// Whether two groups are in the same row, along the dimension that cuts last.
    pub(super) fn in_one_row(&self, one: u64, other: u64, depth: usize) -> bool {
        let cells = self.axes[depth - 1].borders.len() as u64 - 1;
        one / cells == other / cells
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
            let Range { start: first, end } = self.windows_along(group, d, depth);
            start += first * outer * self.inner(d);
            outer *= end - first;
        }
        start..start + outer * self.inner(depth - 1)
    }

    /// The windows of a group along the dimension that cuts last.
    pub(super) fn windows_of(&self, group: u64, depth: usize) -> Range<u64> {
        self.windows_along(group, depth - 1, depth)
    }

    /// How many samples of a group have one of these windows along the dimension that cuts last.
    pub(super) fn samples_of(&self, group: u64, windows: &Range<u64>, depth: usize) -> u64 {
        let outer =
            (0..depth - 1).map(|d| self.windows_along(group, d, depth)).map(|all| all.end - all.start);
        outer.product::<u64>() * (windows.end - windows.start) * self.inner(depth - 1)
    }

    /// An entry of the list of those samples.
    pub(super) fn sample_of(&self, group: u64, windows: &Range<u64>, depth: usize, entry: u64) -> u64 {
        let (mut rest, mut sample, mut below) = (entry, 0, 1);
        for d in (0..self.axes.len()).rev() {
            let all = match d + 1 {
                cut if cut < depth => self.windows_along(group, d, depth),
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
            && self.first_reaching(group - 1, group, depth) < self.windows_of(group - 1, depth).end
    }

    /// The first window of a group that reaches into the chunks of another behind it in its row, along the dimension that
    /// cuts last; the end of the windows if none does.
    pub(super) fn first_reaching(&self, group: u64, into: u64, depth: usize) -> u64 {
        let cells = &self.axes[depth - 1];
        let (windows, into) =
            (self.windows_of(group, depth), cells.touched(self.windows_of(into, depth).start).0);
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
    fn windows_along(&self, group: u64, d: usize, depth: usize) -> Range<u64> {
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
    pub(in super::super) fn along_one(steps: u64, window: i64, chunk: u64) -> DomainGroups {
        let given = WindowArguments { window: Some(&[window]), ..WindowArguments::default() };
        DomainGroups::new(&Windows::new(&[steps], &given).unwrap(), &[Grid::new([(0, vec![chunk])])])
            .cut(u64::MAX)
            .unwrap()
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
    pub(in super::super) fn patches() -> DomainGroups {
        let given =
            WindowArguments { window: Some(&[2, 4]), stride: Some(&[1, 2]), ..WindowArguments::default() };
        let windows = Windows::new(&[21, 40], &given).unwrap();
        DomainGroups::new(&windows, &[Grid::new([(0, vec![4])]), Grid::new([(0, vec![8])])])
            .cut(u64::MAX)
            .unwrap()
    }

    #[test]
    fn groups_are_numbered_as_positions_are() {
        let given = WindowArguments { window: Some(&[1, 2, 2, 1]), ..WindowArguments::default() };
        let windows = Windows::new(&[4, 6, 8, 3], &given).unwrap();
        let grids = [2, 2, 4, 1].map(|chunk| Grid::new([(0, vec![chunk])]));
        let groups = DomainGroups::new(&windows, &grids).cut(u64::MAX).unwrap();
        for depth in 1..=4 {
            let mut next = 0;
            for group in 0..groups.count(depth) {
                let positions = groups.positions(group, depth);
                assert_eq!(positions.start, next, "group {group}");
                next = positions.end;
                let mut listed: Vec<u64> = positions.map(|position| groups.sample(position)).collect();
                let all = groups.windows_of(group, depth);
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
            prop_assert!((0..all).all(|position| groups.position(samples[position as usize]) == position));
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
                let windows = groups.windows_of(group, 1);
                for into in group + 1..groups.count(1) {
                    let cell = touched(groups.windows_of(into, 1).start).0;
                    let first = windows.clone().find(|&window| touched(window).1 >= cell);
                    prop_assert_eq!(groups.first_reaching(group, into, 1), first.unwrap_or(windows.end));
                }
            }
        }
    }
}
