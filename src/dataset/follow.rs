//! Which dimensions of several arrays belong together.

use super::array::ArrayInfo;
use crate::error::{Error, Result};

/// For each dimension of each array of a store, the dimension of the reference array that it belongs to: the one with its
/// name, or without names the one at its place. An array that lacks the reference's first dimension is the same for every
/// sample. A dimension of extent 1 belongs to none where the reference has more: each sample has all of it.
///
/// # Errors
/// Dimensions of one name with different extents, and arrays that have the reference's first dimension at another place.
pub(super) fn follow(arrays: &[ArrayInfo], reference: usize) -> Result<Vec<Vec<Option<usize>>>> {
    let along = |(number, array): (usize, &ArrayInfo)| match number == reference {
        true => Ok(own(array)),
        false => along(array, &arrays[reference]),
    };
    arrays.iter().enumerate().map(along).collect()
}

/// Refuses arrays with one step along the dimension that stores are joined along, where others have more: which store's step
/// belongs to a sample is not known.
pub(super) fn check_joined(
    arrays: &[ArrayInfo],
    reference: usize,
    axes: &[Vec<Option<usize>>],
) -> Result<()> {
    let first = |array: &ArrayInfo| array.dimension_names.first().cloned();
    let repeated = (0..arrays.len())
        .find(|&i| axes[i].first() == Some(&None) && first(&arrays[i]) == first(&arrays[reference]));
    repeated.map_or(Ok(()), |i| Err(differing(&arrays[i], &arrays[reference], (0, 0))))
}

/// The number of the reference array: the first with the most dimensions, or a later one with the same names that has more
/// steps where that one has one. 0 without arrays.
pub(super) fn reference(arrays: &[ArrayInfo]) -> usize {
    let mut found = 0;
    for (number, array) in arrays.iter().enumerate() {
        let known = &arrays[found];
        let is_deeper = array.shape.len() > known.shape.len();
        if is_deeper || is_repeated_along(known, array) {
            found = number;
        }
    }
    found
}

/// Whether an array has one step where another one of the same dimensions has more, and else the same extents.
fn is_repeated_along(array: &ArrayInfo, other: &ArrayInfo) -> bool {
    let names = &array.dimension_names;
    !names.is_empty()
        && *names == other.dimension_names
        && array.shape != other.shape
        && array.shape.iter().zip(&other.shape).all(|(here, there)| here == there || *here == 1)
}

fn own(array: &ArrayInfo) -> Vec<Option<usize>> {
    (0..array.shape.len()).map(Some).collect()
}

fn along(array: &ArrayInfo, reference: &ArrayInfo) -> Result<Vec<Option<usize>>> {
    if array.shape.is_empty() {
        return Ok(vec![]);
    }
    let (names, all) = (&array.dimension_names, &reference.dimension_names);
    let (Some(first), false) = (all.first(), names.is_empty()) else {
        let lacks_first = array.shape[..] == reference.shape[1..] && array.shape[0] != reference.shape[0];
        return Ok(if lacks_first { (1..reference.shape.len()).map(Some).collect() } else { own(array) });
    };
    let is_static = !names.contains(first);
    if !is_static && names[0] != *first {
        return Err(Error::Unlike {
            at: reference.context(),
            difference: format!(
                "samples are taken along its first dimension \"{first}\", which is not the first in {}",
                array.context()
            ),
            remedy: "arrays that are read together need the same first dimension: leave one of them out, or give each a reader of its own",
        });
    }
    let place = |d: usize| match all.iter().position(|known| *known == names[d]) {
        // Names that only one of the arrays has may stand for one dimension.
        None if !is_static => all.get(d).filter(|name| !names.contains(name)).map(|_| d),
        found => found,
    };
    let mut axes: Vec<Option<usize>> = (0..names.len()).map(place).collect();
    // The parts of complex numbers have no name.
    axes.resize(array.shape.len(), None);
    for (d, axis) in axes.iter_mut().enumerate() {
        let Some(at) = *axis else { continue };
        let (here, there) = (reference.shape[at], array.shape[d]);
        if there == 1 && here != 1 && names[d] == all[at] {
            *axis = None;
        } else if is_static && here != there {
            return Err(differing(array, reference, (d, at)));
        }
    }
    Ok(axes)
}

/// The error for arrays that differ in the extent of a dimension: number `own` of an array and `axis` of the reference.
pub(crate) fn differing(array: &ArrayInfo, reference: &ArrayInfo, (own, axis): (usize, usize)) -> Error {
    Error::Unlike {
        at: reference.context(),
        difference: format!(
            "its dimension \"{}\" has {} steps, but {} in {}",
            reference.dimension_names.get(axis).map_or("", String::as_str),
            reference.shape[axis],
            array.shape[own],
            array.context()
        ),
        remedy: "arrays that are read together need the same extents: leave one of them out, or give each a reader of its own",
    }
}

#[cfg(test)]
mod tests {
    use super::super::array::tests::array;
    use super::*;
    use serde_json::json;

    fn follow(arrays: &[ArrayInfo]) -> Result<Vec<Vec<Option<usize>>>> {
        super::follow(arrays, reference(arrays))
    }

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
    #[test]
    fn labels_lie_beside_an_image_by_name() {
        let image = || named("int8", &[6, 3, 5, 4], &["t", "c", "y", "x"]);
        let labels = |shape: &[u64], names: &[&str]| {
            // In either order.
            let axes = [[labels_of(shape, names), image()], [image(), labels_of(shape, names)]]
                .map(|arrays| (reference(&arrays), follow(&arrays).unwrap()));
            assert_eq!((axes[0].0, axes[1].0), (1, 0), "{shape:?}");
            assert_eq!((&axes[0].1[0], &axes[0].1[1]), (&axes[1].1[1], &axes[1].1[0]));
            axes[0].1[0].clone()
        };
        let labels_of_all = [0, 1, 2, 3].map(Some).to_vec();
        assert_eq!(labels(&[6, 1, 5, 4], &["t", "c", "y", "x"]), [Some(0), None, Some(2), Some(3)]);
        assert_eq!(labels(&[1, 1, 5, 4], &["t", "c", "y", "x"]), [None, None, Some(2), Some(3)]);
        assert_eq!(labels(&[6, 5, 4], &["t", "y", "x"]), [Some(0), Some(2), Some(3)]);
        assert_eq!(labels(&[1, 5, 4], &["c", "y", "x"]), [None, Some(2), Some(3)]);
        assert_eq!(labels(&[5, 4], &["y", "x"]), [Some(2), Some(3)]);
        assert_eq!(follow(&[image(), image()]).unwrap()[1], labels_of_all);
        // What neither array shares is at its place, and extents count once windows cover them.
        assert_eq!(labels(&[6, 5, 4], &["t", "lat", "lon"]), [0, 1, 2].map(Some));
        assert_eq!(labels(&[6, 9], &["t", "y"]), [Some(0), Some(2)]);
        let text = follow(&[image(), labels_of(&[3, 6], &["c", "t"])]).unwrap_err().to_string();
        assert!(text.contains("first dimension \"t\""), "{text}");
        let text = follow(&[image(), labels_of(&[5, 2], &["y", "x"])]).unwrap_err().to_string();
        assert!(text.contains("\"x\" has 4 steps, but 2 in"), "{text}");
    }

    fn labels_of(shape: &[u64], names: &[&str]) -> ArrayInfo {
        named("int8", shape, names)
    }
}
