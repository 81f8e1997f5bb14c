//! From samples to work: which read chunks a batch needs, each once, and where their elements go. Pure.
//!
//! A read chunk is what is decoded at once: the inner chunk of a sharded array, else the chunk. Its place in
//! the array is a cell of one regular grid either way, so planning knows nothing of sharding.
#![forbid(unsafe_code)]

mod copy_box;
pub mod shard_index;

pub use copy_box::CopyBox;

use crate::sampler::Windows;

use std::collections::HashMap;

/// What planning needs to know of an array.
#[derive(Clone, Debug)]
pub struct ArrayGeometry {
    /// Extents of the array.
    pub shape: Vec<u64>,
    /// Extents of a read chunk.
    pub read_chunk_shape: Vec<u64>,
}

/// A read chunk that a batch needs, and everything the batch needs of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkTask {
    /// Which array, and so which output.
    pub array: usize,
    /// Coordinates in the grid of read chunks.
    pub read_chunk: Vec<u64>,
    /// Copies from the decoded read chunk into the output, in elements. They do not overlap in the output.
    pub boxes: Vec<CopyBox>,
}

/// Plans a batch: every read chunk that one of `samples` touches comes once, in the order of first use.
///
/// Output `a` is the dense tensor `(samples, window..., later dimensions...)` of array `a`. A sample that comes
/// twice (padding) is copied twice from the same chunks.
pub fn plan_batch(windows: &Windows, arrays: &[ArrayGeometry], samples: &[u64]) -> Vec<ChunkTask> {
    let mut tasks: Vec<ChunkTask> = vec![];
    let mut known: HashMap<(usize, u128), usize> = HashMap::new();
    for (place, &sample) in samples.iter().enumerate() {
        for (array, geometry) in arrays.iter().enumerate() {
            let (start, extent) = windows.region(sample, &geometry.shape);
            let sample_elements: u64 = extent.iter().product();
            let sample_strides = row_major_strides(&extent);
            let chunk = &geometry.read_chunk_shape;
            let chunk_strides = row_major_strides(chunk);
            let last: Vec<u64> = (0..start.len()).map(|d| (start[d] + extent[d] - 1) / chunk[d]).collect();
            let first: Vec<u64> = (0..start.len()).map(|d| start[d] / chunk[d]).collect();
            let mut cell = first.clone();
            loop {
                let task = *known.entry((array, flat(&cell, &geometry.shape, chunk))).or_insert_with(|| {
                    tasks.push(ChunkTask { array, read_chunk: cell.clone(), boxes: vec![] });
                    tasks.len() - 1
                });
                let mut whole = CopyBox {
                    from: 0,
                    to: place as u64 * sample_elements,
                    extents: Vec::with_capacity(cell.len()),
                    from_strides: chunk_strides.clone(),
                    to_strides: sample_strides.clone(),
                };
                for d in 0..cell.len() {
                    let origin = cell[d] * chunk[d];
                    let low = origin.max(start[d]);
                    let high = (origin + chunk[d]).min(start[d] + extent[d]);
                    whole.extents.push(high - low);
                    whole.from += (low - origin) * chunk_strides[d];
                    whole.to += (low - start[d]) * sample_strides[d];
                }
                tasks[task].boxes.push(whole.collapsed());
                if !advance(&mut cell, &first, &last) {
                    break;
                }
            }
        }
    }
    tasks
}

/// Elements between neighbours along each dimension of a dense row-major array.
pub fn row_major_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// Number of a grid cell, unique within its array.
fn flat(cell: &[u64], shape: &[u64], chunk: &[u64]) -> u128 {
    (0..cell.len())
        .fold(0, |number, d| number * u128::from(shape[d].div_ceil(chunk[d])) + u128::from(cell[d]))
}

