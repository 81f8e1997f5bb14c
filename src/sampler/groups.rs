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
//!
//! Where a group alone has more samples than the buffer, as dense patches of a volume have by the million, a walk would hand out
//! neighbours for hours. Then it is repeated: each of several *passes* goes through the whole chain and takes every n-th sample.

use super::domain_groups::DomainGroups;
use super::domains::{Domain, Domains};
use super::grid::Grid;

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
    /// How often a visit goes through all groups, each time for other samples of them.
    pub passes: u64,
}

/// The groups of all samples. Those of a domain follow one another, and none is linked to one of another domain.
#[derive(Clone, Debug)]
pub struct Groups {
    domains: Vec<DomainGroups>,
    /// The number of the first sample of each domain, which is its first position, too.
    firsts: Vec<u64>,
    /// The number of the first group of each domain, for each depth.
    first_groups: Vec<Vec<u64>>,
}

impl Groups {
    /// Groups of windows over grids: for each domain one for each dimension of the user's window.
    pub fn new(domains: &Domains, grids: &[Vec<Grid>]) -> Self {
        let groups = |(domain, grids): (&Domain, &Vec<Grid>)| DomainGroups::new(&domain.windows, grids);
        Self {
            domains: domains.iter().zip(grids).map(groups).collect(),
            firsts: domains.iter().map(|domain| domain.first).collect(),
            first_groups: vec![],
        }
    }

    /// Makes the groups ready to be shuffled, which takes [`Groups::BYTES_PER_CELL`] for each cell that windows start in.
    ///
    /// # Errors
    /// How many cells a dimension has, of all domains up to one together, if these are more than `most_cells`.
    pub fn cut(mut self, most_cells: u64) -> Result<Self, u64> {
        let mut cut = vec![];
        let mut cells = vec![0; self.dimensions()];
        for domain in self.domains {
            let used = cells.iter().copied().max().unwrap_or(0);
            let domain = domain.cut(most_cells - used).map_err(|more| used.saturating_add(more))?;
            for (cells, more) in cells.iter_mut().zip(domain.cells()) {
                *cells += more;
            }
            cut.push(domain);
        }
        self.domains = cut;
        let first_groups = |depth| {
            let mut next = 0;
            let first = |domain: &DomainGroups| {
                next += domain.count(depth);
                next - domain.count(depth)
            };
            self.domains.iter().map(first).collect()
        };
        self.first_groups = (1..=self.dimensions()).map(first_groups).collect();
        Ok(self)
    }

    /// Bytes that a group takes that one dimension cuts.
    pub const BYTES_PER_CELL: u64 = 8;

    fn dimensions(&self) -> usize {
        self.domains[0].dimensions()
    }

    /// Whether any chunk belongs to several samples.
    pub fn share(&self) -> bool {
        self.domains.iter().any(DomainGroups::share)
    }

    /// The most groups in a row that `windows` neighbouring windows of the first dimension touch, or somewhat more where these
    /// are in several domains.
    pub fn reach(&self, windows: u64) -> u64 {
        let from = |domain: usize| {
            let (mut groups, mut left) = (self.domains[domain].reach(windows), windows.saturating_sub(1));
            for next in &self.domains[domain + 1..] {
                if left == 0 {
                    break;
                }
                groups += next.reach(left);
                left = left.saturating_sub(next.windows());
            }
            groups
        };
        (0..self.domains.len()).map(from).max().unwrap_or(1)
    }

    /// How many groups there are if the first `depth` dimensions cut them.
    pub fn count(&self, depth: usize) -> u64 {
        self.domains.iter().map(|domain| domain.count(depth)).sum()
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.domains.iter().map(DomainGroups::samples).sum()
    }

    /// The most groups in a row that a window reaches over, along the last of the first `depth` dimensions.
    pub fn span(&self, depth: usize) -> u64 {
        self.domains.iter().map(|domain| domain.span(depth)).max().unwrap_or(1)
    }

