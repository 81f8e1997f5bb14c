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
    /// Extents of the whole.
    pub shape: Vec<u64>,
    /// What it consists of along the first dimension, without gaps; one part unless stores are joined.
    pub parts: Vec<PartGeometry>,
}

/// A part of an array, with chunks of its own.
#[derive(Clone, Debug)]
pub struct PartGeometry {
    /// Where it starts along the first dimension.
    pub start: u64,
    /// Extents of a read chunk.
    pub read_chunk_shape: Vec<u64>,
    /// Elements between neighbours along each dimension in a decoded read chunk.
    pub chunk_strides: Vec<u64>,
}

/// Where the samples of an array lie in the batch of an output; all numbers in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputGeometry {
    /// Which output.
    pub output: usize,
    /// From one sample to the next.
    pub sample: u64,
    /// Where the array starts in each sample.
    pub offset: u64,
    /// Between neighbours along each dimension of the array.
    pub strides: Vec<u64>,
}

impl OutputGeometry {
    /// An array that is an output of its own: the dense tensor `(samples, window..., later dimensions...)`.
    pub fn alone(output: usize, extents: &[u64]) -> Self {
        Self { output, ..Self::stacked(0, 1, extents) }
    }

    /// Number `place` of `count` arrays that are output 0 together, on an axis behind the first of the window's
    /// dimensions: `(samples, window[0], count, ...)`. `extents` are those of one array's samples.
    pub fn stacked(place: usize, count: usize, extents: &[u64]) -> Self {
        let mut strides = row_major_strides(extents);
        let below: u64 = extents.iter().skip(1).product();
        if let Some(first) = strides.first_mut() {
            *first = below * count as u64;
        }
        let sample = extents.iter().product::<u64>() * count as u64;
        Self { output: 0, sample, offset: place as u64 * below, strides }
    }
}

/// A read chunk that a batch needs, and everything the batch needs of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkTask {
    /// Which output its elements go to.
    pub output: usize,
    /// Which array.
    pub array: usize,
    /// Which part of the array.
    pub part: usize,
    /// Coordinates in the grid of read chunks of that part.
    pub read_chunk: Vec<u64>,
    /// Copies from the decoded read chunk into the output, in elements. They do not overlap in the output.
    pub boxes: Vec<CopyBox>,
}

impl ArrayGeometry {
    /// Where a part ends along the first dimension.
    fn end(&self, part: usize) -> u64 {
        self.parts.get(part + 1).map_or(self.shape[0], |next| next.start)
    }

    /// The parts that the steps `start..end` of the first dimension touch.
    fn touched(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.parts.partition_point(|part| part.start <= start).saturating_sub(1);
        first..self.parts.partition_point(|part| part.start < end)
    }

    /// The parts that a window touches, each with the window as far as it lies in the part: start and extents, in
    /// indices of the part.
    fn regions(&self, start: &[u64], extent: &[u64]) -> impl Iterator<Item = (usize, (Vec<u64>, Vec<u64>))> {
        self.touched(start[0], start[0] + extent[0]).filter_map(move |number| {
            let part = &self.parts[number];
            let low = part.start.max(start[0]);
            let high = self.end(number).min(start[0] + extent[0]);
            // A window without elements needs nothing.
            (low < high && !extent.contains(&0)).then(|| {
                let mut region = (start.to_vec(), extent.to_vec());
                (region.0[0], region.1[0]) = (low - part.start, high - low);
                (number, region)
            })
        })
    }
}

/// How many read chunks of each part of an array a sample touches.
pub fn count_chunks(
    windows: &Windows,
    array: &ArrayGeometry,
    sample: u64,
) -> impl Iterator<Item = (usize, u64)> {
    let (start, extent) = windows.region(sample, &array.shape);
    let regions: Vec<_> = array.regions(&start, &extent).collect();
    regions.into_iter().map(|(number, (start, extent))| {
        let chunk = &array.parts[number].read_chunk_shape;
        let cells = |d: usize| (start[d] + extent[d] - 1) / chunk[d] - start[d] / chunk[d] + 1;
        (number, (0..start.len()).map(cells).fold(1, u64::saturating_mul))
    })
}