/// Moves to the next cell of the box `first..=last`, row by row; false after the last one.
fn advance(cell: &mut [u64], first: &[u64], last: &[u64]) -> bool {
    for d in (0..cell.len()).rev() {
        if cell[d] < last[d] {
            cell[d] += 1;
            return true;
        }
        cell[d] = first[d];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The plain path: every output element is looked up in the array by its coordinates.
    fn expected(windows: &Windows, shape: &[u64], samples: &[u64]) -> Vec<u64> {
        let strides = row_major_strides(shape);
        let mut output = vec![];
        for &sample in samples {
            let (start, extent) = windows.region(sample, shape);
            let last: Vec<u64> = extent.iter().map(|n| n - 1).collect();
            let zero = vec![0; shape.len()];
            let mut at = zero.clone();
            loop {
                output.push((0..at.len()).map(|d| (start[d] + at[d]) * strides[d]).sum());
                if !advance(&mut at, &zero, &last) {
                    break;
                }
            }
        }
        output
    }

    /// The value of each element of a read chunk is its flat place in the array; outside it is `u64::MAX`.
    fn decode(geometry: &ArrayGeometry, cell: &[u64]) -> Vec<u64> {
        let (shape, chunk) = (&geometry.shape, &geometry.read_chunk_shape);
        let strides = row_major_strides(shape);
        let chunk_strides = row_major_strides(chunk);
        (0..chunk.iter().product::<u64>())
            .map(|element| {
                let at: Vec<u64> = (0..chunk.len())
                    .map(|d| cell[d] * chunk[d] + element / chunk_strides[d] % chunk[d])
                    .collect();
                if (0..at.len()).all(|d| at[d] < shape[d]) {
                    (0..at.len()).map(|d| at[d] * strides[d]).sum()
                } else {
                    u64::MAX
                }
            })
            .collect()
    }

    type Case = (Vec<u64>, Vec<u64>, Vec<i64>, Vec<i64>, Vec<u64>);

    fn case() -> impl Strategy<Value = Case> {
        (1usize..=4).prop_flat_map(|rank| {
            (prop::collection::vec(1u64..8, rank), 1..=rank).prop_flat_map(|(shape, covered)| {
                let chunk: Vec<_> = shape.iter().map(|&n| 1..=n + 2).collect();
                let window: Vec<_> = shape[..covered].iter().map(|&n| 1..=n as i64).collect();
                let stride = prop::collection::vec(1i64..4, covered);
                (Just(shape), chunk, window, stride, prop::collection::vec(0u64..1000, 1..5))
            })
        })
    }

    proptest! {
        #[test]
        fn carrying_out_a_plan_gives_the_samples((shape, chunk, window, stride, picks) in case()) {
            let windows = Windows::new(&shape, Some(&window), Some(&stride)).unwrap();
            let samples: Vec<u64> = picks.iter().map(|pick| pick % windows.len()).collect();
            let geometry = ArrayGeometry { shape: shape.clone(), read_chunk_shape: chunk };
            let expected = expected(&windows, &shape, &samples);
            let mut output = vec![None; expected.len()];
            let mut seen = std::collections::HashSet::new();
            for task in plan_batch(&windows, std::slice::from_ref(&geometry), &samples) {
                prop_assert!(seen.insert(task.read_chunk.clone()), "a chunk came twice");
                let decoded = decode(&geometry, &task.read_chunk);
                for piece in &task.boxes {
                    for (from, to) in piece.elements() {
                        prop_assert!(output[to as usize].is_none(), "an element was written twice");
                        output[to as usize] = Some(decoded[from as usize]);
                    }
                }
            }
            let output: Option<Vec<u64>> = output.into_iter().collect();
            prop_assert_eq!(output, Some(expected));
        }
    }

    #[test]
    fn a_chunk_that_is_one_sample_becomes_one_straight_copy() {
        let windows = Windows::new(&[10, 6, 64, 128], None, None).unwrap();
        let geometry = ArrayGeometry { shape: vec![10, 6, 64, 128], read_chunk_shape: vec![1, 1, 64, 128] };
        let tasks = plan_batch(&windows, &[geometry], &[3, 4]);
        assert_eq!(tasks.len(), 12);
        let straight = CopyBox {
            from: 0,
            to: 7 * 64 * 128,
            extents: vec![64 * 128],
            from_strides: vec![1],
            to_strides: vec![1],
        };
        assert_eq!(tasks[7], ChunkTask { array: 0, read_chunk: vec![4, 1, 0, 0], boxes: vec![straight] });
    }
}
