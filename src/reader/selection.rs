//! The argument `select`: indices of dimensions by name, laid one behind another in each sample.

use crate::dataset::{Dataset, Joined};
use crate::error::{Error, Result};
use crate::options::argument;
use crate::plan::ArrayGeometry;
use crate::sampler::{Run, Windows};

use std::sync::Arc;

use serde_json::{Map, Value, from_str};

/// Indices of a dimension in the order of samples.
pub(super) type Chosen = Option<Arc<[Run]>>;

fn refused(problem: String) -> Error {
    argument("select", problem)
}

/// What is chosen along each dimension of each array.
///
/// # Errors
/// Text of another form, names that no array has, indices that are not there, and what cannot be chosen from: the
/// dimension that samples are taken along.
pub(super) fn selection(text: &str, dataset: &Dataset) -> Result<Vec<Vec<Chosen>>> {
    let mut chosen: Vec<Vec<Chosen>> =
        dataset.arrays.iter().map(|array| vec![None; array.shape.len()]).collect();
    if text.is_empty() {
        return Ok(chosen);
    }
    let given: Map<String, Value> = from_str(text).map_err(|error| {
        refused(format!(
            "it is no JSON object ({error}); give one such as {{\"level\": [3, 7], \"x\": [[0, 40]]}}"
        ))
    })?;
    for (name, pieces) in &given {
        let pieces = parse(name, pieces)?;
        let mut known = false;
        for (array, chosen) in dataset.arrays.iter().zip(&mut chosen) {
            let Some(dimension) = place(array, name) else { continue };
            if array.axes[dimension] == Some(0) {
                let remedy = "give `roi_start` and `roi_end`, or `exclude`";
                return Err(refused(format!("samples are taken along \"{name}\"; {remedy}")));
            }
            known = true;
            if is_repeated(dataset, array, dimension) {
                continue;
            }
            let least = array.parts.iter().map(|part| part.shape[dimension]).min();
            check_indices(array, name, &pieces, least.unwrap_or(0))?;
            chosen[dimension] = Some(pieces.clone());
        }
        if !known {
            return Err(refused(format!("no array has a dimension \"{name}\", only {}", all_names(dataset))));
        }
    }
    Ok(chosen)
}

/// Whether a dimension has one step where the reference has more, so that it is the same whatever is chosen.
fn is_repeated(dataset: &Dataset, array: &Joined, dimension: usize) -> bool {
    let name = &array.first().dimension_names[dimension];
    let others = &dataset.arrays[dataset.reference].first().dimension_names;
    array.axes[dimension].is_none() && array.shape[dimension] == 1 && others.contains(name)
}

fn place(array: &Joined, name: &str) -> Option<usize> {
    array.first().dimension_names.iter().position(|known| known == name)
}