/// Plans a batch: every read chunk that one of `samples` touches comes once, in the order of first use.
///
/// `outputs` says for each array where its samples go. A sample that comes twice (padding) is copied twice from the
/// same chunks.
pub fn plan_batch(
    windows: &Windows,
    arrays: &[ArrayGeometry],
    outputs: &[OutputGeometry],
    samples: &[u64],
) -> Vec<ChunkTask> {
    let mut plan = Plan::default();
    for (place, &sample) in samples.iter().enumerate() {
        for (array, (geometry, output)) in arrays.iter().zip(outputs).enumerate() {
            let (start, extent) = windows.region(sample, &geometry.shape);
            let to = place as u64 * output.sample + output.offset;
            for (number, region) in geometry.regions(&start, &extent) {
                let part = &geometry.parts[number];
                let mut shape = geometry.shape.clone();
                shape[0] = geometry.end(number) - part.start;
                let to = to + (part.start + region.0[0] - start[0]) * output.strides[0];
                plan.add((array, number), part, &shape, region, output, to);
            }
        }
    }
    plan.tasks
}

#[derive(Default)]
struct Plan {
    tasks: Vec<ChunkTask>,
    /// Tasks by array, part and number of the read chunk.
    known: HashMap<(usize, usize, u128), usize>,
}

impl Plan {
    /// Adds the copies that put a region (start, extents) of a part to element `to` of its output.
    fn add(
        &mut self,
        (array, number): (usize, usize),
        part: &PartGeometry,
        shape: &[u64],
        (start, extent): (Vec<u64>, Vec<u64>),
        output: &OutputGeometry,
        to: u64,
    ) {
        let chunk = &part.read_chunk_shape;
        let last: Vec<u64> = (0..start.len()).map(|d| (start[d] + extent[d] - 1) / chunk[d]).collect();
        let first: Vec<u64> = (0..start.len()).map(|d| start[d] / chunk[d]).collect();
        let mut cell = first.clone();
        loop {
            let key = (array, number, flat(&cell, shape, chunk));
            let task = *self.known.entry(key).or_insert_with(|| {
                let (output, read_chunk) = (output.output, cell.clone());
                self.tasks.push(ChunkTask { output, array, part: number, read_chunk, boxes: vec![] });
                self.tasks.len() - 1
            });
            let mut whole = CopyBox {
                from: 0,
                to,
                extents: Vec::with_capacity(cell.len()),
                from_strides: part.chunk_strides.clone(),
                to_strides: output.strides.clone(),
            };
            for d in 0..cell.len() {
                let origin = cell[d] * chunk[d];
                let low = origin.max(start[d]);
                let high = (origin + chunk[d]).min(start[d] + extent[d]);
                whole.extents.push(high - low);
                whole.from += (low - origin) * part.chunk_strides[d];
                whole.to += (low - start[d]) * output.strides[d];
            }
            self.tasks[task].boxes.push(whole.collapsed());
            if !advance(&mut cell, &first, &last) {
                break;
            }
        }
    }
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

    /// The plain path: every element of the output is looked up by its coordinates. An element's value is its array's
    /// number and its flat place in the whole array.
    fn expected(
        windows: &Windows,
        arrays: &[ArrayGeometry],
        stacked: bool,
        samples: &[u64],
    ) -> Vec<Vec<u64>> {
        let mut outputs = vec![vec![]; if stacked { 1 } else { arrays.len() }];
        for &sample in samples {
            let (_, extent) = windows.region(sample, &arrays[0].shape);
            let at = |array: usize, index: &[u64]| {
                let shape = &arrays[array].shape;
                let (start, _) = windows.region(sample, shape);
                let strides = row_major_strides(shape);
                array as u64 * FAR + (0..index.len()).map(|d| (start[d] + index[d]) * strides[d]).sum::<u64>()
            };
            if stacked {
                for first in 0..extent[0] {
                    for array in 0..arrays.len() {
                        let rest = indices(&extent[1..]);
                        outputs[0].extend(rest.map(|rest| at(array, &[&[first], &rest[..]].concat())));
                    }
                }
            } else {
                for (array, geometry) in arrays.iter().enumerate() {
                    let (_, extent) = windows.region(sample, &geometry.shape);
                    outputs[array].extend(indices(&extent).map(|index| at(array, &index)));
                }
            }
        }
        outputs
    }

