//! Arrays stacked to channels: one output of the shape `(window[0], channels, grid...)`.
//!
//! The grid are the last dimensions, which all arrays share. What an array has between the first dimension and the grid, such
//! as levels, are channels, row by row; arrays without the first dimension are repeated along it.

use crate::assemble::Conversion;
use crate::dataset::{Dataset, Joined};
use crate::error::{Error, Result};
use crate::options::argument;
use crate::plan::{ArrayGeometry, ChannelPlace, OutputGeometry, row_major_strides};
use crate::sampler::Windows;

use serde_json::{Map, Value, json};

/// How many dimensions the grid has, where each array has as many.
const GRID: usize = 2;

/// Where arrays lie in their common output.
pub(super) struct ChannelStack {
    /// One for each array.
    pub placing: Vec<OutputGeometry>,
    /// Shape of a sample, with the first dimension of the window.
    pub shape: Vec<u64>,
    /// What each channel is: the array's name, and the indices in the store along the dimensions that became channels.
    pub channels: Value,
}

/// Dimensions of an array that are in front of its channels.
fn front(geometry: &ArrayGeometry) -> usize {
    usize::from(geometry.follows_samples())
}

impl ChannelStack {
    /// Stacks the arrays in their order.
    ///
    /// # Errors
    /// Arrays whose grids differ in extents or that have none, complex numbers, and several windows along channels.
    pub fn new(dataset: &Dataset, geometry: &[ArrayGeometry], windows: &Windows) -> Result<Self> {
        let behind = |geometry: &ArrayGeometry| geometry.shape.len() - front(geometry);
        let grid = geometry.iter().map(behind).min().unwrap_or(0).min(GRID);
        if grid == 0 {
            let none = geometry.iter().position(|geometry| behind(geometry) == 0).unwrap_or(0);
            return Err(refused(format!(
                "{} has no dimension besides the one that samples are taken along; leave it out, or read arrays without stack_channels",
                dataset.arrays[none].context()
            )));
        }
        for (array, geometry) in dataset.arrays.iter().zip(geometry) {
            check_channels(array, geometry, grid, windows)?;
        }
        let extents: Vec<Vec<u64>> = geometry.iter().map(|array| array.sample_extents(windows)).collect();
        let grid_of = |number: usize| &extents[number][extents[number].len() - grid..];
        if let Some(other) = (1..extents.len()).find(|&number| grid_of(number) != grid_of(0)) {
            return Err(Error::Unlike {
                at: dataset.arrays[0].context(),
                difference: format!(
                    "its last dimensions have the extents {:?} in a sample, but {:?} in {}",
                    grid_of(0),
                    grid_of(other),
                    dataset.arrays[other].context()
                ),
                remedy: "arrays whose channels are stacked need the same grid: leave one of them out, or read them without `stack_channels`",
            });
        }
        let counts: Vec<u64> = (0..extents.len())
            .map(|number| {
                extents[number][front(&geometry[number])..extents[number].len() - grid].iter().product()
            })
            .collect();
        let (all, cells): (u64, u64) = (counts.iter().sum(), grid_of(0).iter().product());
        let steps = windows.axes()[0].extent();
        let mut first = 0;
        let mut placing = vec![];
        for (number, array) in geometry.iter().enumerate() {
            let dense = &extents[number][front(array)..];
            let mut strides = row_major_strides(dense);
            let repeats = if array.follows_samples() { 1 } else { steps };
            if array.follows_samples() {
                strides.insert(0, all * cells);
            }
            placing.push(OutputGeometry {
                output: 0,
                sample: steps * all * cells,
                offset: first * cells,
                strides,
                repeats,
                repeat: all * cells,
                channels: Some(ChannelPlace { first, all, elements: cells }),
            });
            first += counts[number];
        }
        let channels = dataset.arrays.iter().zip(geometry).flat_map(|(array, geometry)| {
            let places = windows.places(0);
            let runs = geometry.runs(windows, &places);
            let between = front(geometry)..geometry.shape.len() - grid;
            let indices: Vec<Vec<u64>> = runs[between.clone()]
                .iter()
                .map(|runs| {
                    runs.iter().flat_map(|run| (0..run.count).map(|i| run.start + i * run.step)).collect()
                })
                .collect();
            names(array, between.start, &indices)
        });
        let channels = channels.collect();
        let shape = [&[steps, all], grid_of(0)].concat();
        Ok(Self { placing, shape, channels })
    }
}

/// What the channels of an array are, row by row. `indices` are those along its dimensions from number `start` on.
fn names(array: &Joined, start: usize, indices: &[Vec<u64>]) -> Vec<Value> {
    let extents: Vec<u64> = indices.iter().map(|indices| indices.len() as u64).collect();
    let strides = row_major_strides(&extents);
    let name = |d: usize| match array.first().dimension_names.get(start + d) {
        Some(name) => name.clone(),
        None => (start + d).to_string(),
    };
    let channel = |number: u64| {
        let index = |d: usize| indices[d][(number / strides[d] % extents[d]) as usize];
        let along: Map<String, Value> = (0..indices.len()).map(|d| (name(d), index(d).into())).collect();
        json!([array.first().name, along])
    };
    (0..extents.iter().product()).map(channel).collect()
}

fn refused(problem: String) -> Error {
    argument("stack_channels", problem)
}

/// Refuses what cannot be channels: complex numbers, and dimensions with several windows.
fn check_channels(array: &Joined, geometry: &ArrayGeometry, grid: usize, windows: &Windows) -> Result<()> {
    let at = array.context();
    if array.first().components > 1 {
        return Err(refused(format!(
            "{at} holds complex numbers, whose parts are no channels; leave it out"
        )));
    }
    let several =
        |&d: &usize| geometry.axes[d].is_some_and(|axis| axis > 0 && windows.axes()[axis].count() > 1);
    match (front(geometry)..geometry.shape.len() - grid).find(several) {
        None => Ok(()),
        Some(dimension) => Err(refused(format!(
            "{at}: samples are windows along dimension {dimension}, whose indices are channels; give `window` its whole extent there, or name the indices in `select` and leave offsets out"
        ))),
    }
}

/// Refuses arrays of several output types.
pub(super) fn check_types(dataset: &Dataset, conversions: &[Vec<Conversion>]) -> Result<()> {
    let of = |number: usize| conversions[number][0].output();
    match (1..conversions.len()).find(|&number| of(number) != of(0)) {
        None => Ok(()),
        Some(other) => Err(Error::Unlike {
            at: dataset.arrays[0].context(),
            difference: format!(
                "its element type is {}, but {} in {}",
                of(0).name(),
                of(other).name(),
                dataset.arrays[other].context()
            ),
            remedy: "arrays that are stacked need the same: give `dtype`, or leave one of them out",
        }),
    }
}
