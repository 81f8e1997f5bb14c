//! The order of one visit to samples that share chunks. Of any place it tells the sample; it takes some bytes for each group
//! and, unless samples are listed, none for each sample. `groups.rs` has the picture.

use super::groups::{Buffer, Groups};
use super::listed::Listed;
use super::random::{below, mixed, permuted, shuffle};
use super::walk::Walk;
use super::whole::Whole;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// The samples of some positions in the order of a visit.
#[derive(Clone)]
pub(super) struct Strands {
    members: Members,
    /// Positions of samples, or entries of a list.
    positions: Range<u64>,
    /// Groups in the order of the chain, counted from the first of the visit.
    chain: Vec<u32>,
    /// How many samples of its strand have come when a stage ends, for the stages of each strand in their order.
    ends: Vec<u64>,
    strands: usize,
    /// How often the strands are walked; each walk takes every `passes`-th sample of a strand.
    passes: u64,
    /// What stages are shuffled by.
    key: u64,
    random: ChaCha8Rng,
    round: Round,
}

/// Samples that are interleaved at random: neighbours in the order of the visit.
#[derive(Clone, Default)]
struct Round {
    /// The place of its first sample in the visit.
    first: u64,
    /// For each place, the strand and the number of the sample in it.
    entries: Vec<(u32, u64)>,
}

impl fmt::Debug for Strands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strands")
            .field("positions", &self.positions)
            .field("groups", &self.chain.len())
            .field("strands", &self.strands)
            .finish_non_exhaustive()
    }
}

/// The groups of a visit.
#[derive(Clone)]
enum Members {
    /// Those of all samples at the visit's positions.
    Whole(Whole),
    /// Those of listed samples.
    Listed(Listed),
}

impl Members {
    fn len(&self) -> usize {
        match self {
            Self::Whole(whole) => whole.len(),
            Self::Listed(listed) => listed.len(),
        }
    }

    fn is_linked(&self, number: usize) -> bool {
        match self {
            Self::Whole(whole) => whole.is_linked(number),
            Self::Listed(listed) => listed.is_linked(number),
        }
    }
}

impl Strands {
    /// Bytes for each group, of which 8 are for the list of runs and free again once the order is made.
    pub const BYTES_PER_GROUP: u64 = 20;
    /// The fewest samples that are interleaved at random; there are at least this many for each strand, too.
    const ROUND_SAMPLES: u64 = 4096;
    const ROUND_SAMPLES_OF_STRAND: u64 = 4;

    /// The order of the samples at some positions.
    pub fn new(groups: Arc<Groups>, positions: Range<u64>, buffer: Buffer, random: ChaCha8Rng) -> Self {
        let whole = Whole::new(groups, positions.clone(), buffer.depth);
        Self::of(Members::Whole(whole), positions, buffer, random)
    }

    /// The order of some entries of a sorted list of positions.
    pub fn listed(
        groups: Arc<Groups>,
        list: Arc<[u64]>,
        entries: Range<u64>,
        buffer: Buffer,
        random: ChaCha8Rng,
    ) -> Self {
        let listed = Listed::new(groups, list, entries.clone(), buffer.depth);
        Self::of(Members::Listed(listed), entries, buffer, random)
    }

    fn of(members: Members, positions: Range<u64>, buffer: Buffer, mut random: ChaCha8Rng) -> Self {
        let mut runs: Vec<(u32, u32)> = vec![];
        for group in 0..members.len() {
            let number = group as u32;
            match runs.last_mut() {
                Some(run) if buffer.linked && members.is_linked(group) => run.1 += 1,
                _ => runs.push((number, number + 1)),
            }
        }
        shuffle(&mut runs, &mut random);
        let mut chain = Vec::with_capacity(members.len());
        chain.extend(runs.into_iter().flat_map(|(start, end)| start..end));
        let turn = below(chain.len() as u64, &mut random) as usize;
        chain.rotate_left(turn);
        let mut strands = buffer.strands.min(chain.len() as u64) as usize;
        if buffer.linked && strands > 1 {
            strands -= strands % 2;
        }
        let key = random.next_u64();
        let (ends, round) = (Vec::with_capacity(chain.len()), Round::default());
        let passes = buffer.passes;
        let mut order = Self { members, positions, chain, ends, strands, passes, key, random, round };
        for strand in 0..strands {
            let walk = Walk { chain: &order.chain, part: order.part(strand), is_forward: is_forward(strand) };
            order.ends.extend(match &mut order.members {
                Members::Whole(whole) => whole.stage_ends(&walk),
                Members::Listed(listed) => listed.add_strand(&walk),
            });
        }
        order
    }