    const FAR: u64 = 1 << 32;

    /// Every index of a box, row by row.
    fn indices(extents: &[u64]) -> impl Iterator<Item = Vec<u64>> {
        let (extents, strides) = (extents.to_vec(), row_major_strides(extents));
        (0..extents.iter().product())
            .map(move |i: u64| (0..extents.len()).map(|d| i / strides[d] % extents[d]).collect())
    }

    /// The values of a decoded read chunk, each where its strides say; outside of its part it is `u64::MAX`.
    fn decode(arrays: &[ArrayGeometry], task: &ChunkTask) -> Vec<u64> {
        let geometry = &arrays[task.array];
        let part = &geometry.parts[task.part];
        let (chunk, strides) = (&part.read_chunk_shape, row_major_strides(&geometry.shape));
        let mut decoded = vec![u64::MAX; chunk.iter().product::<u64>() as usize];
        for index in indices(chunk) {
            let mut at: Vec<u64> =
                (0..chunk.len()).map(|d| task.read_chunk[d] * chunk[d] + index[d]).collect();
            at[0] += part.start;
            let mut end = geometry.shape.clone();
            end[0] = geometry.end(task.part);
            if (0..at.len()).all(|d| at[d] < end[d]) {
                let place: u64 = (0..at.len()).map(|d| index[d] * part.chunk_strides[d]).sum();
                let value: u64 = (0..at.len()).map(|d| at[d] * strides[d]).sum();
                decoded[place as usize] = task.array as u64 * FAR + value;
            }
        }
        decoded
    }

    /// A part with chunks of that shape, stored with its dimensions in that order.
    fn part(start: u64, chunk: &[u64], axes: &[usize]) -> PartGeometry {
        let stored: Vec<u64> = axes.iter().map(|&axis| chunk[axis]).collect();
        let mut chunk_strides = vec![0; chunk.len()];
        for (&axis, stride) in axes.iter().zip(row_major_strides(&stored)) {
            chunk_strides[axis] = stride;
        }
        PartGeometry { start, read_chunk_shape: chunk.to_vec(), chunk_strides }
    }

    /// Arrays of one shape, each of several parts with chunk grids and orders of their own.
    fn arrays() -> impl Strategy<Value = Vec<ArrayGeometry>> {
        (1usize..=4).prop_flat_map(|rank| {
            let shape = prop::collection::vec(1u64..8, rank);
            let part_lengths = prop::collection::vec(0u64..4, 0..4);
            (shape, part_lengths, 1usize..4).prop_flat_map(move |(mut shape, lengths, count)| {
                let mut starts = vec![0];
                for length in lengths {
                    starts.push(shape[0]);
                    shape[0] += length;
                }
                let axes = Just((0..rank).collect::<Vec<_>>()).prop_shuffle();
                let one = (shape.iter().map(|&n| 1..=n + 2).collect::<Vec<_>>(), axes);
                let parts = prop::collection::vec(one, starts.len());
                prop::collection::vec(parts, count).prop_map(move |arrays| {
                    let array = |parts: Vec<(Vec<u64>, Vec<usize>)>| ArrayGeometry {
                        shape: shape.clone(),
                        parts: starts.iter().zip(parts).map(|(&at, (c, axes))| part(at, &c, &axes)).collect(),
                    };
                    arrays.into_iter().map(array).collect()
                })
            })
        })
    }

