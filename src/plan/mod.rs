//! From samples to work: which read chunks a batch needs, each once, and where their elements go. Pure.
//!
//! A read chunk is what is decoded at once: the inner chunk of a sharded array, else the chunk. Its place in
//! the array is a cell of one regular grid either way, so planning knows nothing of sharding.
#![forbid(unsafe_code)]

mod cells;
mod copy_box;
mod geometry;
pub mod shard_index;

pub use cells::count_cells;
pub use copy_box::{CopyBox, Dims};
pub use geometry::{ArrayGeometry, ChannelPlace, OutputGeometry, PartGeometry, row_major_strides};

use crate::sampler::{Domains, Run};
use cells::{each_cell, each_combination, flat};

use std::collections::HashMap;

use smallvec::SmallVec;

/// Copies out of one read chunk, of which there is often one.
pub type Boxes = SmallVec<[CopyBox; 1]>;

/// A read chunk that a batch needs, and everything the batch needs of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkTask {
    /// Which output its elements go to.
    pub output: usize,
    /// Which chunk.
    pub chunk: ChunkKey,
    /// Coordinates in the grid of read chunks of its part.
    pub read_chunk: Dims,
    /// Copies from the decoded read chunk into the output, in elements. They do not overlap in the output.
    pub boxes: Boxes,
}

/// A read chunk among all that a reader may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkKey {
    /// Which array.
    pub array: usize,
    /// Which part of the array, of those in all domains.
    pub part: usize,
    /// Its number in the grid of read chunks of that part, row by row.
    pub number: u128,
}

/// The arrays in each domain.
pub type Geometry = [Vec<ArrayGeometry>];

/// How many read chunks of each part of each array a sample touches: array, part and chunks.
pub fn count_chunks(domains: &Domains, geometry: &Geometry, sample: u64) -> Vec<(usize, usize, u64)> {
    let (domain, places) = domains.place(sample);
    let windows = domains.windows(domain);
    let of_part = |part: &PartGeometry, runs: &[Vec<Run>]| {
        let along = runs.iter().zip(&part.read_chunk_shape);
        along.map(|(runs, &chunk)| count_cells(runs, chunk)).fold(1, u64::saturating_mul)
    };
    let of_array = |(number, array): (usize, &ArrayGeometry)| {
        let regions = array.regions(array.runs(windows, &places));
        let counts =
            regions.map(|(part, runs)| (number, array.first_part + part, of_part(&array.parts[part], &runs)));
        counts.collect::<Vec<_>>()
    };
    geometry[domain].iter().enumerate().flat_map(of_array).collect()
}

/// The read chunks that a sample touches, some of them perhaps several times, with their coordinates in the grid of their part.
pub fn touched_chunks(
    domains: &Domains,
    geometry: &Geometry,
    sample: u64,
    mut each: impl FnMut(ChunkKey, &[u64]),
) {
    let (domain, places) = domains.place(sample);
    let windows = domains.windows(domain);
    for (array, geometry) in geometry[domain].iter().enumerate() {
        for (part, runs) in geometry.regions(geometry.runs(windows, &places)) {
            let (chunk, shape) = (&geometry.parts[part].read_chunk_shape, geometry.part_shape(part));
            let part = geometry.first_part + part;
            each_combination(&runs, |runs| {
                each_cell(runs, chunk, |cell| {
                    each(ChunkKey { array, part, number: flat(cell, &shape, chunk) }, cell);
                });
            });
        }
    }
}

/// Plans a batch: every read chunk that one of `samples` touches comes once, in the order of first use.
///
/// `outputs` says for each array where its samples go. A sample that comes twice (padding) is copied twice from the
/// same chunks.
pub fn plan_batch(
    domains: &Domains,
    geometry: &Geometry,
    outputs: &[OutputGeometry],
    samples: impl IntoIterator<Item = u64>,
) -> Vec<ChunkTask> {
    let mut plan = Plan::default();
    for (place, sample) in samples.into_iter().enumerate() {
        let (domain, places) = domains.place(sample);
        let windows = domains.windows(domain);
        for (array, (geometry, output)) in geometry[domain].iter().zip(outputs).enumerate() {
            let to = place as u64 * output.sample + output.offset;
            for (part, runs) in geometry.regions(geometry.runs(windows, &places)) {
                let shape = geometry.part_shape(part);
                let part_geometry = &geometry.parts[part];
                each_combination(&runs, |runs| {
                    for repeat in 0..output.repeats {
                        let (to, part) = (to + repeat * output.repeat, geometry.first_part + part);
                        plan.add((array, part), part_geometry, &shape, runs, output, to);
                    }
                });
            }
        }
    }
    plan.tasks
}