    /// Chooses a buffer of at most `bytes`, if it can be had, and of `samples` samples of `sample_bytes` each. `group_bytes`
    /// says for each depth how large the decoded chunks of a group are, `chosen` how many samples an epoch has and in how many
    /// groups, for each depth, if these are not all.
    pub fn buffer(
        &self,
        group_bytes: &[u64],
        sample_bytes: u64,
        bytes: u64,
        samples: u64,
        chosen: Option<(u64, &[u64])>,
    ) -> Buffer {
        let fitting = |depth: usize| bytes / group_bytes[depth - 1].max(1);
        let depth = (1..=self.dimensions())
            .find(|&depth| fitting(depth) >= Self::LEAST_STRANDS * self.span(depth))
            .unwrap_or(self.dimensions());
        let span = self.span(depth);
        let linked = span > 1 && fitting(depth) >= Self::LEAST_LINKED_STRANDS * span;
        let held = self.held(Buffer { depth, strands: 0, linked, passes: 1 });
        let (all, count) = chosen
            .map_or_else(|| (self.samples(), self.count(depth)), |(all, counts)| (all, counts[depth - 1]));
        let asked = (u128::from(samples) * u128::from(count)).div_ceil(all.into());
        let asked = u64::try_from(asked).unwrap_or(u64::MAX);
        // Of dense samples a few strands are mixed whatever is asked for. Passes are as short as decoding the chunks again in
        // each of them allows, and no shorter than the strands need for the samples that are asked for.
        let mixed = (fitting(depth) / held).clamp(1, Self::DENSE_STRANDS);
        let in_group = all / count.max(1);
        let decoded = group_bytes[depth - 1].max(1).saturating_mul(if linked { 1 } else { span });
        let handed_out = in_group.saturating_mul(sample_bytes) / decoded;
        let passes = match asked <= 1 && handed_out >= Self::DENSE {
            true => (handed_out / Self::DENSE_REUSE).min(in_group.saturating_mul(mixed) / samples.max(1)),
            false => 1,
        };
        let (passes, least) = if passes > 1 { (passes, mixed) } else { (1, 1) };
        let groups = fitting(depth).min(asked).max(1);
        let strands = (groups / held).max(least);
        // The chain is a ring: its first and its last strand have to meet as the others do.
        let odd = if linked && strands > 1 { strands % 2 } else { 0 };
        Buffer { depth, strands: strands - odd, linked, passes }
    }

    /// The most groups that a strand holds: with links all groups from the first to the last that a window touches,
    /// without links the groups that a window touches.
    pub fn held(&self, buffer: Buffer) -> u64 {
        match buffer.linked {
            true => self.span(buffer.depth),
            false => self.domains.iter().map(|domain| domain.most(buffer.depth)).max().unwrap_or(1),
        }
    }

    /// Samples are dense if a visit hands out each decoded byte as often as this.
    const DENSE: u64 = 64;
    /// A pass over dense samples hands out each byte that it decodes as often as this.
    const DENSE_REUSE: u64 = 4;
    /// Strands of dense samples, if memory holds them.
    const DENSE_STRANDS: u64 = 16;
    /// Fewer strands than this mix little; groups become smaller then.
    const LEAST_STRANDS: u64 = 4;
    /// Fewer linked strands than this go through a visit from one end to the other; links are given up then.
    const LEAST_LINKED_STRANDS: u64 = 2;

    /// The sample at a position of the list in which reader shards are cut: domain by domain, sorted by chunks in all
    /// dimensions.
    pub(super) fn sample(&self, position: u64) -> u64 {
        let domain = self.domain_at(position);
        self.firsts[domain] + self.domains[domain].sample(position - self.firsts[domain])
    }

    /// The position of a sample in that list.
    pub(super) fn position(&self, sample: u64) -> u64 {
        // Samples of a domain have the numbers of its positions.
        let domain = self.domain_at(sample);
        self.firsts[domain] + self.domains[domain].position(sample - self.firsts[domain])
    }

    /// The first and the last chunk that the sample at a position has, along the dimension that cuts last, counted in its domain.
    pub(super) fn touched(&self, position: u64, depth: usize) -> (u64, u64) {
        let domain = self.domain_at(position);
        self.domains[domain].touched(position - self.firsts[domain], depth)
    }

    /// Whether two groups are in the same row, along the dimension that cuts last.
    pub(super) fn in_one_row(&self, one: u64, other: u64, depth: usize) -> bool {
        let ((domain, one), (elsewhere, other)) = (self.in_domain(one, depth), self.in_domain(other, depth));
        domain == elsewhere && self.domains[domain].in_one_row(one, other, depth)
    }