    type Case = (Vec<ArrayGeometry>, Vec<i64>, Vec<i64>, Vec<u64>, bool, bool);

    fn case() -> impl Strategy<Value = Case> {
        arrays().prop_flat_map(|arrays| {
            let shape = arrays[0].shape.clone();
            (Just(arrays), 1..=shape.len()).prop_flat_map(move |(arrays, covered)| {
                let window: Vec<_> = shape[..covered].iter().map(|&n| 1..=n as i64).collect();
                let stride = prop::collection::vec(1i64..4, covered);
                let picks = prop::collection::vec(0u64..1000, 1..5);
                (Just(arrays), window, stride, picks, any::<bool>(), any::<bool>())
            })
        })
    }

    proptest! {
        #[test]
        fn carrying_out_a_plan_gives_the_samples((arrays, window, stride, picks, stacked, drops) in case()) {
            let given = if drops { (None, None) } else { (Some(&window[..]), Some(&stride[..])) };
            let windows = Windows::new(&arrays[0].shape, given.0, given.1).unwrap();
            let samples: Vec<u64> = picks.iter().map(|pick| pick % windows.len()).collect();
            let (_, extents) = windows.region(0, &arrays[0].shape);
            let outputs: Vec<_> = (0..arrays.len())
                .map(|i| match stacked {
                    true => OutputGeometry::stacked(i, arrays.len(), &extents),
                    false => OutputGeometry::alone(i, &extents),
                })
                .collect();
            let expected = expected(&windows, &arrays, stacked, &samples);
            let mut written: Vec<Vec<_>> = expected.iter().map(|output| vec![None; output.len()]).collect();
            let mut seen = std::collections::HashSet::new();
            for task in plan_batch(&windows, &arrays, &outputs, &samples) {
                prop_assert!(seen.insert((task.array, task.part, task.read_chunk.clone())), "a chunk came twice");
                let decoded = decode(&arrays, &task);
                for piece in &task.boxes {
                    for (from, to) in piece.elements() {
                        let place = &mut written[task.output][to as usize];
                        prop_assert!(place.is_none(), "an element was written twice");
                        *place = Some(decoded[from as usize]);
                    }
                }
            }
            for (written, expected) in written.into_iter().zip(expected) {
                let written: Option<Vec<u64>> = written.into_iter().collect();
                prop_assert_eq!(written, Some(expected));
            }
            for &sample in &samples {
                for (array, geometry) in arrays.iter().enumerate() {
                    let mut counted = vec![0; geometry.parts.len()];
                    count_chunks(&windows, geometry, sample).for_each(|(part, chunks)| counted[part] += chunks);
                    let mut planned = vec![0; geometry.parts.len()];
                    for task in plan_batch(&windows, &arrays, &outputs, &[sample]) {
                        planned[task.part] += u64::from(task.array == array);
                    }
                    prop_assert_eq!(counted, planned);
                }
            }
        }
    }

    #[test]
    fn a_chunk_that_is_one_sample_becomes_one_straight_copy() {
        let windows = Windows::new(&[10, 6, 64, 128], None, None).unwrap();
        let parts = vec![part(0, &[1, 1, 64, 128], &[0, 1, 2, 3])];
        let geometry = ArrayGeometry { shape: vec![10, 6, 64, 128], parts };
        let output = OutputGeometry::alone(0, &[1, 6, 64, 128]);
        let tasks = plan_batch(&windows, &[geometry], &[output], &[3, 4]);
        assert_eq!(tasks.len(), 12);
        let straight = CopyBox {
            from: 0,
            to: 7 * 64 * 128,
            extents: vec![64 * 128],
            from_strides: vec![1],
            to_strides: vec![1],
        };
        let task =
            ChunkTask { output: 0, array: 0, part: 0, read_chunk: vec![4, 1, 0, 0], boxes: vec![straight] };
        assert_eq!(tasks[7], task);
    }
}