    /// How many groups the order has, or samples if these are listed.
    pub fn size(&self) -> usize {
        match &self.members {
            Members::Whole(whole) => whole.len(),
            Members::Listed(_) => (self.positions.end - self.positions.start) as usize,
        }
    }

    /// The sample at a place.
    pub fn sample(&mut self, place: u64) -> u64 {
        let inside =
            |round: &Round| place.checked_sub(round.first).filter(|&i| i < round.entries.len() as u64);
        let at = match inside(&self.round) {
            Some(at) => at,
            None => {
                self.round = self.round_of(place);
                place - self.round.first
            }
        };
        let (strand, number) = self.round.entries[at as usize];
        self.walked(strand as usize, number)
    }

    /// The places in the chain that a strand has.
    fn part(&self, strand: usize) -> Range<usize> {
        let place = |strand| self.chain.len() * strand / self.strands;
        place(strand)..place(strand + 1)
    }

    /// The sample of a strand that has that number, counted along its walk.
    fn walked(&self, strand: usize, number: u64) -> u64 {
        let walk = Walk { chain: &self.chain, part: self.part(strand), is_forward: is_forward(strand) };
        let ends = &self.ends[walk.part.clone()];
        let stage = ends.partition_point(|&end| end <= number);
        let start = stage.checked_sub(1).map_or(0, |last| ends[last]);
        let key = mixed(self.key ^ walk.place(stage) as u64);
        let entry = permuted(number - start, ends[stage] - start, key);
        match &self.members {
            Members::Whole(whole) => whole.sample(&walk, stage, entry),
            Members::Listed(listed) => listed.sample(strand, start + entry),
        }
    }

    /// The round that has a place.
    fn round_of(&self, place: u64) -> Round {
        let pass = last_before(self.passes, |pass| self.pass_start(pass) <= place);
        let number = last_before(self.rounds(), |round| self.round_start(pass, round) <= place);
        let mut labels = vec![];
        let mut before: Vec<u64> = vec![];
        for strand in 0..self.strands {
            let (from, to) = (self.progress(strand, pass, number), self.progress(strand, pass, number + 1));
            labels.extend(std::iter::repeat_n(strand as u32, (to - from) as usize));
            before.push(from);
        }
        let mut random = self.random.clone();
        // A stream of its own for each round; the chain was made from stream 0.
        random.set_stream(pass * self.rounds() + number + 1);
        shuffle(&mut labels, &mut random);
        let entry = |strand: u32| {
            let before = &mut before[strand as usize];
            *before += 1;
            (strand, (*before - 1) * self.passes + pass)
        };
        Round { first: self.round_start(pass, number), entries: labels.into_iter().map(entry).collect() }
    }

    /// The rounds of each pass.
    fn rounds(&self) -> u64 {
        let samples = Self::ROUND_SAMPLES.max(Self::ROUND_SAMPLES_OF_STRAND * self.strands as u64);
        (self.positions.end - self.positions.start).div_ceil(self.passes).div_ceil(samples)
    }

    /// The place at which a pass begins.
    fn pass_start(&self, pass: u64) -> u64 {
        let before = |strand| {
            let samples = self.samples_of(strand);
            samples / self.passes * pass + pass.min(samples % self.passes)
        };
        (0..self.strands).map(before).sum()
    }

    fn round_start(&self, pass: u64, round: u64) -> u64 {
        self.pass_start(pass)
            + (0..self.strands).map(|strand| self.progress(strand, pass, round)).sum::<u64>()
    }

    /// How many samples a strand has.
    fn samples_of(&self, strand: usize) -> u64 {
        self.ends[self.part(strand).end - 1]
    }

    /// How many samples of a strand come before a round of a pass, of those in the pass. Strands go on at the same rate, but
    /// begin apart by a part of a group each, so that they do not all come to their next group at once, and end together.
    fn progress(&self, strand: usize, pass: u64, round: u64) -> u64 {
        let stages = self.part(strand).len() as u128;
        // Those whose number divided by the number of passes leaves that of the pass.
        let samples = u128::from((self.samples_of(strand) + self.passes - 1 - pass) / self.passes);
        let (round, rounds, strands) = (u128::from(round), u128::from(self.rounds()), self.strands as u128);
        let lag = (round * stages).min(rounds).min((rounds - round) * stages);
        let done = round * stages * strands - strand as u128 * lag;
        (samples * done / (rounds * stages * strands)) as u64
    }
}

