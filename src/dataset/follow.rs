//! Which dimensions of several arrays belong together.

use super::array::ArrayInfo;
use crate::error::{Error, Result};

use std::cmp::Reverse;

/// For each dimension of each array of a store, the dimension of the reference array that it belongs to: the one with its
/// name, or without names the one at its place. The reference is the array with the most dimensions; an array that lacks the
/// reference's first dimension is the same for every sample.
///
/// # Errors
/// Dimensions of one name with different extents.
pub(super) fn follow(arrays: &[ArrayInfo]) -> Result<Vec<Vec<Option<usize>>>> {
    let Some(reference) = reference(arrays.iter().map(|array| array.shape.len())) else { return Ok(vec![]) };
    arrays.iter().map(|array| along(array, &arrays[reference])).collect()
}

/// The number of the reference array, given how many dimensions each array has: the first with the most.
pub(super) fn reference(dimensions: impl Iterator<Item = usize>) -> Option<usize> {
    dimensions
        .enumerate()
        .max_by_key(|&(number, dimensions)| (dimensions, Reverse(number)))
        .map(|(number, _)| number)
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

#[cfg(test)]
mod tests {
    use super::super::array::tests::array;
    use super::*;
    use serde_json::json;

    fn named(data_type: &str, shape: &[u64], names: &[&str]) -> ArrayInfo {
        let more = if names.is_empty() { json!({}) } else { json!({"dimension_names": names}) };
        let fill = if data_type == "complex64" { json!([0, 0]) } else { json!(0) };
        let mut more = more;
        more["fill_value"] = fill;
        array(data_type, shape, more).0
    }

    #[test]
    fn dimensions_of_one_name_belong_together() {
        let field = named("int8", &[6, 5, 4], &["time", "lat", "lon"]);
        let arrays = [
            named("int8", &[5, 4], &["lat", "lon"]),
            named("int8", &[4, 3], &["lon", "level"]),
            named("complex64", &[5], &["lat"]),
            // Along time an array follows the samples, whatever its extents are.
            named("int8", &[7], &["time"]),
            named("int8", &[], &[]),
            field,
        ];
        let (first, second, third) = (Some(0), Some(1), Some(2));
        let expected = [
            vec![second, third],
            vec![third, None],
            vec![second, None],
            vec![first],
            vec![],
            vec![first, second, third],
        ];
        assert_eq!(follow(&arrays).unwrap(), expected);
        let other = [named("int8", &[6, 5], &["time", "lat"]), named("int8", &[7], &["lat"])];
        let text = follow(&other).unwrap_err().to_string();
        assert!(text.contains("\"lat\" has 5 steps, but 7 in"), "{text}");
        assert_eq!(follow(&[]).unwrap(), [[]; 0]);
    }

    #[test]
    fn without_names_the_extents_decide() {
        let axes = |shape: &[u64], reference: &[u64]| {
            follow(&[named("int8", shape, &[]), named("int8", reference, &[])]).unwrap().swap_remove(0)
        };
        assert_eq!(axes(&[5, 4], &[6, 5, 4]), [Some(1), Some(2)]);
        assert_eq!(axes(&[6, 4], &[6, 6, 4]), [Some(0), Some(1)]);
        assert_eq!(axes(&[6, 3], &[6, 5, 4]), [Some(0), Some(1)]);
        assert_eq!(axes(&[6, 5, 4], &[6, 5, 4]), [Some(0), Some(1), Some(2)]);
        // Names that the reference has not count as none.
        let arrays = [named("int8", &[5], &["lat"]), named("int8", &[6, 5], &[])];
        assert_eq!(follow(&arrays).unwrap()[0], [Some(1)]);
    }
}
