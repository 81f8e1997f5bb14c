//! A walk over a part of a chain of groups, stage by stage.

use std::ops::Range;

/// A walk over a part of a chain of groups.
pub(super) struct Walk<'a> {
    /// Groups in the order of the chain, counted from the first of the visit.
    pub chain: &'a [u32],
    /// The places of the chain that the walk has.
    pub part: Range<usize>,
    /// Whether it goes along the chain, or against it.
    pub is_forward: bool,
}

impl Walk<'_> {
    /// The place of the chain that a stage is named by.
    pub fn place(&self, stage: usize) -> usize {
        if self.is_forward { self.part.start + stage } else { self.part.end - 1 - stage }
    }

    /// The group at a place of the chain.
    pub fn group(&self, place: usize) -> usize {
        self.chain[place] as usize
    }

    /// Whether the group at a place of the chain is the next one behind the one before it.
    pub fn goes_on(&self, place: usize) -> bool {
        self.chain[place] == self.chain[place - 1].wrapping_add(1)
    }
}
