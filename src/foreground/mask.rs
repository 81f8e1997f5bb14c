//! The mask beside the arrays: which of its dimensions is which of theirs.

use crate::dataset::{Dataset, Joined};
use crate::error::{Error, Result};
use crate::options::{Arguments, Join, argument};
use crate::plan::ArrayGeometry;
use crate::reader::Setup;
use crate::sampler::{Axis, Domain, Run};
use crate::store::Access;

/// The mask of one domain of samples.
pub(super) struct Mask {
    /// The stores that it is read from.
    pub paths: Vec<String>,
    /// Its array.
    pub array: Joined,
    /// What each of its dimensions is.
    pub along: Vec<Along>,
}

/// What a dimension of the mask is to samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Along {
    /// Windows lie along it: those of an axis.
    Windows(usize),
    /// Every sample has the same indices of it.
    Same(Vec<Run>),
}

impl Mask {
    /// Opens the mask of each domain.
    ///
    /// # Errors
    /// No such array, and dimensions that are not those of the arrays.
    pub fn open(arguments: &Arguments, setup: &Setup) -> Result<Vec<Self>> {
        let access = Access::new(arguments)?;
        let stores = Dataset::stores(&arguments.paths, &access)?;
        let reference = &setup.dataset.arrays[setup.dataset.reference];
        let is_separate = setup.domains.is_separate();
        let mask = |(domain, geometry): (&Domain, &Vec<ArrayGeometry>)| {
            let own = if is_separate { &stores[domain.store..=domain.store] } else { &stores[..] };
            let open = |paths: &[String]| -> Result<Joined> {
                let names = [arguments.mask.clone()];
                let opened = Dataset::open_joined(paths, &names, &access, Join::Concat);
                let mut arrays = opened.map_err(|error| in_mask(error, &arguments.mask))?.arrays;
                Ok(arrays.swap_remove(0))
            };
            let first = open(&own[..1])?;
            let places = places(&first, reference, &geometry[setup.dataset.reference].shape)?;
            // A mask without the dimension that stores are joined along is that of the first store, as other arrays are.
            let (paths, array) = match own.len() > 1 && places.first() == Some(&0) {
                true => (own.to_vec(), open(own)?),
                false => (own[..1].to_vec(), first),
            };
            let along = along(&array, &places, domain, &geometry[setup.dataset.reference])?;
            Ok(Self { paths, array, along })
        };
        setup.domains.iter().zip(&*setup.geometry).map(mask).collect()
    }

    /// The axis of each dimension that windows lie along, with the dimension.
    pub fn windowed<'a>(&'a self, domain: &'a Domain) -> impl Iterator<Item = (usize, &'a Axis)> {
        self.along.iter().enumerate().filter_map(|(d, along)| match along {
            Along::Windows(axis) => Some((d, &domain.windows.axes()[*axis])),
            Along::Same(_) => None,
        })
    }

    /// From the flag of a sample to that of its neighbour along each axis of the windows.
    pub fn flag_strides(&self, domain: &Domain) -> Vec<u64> {
        let mut strides = vec![0; domain.windows.axes().len()];
        let mut below = 1;
        for along in self.along.iter().rev() {
            if let Along::Windows(axis) = along {
                strides[*axis] = below;
                below *= domain.windows.axes()[*axis].count();
            }
        }
        strides
    }
}

/// Says that an array that is not there was to be the mask.
fn in_mask(error: Error, mask: &str) -> Error {
    match error {
        Error::ArrayNotFound { .. } | Error::ArrayIsNotGroup { .. } => {
            argument("mask", format!("\"{mask}\": {error}"))
        }
        error => error,
    }
}

/// Which dimension of the reference array each dimension of the mask is: the one of its name, or without names that at its place, counted
/// from the first dimension or from the last.
fn places(mask: &Joined, reference: &Joined, shape: &[u64]) -> Result<Vec<usize>> {
    let (names, all) = (&mask.first().dimension_names, &reference.first().dimension_names);
    if !names.is_empty() && names.len() == mask.shape.len() && !all.is_empty() {
        let place = |name: &String| {
            all.iter().position(|known| known == name).ok_or_else(|| {
                let problem = format!(
                    "{} has the dimension \"{name}\", which {} has not: its dimensions are {all:?}",
                    mask.context(),
                    reference.context()
                );
                argument("mask", problem)
            })
        };
        let places = names.iter().map(place).collect::<Result<Vec<usize>>>()?;
        if (1..places.len()).any(|d| places[..d].contains(&places[d])) {
            let problem = format!("{} has a dimension twice: {names:?}", mask.context());
            return Err(argument("mask", problem));
        }
        return Ok(places);
    }
    let (own, behind) = (mask.shape.len(), shape.len().checked_sub(mask.shape.len()));
    // Stores that are joined differ from the whole along the first dimension only.
    let fits = |start: usize| {
        mask.shape.iter().zip(&shape[start..]).enumerate().all(|(d, (own, extent))| {
            own == extent || *own == 1 || (start == 0 && d == 0 && reference.parts.len() > 1)
        })
    };
    match behind {
        Some(_) if fits(0) => Ok((0..own).collect()),
        Some(behind) if fits(behind) => Ok((behind..behind + own).collect()),
        _ => {
            let problem = format!(
                "{} has the shape {:?}, which is no part of {shape:?}, the shape of {}",
                mask.context(),
                mask.shape,
                reference.context()
            );
            Err(argument("mask", problem))
        }
    }
}

/// What each dimension of the mask is to the samples of a domain.
fn along(mask: &Joined, places: &[usize], domain: &Domain, geometry: &ArrayGeometry) -> Result<Vec<Along>> {
    let runs = geometry.runs(&domain.windows, &domain.windows.places(0));
    let dimension = |(d, &place): (usize, &usize)| {
        let (own, extent) = (mask.shape[d], geometry.shape[place]);
        if own == 1 && extent != 1 {
            return Ok(Along::Same(vec![Run::whole(1)]));
        }
        if own != extent {
            let problem = format!(
                "{} has {own} steps in dimension {d}, and the arrays have {extent} there (in their dimension {place})",
                mask.context()
            );
            return Err(argument("mask", problem));
        }
        let has_windows = domain.windows.axes().get(place).is_some_and(|axis| axis.count() > 1);
        if has_windows && geometry.chosen[place].is_some() {
            let problem = format!(
                "{} has dimension {d}, along which `select` chooses indices and windows lie; leave it out of `select`, or give the \
                 samples themselves (`samples`)",
                mask.context()
            );
            return Err(argument("mask", problem));
        }
        Ok(if has_windows { Along::Windows(place) } else { Along::Same(runs[place].clone()) })
    };
    places.iter().enumerate().map(dimension).collect()
}
