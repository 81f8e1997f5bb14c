//! Which dimensions of several arrays belong together.

use super::array::ArrayInfo;
use crate::error::{Error, Result};

/// For each dimension of each array of a store, the dimension of the reference array that it belongs to: the one with its
/// name, or without names the one at its place. The reference is the array with the most dimensions; an array that lacks the
/// reference's first dimension is the same for every sample.
///
/// # Errors
/// Dimensions of one name with different extents.
pub(super) fn follow(arrays: &[ArrayInfo]) -> Result<Vec<Vec<Option<usize>>>> {
    let most = arrays.iter().map(|array| array.shape.len()).max().unwrap_or(0);
    let Some(reference) = arrays.iter().find(|array| array.shape.len() == most) else { return Ok(vec![]) };
    arrays.iter().map(|array| along(array, reference)).collect()
}

fn along(array: &ArrayInfo, reference: &ArrayInfo) -> Result<Vec<Option<usize>>> {
    if array.shape.is_empty() {
        return Ok(vec![]);
    }
    let own = || (0..array.shape.len()).map(Some).collect();
    let (names, all) = (&array.dimension_names, &reference.dimension_names);
    let (Some(first), false) = (all.first(), names.is_empty()) else {
        let lacks_first = array.shape[..] == reference.shape[1..] && array.shape[0] != reference.shape[0];
        return Ok(if lacks_first { (1..reference.shape.len()).map(Some).collect() } else { own() });
    };
    if names.contains(first) {
        return Ok(own());
    }
    let place = |name: &String| all.iter().position(|known| known == name);
    let mut axes: Vec<Option<usize>> = names.iter().map(place).collect();
    // The parts of complex numbers have no name.
    axes.resize(array.shape.len(), None);
    for (d, axis) in axes.iter().enumerate() {
        if let Some(axis) = *axis
            && array.shape[d] != reference.shape[axis]
        {
            return Err(Error::Unlike {
                at: reference.context(),
                difference: format!(
                    "its dimension \"{}\" has {} steps, but {} in {}",
                    all[axis],
                    reference.shape[axis],
                    array.shape[d],
                    array.context()
                ),
                remedy: "arrays that are read together need the same extents: leave one of them out, or give each a reader of its own",
            });
        }
    }
    Ok(axes)
}
