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
//! stages       the samples whose last chunk a walk has just reached, shuffled
//! order        the strands' stages, interleaved at random
//! ```
//!
//! A strand holds the chunks of one group, or as many as a window spans. Neighbouring strands walk in opposite
//! directions, so that both are at their common border at the same time, at the start of the visit or at its end.
//! Without links the order of groups is random altogether. How many strands there are is the size of the buffer.

use super::axis::Axis;
use super::grid::{Cells, Grid};
use super::random::{below, shuffle};
use super::windows::Windows;

use std::ops::Range;

use rand_chacha::ChaCha8Rng;

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
    /// Bytes that groups and [`Groups::order`] take at most for each sample, where every sample is a group of its own.
    pub const BYTES_PER_SAMPLE: u64 = 32;

    /// Groups of windows over grids, one for each dimension of the user's window.
    pub fn new(windows: &Windows, grids: &[Grid]) -> Self {
        let cells = |(axis, grid): (&Axis, &Grid)| Cells::new(axis, grid);
        Self { axes: windows.axes().iter().zip(grids).map(cells).collect() }
    }

    /// Makes the groups ready to be shuffled, which takes 8 bytes for each cell that windows start in.
    pub fn cut(mut self) -> Self {
        self.axes.iter_mut().for_each(Cells::cut);
        self
    }

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
    fn sample(&self, position: u64) -> u64 {
        let inner = |d: usize| self.axes[d + 1..].iter().map(|cells| cells.windows).product::<u64>();
        let (mut rest, mut outer) = (position, 1);
        let mut boxes = vec![];
        for (d, cells) in self.axes.iter().enumerate() {
            // Positions for each window of this dimension, as far as the cells are known.
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
            below *= self.axes[d].windows;
        }
        sample
    }

    /// The samples at these positions in the order of one visit. Numbers of samples have 32 bits here.
    pub fn order(&self, positions: Range<u64>, buffer: Buffer, random: &mut ChaCha8Rng) -> Vec<u32> {
        let sorted = Sorted::new(self, positions, buffer.depth);
        let chain = sorted.chain(buffer.linked, random);
        let mut strands = (buffer.strands.min(chain.len() as u64)) as usize;
        if buffer.linked && strands > 1 {
            strands -= strands % 2;
        }
        let mut walked = Vec::with_capacity(sorted.samples.len());
        let mut labels = Vec::with_capacity(sorted.samples.len());
        // Where each strand is in `walked`.
        let mut at: Vec<u32> = vec![];
        for strand in 0..strands {
            let part = chain.len() * strand / strands..chain.len() * (strand + 1) / strands;
            at.push(walked.len() as u32);
            sorted.walk(&chain[part], strand % 2 == 0, &mut walked, random);
            labels.resize(walked.len(), strand as u32);
        }
        drop((sorted, chain));
        shuffle(&mut labels, random);
        let next = |strand: u32| {
            let at = &mut at[strand as usize];
            *at += 1;
            walked[*at as usize - 1]
        };
        labels.into_iter().map(next).collect()
    }

    /// The cells of a sample in all dimensions before the last that cuts groups, and the first and the last cell that it
    /// touches in that one.
    fn place(&self, sample: u64, depth: usize) -> (u64, (u64, u64)) {
        let (mut rest, mut row, mut touched) = (sample, 0u64, (0, 0));
        let mut rows = 1;
        for (d, cells) in self.axes.iter().enumerate().rev() {
            let window = rest % cells.windows;
            rest /= cells.windows;
            if d + 1 == depth {
                touched = cells.touched(window);
            } else if d + 1 < depth {
                row += cells.touched(window).0 * rows;
                rows *= cells.touched(cells.windows - 1).1 + 1;
            }
        }
        (row, touched)
    }
}

/// Samples sorted by group: samples that start in the same chunks.
struct Sorted<'a> {
    groups: &'a Groups,
    depth: usize,
    samples: Vec<u32>,
    /// The first sample of each group, and the number of samples.
    starts: Vec<u32>,
}