    /// How many groups these samples are in, for each depth.
    pub fn count_of(&self, samples: &[u64]) -> Vec<u64> {
        let mut positions: Vec<u64> = samples.iter().map(|&sample| self.position(sample)).collect();
        positions.sort_unstable();
        let count = |depth| {
            let (mut groups, mut end) = (0, 0);
            for &position in &positions {
                if position >= end {
                    end = self.positions(self.group_at(position, depth), depth).end;
                    groups += 1;
                }
            }
            groups
        };
        (1..=self.dimensions()).map(count).collect()
    }

    /// The group of a position, of groups that the first `depth` dimensions cut. Groups are numbered in the order of positions.
    pub(super) fn group_at(&self, position: u64, depth: usize) -> u64 {
        let domain = self.domain_at(position);
        let group = self.domains[domain].group_at(position - self.firsts[domain], depth);
        self.first_groups[depth - 1][domain] + group
    }

    /// The positions of a group.
    pub(super) fn positions(&self, group: u64, depth: usize) -> Range<u64> {
        let (domain, group) = self.in_domain(group, depth);
        let (first, positions) = (self.firsts[domain], self.domains[domain].positions(group, depth));
        first + positions.start..first + positions.end
    }

    /// The windows of a group along the dimension that cuts last, counted in its domain.
    pub(super) fn windows(&self, group: u64, depth: usize) -> Range<u64> {
        let (domain, group) = self.in_domain(group, depth);
        self.domains[domain].windows_of(group, depth)
    }

    /// How many samples of a group have one of these windows along the dimension that cuts last.
    pub(super) fn samples_of(&self, group: u64, windows: &Range<u64>, depth: usize) -> u64 {
        let (domain, group) = self.in_domain(group, depth);
        self.domains[domain].samples_of(group, windows, depth)
    }

    /// An entry of the list of those samples.
    pub(super) fn sample_of(&self, group: u64, windows: &Range<u64>, depth: usize, entry: u64) -> u64 {
        let (domain, group) = self.in_domain(group, depth);
        self.firsts[domain] + self.domains[domain].sample_of(group, windows, depth, entry)
    }

    /// Whether a group is the first along the dimension that cuts last.
    pub(super) fn begins_row(&self, group: u64, depth: usize) -> bool {
        let (domain, group) = self.in_domain(group, depth);
        self.domains[domain].begins_row(group, depth)
    }

    /// Whether windows of the group before this one, in the same row, reach into its chunks.
    pub(super) fn is_linked(&self, group: u64, depth: usize) -> bool {
        let (domain, group) = self.in_domain(group, depth);
        self.domains[domain].is_linked(group, depth)
    }

    /// The first window of a group that reaches into the chunks of another behind it in its row, along the dimension that
    /// cuts last; the end of the windows if none does.
    pub(super) fn first_reaching(&self, group: u64, into: u64, depth: usize) -> u64 {
        let (domain, group) = self.in_domain(group, depth);
        let (_, into) = self.in_domain(into, depth);
        self.domains[domain].first_reaching(group, into, depth)
    }

    fn domain_at(&self, position: u64) -> usize {
        self.firsts.partition_point(|&first| first <= position) - 1
    }

