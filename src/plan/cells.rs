//! The cells of a grid of read chunks that the indices of a sample touch.

use crate::sampler::Run;

use std::collections::HashSet;

/// The cells of a grid that a run touches along one dimension.
#[derive(Clone, Copy)]
pub(super) struct Cells {
    pub(super) run: Run,
    pub(super) chunk: u64,
}

impl Cells {
    pub(super) fn count(&self) -> u64 {
        if self.run.step >= self.chunk {
            return self.run.count;
        }
        self.run.last() / self.chunk - self.run.start / self.chunk + 1
    }

    pub(super) fn cell(&self, i: u64) -> u64 {
        if self.run.step >= self.chunk {
            return (self.run.start + i * self.run.step) / self.chunk;
        }
        self.run.start / self.chunk + i
    }
}

/// How many cells of extent `chunk` runs along one dimension touch.
pub fn count_cells(runs: &[Run], chunk: u64) -> u64 {
    match runs {
        [only] => Cells { run: *only, chunk }.count(),
        several => {
            let cells = several.iter().flat_map(|&run| {
                let cells = Cells { run, chunk };
                (0..cells.count()).map(move |i| cells.cell(i))
            });
            cells.collect::<HashSet<u64>>().len() as u64
        }
    }
}

/// Every cell that runs touch, one run for each dimension; row by row.
pub(super) fn each_cell(runs: &[Run], chunk: &[u64], mut each: impl FnMut(&[u64])) {
    let along: Vec<Cells> = runs.iter().zip(chunk).map(|(&run, &chunk)| Cells { run, chunk }).collect();
    let last: Vec<u64> = along.iter().map(|cells| cells.count() - 1).collect();
    let mut at = vec![0; along.len()];
    let mut cell: Vec<u64> = along.iter().map(|cells| cells.cell(0)).collect();
    loop {
        each(&cell);
        if !advance(&mut at, &last) {
            return;
        }
        (0..at.len()).for_each(|d| cell[d] = along[d].cell(at[d]));
    }
}

/// Every choice of one run for each dimension.
pub(super) fn each_combination(runs: &[Vec<Run>], mut each: impl FnMut(&[Run])) {
    let last: Vec<u64> = runs.iter().map(|runs| runs.len() as u64 - 1).collect();
    let mut at = vec![0; runs.len()];
    loop {
        let chosen: Vec<Run> = runs.iter().zip(&at).map(|(runs, &i)| runs[i as usize]).collect();
        each(&chosen);
        if !advance(&mut at, &last) {
            return;
        }
    }
}

/// Number of a grid cell, unique within its array.
pub(super) fn flat(cell: &[u64], shape: &[u64], chunk: &[u64]) -> u128 {
    (0..cell.len())
        .fold(0, |number, d| number * u128::from(shape[d].div_ceil(chunk[d])) + u128::from(cell[d]))
}

/// Moves on in the box `0..=last`, row by row; false after its last place.
fn advance(at: &mut [u64], last: &[u64]) -> bool {
    for d in (0..at.len()).rev() {
        if at[d] < last[d] {
            at[d] += 1;
            return true;
        }
        at[d] = 0;
    }
    false
}