#[derive(Default)]
struct Plan {
    tasks: Vec<ChunkTask>,
    known: HashMap<ChunkKey, usize>,
}

impl Plan {
    /// Adds the copies that put a region of a part into its output, whose sample starts at element `to`.
    fn add(
        &mut self,
        (array, number): (usize, usize),
        part: &PartGeometry,
        shape: &[u64],
        runs: &[Run],
        output: &OutputGeometry,
        to: u64,
    ) {
        let chunk = &part.read_chunk_shape;
        each_cell(runs, chunk, |cell| {
            let key = ChunkKey { array, part: number, number: flat(cell, shape, chunk) };
            let task = *self.known.entry(key).or_insert_with(|| {
                let (output, read_chunk) = (output.output, cell.into());
                self.tasks.push(ChunkTask { output, chunk: key, read_chunk, boxes: Boxes::new() });
                self.tasks.len() - 1
            });
            let mut whole = CopyBox {
                from: 0,
                to,
                extents: Dims::with_capacity(cell.len()),
                from_strides: Dims::with_capacity(cell.len()),
                to_strides: output.strides[..].into(),
            };
            for d in 0..cell.len() {
                let origin = cell[d] * chunk[d];
                let Some(run) = runs[d].within(origin, origin + chunk[d]) else { return };
                whole.extents.push(run.count);
                whole.from += (run.start - origin) * part.chunk_strides[d];
                whole.from_strides.push(run.step * part.chunk_strides[d]);
                whole.to += run.place * output.strides[d];
            }
            self.tasks[task].boxes.push(whole.collapsed());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{AxisOffsets, WindowArguments, Windows};
    use proptest::prelude::*;
    use smallvec::smallvec;
    use std::collections::HashSet;

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
            let places = windows.places(sample);
            let extent = arrays[0].sample_extents(windows);
            let at = |array: usize, index: &[u64]| {
                let geometry = &arrays[array];
                let (runs, strides) = (geometry.runs(windows, &places), row_major_strides(&geometry.shape));
                let along = |d: usize| {
                    let holds = |run: &&Run| (run.place..run.place + run.count).contains(&index[d]);
                    let run = runs[d].iter().find(holds).unwrap();
                    (run.start + (index[d] - run.place) * run.step) * strides[d]
                };
                array as u64 * FAR + (0..index.len()).map(along).sum::<u64>()
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
                    let extent = geometry.sample_extents(windows);
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
        let geometry = &arrays[task.chunk.array];
        let part = &geometry.parts[task.chunk.part];
        let (chunk, strides) = (&part.read_chunk_shape, row_major_strides(&geometry.shape));
        let mut decoded = vec![u64::MAX; chunk.iter().product::<u64>() as usize];
        for index in indices(chunk) {
            let mut at: Vec<u64> =
                (0..chunk.len()).map(|d| task.read_chunk[d] * chunk[d] + index[d]).collect();
            at[0] += part.start;
            let mut end = geometry.shape.clone();
            end[0] = geometry.end(task.chunk.part);
            if (0..at.len()).all(|d| at[d] < end[d]) {
                let place: u64 = (0..at.len()).map(|d| index[d] * part.chunk_strides[d]).sum();
                let value: u64 = (0..at.len()).map(|d| at[d] * strides[d]).sum();
                decoded[place as usize] = task.chunk.array as u64 * FAR + value;
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
                        axes: vec![],
                        chosen: vec![None; shape.len()],
                        parts: starts.iter().zip(parts).map(|(&at, (c, axes))| part(at, &c, &axes)).collect(),
                        first_part: 0,
                    };
                    arrays.into_iter().map(array).collect()
                })
            })
        })
    }

    /// What decides a batch: the arrays, the windows over them, the samples, and whether they are stacked.
    #[derive(Debug)]
    struct Case {
        arrays: Vec<ArrayGeometry>,
        windows: Windows,
        samples: Vec<u64>,
        stacked: bool,
    }

    fn case() -> impl Strategy<Value = Case> {
        (arrays(), any::<bool>()).prop_flat_map(|(arrays, stacked)| {
            let shape = arrays[0].shape.clone();
            (1..=shape.len()).prop_flat_map(move |covered| {
                let (arrays, shape) = (arrays.clone(), shape.clone());
                let window: Vec<_> = shape[..covered].iter().map(|&n| 1..=n as i64).collect();
                let stride = prop::collection::vec(1i64..4, covered);
                let dilation = prop::collection::vec(1i64..4, covered);
                let offsets = prop::option::of(prop::collection::vec(-5i64..6, 1..4));
                let later = prop::option::of(prop::collection::vec(-3i64..4, 1..4));
                let picks =
                    (prop::collection::vec(0u64..1000, 1..5), prop::collection::vec(0u64..1000, 0..5));
                let roi = prop::collection::vec(0i64..3, shape.len());
                (window, stride, dilation, (offsets, later), picks, roi, any::<(bool, bool)>())
                    .prop_filter_map(
                        "no window fits",
                        move |(
                            mut window,
                            stride,
                            mut dilation,
                            (offsets, later),
                            (picks, chosen),
                            roi,
                            (drops, cuts),
                        )| {
                            let offsets = offsets.filter(|_| !drops);
                            if let Some(offsets) = &offsets {
                                (window[0], dilation[0]) = (offsets.len() as i64, 1);
                            }
                            let mut along = vec![None; covered];
                            if let Some(offsets) = later.filter(|_| !drops && covered > 1) {
                                (window[covered - 1], dilation[covered - 1]) = (offsets.len() as i64, 1);
                                along[covered - 1] = Some(AxisOffsets { offsets, breaks: vec![] });
                            }
                            let given = WindowArguments {
                                along: &along,
                                window: (!drops).then_some(&window),
                                stride: (!drops).then_some(&stride),
                                dilation: (!drops).then_some(&dilation),
                                offsets: offsets.as_deref(),
                                roi_start: cuts.then_some(&roi),
                                ..WindowArguments::default()
                            };
                            let windows = Windows::new(&shape, &given).ok()?;
                            let mut arrays = arrays.clone();
                            for array in &mut arrays {
                                array.axes = (0..shape.len())
                                    .map(|d| Some(d).filter(|&d| d < windows.axes().len()))
                                    .collect();
                                // Indices in any order, of the last dimension.
                                let last = shape.len() - 1;
                                if array.axes[last].is_none() && !chosen.is_empty() {
                                    let indices = chosen.iter().map(|pick| pick % shape[last]).enumerate();
                                    let run = |(place, start)| Run {
                                        start,
                                        step: 1,
                                        count: 1,
                                        place: place as u64,
                                    };
                                    array.chosen[last] = Some(indices.map(run).collect());
                                }
                            }
                            if !stacked && arrays.len() > 1 && shape.len() > 1 {
                                // The last array lacks the first dimension.
                                let last = arrays.last_mut()?;
                                let chunk = &last.parts[0].read_chunk_shape;
                                let geometry = ArrayGeometry {
                                    shape: last.shape[1..].to_vec(),
                                    axes: last.axes[1..].to_vec(),
                                    chosen: last.chosen[1..].to_vec(),
                                    parts: vec![part(
                                        0,
                                        &chunk[1..],
                                        &(0..shape.len() - 1).collect::<Vec<_>>(),
                                    )],
                                    first_part: 0,
                                };
                                *last = geometry;
                            }
                            let samples = picks.iter().map(|pick| pick % windows.len()).collect();
                            Some(Case { arrays, windows, samples, stacked })
                        },
                    )
            })
        })
    }

    proptest! {
        #[test]
        fn carrying_out_a_plan_gives_the_samples(Case { arrays, windows, samples, stacked } in case()) {
            let outputs: Vec<_> = (0..arrays.len())
                .map(|i| match (stacked, arrays[i].sample_extents(&windows)) {
                    (true, extents) => OutputGeometry::stacked(i, arrays.len(), &extents),
                    (false, extents) => OutputGeometry::alone(i, &extents),
                })
                .collect();
            let expected = expected(&windows, &arrays, stacked, &samples);
            let mut written: Vec<Vec<_>> = expected.iter().map(|output| vec![None; output.len()]).collect();
            let mut seen = HashSet::new();
            let (domains, geometry) = (Domains::joined(windows), [arrays.clone()]);
            for task in plan_batch(&domains, &geometry, &outputs, samples.iter().copied()) {
                prop_assert!(seen.insert(task.chunk), "a chunk came twice");
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
                let counted = count_chunks(&domains, &geometry, sample);
                let mut touched = HashSet::new();
                touched_chunks(&domains, &geometry, sample, |key, _| {
                    touched.insert(key);
                });
                let planned: HashSet<_> =
                    plan_batch(&domains, &geometry, &outputs, [sample]).iter().map(|task| task.chunk).collect();
                prop_assert_eq!(&touched, &planned);
                for (array, part, chunks) in &counted {
                    let of_part =
                        planned.iter().filter(|key| (key.array, key.part) == (*array, *part)).count();
                    prop_assert_eq!(*chunks, of_part as u64);
                }
                prop_assert_eq!(counted.iter().map(|(.., chunks)| chunks).sum::<u64>(), planned.len() as u64);
            }
        }
    }

    #[test]
    fn a_chunk_that_is_one_sample_becomes_one_straight_copy() {
        let windows = Windows::new(&[10, 6, 64, 128], &WindowArguments::default()).unwrap();
        let parts = vec![part(0, &[1, 1, 64, 128], &[0, 1, 2, 3])];
        let geometry = vec![ArrayGeometry {
            shape: vec![10, 6, 64, 128],
            axes: vec![Some(0), None, None, None],
            chosen: vec![None; 4],
            parts,
            first_part: 0,
        }];
        let output = OutputGeometry::alone(0, &[1, 6, 64, 128]);
        let tasks = plan_batch(&Domains::joined(windows), &[geometry], &[output], [3, 4]);
        assert_eq!(tasks.len(), 12);
        let straight = CopyBox {
            from: 0,
            to: 7 * 64 * 128,
            extents: smallvec![64 * 128],
            from_strides: smallvec![1],
            to_strides: smallvec![1],
        };
        let chunk = ChunkKey { array: 0, part: 0, number: 25 };
        let task =
            ChunkTask { output: 0, chunk, read_chunk: smallvec![4, 1, 0, 0], boxes: smallvec![straight] };
        assert_eq!(tasks[7], task);
    }

    #[test]
    fn samples_of_stores_that_are_read_separately_have_the_chunks_of_their_store() {
        // Stores of other lengths, and chunks of other lengths: 5 steps in chunks of 2, and 4 steps in chunks of 3.
        let stores = [(5, 2), (4, 3)];
        let windows = |steps| {
            let given = WindowArguments { window: Some(&[2]), ..WindowArguments::default() };
            Windows::new(&[steps], &given).unwrap()
        };
        let domains =
            Domains::separate(stores.iter().enumerate().map(|(store, &(steps, _))| (store, windows(steps))))
                .unwrap();
        let geometry = |(store, &(steps, chunk)): (usize, &(u64, u64))| {
            let parts = vec![part(0, &[chunk], &[0])];
            vec![ArrayGeometry {
                shape: vec![steps],
                axes: vec![Some(0)],
                chosen: vec![None],
                parts,
                first_part: store,
            }]
        };
        let geometry: Vec<_> = stores.iter().enumerate().map(geometry).collect();
        let tasks = plan_batch(&domains, &geometry, &[OutputGeometry::alone(0, &[2])], 0..domains.len());
        let chunks: Vec<_> = tasks.iter().map(|task| (task.chunk.part, task.chunk.number)).collect();
        assert_eq!(chunks, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
        assert_eq!(count_chunks(&domains, &geometry, 1), [(0, 0, 2)]);
        assert_eq!(count_chunks(&domains, &geometry, 4), [(0, 1, 1)]);
        assert_eq!(count_chunks(&domains, &geometry, 6), [(0, 1, 2)]);
    }
}