impl<'a> Sorted<'a> {
    /// The samples at these positions.
    fn new(groups: &'a Groups, positions: Range<u64>, depth: usize) -> Self {
        let mut samples = Vec::with_capacity((positions.end - positions.start) as usize);
        samples.extend(positions.map(|position| groups.sample(position) as u32));
        let mut sorted = Self { groups, depth, samples, starts: vec![] };
        let mut before = None;
        let mut starts = vec![];
        for (number, &sample) in sorted.samples.iter().enumerate() {
            let (row, (cell, _)) = groups.place(sample.into(), depth);
            if before.replace((row, cell)) != Some((row, cell)) {
                starts.push(number as u32);
            }
        }
        starts.push(sorted.samples.len() as u32);
        sorted.starts = starts;
        sorted
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn samples(&self, group: usize) -> &[u32] {
        &self.samples[self.starts[group] as usize..self.starts[group + 1] as usize]
    }

    /// Row and cell of a group.
    fn cell(&self, group: usize) -> (u64, u64) {
        let (row, (cell, _)) = self.groups.place(self.samples(group)[0].into(), self.depth);
        (row, cell)
    }

    /// The last cell that a sample touches.
    fn last(&self, sample: u32) -> u64 {
        self.groups.place(sample.into(), self.depth).1.1
    }

    /// Runs of linked groups in random order, turned by a random number of groups.
    fn chain(&self, linked: bool, random: &mut ChaCha8Rng) -> Vec<u32> {
        let is_linked = |next: usize| {
            let ((row, _), (next_row, next_cell)) = (self.cell(next - 1), self.cell(next));
            let last = || self.samples(next - 1).iter().map(|&sample| self.last(sample)).max().unwrap_or(0);
            row == next_row && last() >= next_cell
        };
        let mut runs: Vec<(u32, u32)> = vec![];
        for group in 0..self.len() {
            match runs.last_mut() {
                Some(run) if linked && is_linked(group) => run.1 += 1,
                _ => runs.push((group as u32, group as u32 + 1)),
            }
        }
        shuffle(&mut runs, random);
        let mut chain = Vec::with_capacity(self.len());
        chain.extend(runs.into_iter().flat_map(|(start, end)| start..end));
        let turn = below(chain.len() as u64, random) as usize;
        chain.rotate_left(turn);
        chain
    }

    /// Adds the samples of a part of the chain in the order of a walk along it.
    fn walk(&self, part: &[u32], forward: bool, walked: &mut Vec<u32>, random: &mut ChaCha8Rng) {
        // The stage of a sample of the group at a place; backward the first stage is that of the last place.
        let stage = |place: usize, sample: u32| {
            if !forward {
                return part.len() - 1 - place;
            }
            let group = part[place] as usize;
            // The sample can come once the walk is at the last group that the sample reaches into.
            let mut stage = place;
            while stage + 1 < part.len() && part[stage + 1] == part[stage] + 1 {
                let (row, cell) = self.cell(part[stage + 1] as usize);
                if row != self.cell(group).0 || cell > self.last(sample) {
                    break;
                }
                stage += 1;
            }
            stage
        };
        let each = |visit: &mut dyn FnMut(usize, u32)| {
            for (place, &group) in part.iter().enumerate() {
                self.samples(group as usize).iter().for_each(|&sample| visit(stage(place, sample), sample));
            }
        };
        // Where each stage begins, then where it ends.
        let mut ends = vec![0u32; part.len() + 1];
        each(&mut |stage, _| ends[stage + 1] += 1);
        for stage in 1..ends.len() {
            ends[stage] += ends[stage - 1];
        }
        let start = walked.len();
        walked.resize(start + ends[part.len()] as usize, 0);
        let walked = &mut walked[start..];
        each(&mut |stage, sample| {
            walked[ends[stage] as usize] = sample;
            ends[stage] += 1;
        });
        let mut from = 0;
        for &end in &ends[..part.len()] {
            shuffle(&mut walked[from..end as usize], random);
            from = end as usize;
        }
    }
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
        Groups::new(&Windows::new(&[steps], &given).unwrap(), &[Grid::new([(0, vec![chunk])])]).cut()
    }

