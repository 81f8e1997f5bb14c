//! Names the place in a store that a sample comes from.

use super::setup::Setup;
use crate::sampler::Run;

impl Setup {
    /// The array of an output, or all arrays of a stack, and the indices that a sample covers; of the output with indices the
    /// sample's index.
    pub(super) fn source_info(&self, output: usize, sample: u64) -> String {
        let Some(array) = self.dataset.arrays.get(output).filter(|_| !self.stacked || output == 0) else {
            let indices: Vec<String> = self.domains.index(sample).iter().map(i64::to_string).collect();
            return format!("index[{}]", indices.join(", "));
        };
        // Of a stack that array whose samples differ.
        let number = if self.channels.is_null() { output } else { self.first_sampled };
        let array = if number == output { array } else { &self.dataset.arrays[number] };
        let (domain, places) = self.domains.place(sample);
        let (geometry, windows) = (&self.geometry[domain][number], self.domains.windows(domain));
        let runs = geometry.runs(windows, &places);
        let ranges: Vec<String> = runs[..array.first().stored_dimensions()]
            .iter()
            .enumerate()
            .map(|(d, runs)| match &runs[..] {
                [only] if d == 0 && windows.drops_first && geometry.follows_samples() => {
                    only.start.to_string()
                }
                runs => range_text(runs),
            })
            .collect();
        let names = match self.stacked {
            true if !array.first().name.is_empty() => {
                let names: Vec<_> = self.dataset.arrays.iter().map(|a| a.first().name.as_str()).collect();
                format!("[{}]", names.join(","))
            }
            _ => array.first().name.clone(),
        };
        format!("{}[{}]", array.place(&names, geometry.first_part), ranges.join(", "))
    }
}

/// Indices along a dimension as a slice of Python, or as a list where they are no regular sequence.
fn range_text(runs: &[Run]) -> String {
    match runs {
        [Run { start, count: 1, .. }] => format!("{start}:{}", start + 1),
        [Run { start, step: 1, count, .. }] => format!("{start}:{}", start + count),
        [run @ Run { start, step, .. }] => format!("{start}:{}:{step}", run.last() + 1),
        several => {
            let steps = several.iter().flat_map(|run| (0..run.count).map(|i| run.start + i * run.step));
            format!("[{}]", steps.map(|step| step.to_string()).collect::<Vec<_>>().join(","))
        }
    }
}
