//! Where the elements of arrays and of outputs lie.

use crate::sampler::{Run, Windows};

use std::sync::Arc;

/// What planning needs to know of an array in one domain of samples.
#[derive(Clone, Debug)]
pub struct ArrayGeometry {
    /// Extents of the whole.
    pub shape: Vec<u64>,
    /// Which axis of the windows each dimension follows; a dimension with `None` belongs whole to every sample.
    pub axes: Vec<Option<usize>>,
    /// The indices of each dimension that samples are taken from, in their order; `None` for all. Windows count in these.
    pub chosen: Vec<Option<Arc<[Run]>>>,
    /// The parts that follow one another along the first dimension, without gaps; one part unless stores are joined.
    pub parts: Vec<PartGeometry>,
    /// The number of the first of them among the parts of the array in all domains.
    pub first_part: usize,
}

/// A part of an array, with chunks of its own.
#[derive(Clone, Debug)]
pub struct PartGeometry {
    /// Where the part starts along the first dimension.
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
    /// How often each sample holds the array; 1 unless it is repeated along the first dimension of others.
    pub repeats: u64,
    /// From one of these to the next.
    pub repeat: u64,
    /// The channels that the array's elements are, if arrays are stacked to channels.
    pub channels: Option<ChannelPlace>,
}

/// Channels among those of an output: element `i` belongs to channel `i / elements % all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelPlace {
    /// The first channel of the array.
    pub first: u64,
    /// Channels of the output.
    pub all: u64,
    /// Elements of a channel, one behind another.
    pub elements: u64,
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
        let offset = place as u64 * below;
        Self { output: 0, sample, offset, strides, repeats: 1, repeat: 0, channels: None }
    }
}

impl ArrayGeometry {
    /// Whether the array's elements differ from sample to sample; else every sample has the same.
    pub fn follows_samples(&self) -> bool {
        self.axes.first() == Some(&Some(0))
    }

    /// The dimension that follows an axis of the windows, if the array has it.
    pub fn dimension(&self, axis: usize) -> Option<usize> {
        self.axes.iter().position(|own| *own == Some(axis))
    }

    /// Extents of a sample, all dimensions of the array.
    pub fn sample_extents(&self, windows: &Windows) -> Vec<u64> {
        let along = |d: usize| match (self.axes[d], &self.chosen[d]) {
            (Some(axis), _) => windows.axes()[axis].extent(),
            (None, Some(chosen)) => chosen.iter().map(|run| run.count).sum(),
            (None, None) => self.shape[d],
        };
        (0..self.shape.len()).map(along).collect()
    }

    /// The indices of a sample along each dimension. `places` are those of [`Windows::places`].
    pub fn runs(&self, windows: &Windows, places: &[u64]) -> Vec<Vec<Run>> {
        let along = |d: usize| match (self.axes[d], &self.chosen[d]) {
            (Some(axis), None) => windows.axes()[axis].runs(places[axis]).collect(),
            (Some(axis), Some(chosen)) => {
                let runs = windows.axes()[axis].runs(places[axis]);
                runs.flat_map(|run| chosen.iter().filter_map(move |piece| run.through(piece))).collect()
            }
            (None, Some(chosen)) => chosen.to_vec(),
            (None, None) => vec![Run::whole(self.shape[d])],
        };
        (0..self.shape.len()).map(along).collect()
    }

    /// The most boxes of a sample in one chunk: one for each combination of runs.
    pub fn boxes(&self, windows: &Windows) -> u64 {
        let runs = self.runs(windows, &windows.places(0));
        runs.iter().map(|runs| runs.len() as u64).fold(1, u64::saturating_mul)
    }

    /// Where a part ends along the first dimension.
    pub(super) fn end(&self, part: usize) -> u64 {
        self.parts.get(part + 1).map_or(self.shape[0], |next| next.start)
    }

    /// Extents of a part.
    pub(super) fn part_shape(&self, part: usize) -> Vec<u64> {
        let mut shape = self.shape.clone();
        shape[0] = self.end(part) - self.parts[part].start;
        shape
    }

    /// The parts that a sample touches, each with the sample's indices in it, which count from the start of the part.
    pub(super) fn regions(&self, mut runs: Vec<Vec<Run>>) -> impl Iterator<Item = (usize, Vec<Vec<Run>>)> {
        // A sample without elements needs nothing.
        let nothing = runs.iter().any(|runs| runs.iter().all(|run| run.count == 0));
        let along_first = std::mem::take(&mut runs[0]);
        let first = along_first.iter().map(|run| run.start).min().unwrap_or(0);
        let last = along_first.iter().filter(|run| run.count > 0).map(Run::last).max().unwrap_or(0);
        let touched = self.parts.partition_point(|part| part.start <= first).saturating_sub(1)
            ..self.parts.partition_point(|part| part.start <= last);
        touched.filter(move |_| !nothing).filter_map(move |part| {
            let start = self.parts[part].start;
            let inside = along_first.iter().filter_map(|run| run.within(start, self.end(part)));
            let inside: Vec<Run> = inside.map(|run| Run { start: run.start - start, ..run }).collect();
            (!inside.is_empty())
                .then(|| (part, std::iter::once(inside).chain(runs[1..].iter().cloned()).collect()))
        })
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
