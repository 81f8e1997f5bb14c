//! The groups of samples that are listed, as far as a visit has them. They take some bytes for each sample of the visit.
//! `groups.rs` has the picture.

use super::groups::Groups;
use super::walk::Walk;

use std::ops::Range;
use std::sync::Arc;

/// Some entries of a list of samples in groups.
#[derive(Clone)]
pub(super) struct Listed {
    groups: Arc<Groups>,
    depth: usize,
    /// Positions of samples among all, sorted; a sample may come several times.
    list: Arc<[u64]>,
    /// The groups that have samples in this visit.
    members: Vec<Member>,
    /// Where the entries of each group begin in the list, and where the last ones end.
    borders: Vec<u64>,
    /// Entries counted from the first of the visit, strand by strand and stage by stage.
    staged: Vec<u32>,
    /// Where each strand begins in `staged`.
    strands: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Member {
    /// The number of the group among all.
    group: u64,
    /// The chunks that its samples begin in, along the dimension that cuts last.
    cell: u64,
    /// The last chunks that one of its samples reaches into.
    reach: u64,
}

impl Listed {
    /// The groups of some entries of a list of positions, cut by the first `depth` dimensions.
    pub fn new(groups: Arc<Groups>, list: Arc<[u64]>, entries: Range<u64>, depth: usize) -> Self {
        let mut listed =
            Self { groups, depth, list, members: vec![], borders: vec![], staged: vec![], strands: vec![] };
        let mut end = 0;
        for entry in entries.clone() {
            let position = listed.list[entry as usize];
            let (cell, reach) = listed.groups.touched(position, depth);
            match listed.members.last_mut() {
                Some(member) if position < end => member.reach = member.reach.max(reach),
                _ => {
                    let group = listed.groups.group_at(position, depth);
                    end = listed.groups.positions(group, depth).end;
                    listed.members.push(Member { group, cell, reach });
                    listed.borders.push(entry);
                }
            }
        }
        listed.borders.push(entries.end);
        listed
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether samples of the group before this one, in the same row, reach into its chunks.
    pub fn is_linked(&self, number: usize) -> bool {
        self.is_in_row(number) && self.members[number - 1].reach >= self.members[number].cell
    }

    /// Whether a group is in the same row of groups as the one before it.
    fn is_in_row(&self, number: usize) -> bool {
        self.groups.in_one_row(self.members[number - 1].group, self.members[number].group, self.depth)
    }

    /// Puts the samples of a further strand into stages. Returns how many samples have come when a stage ends, for each stage.
    ///
    /// A sample comes in the stage of its group, or, on a walk forward, in that of the last group behind it that it reaches into.
    pub fn add_strand(&mut self, walk: &Walk<'_>) -> Vec<u64> {
        let begin = self.staged.len();
        self.strands.push(begin);
        let mut ends = Vec::with_capacity(walk.part.len());
        // Samples that come with a later stage, and that stage.
        let mut later: Vec<(usize, u32)> = vec![];
        for stage in 0..walk.part.len() {
            let number = walk.group(walk.place(stage));
            later.retain(|&(at, entry)| {
                if at == stage {
                    self.staged.push(entry);
                }
                at != stage
            });
            let reached = self.reached(walk, stage);
            for entry in self.borders[number]..self.borders[number + 1] {
                let beyond = match reached.is_empty() {
                    true => 0,
                    false => {
                        let (_, reach) = self.groups.touched(self.list[entry as usize], self.depth);
                        reached.partition_point(|&cell| cell <= reach)
                    }
                };
                let entry = (entry - self.borders[0]) as u32;
                if beyond == 0 { self.staged.push(entry) } else { later.push((stage + beyond, entry)) }
            }
            ends.push((self.staged.len() - begin) as u64);
        }
        ends
    }

    /// The cells of the groups that a walk comes to next, as far as samples of a stage's group reach.
    fn reached(&self, walk: &Walk<'_>, stage: usize) -> Vec<u64> {
        let place = walk.place(stage);
        let reach = self.members[walk.group(place)].reach;
        (place + 1..walk.part.end)
            .take_while(|&at| walk.is_forward && walk.goes_on(at) && self.is_in_row(walk.group(at)))
            .map(|at| self.members[walk.group(at)].cell)
            .take_while(|&cell| cell <= reach)
            .collect()
    }

    /// The sample of a strand at a place in the order of its stages.
    pub fn sample(&self, strand: usize, place: u64) -> u64 {
        let entry = self.borders[0] + u64::from(self.staged[self.strands[strand] + place as usize]);
        self.groups.sample(self.list[entry as usize])
    }
}
