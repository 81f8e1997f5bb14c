//! Checks of arguments against the arrays that they name.

use crate::assemble::Conversion;
use crate::dataset::{Dataset, Joined};
use crate::error::{Error, Result};
use crate::fetch::DiskCache;
use crate::options::{DiskCacheOptions, Options, argument};
use crate::plan::ArrayGeometry;
use crate::sampler::Order;

/// Refuses arrays without dimensions: samples are taken along one.
pub(super) fn check_dimensions(dataset: &Dataset) -> Result<()> {
    match dataset.arrays.iter().find(|array| array.shape.is_empty()) {
        None => Ok(()),
        Some(scalar) => {
            let at = scalar.context();
            let problem =
                format!("{at} has no dimensions, so there is nothing to take samples along; leave it out");
            Err(argument("arrays", problem))
        }
    }
}

/// Refuses a folder in which no disk cache can be.
pub(super) fn check_disk_cache(options: &DiskCacheOptions) -> Result<()> {
    DiskCache::check(options).map_err(|error| {
        let problem = format!(
            "no cache can be kept in \"{}\" ({error}); give a folder on a local disk that this user may write to, or none",
            options.folder
        );
        argument("cache_dir", problem)
    })
}

/// Names the array in an error about its shape.
pub(super) fn name_array(error: Error, array: &Joined) -> Error {
    match error {
        Error::Argument { name, problem } => {
            let at = array.context().to_string();
            Error::Argument { name, problem: problem.replacen("the array", &at, 1) }
        }
        error => error,
    }
}

/// Refuses arrays without the dimensions that the windows cover, or with other extents along them than the reference array.
pub(super) fn check_shapes(
    dataset: &Dataset,
    geometry: &[ArrayGeometry],
    reference: usize,
    dimensions: usize,
) -> Result<()> {
    let first = &dataset.arrays[reference];
    for (array, geometry) in dataset.arrays.iter().zip(geometry) {
        let (at, shape) = (array.context(), &array.shape);
        if !geometry.follows_samples() {
            continue;
        }
        let Some(covered) = shape.get(..dimensions) else {
            let problem = format!(
                "it has {dimensions} extents, but {at} has the shape {shape:?}; give at most {} extents",
                shape.len()
            );
            return Err(argument("window", problem));
        };
        if first.shape.get(..dimensions) != Some(covered) {
            return Err(Error::ArraysDisagree {
                at: first.context(),
                shape: first.shape.clone(),
                other: array.first().name.clone(),
                other_shape: shape.clone(),
                dimensions,
            });
        }
    }
    Ok(())
}

/// Refuses to stack arrays whose shapes or output types differ. Later dimensions belong to every sample, so whole shapes count.
pub(super) fn check_stack(
    dataset: &Dataset,
    geometry: &[ArrayGeometry],
    conversions: &[Vec<Conversion>],
) -> Result<()> {
    let first = &dataset.arrays[0];
    for (number, other) in dataset.arrays.iter().enumerate().skip(1) {
        let unlike = |what: &str, here: String, there: String| Error::Unlike {
            at: first.context(),
            difference: format!("its {what} is {here}, but {there} in {}", other.context()),
            remedy: "arrays that are stacked need the same: leave one of them out, or read them without `stack`",
        };
        if first.shape != other.shape || first.axes != other.axes {
            return Err(unlike("shape", format!("{:?}", first.shape), format!("{:?}", other.shape)));
        }
        if geometry[0].chosen != geometry[number].chosen {
            let what = "selection";
            return Err(unlike(what, "along one dimension".into(), "along another".into()));
        }
        let (here, there) = (conversions[0][0].output(), conversions[number][0].output());
        if here != there {
            return Err(unlike("element type", here.name().into(), there.name().into()));
        }
    }
    Ok(())
}

/// Refuses to shuffle more samples than can be counted with.
pub(super) fn check_shuffled(samples: u64) -> Result<()> {
    if samples <= Order::MOST_SHUFFLED {
        return Ok(());
    }
    let problem = format!(
        "{samples} samples are too many to be shuffled, {} are not; give a larger stride or a smaller region, or read them in order",
        Order::MOST_SHUFFLED
    );
    Err(argument("random_shuffle", problem))
}

/// Refuses a shuffle whose lists, of `bytes` bytes for the groups of samples of a reader shard, exceed the host budget.
pub(super) fn check_order_bytes(bytes: u64, groups: u64, options: &Options) -> Result<()> {
    let counted = bytes.saturating_sub(Options::UNCOUNTED_HOST_BYTES);
    // The numbers of groups have 32 bits.
    if counted <= options.most_host_memory_bytes && u32::try_from(groups).is_ok() {
        return Ok(());
    }
    Err(too_many_groups(groups, options))
}

/// The error for a shuffle of more groups of samples than memory holds.
pub(super) fn too_many_groups(groups: u64, options: &Options) -> Error {
    Error::Budget {
        name: "host_memory_budget",
        budget_bytes: options.most_host_memory_bytes,
        needed_bytes: Order::shuffle_bytes(groups).saturating_sub(Options::UNCOUNTED_HOST_BYTES),
        what: format!(
            "the order of samples in {groups} shuffled groups, of those that share chunks (a smaller region, more reader shards or reading in order takes less)"
        ),
    }
}