    /// How many groups are held at most, if a group is held from its first use to its last.
    fn most_held(groups: &Groups, order: &[u32]) -> usize {
        let mut uses: HashMap<u64, (usize, usize)> = HashMap::new();
        for (time, &sample) in order.iter().enumerate() {
            let (first, last) = groups.axes[0].touched(sample.into());
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
    fn patches() -> Groups {
        let given =
            WindowArguments { window: Some(&[2, 4]), stride: Some(&[1, 2]), ..WindowArguments::default() };
        let windows = Windows::new(&[21, 40], &given).unwrap();
        Groups::new(&windows, &[Grid::new([(0, vec![4])]), Grid::new([(0, vec![8])])]).cut()
    }

    #[test]
    fn groups_are_cut_along_more_dimensions_where_memory_is_short() {
        let groups = patches();
        assert_eq!(groups.buffer(&[5, 1], 64, 1 << 20).depth, 1);
        assert_eq!(groups.buffer(&[500, 100], 1000, 1 << 20).depth, 2);
    }

    #[test]
    fn rows_are_told_apart_in_any_number_of_dimensions() {
        let given = WindowArguments { window: Some(&[1, 2, 2, 1]), ..WindowArguments::default() };
        let windows = Windows::new(&[4, 6, 8, 3], &given).unwrap();
        let grids = [2, 2, 4, 1].map(|chunk| Grid::new([(0, vec![chunk])]));
        let groups = Groups::new(&windows, &grids).cut();
        for depth in 1..=4 {
            let mut rows: HashMap<u64, Vec<u64>> = HashMap::new();
            for sample in 0..windows.len() {
                let places = windows.places(sample);
                let touched = |d: usize| groups.axes[d].touched(places[d]);
                let (row, last) = groups.place(sample, depth);
                assert_eq!(last, touched(depth - 1), "sample {sample}");
                let cells: Vec<u64> = (0..depth - 1).map(|d| touched(d).0).collect();
                assert_eq!(rows.entry(row).or_insert_with(|| cells.clone()), &cells, "sample {sample}");
            }
            let expected: usize = [2, 3, 2][..depth - 1].iter().product();
            assert_eq!(rows.len(), expected, "depth {depth}");
        }
    }

    /// An order as it is described, with lists of everything.
    fn listed_order(
        groups: &Groups,
        positions: Range<u64>,
        buffer: Buffer,
        random: &mut ChaCha8Rng,
    ) -> Vec<u32> {
        struct Group {
            row: u64,
            cell: u64,
            last: u64,
            samples: Vec<(u32, u64)>,
        }
        let mut all: Vec<Group> = vec![];
        for position in positions {
            let sample = groups.sample(position);
            let (row, (cell, last)) = groups.place(sample, buffer.depth);
            match all.last_mut() {
                Some(group) if (group.row, group.cell) == (row, cell) => {
                    group.last = group.last.max(last);
                    group.samples.push((sample as u32, last));
                }
                _ => all.push(Group { row, cell, last, samples: vec![(sample as u32, last)] }),
            }
        }
        let mut runs: Vec<Vec<usize>> = vec![];
        for (number, group) in all.iter().enumerate() {
            let linked = |before: &Group| before.row == group.row && before.last >= group.cell;
            match runs.last_mut() {
                Some(run) if buffer.linked && linked(&all[number - 1]) => run.push(number),
                _ => runs.push(vec![number]),
            }
        }
        shuffle(&mut runs, random);
        let mut chain = runs.concat();
        let turn = below(chain.len() as u64, random) as usize;
        chain.rotate_left(turn);
        let mut strands = (buffer.strands as usize).min(chain.len());
        if buffer.linked && strands > 1 {
            strands -= strands % 2;
        }
        let mut labels = vec![];
        let mut walks = vec![];
        for strand in 0..strands {
            let part = &chain[chain.len() * strand / strands..chain.len() * (strand + 1) / strands];
            let mut stages: Vec<Vec<u32>> = vec![vec![]; part.len()];
            for (place, &group) in part.iter().enumerate() {
                for &(sample, last) in &all[group].samples {
                    let reaches = |stage: usize| {
                        strand % 2 == 0
                            && stage < part.len()
                            && part[stage] == part[stage - 1] + 1
                            && all[part[stage]].row == all[group].row
                            && all[part[stage]].cell <= last
                    };
                    let beyond = (place + 1..).take_while(|&stage| reaches(stage)).count();
                    stages[place + beyond].push(sample);
                }
            }
            if strand % 2 == 1 {
                stages.reverse();
            }
            stages.iter_mut().for_each(|stage| shuffle(stage, random));
            let walk = stages.concat();
            labels.extend(std::iter::repeat_n(strand, walk.len()));
            walks.push(walk.into_iter());
        }
        shuffle(&mut labels, random);
        labels.into_iter().map(|strand| walks[strand].next().unwrap()).collect()
    }

    proptest! {
        #[test]
        fn an_order_is_the_one_that_is_described(
            steps in 1u64..80, window in 1i64..12, chunk in 1u64..20, strands in 1u64..9, linked: bool, seed: u8,
            two: bool, depth in 1usize..3,
        ) {
            prop_assume!(window as u64 <= steps);
            let groups = if two { patches() } else { along_one(steps, window, chunk) };
            let buffer = Buffer { depth: if two { depth } else { 1 }, strands, linked };
            let all = groups.samples();
            let part = all / 5..all - all / 7;
            let order = groups.order(part.clone(), buffer, &mut random(seed));
            prop_assert_eq!(order, listed_order(&groups, part, buffer, &mut random(seed)));
        }

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
            prop_assert_eq!(order, part.map(|sample| sample as u32).collect::<Vec<_>>());
        }

        #[test]
        fn positions_sort_samples_by_chunk(depth in 1usize..3, strands in 1u64..9, linked: bool, seed: u8) {
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
            let mut order = groups.order(0..all, Buffer { depth, strands, linked }, &mut random(seed));
            order.sort_unstable();
            prop_assert_eq!(order, (0..all as u32).collect::<Vec<_>>());
        }
    }
}