fn all_names(dataset: &Dataset) -> String {
    let mut names: Vec<&String> = vec![];
    for name in dataset.arrays.iter().flat_map(|array| &array.first().dimension_names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match names.is_empty() {
        true => "dimensions without names".into(),
        false => format!("{names:?}"),
    }
}

/// Indices and ranges of them as runs.
fn parse(name: &str, pieces: &Value) -> Result<Arc<[Run]>> {
    let wrong = |piece: &Value| {
        refused(format!(
            "of \"{name}\" it has {piece}; give a list of indices and of ranges [start, end] or [start, end, step]"
        ))
    };
    let Some(list) = pieces.as_array() else { return Err(wrong(pieces)) };
    let mut runs: Vec<Run> = vec![];
    let mut place = 0u64;
    for piece in list {
        let numbers: Option<Vec<u64>> = match piece {
            Value::Array(numbers) => numbers.iter().map(Value::as_u64).collect(),
            number => number.as_u64().map(|index| vec![index]),
        };
        let (start, step, count) = match numbers.as_deref() {
            Some(&[index]) if piece.is_u64() => (index, 1, 1),
            Some(&[start, end]) if start < end => (start, 1, end - start),
            Some(&[start, end, step]) if start < end && step > 0 => {
                (start, step, (end - start).div_ceil(step))
            }
            _ => return Err(wrong(piece)),
        };
        match runs.last_mut() {
            // Single indices that are apart alike are one run.
            Some(run) if count == 1 && run.count == 1 && start > run.start => {
                (run.step, run.count) = (start - run.start, 2);
            }
            Some(run) if count == 1 && run.count > 1 && start == run.last() + run.step => run.count += 1,
            _ => runs.push(Run { start, step, count, place }),
        }
        place = place.checked_add(count).ok_or_else(|| wrong(piece))?;
    }
    match runs.is_empty() {
        true => Err(refused(format!("of \"{name}\" it has no index; give some, or leave the name out"))),
        false => Ok(runs.into()),
    }
}

fn check_indices(array: &Joined, name: &str, pieces: &[Run], extent: u64) -> Result<()> {
    // The last index of a run whose end cannot be counted lies outside, too.
    let outside = |run: &&Run| {
        let tail = (run.count - 1).checked_mul(run.step).and_then(|tail| tail.checked_add(run.start));
        tail.is_none_or(|last| last >= extent)
    };
    match pieces.iter().find(outside) {
        None => Ok(()),
        Some(run) => Err(refused(format!(
            "{}: its dimension \"{name}\" has {extent} indices, of which {}.. are not all; give indices from 0 to {}",
            array.context(),
            run.start,
            extent.saturating_sub(1)
        ))),
    }
}

/// Extents of an array of this shape as samples see it.
pub(super) fn selected_shape(shape: &[u64], chosen: &[Chosen]) -> Vec<u64> {
    let extent = |(&extent, chosen): (&u64, &Chosen)| {
        chosen.as_ref().map_or(extent, |runs| runs.iter().map(|run| run.count).sum())
    };
    shape.iter().zip(chosen).map(extent).collect()
}

/// Refuses several windows along a dimension that indices are chosen of, and arrays that do not have the choice along a
/// dimension that windows cover.
pub(super) fn check_selected(
    dataset: &Dataset,
    geometry: &[ArrayGeometry],
    reference: usize,
    windows: &Windows,
) -> Result<()> {
    let first = &dataset.arrays[reference];
    for (array, own) in dataset.arrays.iter().zip(geometry) {
        for (dimension, axis) in own.axes.iter().enumerate() {
            let Some(axis) = *axis else { continue };
            let (mine, theirs) = (&own.chosen[dimension], &geometry[reference].chosen[axis]);
            if mine != theirs {
                return Err(refused(format!(
                    "indices are chosen along dimension {axis} of {} or of {}, not of both, but the window or region covers it in both; give `window`, `roi_start` and `roi_end` for the dimensions before it only",
                    first.context(),
                    array.context()
                )));
            }
            if mine.is_some() && windows.axes()[axis].count() > 1 {
                return Err(refused(format!(
                    "{}: indices are chosen along dimension {axis}, but `window` does not take all of them; give the extent {}, or `roi_start` and `roi_end` in place of the indices",
                    first.context(),
                    selected_shape(&geometry[reference].shape, &geometry[reference].chosen)[axis]
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(start: u64, step: u64, count: u64, place: u64) -> Run {
        Run { start, step, count, place }
    }

    #[test]
    fn indices_and_ranges_follow_one_another_as_runs() {
        for (pieces, expected) in [
            (json!([3]), vec![run(3, 1, 1, 0)]),
            (json!([3, 1]), vec![run(3, 1, 1, 0), run(1, 1, 1, 1)]),
            (json!([1, 4, 7, 8]), vec![run(1, 3, 3, 0), run(8, 1, 1, 3)]),
            (json!([2, 2]), vec![run(2, 1, 1, 0), run(2, 1, 1, 1)]),
            (json!([[6, 8], [0, 3]]), vec![run(6, 1, 2, 0), run(0, 1, 3, 2)]),
            (json!([[1, 8, 3], 0]), vec![run(1, 3, 3, 0), run(0, 1, 1, 3)]),
        ] {
            assert_eq!(parse("x", &pieces).unwrap()[..], expected[..], "{pieces}");
        }
        for pieces in [
            json!([]),
            json!(3),
            json!([-1]),
            json!([1.5]),
            json!([[3]]),
            json!([[3, 3]]),
            json!([[1, 4, 0]]),
            json!([[0, u64::MAX], [0, 2]]),
        ] {
            let error = parse("x", &pieces).unwrap_err().to_string();
            assert!(error.contains("`select`") && error.contains("\"x\""), "{error}");
        }
    }
}
