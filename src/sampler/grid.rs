//! The borders of chunks, and where the windows of one dimension lie between them.

use super::axis::{Axis, Run};

/// The borders of chunks along one dimension. Its cells are the largest chunks.
#[derive(Clone, Debug)]
pub struct Grid {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    start: u64,
    /// Number of its first cell.
    first: u64,
    /// Extent of a cell.
    cell: u64,
    /// Extents of chunks that do not divide a cell: such chunks lie across the borders of cells.
    across: Vec<u64>,
}

impl Grid {
    /// A grid of parts, each with its start and the extents of the chunks of different arrays.
    pub fn new(parts: impl IntoIterator<Item = (u64, Vec<u64>)>) -> Self {
        let mut grid: Vec<Part> = vec![];
        for (start, mut extents) in parts {
            let first =
                grid.last().map_or(0, |before| before.first + (start - before.start).div_ceil(before.cell));
            let cell = extents.iter().copied().max().unwrap_or(1);
            extents.retain(|&extent| !cell.is_multiple_of(extent));
            grid.push(Part { start, first, cell, across: extents });
        }
        Self { parts: grid }
    }

    fn part(&self, index: u64) -> usize {
        self.parts.partition_point(|part| part.start <= index).saturating_sub(1)
    }

    fn cell(&self, index: u64) -> u64 {
        let part = &self.parts[self.part(index)];
        part.first + index.saturating_sub(part.start) / part.cell
    }

    /// The last cell that a chunk with the index reaches into.
    fn reach(&self, index: u64) -> u64 {
        let number = self.part(index);
        let part = &self.parts[number];
        let inside = index.saturating_sub(part.start);
        let last = part.across.iter().map(|extent| inside / extent * extent + extent - 1).max();
        let end = self.parts.get(number + 1).map_or(u64::MAX, |next| next.start - 1 - part.start);
        part.first + last.unwrap_or(inside).max(inside).min(end) / part.cell
    }
}

/// Where the windows of one dimension lie in the grid.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    axis: Axis,
    grid: Grid,
    pub(super) windows: u64,
    /// The first window of each cell that windows start in, and the number of windows.
    pub(super) borders: Vec<u64>,
    /// The most cells that a window has elements in.
    pub(super) most: u64,
    /// The most cells in a row that a window reaches over.
    pub(super) span: u64,
    /// Whether two windows touch the same cell.
    pub(super) share: bool,
}

impl Cells {
    pub(super) fn new(axis: &Axis, grid: &Grid) -> Self {
        let (axis, grid, windows) = (axis.clone(), grid.clone(), axis.count());
        let mut cells = Self { axis, grid, windows, borders: vec![], most: 1, span: 1, share: false };
        let cells_of =
            |run: Run| (cells.grid.reach(run.last()) - cells.grid.cell(run.start) + 1).min(2 * run.count);
        let (mut most, mut span, mut share) = (0, 0, false);
        let mut before: Option<(u64, u64)> = None;
        for window in 0..windows {
            let touched = cells.touched(window);
            most = most.max(cells.axis.runs(window).map(cells_of).sum());
            span = span.max(touched.1 - touched.0 + 1);
            share |= before.is_some_and(|before| before.1 >= touched.0);
            before = Some(touched);
        }
        (cells.most, cells.span, cells.share) = (most, span, share);
        cells
    }

    /// Finds the borders, if there are at most `most_cells` cells that windows start in. Returns how many there are.
    pub(super) fn cut(&mut self, most_cells: u64) -> u64 {
        let (mut borders, mut cells, mut before) = (vec![], 0, None);
        for window in 0..self.windows {
            let cell = Some(self.touched(window).0);
            if before != cell {
                cells += 1;
                if cells <= most_cells {
                    borders.push(window);
                }
            }
            before = cell;
        }
        borders.push(self.windows);
        self.borders = borders;
        cells
    }

    /// The cells of the first and the last index of a window.
    pub(super) fn touched(&self, window: u64) -> (u64, u64) {
        let start = self.axis.start(window);
        (self.grid.cell(start), self.grid.reach(start + self.axis.span() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_of_joined_parts_have_borders_of_their_own() {
        let grid = Grid::new([(0, vec![4, 2]), (10, vec![3])]);
        let cells: Vec<u64> = (0..17).map(|index| grid.cell(index)).collect();
        assert_eq!(cells, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5]);
        // Chunks of 3 beside those of 4 reach into the next cell, but not into the next part.
        let grid = Grid::new([(0, vec![4, 3]), (10, vec![3])]);
        let reach: Vec<u64> = (0..12).map(|index| grid.reach(index)).collect();
        assert_eq!(reach, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
        let grid = Grid::new([(0, vec![4]), (10, vec![4, 3]), (14, vec![5])]);
        assert_eq!([9, 10, 12, 13, 14].map(|index| grid.reach(index)), [2, 3, 3, 3, 4]);
    }
}
