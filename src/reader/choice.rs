//! The arguments `samples`, `weights` and `samples_per_epoch`, and what `mask` and `missing_chunks` leave: which samples an epoch has.

use super::checks::check_shuffled;
use crate::error::{Error, Result};
use crate::lists::{Table, table};
use crate::options::{Arguments, Options, argument};
use crate::sampler::{Choice, Domains, Weights};

use serde_json::{Value, json};

/// What the arguments choose.
pub(super) struct Chosen {
    pub choice: Choice,
    /// What checkpoints say of it; null if every epoch has all samples.
    pub identity: Value,
    /// Whether a sample may come several times in an epoch.
    pub repeats: bool,
}

/// Reads the choice.
///
/// # Errors
/// Lists that cannot be read or do not fit the samples, and choices of none.
pub(super) fn choice(arguments: &Arguments, domains: &Domains, options: &Options) -> Result<Chosen> {
    let listed = match arguments.samples.is_empty() {
        true => None,
        false => Some(listed(&table("samples", &arguments.samples)?, domains)?),
    };
    let all = domains.len();
    let count = listed.as_ref().map_or(all, |listed| listed.len() as u64);
    let weights = match arguments.weights.is_empty() {
        true => None,
        false => Some(weights(table("weights", &arguments.weights)?, count, listed.is_some(), arguments)?),
    };
    let (listed, weights) = without_dropped(listed, weights, arguments)?;
    // As many draws as samples, those of no weight included.
    let draws = weights.as_ref().map(|weights| weights.len() as u64);
    let (listed, weights) = without_zeros(listed, weights);
    // Shuffled, it does not matter in which order they are listed, and what is sorted is quick to look at.
    let (listed, weights) =
        if arguments.random_shuffle { sorted(listed, weights) } else { (listed, weights) };
    let identity = identity(listed.as_deref(), weights.as_deref());
    let per_epoch = match u64::try_from(arguments.samples_per_epoch) {
        Ok(0) => None,
        Ok(per_epoch) => Some(per_epoch),
        Err(_) => {
            let problem = format!("{} is too small; give 1 or more", arguments.samples_per_epoch);
            return Err(argument("samples_per_epoch", problem));
        }
    };
    let mut identity = identity;
    if let Some(per_epoch) = per_epoch {
        identity["samples_per_epoch"] = per_epoch.into();
    }
    let identity =
        if identity.as_object().is_some_and(|all| all.is_empty()) { Value::Null } else { identity };
    let weights = match weights {
        None => None,
        Some(weights) => Some(Weights::new(&weights).ok_or_else(|| {
            argument("weights", "are all 0, so that no sample can be drawn; give some that are not".into())
        })?),
    };
    let per_epoch = per_epoch.or(draws);
    let choice = Choice { listed: listed.map(Into::into), weights: weights.map(Into::into), per_epoch };
    check_size(&choice, all, arguments.random_shuffle, options)?;
    if arguments.random_shuffle && choice.listed.is_none() {
        check_shuffled(all)?;
    }
    Ok(Chosen { repeats: choice.repeats(), choice, identity })
}

/// What tells these lists from others.
fn identity(listed: Option<&[u64]>, weights: Option<&[f64]>) -> Value {
    let mut identity = json!({});
    if let Some(listed) = listed {
        identity["samples"] = json!([listed.len(), digest(listed.iter().copied())]);
    }
    if let Some(weights) = weights {
        identity["weights"] = digest(weights.iter().map(|weight| weight.to_bits())).into();
    }
    identity
}

/// The samples that are listed by their numbers, each with its weight.
fn sorted(listed: Option<Vec<u64>>, weights: Option<Vec<f64>>) -> Lists {
    match (listed, weights) {
        (Some(mut listed), None) => {
            listed.sort_unstable();
            (Some(listed), None)
        }
        (Some(listed), Some(weights)) if !listed.is_sorted() => {
            let mut pairs: Vec<(u64, f64)> = listed.into_iter().zip(weights).collect();
            // Of one sample that is listed twice the weights stay in their order.
            pairs.sort_by_key(|&(sample, _)| sample);
            let (listed, weights) = pairs.into_iter().unzip();
            (Some(listed), Some(weights))
        }
        lists => lists,
    }
}

/// The numbers of the samples that rows of indices name.
fn listed(table: &Table<i64>, domains: &Domains) -> Result<Vec<u64>> {
    let refused = |problem: String| argument("samples", problem);
    let columns = domains.index_len();
    if table.values.is_empty() {
        return Err(refused("is empty; name some samples, or leave it out for all".into()));
    }
    if table.columns != columns {
        let store = if domains.is_separate() { "the number of its store and " } else { "" };
        return Err(refused(format!(
            "has {} numbers for each sample, and a sample is named by {columns}: {store}an index for each dimension of `window`, as `return_index` gives them",
            table.columns
        )));
    }
    let number = |(row, index): (usize, &[i64])| {
        domains
            .sample(index)
            .map_err(|reason| refused(format!("row {row}, {index:?}, names no sample: {reason}")))
    };
    table.values.chunks_exact(columns).enumerate().map(number).collect()
}