    /// The domain of a group, and the group's number there.
    fn in_domain(&self, group: u64, depth: usize) -> (usize, u64) {
        let firsts = &self.first_groups[depth - 1];
        let domain = firsts.partition_point(|&first| first <= group) - 1;
        (domain, group - firsts[domain])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::domain_groups::tests::{along_one, patches};
    use super::*;

    /// The groups of several domains.
    pub(in super::super) fn together(domains: Vec<DomainGroups>, most_cells: u64) -> Groups {
        let mut next = 0;
        let mut first = |domain: &DomainGroups| {
            next += domain.samples();
            next - domain.samples()
        };
        let firsts = domains.iter().map(&mut first).collect();
        Groups { domains, firsts, first_groups: vec![] }.cut(most_cells).unwrap()
    }

    fn alone(domain: DomainGroups) -> Groups {
        together(vec![domain], u64::MAX)
    }

    #[test]
    fn the_buffer_is_as_large_as_memory_and_initial_fill_allow() {
        let expected = |strands, linked| Buffer { depth: 1, strands, linked, passes: 1 };
        let check = |groups: &Groups, group_bytes, bytes, samples, strands, linked| {
            assert_eq!(groups.buffer(&[group_bytes], 1, bytes, samples, None), expected(strands, linked));
        };
        let single = alone(along_one(1000, 1, 10));
        check(&single, 1, 16, 1024, 16, false);
        check(&single, 1, 1 << 40, 1024, 103, false);
        check(&single, 1, 1 << 40, 25, 3, false);
        check(&single, 100, 16, 1024, 1, false);
        let overlapping = alone(along_one(1000, 4, 10));
        check(&overlapping, 1, 16, 1024, 8, true);
        check(&overlapping, 1, 7, 1024, 2, true);
        check(&overlapping, 1, 3, 1024, 1, false);
        check(&overlapping, 1, 16, 1, 1, true);
        // Each strand holds three groups; linked groups need two strands.
        let wide = alone(along_one(1000, 21, 10));
        check(&wide, 1, 6, 1024, 2, true);
        check(&wide, 1, 5, 1024, 1, false);
    }

    #[test]
    fn groups_are_cut_along_more_dimensions_where_memory_is_short() {
        let groups = alone(patches());
        assert_eq!(groups.buffer(&[5, 1], 1, 64, 1 << 20, None).depth, 1);
        assert_eq!(groups.buffer(&[500, 100], 1, 1000, 1 << 20, None).depth, 2);
    }

    #[test]
    fn the_buffer_of_chosen_samples_has_as_many_groups_as_they_need() {
        let groups = alone(along_one(1000, 1, 10));
        let chosen: Vec<u64> = (0..100).map(|group| group * 10 + 3).collect();
        assert_eq!((groups.count_of(&chosen), groups.count_of(&[7, 5, 7])), (vec![100], vec![1]));
        // One sample in each group: as many groups as samples.
        let buffer = |samples| groups.buffer(&[1], 1, 1 << 40, samples, Some((100, &[100])));
        assert_eq!((buffer(25).strands, buffer(1024).strands), (25, 1024));
    }

    #[test]
    fn domains_are_numbered_one_behind_the_other() {
        let lengths = [12, 3, 40];
        let groups = together(lengths.map(|steps| along_one(steps, 3, 4)).into(), u64::MAX);
        // Windows of 3 over chunks of 4: 10, 1 and 38 samples, which start in 3, 1 and 10 chunks.
        assert_eq!((groups.samples(), groups.count(1)), (49, 14));
        let samples: Vec<u64> = (0..49).map(|position| groups.sample(position)).collect();
        assert_eq!(samples, (0..49).collect::<Vec<_>>());
        assert!((0..49).all(|sample| groups.position(sample) == sample));
        let positions: Vec<Range<u64>> = (0..5).map(|group| groups.positions(group, 1)).collect();
        assert_eq!(positions, [0..4, 4..8, 8..10, 10..11, 11..15]);
        assert_eq!([3, 4, 9, 10, 11, 48].map(|position| groups.group_at(position, 1)), [0, 1, 2, 3, 4, 13]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|group| groups.is_linked(group, 1)),
            [false, true, true, false, false, true]
        );
        assert_eq!((groups.windows(4, 1), groups.sample_of(4, &(1..4), 1, 2)), (0..4, 14));
        // The last two groups of the first domain, the only one of the second, and so on.
        assert!((1..60).all(|windows| groups.reach(windows) >= windows.div_ceil(4).min(14)));
        assert_eq!(groups.reach(1), 2);
    }

    #[test]
    fn all_domains_together_have_the_cells_that_memory_holds() {
        let groups = || [12, 3, 40].map(|steps| along_one(steps, 3, 4)).into_iter();
        let cut = |most| {
            let firsts = vec![0, 10, 11];
            Groups { domains: groups().collect(), firsts, first_groups: vec![] }.cut(most).map(drop)
        };
        assert_eq!((cut(14), cut(13), cut(3)), (Ok(()), Err(14), Err(4)));
    }
}
