//! A shuffle that knows chunks: every sample comes once, and those that share chunks come near each other.
//!
//! Samples that start in the same chunks are a *group*. Where windows reach into the next group's chunks, the two are
//! *linked*: somebody has to hold those chunks until both are done. The order of a visit is made so that little has
//! to be held, and each chunk is decoded once:
//!
//! ```text
//! groups       g0-g1-g2-g3   g4-g5   g6 ...      '-': linked
//! chain        runs of linked groups in random order, turned by a random number of groups
//! strands      the chain cut into equal parts, walked at the same time:   --> <-- --> <--
//! stages       the samples whose last chunk a walk has just reached, shuffled
//! order        the strands' stages, interleaved at random
//! ```
//!
//! A strand holds the chunks of one group, or as many as a window spans. Neighbouring strands walk in opposite
//! directions, so that both are at their common border at the same time, at the start of the visit or at its end.
//! Without links the order of groups is random altogether. How many strands there are is the size of the buffer.

use super::Windows;
use super::order::shuffle;

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// The borders of chunks along one dimension. Its cells are the largest chunks.
#[derive(Clone, Debug)]
pub struct Grid {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    start: u64,
    /// Number of its first cell.
    first: u64,
    /// Extent of a cell.
    cell: u64,
    /// Extents of chunks that are no divisors of it: they lie across the borders of cells.
    across: Vec<u64>,
}

impl Grid {
    /// A grid of parts, each with its start and the extents of the chunks of different arrays.
    pub fn new(parts: impl IntoIterator<Item = (u64, Vec<u64>)>) -> Self {
        let mut grid: Vec<Part> = vec![];
        for (start, mut extents) in parts {
            let first =
                grid.last().map_or(0, |before| before.first + (start - before.start).div_ceil(before.cell));
            let cell = extents.iter().copied().max().unwrap_or(1);
            extents.retain(|&extent| !cell.is_multiple_of(extent));
            grid.push(Part { start, first, cell, across: extents });
        }
        Self { parts: grid }
    }

    fn part(&self, index: u64) -> usize {
        self.parts.partition_point(|part| part.start <= index).saturating_sub(1)
    }

    fn cell(&self, index: u64) -> u64 {
        let part = &self.parts[self.part(index)];
        part.first + index.saturating_sub(part.start) / part.cell
    }

    /// The last cell in which any chunk lies that has the index.
    fn reach(&self, index: u64) -> u64 {
        let number = self.part(index);
        let part = &self.parts[number];
        let inside = index.saturating_sub(part.start);
        let last = part.across.iter().map(|extent| inside / extent * extent + extent - 1).max();
        let end = self.parts.get(number + 1).map_or(u64::MAX, |next| next.start - 1 - part.start);
        part.first + last.unwrap_or(inside).max(inside).min(end) / part.cell
    }
}

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

/// Where the windows of one dimension lie in the grid.
#[derive(Clone, Debug)]
struct Cells {
    /// For each window the cells of its first and its last index.
    touched: Vec<(u64, u64)>,
    /// The first window of each cell that windows start in, and the number of windows.
    borders: Vec<u64>,
    /// The most cells that a window has elements in.
    most: u64,
}

/// The groups of all samples.
#[derive(Clone, Debug)]
pub struct Groups {
    axes: Vec<Cells>,
}

impl Groups {
    /// Groups of windows over grids, one for each dimension of the user's window.
    pub fn new(windows: &Windows, grids: &[Grid]) -> Self {
        let cells = |(axis, grid): (&super::Axis, &Grid)| {
            let touched: Vec<(u64, u64)> = (0..axis.count())
                .map(|window| axis.start(window))
                .map(|start| (grid.cell(start), grid.reach(start + axis.span() - 1)))
                .collect();
            let starts = (0..touched.len()).filter(|&w| w == 0 || touched[w].0 != touched[w - 1].0);
            let borders = starts.chain([touched.len()]).map(|window| window as u64).collect();
            let cells =
                |run: super::Run| (grid.reach(run.last()) - grid.cell(run.start) + 1).min(2 * run.count);
            let most = (0..axis.count()).map(|window| axis.runs(window).map(cells).sum()).max().unwrap_or(1);
            Cells { touched, borders, most }
        };
        Self { axes: windows.axes().iter().zip(grids).map(cells).collect() }
    }

