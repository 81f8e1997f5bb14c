//! Checks of arguments against the arrays that they name.

use crate::assemble::Conversion;
use crate::dataset::{Dataset, Joined, differing};
use crate::error::{Context, Error, Result};
use crate::fetch::DiskCache;
use crate::options::{DiskCacheOptions, Options, argument};
use crate::plan::{ArrayGeometry, Geometry};
use crate::sampler::{Domain, Domains, Order};

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
pub(super) fn name_array(error: Error, at: &Context) -> Error {
    match error {
        Error::Argument { name, problem } => {
            Error::Argument { name, problem: problem.replacen("the array", &at.to_string(), 1) }
        }
        error => error,
    }
}

/// Refuses arrays without the dimensions that the windows cover, or with other extents along them than the reference array; and
/// stores whose samples have another shape than those of the first.
pub(super) fn check_shapes(
    dataset: &Dataset,
    domains: &Domains,
    geometry: &Geometry,
    reference: usize,
) -> Result<()> {
    for (domain, geometry) in domains.iter().zip(geometry) {
        check_shapes_in(dataset, domain, geometry, reference)?;
    }
    for (number, array) in dataset.arrays.iter().enumerate() {
        let extents = |(domain, geometry): (&Domain, &Vec<ArrayGeometry>)| {
            (domain.store, geometry[number].sample_extents(&domain.windows))
        };
        check_extents(array, &domains.iter().zip(geometry).map(extents).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Refuses samples that have another shape in one store than in another: dimensions behind those of the window are taken
/// whole, or cut to a region.
fn check_extents(array: &Joined, extents: &[(usize, Vec<u64>)]) -> Result<()> {
    let Some(((first, expected), others)) = extents.split_first() else { return Ok(()) };
    match others.iter().find(|(_, found)| found != expected) {
        None => Ok(()),
        Some((other, found)) => Err(Error::Unlike {
            at: array.parts[*first].context(),
            difference: format!(
                "its samples have the shape {expected:?}, but {found:?} in {}",
                array.parts[*other].context()
            ),
            remedy: "all samples need one shape: let `window` cover the dimensions in which the stores differ, or give each store a reader of its own",
        }),
    }
}

/// The first of these in one domain.
fn check_shapes_in(
    dataset: &Dataset,
    domain: &Domain,
    geometries: &[ArrayGeometry],
    reference: usize,
) -> Result<()> {
    let dimensions = domain.windows.axes().len();
    let part = |number: usize| dataset.part(number, domain.store.min(dataset.arrays[number].parts.len() - 1));
    let first = &geometries[reference].shape;
    let disagree = |number: usize, reference: usize, dimensions: usize| Error::ArraysDisagree {
        at: part(reference).context(),
        shape: geometries[reference].shape.clone(),
        other: part(number).name.clone(),
        other_shape: geometries[number].shape.clone(),
        dimensions,
    };
    for (number, (array, geometry)) in dataset.arrays.iter().zip(geometries).enumerate() {
        let shape = &geometry.shape;
        let follows = geometry.follows_samples();
        // Of an array that is the same for every sample all dimensions agree in the first store, from where their places are
        // known.
        let (axes, count) = if follows { (&geometry.axes, dimensions) } else { (&array.axes, first.len()) };
        let differs = |&(_, axis, extent): &(usize, usize, u64)| first[axis] != extent;
        let placed = axes.iter().zip(shape).enumerate();
        let found = placed.filter_map(|(d, (axis, &extent))| Some((d, (*axis)?, extent))).find(differs);
        let (own, others) = (part(number), part(reference));
        let is_named = !own.dimension_names.is_empty() && !others.dimension_names.is_empty();
        match found {
            // Along the first dimension parts of joined stores may have the same extents.
            Some((d, axis, _)) if is_named && d > 0 && own.shape[d] != others.shape[axis] => {
                return Err(differing(own, others, (d, axis)));
            }
            Some(_) if follows && !is_named && shape.len() < dimensions => {}
            Some(_) => return Err(disagree(number, reference, count)),
            None => {}
        }
        if follows && !is_named && shape.len() < dimensions {
            let problem = format!(
                "it has {dimensions} extents, but {} has the shape {shape:?}; give at most {} extents",
                own.context(),
                shape.len()
            );
            return Err(argument("window", problem));
        }
    }
    Ok(())
}

/// Refuses stores that are read separately and have other channels in their samples than the first. Channels are along dimensions of which
/// all samples have the same part.
pub(super) fn check_same_channels(dataset: &Dataset, domains: &Domains, geometry: &Geometry) -> Result<()> {
    let mut all = domains.iter().zip(geometry);
    let Some((first, expected)) = all.next() else { return Ok(()) };
    for (domain, found) in all {
        for (number, array) in dataset.arrays.iter().enumerate() {
            let (here, there) = (&expected[number], &found[number]);
            let windows = |domain: &Domain, d: usize| {
                here.axes[d].map_or(1, |axis| domain.windows.axes()[axis].count())
            };
            let [runs, others] = [(here, first), (there, domain)]
                .map(|(geometry, domain)| geometry.runs(&domain.windows, &domain.windows.places(0)));
            let differs = |&d: &usize| {
                // Along the first dimension of windows no samples are alike, and there are no channels.
                here.axes[d] != Some(0)
                    && windows(first, d) == 1
                    && (windows(domain, d) != 1 || here.shape[d] != there.shape[d] || runs[d] != others[d])
            };
            if let Some(d) = (0..here.shape.len()).find(differs) {
                return Err(Error::Unlike {
                    at: array.parts[first.store.min(array.parts.len() - 1)].context(),
                    difference: format!(
                        "the part of dimension {d} that samples have is not that of {}",
                        array.parts[domain.store.min(array.parts.len() - 1)].context()
                    ),
                    remedy: "`normalize` by channel and `stack_channels` need the same channels in all stores: read the same indices of each, or give each a reader of its own",
                });
            }
        }
    }
    Ok(())
}

/// What to do about arrays that cannot be stacked.
const STACKED: &str =
    "arrays that are stacked need the same: leave one of them out, or read them without `stack`";

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
            remedy: STACKED,
        };
        if first.shape != other.shape {
            return Err(unlike("shape", format!("{:?}", first.shape), format!("{:?}", other.shape)));
        }
        if geometry[0].axes != geometry[number].axes {
            let names = |array: &Joined| format!("{:?}", array.first().dimension_names);
            return Err(unlike("list of dimensions", names(first), names(other)));
        }
        if geometry[0].chosen != geometry[number].chosen {
            let what = "selection";
            return Err(unlike(what, "along one dimension".into(), "along another".into()));
        }
        let parts = first.parts.iter().zip(&other.parts);
        if let Some((here, there)) =
            parts.clone().find(|(here, there)| first.is_separate && here.shape != there.shape)
        {
            let difference =
                format!("its shape is {:?}, but {:?} in {}", here.shape, there.shape, there.context());
            return Err(Error::Unlike { at: here.context(), difference, remedy: STACKED });
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