/// The last number below `count` for which `holds` is true. It has to be true for 0, and false behind the first for which it
/// is false.
fn last_before(count: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut number, mut end) = (0, count);
    while end - number > 1 {
        let middle = number + (end - number) / 2;
        if holds(middle) { number = middle } else { end = middle }
    }
    number
}

/// Neighbouring strands are walked in opposite directions.
fn is_forward(strand: usize) -> bool {
    strand.is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::super::domain_groups::{DomainGroups, tests as domains};
    use super::super::groups::tests::together;
    use super::super::{Grid, WindowArguments, Windows};
    use super::*;
    use proptest::prelude::*;
    use rand_chacha::rand_core::SeedableRng;

    use std::collections::{HashMap, HashSet};

    fn along_one(steps: u64, window: i64, chunk: u64) -> Groups {
        together(vec![domains::along_one(steps, window, chunk)], u64::MAX)
    }

    fn order(groups: &Arc<Groups>, positions: Range<u64>, buffer: Buffer, seed: u8) -> Strands {
        Strands::new(groups.clone(), positions, buffer, ChaCha8Rng::from_seed([seed; 32]))
    }

    fn listed(order: &mut Strands) -> Vec<u64> {
        (0..order.positions.end - order.positions.start).map(|place| order.sample(place)).collect()
    }

    fn whole_of(order: &Strands) -> &Whole {
        match &order.members {
            Members::Whole(whole) => whole,
            Members::Listed(_) => panic!("samples are listed"),
        }
    }

    /// How many groups are held at most, if a group is held from its first use to its last.
    fn most_held(touched: impl Fn(u64) -> (u64, u64), order: &[u64]) -> usize {
        let mut uses: HashMap<u64, (usize, usize)> = HashMap::new();
        for (time, &sample) in order.iter().enumerate() {
            let (first, last) = touched(sample);
            (first..=last).for_each(|cell| uses.entry(cell).or_insert((time, time)).1 = time);
        }
        (0..order.len()).map(|t| uses.values().filter(|(a, b)| (a..=b).contains(&&t)).count()).max().unwrap()
    }

    #[test]
    fn no_more_groups_are_held_than_the_buffer_has() {
        // Once all in one round, once in many.
        for (steps, seed) in [(2000, 1), (40_000, 2)] {
            for window in [1, 4, 11, 21] {
                let groups = Arc::new(along_one(steps, window, 10));
                let buffer = groups.buffer(&[1], 1, 16, 10_000, None);
                let order = listed(&mut order(&groups, 0..groups.samples(), buffer, seed));
                let last = |sample: u64| (sample + window as u64 - 1) / 10;
                let held = most_held(|sample| (sample / 10, last(sample)), &order);
                // Wide windows reach over the borders of strands; SHUFFLE_SHARE of the reader leaves room for that.
                assert!((10..=20).contains(&held), "window {window}: {held} groups, {buffer:?}");
            }
        }
    }

    #[test]
    fn listed_samples_hold_no_more_groups_than_the_buffer_has() {
        for window in [1, 4, 11] {
            let groups = Arc::new(along_one(20_000, window, 10));
            // Two thirds of the samples, and some of them twice.
            let list = (0..groups.samples()).flat_map(|position| {
                let times = [0, 1, 1, 2, 0, 1][(mixed(position) % 6) as usize];
                std::iter::repeat_n(position, times)
            });
            let list: Arc<[u64]> = list.collect();
            let buffer =
                groups.buffer(&[1], 1, 16, 10_000, Some((list.len() as u64, &groups.count_of(&list))));
            let (count, random) = (list.len() as u64, ChaCha8Rng::from_seed([3; 32]));
            let order = listed(&mut Strands::listed(groups.clone(), list, 0..count, buffer, random));
            let held = most_held(|sample| (sample / 10, (sample + window as u64 - 1) / 10), &order);
            assert!((10..=20).contains(&held), "window {window}: {held} groups, {buffer:?}");
        }
    }

    #[test]
    fn strands_come_to_their_next_groups_one_after_another() {
        let groups = Arc::new(along_one(320_000, 1, 1000));
        let buffer = groups.buffer(&[1], 1, 32, 100_000, None);
        let order = listed(&mut order(&groups, 0..groups.samples(), buffer, 1));
        let mut seen = HashSet::new();
        let fresh: Vec<usize> = order
            .chunks(8000)
            .map(|samples| samples.iter().filter(|&&sample| seen.insert(sample / 1000)).count())
            .collect();
        // 8 of 320 groups are new in each fortieth of a visit, twice as many where the strands that are behind catch up.
        let (start, rest) = fresh.split_at(4);
        assert!(start.iter().sum::<usize>() <= 32 + 4 * 8, "{start:?}");
        assert!(rest.iter().all(|&fresh| fresh <= 16), "{rest:?}");
    }

    #[test]
    fn any_number_of_samples_is_shuffled_in_no_time() {
        let given = WindowArguments {
            window: Some(&[1, 16, 16, 16]),
            stride: Some(&[1, 1, 1, 1]),
            ..WindowArguments::default()
        };
        let windows = Windows::new(&[1000, 1000, 1000, 1000], &given).unwrap();
        let grids = [1, 128, 128, 128].map(|chunk| Grid::new([(0, vec![chunk])]));
        let groups = Arc::new(together(vec![DomainGroups::new(&windows, &grids)], u64::MAX));
        assert!(groups.samples() > 900_000_000_000);
        let buffer = groups.buffer(&[1 << 31, 1 << 28, 1 << 25, 1 << 22], 1, 1 << 30, 1 << 20, None);
        let mut order = order(&groups, 0..groups.samples(), buffer, 1);
        let began = std::time::Instant::now();
        let mut samples: Vec<u64> = (0..10_000).map(|place| order.sample(place)).collect();
        samples.push(order.sample(groups.samples() - 1));
        samples.push(order.sample(groups.samples() / 2));
        assert!(samples.iter().all(|&sample| sample < groups.samples()));
        assert_eq!(samples.iter().collect::<HashSet<_>>().len(), samples.len());
        assert!(began.elapsed().as_secs() < 5);
    }

    #[test]
    fn dense_patches_come_from_all_of_a_volume() {
        const EXTENTS: [u64; 3] = [128, 2048, 2048];
        let given = WindowArguments {
            window: Some(&[16, 128, 128]),
            stride: Some(&[1, 1, 1]),
            ..WindowArguments::default()
        };
        let windows = Windows::new(&EXTENTS, &given).unwrap();
        let grids = [64; 3].map(|chunk| Grid::new([(0, vec![chunk])]));
        let groups = Arc::new(together(vec![DomainGroups::new(&windows, &grids)], u64::MAX));
        // Chunks of float32: 2048 of them, 64 for each row of chunks, 1.
        let buffer = groups.buffer(&[1 << 30, 1 << 25, 1 << 20], 1 << 20, 4 << 30, 1024, None);
        assert!(buffer.strands >= 8 && buffer.passes > 100, "{buffer:?}");
        let mut order = order(&groups, 0..groups.samples(), buffer, 1);
        let counts = [0, 1, 2].map(|axis| windows.axes()[axis].count());
        for first in [0, 1_000_000, groups.samples() - 4000] {
            let samples: Vec<u64> = (first..first + 4000).map(|place| order.sample(place)).collect();
            let places = samples.iter().map(|sample| {
                [sample / counts[2] / counts[1], sample / counts[2] % counts[1], sample % counts[2]]
            });
            for axis in 0..3 {
                let along: Vec<f64> =
                    places.clone().map(|place| place[axis] as f64 / counts[axis] as f64).collect();
                let mean = along.iter().sum::<f64>() / 4000.0;
                let deviation = (along.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
                // That of evenly spread places is 0.289.
                assert!((0.15..0.45).contains(&deviation), "axis {axis} from {first}: {mean} +- {deviation}");
            }
        }
    }

    /// The stages of all strands as they are described, with lists of everything.
    fn listed_stages(
        order: &Strands,
        (groups, depth): (&Groups, usize),
        touched: impl Fn(u64) -> (u64, u64),
        row: impl Fn(u64) -> u64,
    ) -> Vec<Vec<HashSet<u64>>> {
        struct Group {
            row: u64,
            cell: u64,
            is_cut: bool,
            /// Each sample and the last cell that it touches.
            samples: Vec<(u64, u64)>,
        }
        let mut all: Vec<Group> = vec![];
        for number in 0..order.chain.len() {
            let positions = groups.positions(whole_of(order).group(number), depth);
            let inside = positions.start.max(order.positions.start)..positions.end.min(order.positions.end);
            let is_cut = inside != positions;
            let samples = |range: Range<u64>| {
                range.map(|position| groups.sample(position)).map(|sample| (sample, touched(sample).1))
            };
            // Samples of a group that is cut come as late as any of the whole group does.
            let last = samples(positions.clone()).map(|(_, last)| last).max().unwrap();
            let samples = samples(inside)
                .map(|(sample, own)| (sample, if is_cut { last } else { own }))
                .collect::<Vec<_>>();
            let start = groups.sample(positions.start);
            all.push(Group { row: row(start), cell: touched(start).0, is_cut, samples });
        }
        (0..order.strands)
            .map(|strand| {
                let part = &order.chain[order.part(strand)];
                let mut stages: Vec<HashSet<u64>> = vec![HashSet::new(); part.len()];
                for (place, &number) in part.iter().enumerate() {
                    let group = &all[number as usize];
                    for &(sample, last) in &group.samples {
                        let reaches = |stage: usize| {
                            strand % 2 == 0
                                && stage < part.len()
                                && part[stage] == part[stage - 1] + 1
                                && all[part[stage] as usize].row == group.row
                                && all[part[stage] as usize].cell <= last
                        };
                        let beyond = (place + 1..).take_while(|&stage| reaches(stage)).count();
                        stages[place + beyond].insert(sample);
                    }
                    assert!(group.is_cut || !group.samples.is_empty());
                }
                if strand % 2 == 1 {
                    stages.reverse();
                }
                stages
            })
            .collect()
    }

    proptest! {
        #[test]
        fn each_strand_yields_its_stages_one_after_another(
            steps in 12u64..80, window in 1i64..12, chunk in 1u64..20, strands in 1u64..9, linked: bool, seed: u8,
            two: bool, depth in 1usize..3, shards in 1u64..4, shard in 0u64..4, stores in 1u64..4,
        ) {
            prop_assume!(shard < shards);
            let (domain, depth) = match two {
                true => (domains::patches(), depth),
                false => (domains::along_one(steps, window, chunk), 1),
            };
            let of_store = domain.samples();
            let groups = Arc::new(together(vec![domain; stores as usize], u64::MAX));
            let all = groups.samples();
            prop_assume!(shards <= all);
            let part = all * shard / shards..all * (shard + 1) / shards;
            let mut order = order(&groups, part.clone(), Buffer { depth, strands, linked, passes: 1 }, seed);
            // Of patches: 2 x 4 each, 2 apart along the second dimension, chunks of 4 x 8.
            let touched = |sample: u64| {
                let (store, sample) = (sample / of_store, sample % of_store);
                let (first, last) = match (two, depth) {
                    (true, 1) => (sample / 19 / 4, (sample / 19 + 1) / 4),
                    (true, _) => (sample % 19 * 2 / 8, (sample % 19 * 2 + 3) / 8),
                    (false, _) => (sample / chunk, (sample + window as u64 - 1) / chunk),
                };
                (1000 * store + first, 1000 * store + last)
            };
            let row = |sample: u64| {
                let (store, sample) = (sample / of_store, sample % of_store);
                1000 * store + if two && depth == 2 { sample / 19 / 4 } else { 0 }
            };
            let stages = listed_stages(&order, (&groups, depth), touched, row);
            let samples = listed(&mut order);
            let mut of_strands: Vec<_> = stages.iter().map(|stages| (0, stages, HashSet::new())).collect();
            let strand_of: HashMap<u64, usize> = stages.iter().enumerate()
                .flat_map(|(strand, stages)| stages.iter().flatten().map(move |&sample| (sample, strand)))
                .collect();
            for sample in &samples {
                let (stage, stages, seen) = &mut of_strands[strand_of[sample]];
                while *seen == stages[*stage] {
                    *stage += 1;
                    seen.clear();
                }
                prop_assert!(stages[*stage].contains(sample) && seen.insert(*sample));
            }
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            let mut expected: Vec<u64> = part.map(|position| groups.sample(position)).collect();
            expected.sort_unstable();
            prop_assert_eq!(sorted, expected);
        }

        #[test]
        fn each_pass_takes_every_nth_sample_of_each_strand(
            steps in 12u64..300, window in 1i64..12, chunk in 1u64..40, strands in 1u64..9, linked: bool, seed: u8,
            passes in 1u64..40,
        ) {
            let groups = Arc::new(along_one(steps, window, chunk));
            let all = groups.samples();
            let mut order = order(&groups, 0..all, Buffer { depth: 1, strands, linked, passes }, seed);
            let walks: Vec<Vec<u64>> = (0..order.strands)
                .map(|strand| (0..order.samples_of(strand)).map(|number| order.walked(strand, number)).collect())
                .collect();
            let found = listed(&mut order);
            for walk in &walks {
                let members: HashSet<u64> = walk.iter().copied().collect();
                let its: Vec<u64> = found.iter().copied().filter(|sample| members.contains(sample)).collect();
                let nth = |pass: u64| walk.iter().copied().skip(pass as usize).step_by(passes as usize);
                prop_assert_eq!(its, (0..passes).flat_map(nth).collect::<Vec<_>>());
            }
            prop_assert_eq!(walks.iter().map(Vec::len).sum::<usize>() as u64, all);
            // One pass ends before the next begins.
            for pass in 0..passes {
                let (start, end) = (order.pass_start(pass), order.pass_start(pass + 1));
                let wanted: usize = walks.iter().map(|walk| walk.iter().skip(pass as usize).step_by(passes as usize).count()).sum();
                prop_assert_eq!(end - start, wanted as u64);
            }
        }

        #[test]
        fn listed_samples_come_as_often_as_they_are_listed(
            steps in 12u64..80, window in 1i64..12, chunk in 1u64..20, strands in 1u64..9, linked: bool, seed: u8,
            two: bool, depth in 1usize..3, stores in 1u64..4, shards in 1u64..4,
            chosen in prop::collection::vec(any::<prop::sample::Index>(), 3..90),
        ) {
            let (domain, depth) = match two {
                true => (domains::patches(), depth),
                false => (domains::along_one(steps, window, chunk), 1),
            };
            let groups = Arc::new(together(vec![domain; stores as usize], u64::MAX));
            let (all, buffer) = (groups.samples(), Buffer { depth, strands, linked, passes: 1 });
            let mut list: Vec<u64> = chosen.iter().map(|index| index.index(all as usize) as u64).collect();
            list.sort_unstable();
            let (list, random): (Arc<[u64]>, _) = (list.into(), || ChaCha8Rng::from_seed([seed; 32]));
            let count = list.len() as u64;
            for shard in 0..shards {
                let part = count * shard / shards..count * (shard + 1) / shards;
                let mut order = Strands::listed(groups.clone(), list.clone(), part.clone(), buffer, random());
                let mut found = listed(&mut order);
                found.sort_unstable();
                let of_entry = |entry: u64| groups.sample(list[entry as usize]);
                let mut expected: Vec<u64> = part.map(of_entry).collect();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
            // With all samples in the list a walk has the stages that it has without.
            let every: Arc<[u64]> = (0..all).collect();
            let whole = Strands::new(groups.clone(), 0..all, buffer, random());
            let listed = Strands::listed(groups.clone(), every, 0..all, buffer, random());
            prop_assert_eq!((&whole.chain, &whole.ends), (&listed.chain, &listed.ends));
        }

        #[test]
        fn places_may_be_asked_for_in_any_order(
            steps in 5000u64..30_000, window in 1i64..12, chunk in 1u64..500, strands in 1u64..50, linked: bool, seed: u8,
            places in prop::collection::vec(any::<prop::sample::Index>(), 20),
            passes in 1u64..20,
        ) {
            let groups = Arc::new(along_one(steps, window, chunk));
            let buffer = Buffer { depth: 1, strands, linked, passes };
            let mut one = order(&groups, 0..groups.samples(), buffer, seed);
            let all = listed(&mut one);
            prop_assert_eq!(all.iter().collect::<HashSet<_>>().len() as u64, groups.samples());
            let mut other = order(&groups, 0..groups.samples(), buffer, seed);
            for place in places {
                let place = place.index(all.len());
                prop_assert_eq!(other.sample(place as u64), all[place]);
            }
        }
    }
}