/// Weights of `count` samples.
fn weights(table: Table<f64>, count: u64, are_listed: bool, arguments: &Arguments) -> Result<Vec<f64>> {
    let refused = |problem: String| Err(argument("weights", problem));
    if !arguments.random_shuffle {
        let remedy = "give random_shuffle=True (of a Loader shuffle=True), or leave them out";
        return refused(format!("samples that are drawn come in random order; {remedy}"));
    }
    let given = table.values.len() as u64;
    if table.columns != 1 || given != count {
        let whose = if are_listed { "`samples` has" } else { "there are" };
        return refused(format!("has {given} numbers, and {whose} {count} samples; give one for each"));
    }
    let cannot_be = |weight: &f64| !weight.is_finite() || *weight < 0.0;
    if let Some(place) = table.values.iter().position(cannot_be) {
        let weight = table.values[place];
        return refused(format!("{weight} at place {place} is no weight; give finite numbers from 0 on"));
    }
    Ok(table.values)
}

type Lists = (Option<Vec<u64>>, Option<Vec<f64>>);

/// Leaves out what `mask` and `missing_chunks` leave out.
fn without_dropped(
    listed: Option<Vec<u64>>,
    weights: Option<Vec<f64>>,
    arguments: &Arguments,
) -> Result<Lists> {
    let Some(kept) = &arguments.kept else { return Ok((listed, weights)) };
    let Some(listed) = listed else {
        let weights = weights.map(|weights| kept.iter().map(|&sample| weights[sample as usize]).collect());
        return Ok((Some(kept.to_vec()), weights));
    };
    let places: Vec<usize> =
        (0..listed.len()).filter(|&place| kept.binary_search(&listed[place]).is_ok()).collect();
    if places.is_empty() {
        let problem = format!(
            "`mask` or `missing_chunks` leave none of its {} samples; name others, or leave one of these out",
            listed.len()
        );
        return Err(argument("samples", problem));
    }
    let weights = weights.map(|weights| places.iter().map(|&place| weights[place]).collect());
    Ok((Some(places.iter().map(|&place| listed[place]).collect()), weights))
}

/// Leaves out samples of no weight. Of weights that are all 0 nothing is left out.
fn without_zeros(listed: Option<Vec<u64>>, weights: Option<Vec<f64>>) -> Lists {
    let Some(given) = &weights else { return (listed, weights) };
    let positive = |place: &usize| given[*place] > 0.0;
    let places: Vec<usize> = (0..given.len()).filter(positive).collect();
    if places.len() == given.len() || places.is_empty() {
        return (listed, weights);
    }
    let sample = |&place: &usize| listed.as_ref().map_or(place as u64, |listed| listed[place]);
    let left = places.iter().map(|&place| given[place]).collect();
    (Some(places.iter().map(sample).collect()), Some(left))
}

/// Refuses lists that are too long to be counted, or for the memory of the host.
fn check_size(choice: &Choice, all: u64, is_shuffled: bool, options: &Options) -> Result<()> {
    let listed = choice.listed.as_ref().map_or(0, |listed| listed.len() as u64);
    let drawn = if choice.weights.is_some() { choice.per_epoch(all) } else { 0 };
    if listed.max(drawn) > Choice::MOST_LISTED {
        let name = if drawn > listed { "samples_per_epoch" } else { "samples" };
        let problem = format!("{} samples are too many, {} are not", listed.max(drawn), Choice::MOST_LISTED);
        return Err(argument(name, problem));
    }
    let needed = choice_bytes(choice, all, is_shuffled).saturating_sub(Options::UNCOUNTED_HOST_BYTES);
    if needed <= options.most_host_memory_bytes {
        return Ok(());
    }
    Err(Error::Budget {
        name: "host_memory_budget",
        budget_bytes: options.most_host_memory_bytes,
        needed_bytes: needed,
        what: format!("lists of {listed} samples to choose from and {drawn} to draw in an epoch"),
    })
}

/// Bytes of the lists of samples.
pub(super) fn choice_bytes(choice: &Choice, all: u64, is_shuffled: bool) -> u64 {
    let listed = choice.listed.as_ref().map_or(0, |listed| listed.len() as u64);
    let (weighed, drawn) = match choice.weights {
        Some(_) => (choice.len(all), choice.per_epoch(all)),
        None => (0, 0),
    };
    let ordered = if is_shuffled { listed.max(drawn).saturating_mul(Choice::ORDERED_BYTES) } else { 0 };
    [
        listed.saturating_mul(Choice::LISTED_BYTES),
        weighed.saturating_mul(Weights::BYTES),
        drawn.saturating_mul(Choice::DRAWN_BYTES),
        ordered,
    ]
    .into_iter()
    .fold(0, u64::saturating_add)
}

