//! The samples that epochs have, as lists sorted by chunk, where samples are chosen.

use super::choice::{Choice, Weights};
use super::groups::Groups;

use std::sync::{Arc, Mutex, PoisonError};

/// The lists of the samples of epochs, as positions among all samples.
#[derive(Debug)]
pub(super) struct EpochLists {
    groups: Arc<Groups>,
    content: Content,
    /// The lists of the last epochs that were asked for, the newest first.
    drawn: Mutex<Vec<(u64, Arc<[u64]>)>>,
}

#[derive(Clone, Debug)]
enum Content {
    /// The same in every epoch.
    Same(Arc<[u64]>),
    /// Drawn anew for each epoch.
    Drawn(Choice),
}

impl EpochLists {
    /// How many lists are kept: of the epoch that is read, and of the next one, which the planner looks at.
    const KEPT: usize = 2;

    /// The lists of chosen samples, of `all`. `None` if no list is needed.
    pub fn new(groups: &Arc<Groups>, choice: &Choice, all: u64) -> Option<Self> {
        debug_assert_eq!(groups.samples(), all, "groups are of all samples");
        let content = match (&choice.weights, &choice.listed) {
            (Some(_), _) => Content::Drawn(choice.clone()),
            (None, Some(listed)) => Content::Same(sorted(groups, listed.iter().copied())),
            (None, None) => return None,
        };
        Some(Self { groups: groups.clone(), content, drawn: Mutex::default() })
    }

    /// The same without what was drawn, for another seed.
    pub fn anew(&self) -> Self {
        Self { groups: self.groups.clone(), content: self.content.clone(), drawn: Mutex::default() }
    }

    /// The list of an epoch of `samples` samples.
    pub fn of(&self, seed: u64, epoch: u64, samples: u64) -> Arc<[u64]> {
        let choice = match &self.content {
            Content::Same(list) => return list.clone(),
            Content::Drawn(choice) => choice,
        };
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, list)) = drawn.iter().find(|(known, _)| *known == epoch) {
            return list.clone();
        }
        drawn.truncate(Self::KEPT - 1);
        let key = Weights::key(seed, epoch);
        let draws = choice.weights.iter().flat_map(|weights| weights.draws(key, samples));
        let list = sorted(&self.groups, draws.map(|place| choice.sample(place)));
        drawn.insert(0, (epoch, list.clone()));
        list
    }
}

/// The positions of samples, sorted.
fn sorted(groups: &Groups, samples: impl Iterator<Item = u64>) -> Arc<[u64]> {
    let mut positions: Vec<u64> = samples.map(|sample| groups.position(sample)).collect();
    positions.sort_unstable();
    positions.into()
}
