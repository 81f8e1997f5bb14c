//! The windows that are samples: over all stores joined, or over each store by itself.

use super::checks::name_array;
use super::dimension_offsets::dimension_offsets;
use crate::dataset::{ArrayInfo, Joined};
use crate::error::{Result, log_once};
use crate::options::{Arguments, Options, argument};
use crate::sampler::{Axis, AxisOffsets, Domains, WindowArguments, Windows};

use serde_json::{Map, Value, from_str, from_value};

/// The windows over the array that samples are counted in. Of an array of some shape, samples see the shape that `seen` tells.
///
/// # Errors
/// Arguments that do not fit the array, and stores of which none has room for a window.
pub(super) fn domains(
    reference: &Joined,
    seen: impl Fn(&[u64]) -> Vec<u64>,
    arguments: &Arguments,
    options: &Options,
) -> Result<Domains> {
    let listed_bytes = options.most_host_memory_bytes.saturating_add(Options::UNCOUNTED_HOST_BYTES);
    // Samples that are named one by one may be anywhere.
    let mut along = dimension_offsets(&arguments.dimension_offsets, reference)?;
    let first = along.first_mut().and_then(Option::take).unwrap_or_default();
    let both = |name| {
        argument(name, "is given, and so is dimension_offsets of the first dimension; give one".into())
    };
    if arguments.offsets.is_some() && !first.offsets.is_empty() {
        return Err(both("offsets"));
    }
    if !arguments.breaks.is_empty() && !first.breaks.is_empty() {
        return Err(both("breaks"));
    }
    let own = Some(&first.offsets[..]).filter(|offsets| !offsets.is_empty());
    let given =
        WindowArguments { window: arguments.window.as_deref(), along: &along, ..WindowArguments::default() };
    let dense = vec![1; given.covered()];
    let stride = if arguments.samples.is_empty() { None } else { Some(&dense[..]) };
    let given = WindowArguments {
        stride: arguments.stride.as_deref().or(stride),
        dilation: arguments.dilation.as_deref(),
        offsets: arguments.offsets.as_deref().or(own),
        roi_start: arguments.roi_start.as_deref(),
        roi_end: arguments.roi_end.as_deref(),
        exclude: &arguments.exclude,
        breaks: if first.breaks.is_empty() { &arguments.breaks } else { &first.breaks },
        most_listed: Some(listed_bytes / Windows::LISTED_BYTES),
        ..given
    };
    if reference.is_separate {
        return separate(&reference.parts, seen, arguments, given);
    }
    if !arguments.per_store.is_empty() {
        let problem = "tells stores apart, which join=\"concat\" does not; give join=\"separate\"";
        return Err(argument("per_store", problem.into()));
    }
    let windows = Windows::new(&seen(&reference.shape), &given);
    Ok(Domains::joined(windows.map_err(|error| name_array(error, &reference.context()))?))
}

