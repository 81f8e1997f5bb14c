//! The outputs of a reader: types, shapes and layouts of samples.

use crate::dataset::{Dataset, ElementType, stacked_layout};
use crate::decode::part::PartPlans;
use crate::plan::ArrayGeometry;
use crate::sampler::Domains;

/// One output of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Type of the elements.
    pub element: ElementType,
    /// Shape of one sample.
    pub shape: Vec<u64>,
    /// DALI layout of a sample, or empty.
    pub layout: String,
}

impl Output {
    /// Size of one sample, or `u64::MAX` if it is larger than that.
    pub fn sample_bytes(&self) -> u64 {
        let size = self.element.size_bytes() as u64;
        self.shape.iter().fold(size, |bytes, &extent| bytes.saturating_mul(extent))
    }
}

/// How arrays become outputs.
#[derive(Clone, Copy)]
pub(super) enum Stacking<'a> {
    /// One output for each.
    None,
    /// One output of arrays on a new axis.
    Arrays,
    /// One output of channels: the shape of a sample with the first dimension of the window, and an array that has that.
    Channels { shape: &'a [u64], reference: usize },
}

/// One output for each array, or a single one if they are stacked, and one more for the samples' indices if `indexed`.
/// `geometry` is that of any domain: samples have the same shape in all of them.
pub(super) fn outputs(
    dataset: &Dataset,
    domains: &Domains,
    geometry: &[ArrayGeometry],
    parts: &PartPlans,
    stacking: Stacking<'_>,
    indexed: bool,
) -> Vec<Output> {
    let windows = domains.first();
    let describe = |number: usize| {
        let (array, geometry) = (&dataset.arrays[number], &geometry[number]);
        let dropped = usize::from(windows.drops_first && geometry.follows_samples());
        Output {
            element: parts[(number, 0)].conversion.output(),
            shape: geometry.sample_extents(windows)[dropped..].to_vec(),
            // Layouts are ASCII, one letter for each dimension of the array.
            layout: array.layout.get(dropped..).unwrap_or_default().to_string(),
        }
    };
    let mut outputs: Vec<Output> = (0..dataset.arrays.len()).map(describe).collect();
    let axis = usize::from(!windows.drops_first);
    match stacking {
        Stacking::None => {}
        Stacking::Arrays => {
            outputs.truncate(1);
            outputs[0].shape.insert(axis, dataset.arrays.len() as u64);
            outputs[0].layout = stacked_layout(&outputs[0].layout, axis);
        }
        Stacking::Channels { shape, reference } => {
            outputs.truncate(1);
            let layout = &dataset.arrays[reference].layout;
            let grid = shape.len() - 2;
            let around = match layout.len().checked_sub(grid) {
                Some(start) => format!("{}{}", &layout[..axis], &layout[start..]),
                None => String::new(),
            };
            outputs[0].shape = shape[1 - axis..].to_vec();
            outputs[0].layout = stacked_layout(&around, axis);
        }
    }
    if indexed {
        let shape = vec![domains.index_len() as u64];
        outputs.push(Output { element: ElementType::Int64, shape, layout: String::new() });
    }
    outputs
}
