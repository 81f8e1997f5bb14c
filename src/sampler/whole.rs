//! The groups of all samples at the positions of a visit: nothing is listed. `groups.rs` has the picture.

use super::groups::Groups;
use super::walk::Walk;

use std::ops::Range;
use std::sync::Arc;

/// All samples at some positions in groups.
#[derive(Clone)]
pub(super) struct Whole {
    groups: Arc<Groups>,
    depth: usize,
    positions: Range<u64>,
    /// The group of the first position; groups of a visit are counted from it.
    first: u64,
    len: usize,
}

/// Samples that a stage takes of a group.
enum Taken {
    /// Those of windows in a range, along the dimension that cuts last.
    Windows(Range<u64>),
    /// Those of positions in a range.
    Positions(Range<u64>),
}

impl Whole {
    /// The groups at some positions, cut by the first `depth` dimensions.
    pub fn new(groups: Arc<Groups>, positions: Range<u64>, depth: usize) -> Self {
        let first = groups.group_at(positions.start, depth);
        let len = (groups.group_at(positions.end - 1, depth) - first + 1) as usize;
        Self { groups, depth, positions, first, len }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether windows of the group before this one, in the same row, reach into its chunks.
    pub fn is_linked(&self, number: usize) -> bool {
        self.groups.is_linked(self.group(number), self.depth)
    }

    /// How many samples of a walk have come when a stage ends, for each of its stages.
    pub fn stage_ends(&self, walk: &Walk<'_>) -> Vec<u64> {
        let mut end = 0;
        let stage_end = |stage| {
            end += self.stage(walk, stage).map(|(group, taken)| self.count(group, &taken)).sum::<u64>();
            end
        };
        (0..walk.part.len()).map(stage_end).collect()
    }

    /// An entry of the list of samples that a stage has.
    pub fn sample(&self, walk: &Walk<'_>, stage: usize, mut entry: u64) -> u64 {
        for (group, taken) in self.stage(walk, stage) {
            let count = self.count(group, &taken);
            match taken {
                _ if entry >= count => entry -= count,
                Taken::Windows(windows) => return self.groups.sample_of(group, &windows, self.depth, entry),
                Taken::Positions(positions) => return self.groups.sample(positions.start + entry),
            }
        }
        unreachable!("a stage has as many samples as were counted")
    }

    /// The samples of a stage: with those of the group itself, of groups before it that reach into it. A walk backward has
    /// seen what its groups reach into.
    fn stage<'a>(&'a self, walk: &'a Walk<'_>, stage: usize) -> impl Iterator<Item = (u64, Taken)> + 'a {
        let (place, is_forward) = (walk.place(stage), walk.is_forward);
        let next =
            (is_forward && place + 1 < walk.part.end && self.follows(walk, place + 1)).then(|| place + 1);
        let before =
            (walk.part.start..place).rev().take_while(move |&at| is_forward && self.follows(walk, at + 1));
        let of_group = move |at: usize| {
            let group = self.group(walk.group(at));
            // Windows reach further, the further they start.
            let reaching = |into: Option<usize>| {
                into.map(|into| self.groups.first_reaching(group, self.group(walk.group(into)), self.depth))
            };
            let all = self.groups.windows(group, self.depth);
            let from = reaching((at < place).then_some(place)).unwrap_or(all.start);
            let to = reaching(next).unwrap_or(all.end);
            // Without a window that reaches so far, no group before this one has any.
            (from < all.end).then_some((group, from..to, all))
        };
        let taken = std::iter::once(place).chain(before).map_while(of_group);
        taken.filter(|(_, taken, _)| !taken.is_empty()).filter_map(|(group, taken, all)| {
            match self.cut(group) {
                None => Some((group, Taken::Windows(taken))),
                // Of a group that reader shards cut, all samples come with the last of its windows.
                Some(positions) => (taken.end == all.end).then_some((group, Taken::Positions(positions))),
            }
        })
    }

    /// The number of a group among all, of one counted from the first of the visit.
    pub fn group(&self, number: usize) -> u64 {
        self.first + number as u64
    }

    /// Whether the group at a place of a chain lies behind the one before it, in the same row of groups.
    fn follows(&self, walk: &Walk<'_>, place: usize) -> bool {
        walk.goes_on(place) && !self.groups.begins_row(self.group(walk.group(place)), self.depth)
    }

    /// The positions of a group, if not all of them are in this visit.
    fn cut(&self, group: u64) -> Option<Range<u64>> {
        let all = self.groups.positions(group, self.depth);
        let inside = all.start.max(self.positions.start)..all.end.min(self.positions.end);
        (inside != all).then_some(inside)
    }

    fn count(&self, group: u64, taken: &Taken) -> u64 {
        match taken {
            Taken::Windows(windows) => self.groups.samples_of(group, windows, self.depth),
            Taken::Positions(positions) => positions.end - positions.start,
        }
    }
}