/// Windows over each store by itself. Stores that have none are left out.
fn separate(
    stores: &[ArrayInfo],
    seen: impl Fn(&[u64]) -> Vec<u64>,
    arguments: &Arguments,
    given: WindowArguments<'_>,
) -> Result<Domains> {
    let each = per_store(arguments, stores.len())?;
    // What one store has room for may lie beyond the end of another one.
    let shapes: Vec<Vec<u64>> = stores.iter().map(|store| seen(&store.shape)).collect();
    let extents = |d: usize| shapes.iter().map(|shape| shape[d]).max().unwrap_or(0);
    let largest: Vec<u64> = (0..shapes[0].len()).map(extents).collect();
    Windows::check_region(&largest, &given)?;
    let mut most_listed = given.most_listed.unwrap_or(u64::MAX);
    let (mut found, mut empty) = (vec![], vec![]);
    for (number, store) in stores.iter().enumerate() {
        let region = Region::inside(&given, &shapes[number]);
        let (region, is_empty) = match each.as_ref().map(|each| &each[number]) {
            None => (region.clone(), region.is_empty()),
            Some(None) => continue,
            Some(Some(own)) => {
                let is_shared = own.start.is_none() && own.end.is_none();
                (region.with(own), is_shared && region.is_empty())
            }
        };
        let given = WindowArguments {
            roi_start: region.start.as_deref(),
            roi_end: region.end.as_deref(),
            exclude: &region.exclude,
            breaks: &region.breaks,
            along: &region.along,
            most_listed: Some(most_listed),
            ..given
        };
        let windows = match is_empty {
            true => Err(argument("roi_start", "the region begins behind the end of the array".into())),
            false => Windows::fitting(&shapes[number], &given)
                .map_err(|error| name_array(error, &store.context()))?,
        };
        match windows {
            Ok(windows) => {
                let listed = |(d, axis): (usize, &Axis)| region.lists(d).then(|| axis.count());
                let listed = windows.axes().iter().enumerate().filter_map(listed).sum();
                most_listed = most_listed.saturating_sub(listed);
                found.push((number, windows));
            }
            Err(error) => empty.push((store, error)),
        }
    }
    let left_out = empty.len();
    match (found.is_empty(), empty.into_iter().next()) {
        (true, Some((store, error))) => return Err(name_array(error, &store.context())),
        (true, None) => {
            return Err(argument(
                "per_store",
                "leaves out every store; give a region for one or more".into(),
            ));
        }
        (false, Some((store, error))) => log_once(&format!(
            "{left_out} of {} stores have no samples. The first of them is {}: {error}",
            stores.len(),
            store.store
        )),
        (false, None) => {}
    }
    Domains::separate(found).ok_or_else(|| {
        let problem = "has more places in all stores together than can be counted; cover fewer dimensions";
        argument("window", problem.into())
    })
}

/// The part of a store that samples are taken from.
#[derive(Clone, Debug, Default, PartialEq)]
struct Region {
    start: Option<Vec<i64>>,
    end: Option<Vec<i64>>,
    exclude: Vec<i64>,
    breaks: Vec<i64>,
    along: Vec<Option<AxisOffsets>>,
}

impl Region {
    /// As much of the region of all stores as lies in one of this shape.
    fn inside(given: &WindowArguments<'_>, shape: &[u64]) -> Self {
        let (starts, ends) = (given.roi_start.unwrap_or_default(), given.roi_end.unwrap_or_default());
        let depth = starts.len().max(ends.len());
        let extents = || shape[..depth].iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX));
        let within = |bounds: &[i64], default: &dyn Fn(i64) -> i64| {
            let at = |(d, extent): (usize, i64)| bounds.get(d).map_or(default(extent), |&at| at.min(extent));
            (depth > 0).then(|| extents().enumerate().map(at).collect::<Vec<i64>>())
        };
        let known = |d: usize, indices: &[i64]| {
            let steps = shape.get(d).map_or(i64::MAX, |&extent| i64::try_from(extent).unwrap_or(i64::MAX));
            indices.iter().copied().filter(|&index| index < steps).collect()
        };
        let along = |(d, along): (usize, &Option<AxisOffsets>)| {
            let along = along.as_ref()?;
            Some(AxisOffsets { offsets: along.offsets.clone(), breaks: known(d, &along.breaks) })
        };
        Self {
            start: within(starts, &|_| 0),
            end: within(ends, &|extent| extent),
            exclude: known(0, given.exclude),
            breaks: known(0, given.breaks),
            along: given.along.iter().enumerate().map(along).collect(),
        }
    }

    /// The same with what is said of the store itself.
    fn with(&self, own: &Self) -> Self {
        let list = |own: &Vec<i64>, all: &Vec<i64>| if own.is_empty() { all.clone() } else { own.clone() };
        Self {
            start: own.start.clone().or_else(|| self.start.clone()),
            end: own.end.clone().or_else(|| self.end.clone()),
            exclude: list(&own.exclude, &self.exclude),
            breaks: list(&own.breaks, &self.breaks),
            along: self.along.clone(),
        }
    }

    /// Whether the windows along a dimension are listed one by one.
    fn lists(&self, d: usize) -> bool {
        match d {
            0 => !self.exclude.is_empty() || !self.breaks.is_empty(),
            _ => matches!(self.along.get(d), Some(Some(along)) if !along.breaks.is_empty()),
        }
    }

    /// Whether a region that lies in another store leaves nothing of this one.
    fn is_empty(&self) -> bool {
        let (Some(start), Some(end)) = (&self.start, &self.end) else { return false };
        start.iter().zip(end).any(|(start, end)| start >= end)
    }
}