/// A digest of a list: FNV-1a over its numbers, which only has to differ where a list is given by mistake.
fn digest(numbers: impl Iterator<Item = u64>) -> String {
    let fold = |hash: u64, number: u64| {
        let mixed = (hash ^ number).wrapping_mul(0x100_0000_01b3);
        mixed ^ (mixed >> 29)
    };
    format!("{:016x}", numbers.fold(0xcbf2_9ce4_8422_2325, fold))
}

#[cfg(test)]
mod tests {
    use super::super::memory_needs::tests::write_array;
    use super::super::setup::Setup;
    use super::*;

    fn arguments(folder: &tempfile::TempDir) -> Arguments {
        write_array(folder.path(), [64, 1000], [8, 1000], "");
        Arguments {
            window: Some(vec![2, 10]),
            random_shuffle: true,
            ..Arguments::new(folder.path().to_str().unwrap())
        }
    }

    #[test]
    fn choices_that_cannot_be_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        type Change = fn(&mut Arguments);
        let cases: [(Change, &[&str]); 16] = [
            (
                |a| a.samples = "[[0, 991]]".into(),
                &["`samples`", "row 0, [0, 991]", "dimension 1", "0 to 990"],
            ),
            (|a| a.samples = "[[0, 0], [-1, 0]]".into(), &["`samples`", "row 1, [-1, 0]", "0 to 62"]),
            (|a| a.samples = "[1, 2]".into(), &["`samples`", "1 numbers", "named by 2"]),
            (|a| a.samples = "[[1, 2, 3]]".into(), &["`samples`", "3 numbers", "named by 2"]),
            (|a| a.samples = "[]".into(), &["`samples`", "empty"]),
            (
                |a| (a.samples, a.stride) = ("[[0, 5]]".into(), Some(vec![1, 10])),
                &["`samples`", "0 to 990 in steps of 10"],
            ),
            (|a| a.weights = "[1, 2]".into(), &["`weights`", "2 numbers", "6300 samples"]),
            (
                |a| (a.samples, a.weights) = ("[[0, 5]]".into(), "[1, 2]".into()),
                &["`weights`", "`samples` has 1"],
            ),
            (
                |a| (a.samples, a.weights) = ("[[0, 5], [1, 5]]".into(), "[1, -2]".into()),
                &["`weights`", "-2 at place 1"],
            ),
            (
                |a| (a.samples, a.weights) = ("[[0, 5], [1, 5]]".into(), "[0, 0]".into()),
                &["`weights`", "all 0"],
            ),
            (
                |a| {
                    (a.samples, a.weights) = ("[[0, 5]]".into(), "[1]".into());
                    a.random_shuffle = false;
                },
                &["`weights`", "random_shuffle=True"],
            ),
            (|a| a.samples_per_epoch = -1, &["`samples_per_epoch`", "-1"]),
            (
                |a| (a.samples, a.weights, a.samples_per_epoch) = ("[[0, 5]]".into(), "[1]".into(), 1 << 40),
                &["`samples_per_epoch`", "too many"],
            ),
            (
                |a| (a.samples_per_epoch, a.num_shards) = (2, 3),
                &["`num_shards`", "3 reader shards cannot share 2"],
            ),
            (
                |a| (a.samples, a.kept) = ("[[0, 5]]".into(), Some([3].into())),
                &["`samples`", "none of its 1"],
            ),
            (
                |a| {
                    a.weights = format!("[{}]", vec!["1"; 6300].join(","));
                    (a.host_memory_budget, a.samples_per_epoch) = (1 << 20, 1 << 31);
                },
                &["`host_memory_budget`", "2147483648 to draw"],
            ),
        ];
        for (change, expected) in cases {
            let mut arguments = arguments(&folder);
            change(&mut arguments);
            let error = Setup::new(&arguments).err().unwrap().to_string();
            assert!(expected.iter().all(|text| error.contains(text)), "{error}: {expected:?}");
        }
    }

    #[test]
    fn samples_of_no_weight_and_of_no_foreground_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let read = |change: &dyn Fn(&mut Arguments)| {
            let mut arguments = Arguments { window: Some(vec![2]), ..arguments(&folder) };
            change(&mut arguments);
            let setup = Setup::new(&arguments).unwrap();
            setup.start.order
        };
        let order = read(&|a| a.kept = Some([3, 7, 40].into()));
        assert_eq!(order.samples(), 3);
        let order = read(&|a| {
            a.kept = Some([3, 7, 40].into());
            a.weights =
                json!((0..63).map(|i| if i == 7 { 0.0 } else { 0.5 }).collect::<Vec<_>>()).to_string();
            a.samples_per_epoch = 100;
        });
        assert_eq!(order.samples(), 100);
        let mut order = order;
        let mut drawn: Vec<u64> = (0..100).map(|batch| order.batch(batch)[0].sample).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, [3, 40]);
    }
}