    /// Whether any chunk belongs to several samples.
    pub fn share(&self) -> bool {
        self.axes.iter().any(|cells| cells.touched.windows(2).any(|pair| pair[0].1 >= pair[1].0))
    }

    /// The most groups in a row that so many neighbouring windows of the first dimension touch.
    pub fn reach(&self, windows: u64) -> u64 {
        let touched = &self.axes[0].touched;
        let last = |first: usize| touched.len().min(first.saturating_add(windows as usize)) - 1;
        (0..touched.len()).map(|first| touched[last(first)].1 - touched[first].0 + 1).max().unwrap_or(1)
    }

    /// How many groups there are if so many dimensions cut them.
    pub fn count(&self, depth: usize) -> u64 {
        self.axes[..depth].iter().map(|cells| cells.borders.len() as u64 - 1).product()
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.axes.iter().map(|cells| cells.touched.len() as u64).product()
    }

    /// The most groups in a row that a window reaches over, along the last of the first `depth` dimensions.
    pub fn span(&self, depth: usize) -> u64 {
        self.axes[depth - 1].touched.iter().map(|(first, last)| last - first + 1).max().unwrap_or(1)
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

    /// The most groups that a strand holds: with links all from the first that a window touches to the last, without
    /// those that it touches.
    pub fn held(&self, buffer: Buffer) -> u64 {
        if buffer.linked { self.span(buffer.depth) } else { self.axes[buffer.depth - 1].most }
    }

    /// Fewer places than this mix little; groups become smaller then.
    const LEAST_STRANDS: u64 = 4;
    /// Fewer than this go through a visit from one end to the other; links are given up then.
    const LEAST_LINKED_STRANDS: u64 = 2;

    /// The sample at a position of the list in which reader shards are cut: sorted by chunks in all dimensions.
    fn sample(&self, position: u64) -> u64 {
        let inner =
            |d: usize| self.axes[d + 1..].iter().map(|cells| cells.touched.len() as u64).product::<u64>();
        let (mut rest, mut outer) = (position, 1);
        let mut boxes = vec![];
        for (d, cells) in self.axes.iter().enumerate() {
            // So many positions for each window of this dimension, as far as the cells are known.
            let each = outer * inner(d);
            let cell = cells.borders.partition_point(|&first| first * each <= rest) - 1;
            let (first, end) = (cells.borders[cell], cells.borders[cell + 1]);
            rest -= first * each;
            outer *= end - first;
            boxes.push((first, end - first));
        }
        let mut sample = 0;
        let mut below: u64 = 1;
        for (d, &(first, count)) in boxes.iter().enumerate().rev() {
            sample += (first + rest % count) * below;
            rest /= count;
            below *= self.axes[d].touched.len() as u64;
        }
        sample
    }

    /// The samples at these positions in the order of one visit.
    pub fn order(&self, positions: Range<u64>, buffer: Buffer, random: &mut ChaCha8Rng) -> Vec<u64> {
        let groups = self.groups(positions, buffer.depth);
        let linked = |next: usize| {
            let (before, next): (&Group, &Group) = (&groups[next - 1], &groups[next]);
            buffer.linked && before.row == next.row && before.last >= next.cell
        };
        let starts: Vec<usize> = (0..groups.len()).filter(|&group| group == 0 || !linked(group)).collect();
        let ends = starts.iter().skip(1).copied().chain([groups.len()]);
        let mut runs: Vec<Range<usize>> = starts.iter().zip(ends).map(|(&start, end)| start..end).collect();
        shuffle(&mut runs, random);
        let mut chain: Vec<usize> = runs.into_iter().flatten().collect();
        let turn = below(chain.len() as u64, random) as usize;
        chain.rotate_left(turn);

        let mut strands = (buffer.strands as usize).min(chain.len());
        if buffer.linked && strands > 1 {
            strands -= strands % 2;
        }
        let mut labels = vec![];
        let mut walks: Vec<std::vec::IntoIter<u64>> = vec![];
        for strand in 0..strands {
            let part = chain.len() * strand / strands..chain.len() * (strand + 1) / strands;
            let walk = walk(&groups, &chain[part], strand % 2 == 0, random);
            labels.extend(std::iter::repeat_n(strand as u32, walk.len()));
            walks.push(walk.into_iter());
        }
        shuffle(&mut labels, random);
        labels.into_iter().filter_map(|strand| walks[strand as usize].next()).collect()
    }

    /// The samples at these positions by group.
    fn groups(&self, positions: Range<u64>, depth: usize) -> Vec<Group> {
        let mut groups: Vec<Group> = vec![];
        for position in positions {
            let sample = self.sample(position);
            let (mut rest, mut row, mut touched) = (sample, 0u64, (0, 0));
            let mut rows = 1;
            for (d, cells) in self.axes.iter().enumerate().rev() {
                let along = cells.touched[(rest % cells.touched.len() as u64) as usize];
                rest /= cells.touched.len() as u64;
                if d + 1 == depth {
                    touched = along;
                } else if d + 1 < depth {
                    row += along.0 * rows;
                    rows *= cells.touched.last().map_or(1, |last| last.1 + 1);
                }
            }
            match groups.last_mut() {
                Some(group) if (group.row, group.cell) == (row, touched.0) => {
                    group.last = group.last.max(touched.1);
                    group.samples.push((sample, touched.1));
                }
                _ => groups.push(Group {
                    row,
                    cell: touched.0,
                    last: touched.1,
                    samples: vec![(sample, touched.1)],
                }),
            }
        }
        groups
    }
}

/// Samples that start in the same chunks.
#[derive(Debug)]
struct Group {
    /// The cells of all dimensions but the last that cuts groups.
    row: u64,
    /// The cell of that one.
    cell: u64,
    /// The last cell that any of them touches.
    last: u64,
    /// Each with the last cell that it touches.
    samples: Vec<(u64, u64)>,
}

/// The samples of a part of the chain as somebody meets them who walks along it.
fn walk(groups: &[Group], part: &[usize], forward: bool, random: &mut ChaCha8Rng) -> Vec<u64> {
    let mut stages: Vec<Vec<u64>> = vec![vec![]; part.len()];
    for (place, &group) in part.iter().enumerate() {
        for &(sample, last) in &groups[group].samples {
            let mut stage = place;
            if forward {
                // It can come once the last group that it reaches into is there.
                while stage + 1 < part.len()
                    && part[stage + 1] == part[stage] + 1
                    && groups[part[stage + 1]].row == groups[group].row
                    && groups[part[stage + 1]].cell <= last
                {
                    stage += 1;
                }
            }
            stages[stage].push(sample);
        }
    }
    if !forward {
        stages.reverse();
    }
    stages.iter_mut().for_each(|stage| shuffle(stage, random));
    stages.concat()
}

/// A random number below `end`, or 0.
fn below(end: u64, random: &mut ChaCha8Rng) -> u64 {
    // The high half of a 128-bit product: uniform but for a bias below end / 2^64.
    ((u128::from(random.next_u64()) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::WindowArguments;
    use proptest::prelude::*;
    use rand_chacha::rand_core::SeedableRng;

    use std::collections::{HashMap, HashSet};

    fn random(seed: u8) -> ChaCha8Rng {
        ChaCha8Rng::from_seed([seed; 32])
    }

    fn along_one(steps: u64, window: i64, chunk: u64) -> Groups {
        let given = WindowArguments { window: Some(&[window]), ..WindowArguments::default() };
        Groups::new(&Windows::new(&[steps], &given).unwrap(), &[Grid::new([(0, vec![chunk])])])
    }

    /// How many groups are held at most, if a group is held from its first use to its last.
    fn most_held(groups: &Groups, order: &[u64]) -> usize {
        let mut uses: HashMap<u64, (usize, usize)> = HashMap::new();
        for (time, &sample) in order.iter().enumerate() {
            let (first, last) = groups.axes[0].touched[sample as usize];
            (first..=last).for_each(|cell| uses.entry(cell).or_insert((time, time)).1 = time);
        }
        (0..order.len()).map(|t| uses.values().filter(|(a, b)| (a..=b).contains(&&t)).count()).max().unwrap()
    }

    #[test]
    fn no_more_groups_are_held_than_the_buffer_has() {
        for (window, seed) in [(1, 1), (4, 2), (4, 3), (11, 4), (21, 5)] {
            let groups = along_one(2000, window, 10);
            let buffer = groups.buffer(&[1], 16, 10_000);
            let order = groups.order(0..groups.samples(), buffer, &mut random(seed));
            let held = most_held(&groups, &order);
            // Wide windows reach over the borders of strands; SHUFFLE_SHARE of the reader leaves room for that.
            assert!(held <= 20, "window {window}: {held} groups, {buffer:?}");
            assert!(held >= 10, "window {window}: {held} groups, {buffer:?}");
        }
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
    }

    /// Chunks of 4 x 8, patches of 2 x 4 that overlap.
    fn patches() -> Groups {
        let given =
            WindowArguments { window: Some(&[2, 4]), stride: Some(&[1, 2]), ..WindowArguments::default() };
        let windows = Windows::new(&[21, 40], &given).unwrap();
        Groups::new(&windows, &[Grid::new([(0, vec![4])]), Grid::new([(0, vec![8])])])
    }

    #[test]
    fn groups_are_cut_along_more_dimensions_where_memory_is_short() {
        let groups = patches();
        assert_eq!(groups.buffer(&[5, 1], 64, 1 << 20).depth, 1);
        assert_eq!(groups.buffer(&[500, 100], 1000, 1 << 20).depth, 2);
    }

    proptest! {
        #[test]
        fn an_order_is_a_permutation(
            steps in 1u64..80, window in 1i64..12, chunk in 1u64..20, strands in 1u64..9, linked: bool, seed: u8,
        ) {
            prop_assume!(window as u64 <= steps);
            let groups = along_one(steps, window, chunk);
            let all = groups.samples();
            let part = all / 3..all - all / 4;
            let mut order = groups.order(part.clone(), Buffer { depth: 1, strands, linked }, &mut random(seed));
            order.sort_unstable();
            prop_assert_eq!(order, part.collect::<Vec<_>>());
        }

        #[test]
        fn positions_sort_samples_by_chunk(depth in 1usize..3, strands in 1u64..9, linked: bool, seed: u8) {
            let groups = patches();
            let all = groups.samples();
            let samples: Vec<u64> = (0..all).map(|position| groups.sample(position)).collect();
            prop_assert_eq!(samples.iter().collect::<HashSet<_>>().len() as u64, all);
            let across = groups.axes[1].touched.len() as u64;
            let cell = |sample: u64| {
                let along = |axis: usize, window: u64| groups.axes[axis].touched[window as usize].0;
                (along(0, sample / across), along(1, sample % across))
            };
            prop_assert!(samples.windows(2).all(|pair| (cell(pair[0]), pair[0]) < (cell(pair[1]), pair[1])));
            let mut order = groups.order(0..all, Buffer { depth, strands, linked }, &mut random(seed));
            order.sort_unstable();
            prop_assert_eq!(order, (0..all).collect::<Vec<_>>());
        }
    }

    #[test]
    fn grids_of_joined_parts_have_borders_of_their_own() {
        let grid = Grid::new([(0, vec![4, 2]), (10, vec![3])]);
        let cells: Vec<u64> = (0..17).map(|index| grid.cell(index)).collect();
        assert_eq!(cells, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5]);
        // Chunks of 3 beside those of 4 reach into the next cell, but not into the next part.
        let grid = Grid::new([(0, vec![4, 3]), (10, vec![3])]);
        let reach: Vec<u64> = (0..12).map(|index| grid.reach(index)).collect();
        assert_eq!(reach, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    }
}