/// The region of each store, if each has one of its own; none for a store that is left out.
fn per_store(arguments: &Arguments, stores: usize) -> Result<Option<Vec<Option<Region>>>> {
    if arguments.per_store.is_empty() {
        return Ok(None);
    }
    let refused = |problem: String| argument("per_store", problem);
    let given: Vec<Option<Map<String, Value>>> = from_str(&arguments.per_store)
        .map_err(|error| refused(format!("is no JSON list of objects or null ({error})")))?;
    if given.len() != stores {
        return Err(refused(format!("has {} entries for {stores} stores; give one for each", given.len())));
    }
    let all_stores = [
        ("roi_start", arguments.roi_start.is_some()),
        ("roi_end", arguments.roi_end.is_some()),
        ("exclude", !arguments.exclude.is_empty()),
        ("breaks", !arguments.breaks.is_empty()),
    ];
    let is_twice = |name: &str| given.iter().flatten().any(|own| own.contains_key(name));
    if let Some((name, _)) = all_stores.iter().find(|(name, is_given)| *is_given && is_twice(name)) {
        return Err(refused(format!(
            "has {name} of single stores, and {name} is given for all; give one of them"
        )));
    }
    let region = |(number, given): (usize, Option<Map<String, Value>>)| {
        let Some(given) = given else { return Ok(None) };
        let mut region = Region::default();
        for (name, value) in given {
            let wrong = |error: serde_json::Error| {
                refused(format!("its entry {number} has {name} that is no list of indices ({error})"))
            };
            match name.as_str() {
                "roi_start" => region.start = from_value(value).map_err(wrong)?,
                "roi_end" => region.end = from_value(value).map_err(wrong)?,
                "exclude" => region.exclude = from_value(value).map_err(wrong)?,
                "breaks" => region.breaks = from_value(value).map_err(wrong)?,
                _ => {
                    let problem = format!(
                        "its entry {number} has \"{name}\", which is none of roi_start, roi_end, exclude and breaks"
                    );
                    return Err(refused(problem));
                }
            }
        }
        Ok(Some(region))
    };
    given.into_iter().enumerate().map(region).collect::<Result<Vec<_>>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(per_store: &str) -> Arguments {
        Arguments { per_store: per_store.into(), ..Arguments::new("a") }
    }

    #[test]
    fn each_store_may_have_a_region() {
        assert_eq!(per_store(&arguments(""), 3).unwrap(), None);
        let text = r#"[{"roi_start": [1], "exclude": [4]}, null, {}]"#;
        let first = Region { start: Some(vec![1]), exclude: vec![4], ..Region::default() };
        let expected = vec![Some(first), None, Some(Region::default())];
        assert_eq!(per_store(&arguments(text), 3).unwrap(), Some(expected));
        for (text, problem) in [
            ("[{}]", "has 1 entries for 3 stores"),
            ("{}", "no JSON list"),
            (r#"[{}, {"roi": [1]}, null]"#, "its entry 1 has \"roi\""),
            (r#"[{}, {}, {"roi_end": 5}]"#, "its entry 2 has roi_end that is no list"),
        ] {
            let error = per_store(&arguments(text), 3).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let both = Arguments { exclude: vec![1], ..arguments(r#"[null, {"exclude": [1]}, null]"#) };
        let error = per_store(&both, 3).unwrap_err().to_string();
        assert!(error.contains("exclude is given for all"), "{error}");
        let others = Arguments { exclude: vec![1], ..arguments(r#"[null, {"breaks": [1]}, null]"#) };
        assert!(per_store(&others, 3).is_ok());
    }
}
