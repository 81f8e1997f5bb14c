//! Blocks of a mask: boxes of equal extents, each read as one sample, that have every window in one of them.

use super::mask::{Along, Mask};
use crate::error::Result;
use crate::options::{Arguments, MissingChunks};
use crate::reader::Reader;
use crate::sampler::{Axis, Domain, Run};

use std::collections::VecDeque;
use std::ops::Range;

use serde_json::json;

/// The blocks of a mask.
pub(super) struct Blocks {
    /// Extents of each block.
    pub extents: Vec<u64>,
    /// Along each dimension: where blocks start, and the windows that lie in each.
    pub starts: Vec<Vec<Piece>>,
}

/// A block along one dimension.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    /// Its first index.
    pub start: u64,
    /// The windows that lie in it and not in the piece before; one where no windows lie along the dimension.
    pub windows: Range<u64>,
}

impl Blocks {
    /// Elements of a block, unless a single window has more.
    const ELEMENTS: u64 = 1 << 24;

    /// The blocks of the mask of a domain.
    pub fn new(mask: &Mask, domain: &Domain) -> Self {
        let least: Vec<u64> = mask.along.iter().map(|along| least_extent(along, domain)).collect();
        let extents = grown(&least, mask, domain);
        let pieces = |(d, along): (usize, &Along)| match along {
            Along::Windows(axis) => pieces(&domain.windows.axes()[*axis], extents[d], mask.array.shape[d]),
            Along::Same(runs) => {
                let start = runs.iter().map(|run| run.start).min().unwrap_or(0);
                vec![Piece { start, windows: 0..1 }]
            }
        };
        let starts = mask.along.iter().enumerate().map(pieces).collect();
        Self { extents, starts }
    }

    /// Reads all blocks. `each` gets the elements of each, 0 or 1, and its pieces.
    ///
    /// # Errors
    /// Those of a reader.
    pub fn read(
        &self,
        arguments: &Arguments,
        mask: &Mask,
        mut each: impl FnMut(&[u8], &[Piece]),
    ) -> Result<()> {
        let all: Vec<Vec<Piece>> = combinations(&self.starts);
        let starts = all.iter().map(|pieces| pieces.iter().map(|piece| piece.start).collect::<Vec<_>>());
        let extents: Vec<i64> = self.extents.iter().map(|&extent| extent as i64).collect();
        let reading = Arguments {
            arrays: vec![arguments.mask.clone()],
            window: Some(extents),
            samples: json!(starts.collect::<Vec<_>>()).to_string(),
            dtype: Some("bool".into()),
            follow_links: arguments.follow_links,
            storage_options: arguments.storage_options.clone(),
            missing_chunks: match arguments.missing_chunks.as_str() {
                // It is about the chunks of the arrays.
                MissingChunks::SKIP => Arguments::new("").missing_chunks,
                given => given.into(),
            },
            num_io_threads: arguments.num_io_threads,
            host_memory_budget: arguments.host_memory_budget,
            cache_dir: arguments.cache_dir.clone(),
            cache_dir_bytes: arguments.cache_dir_bytes,
            paths: mask.paths.clone(),
            ..Arguments::new("")
        };
        let bytes = self.extents.iter().product::<u64>() as usize;
        // In front of the reader, so that the memory outlives it.
        let mut lent: VecDeque<Vec<u8>> = VecDeque::new();
        let mut reader = Reader::open(&reading)?;
        let mut left = all.len();
        for pieces in &all {
            while left > 0 && (lent.len() as u64) < reader.depth() {
                left -= 1;
                let mut memory = vec![0; bytes];
                // SAFETY: the memory has the bytes of a batch of one sample of booleans; nobody touches it before the batch is
                // returned, and it outlives the reader.
                unsafe { reader.submit(&[memory.as_mut_ptr() as usize]) }?;
                lent.push_back(memory);
            }
            reader.next_batch()?;
            if let Some(memory) = lent.pop_front() {
                each(&memory, pieces);
            }
        }
        Ok(())
    }
}

/// The least extent of a block along a dimension: that of a window.
fn least_extent(along: &Along, domain: &Domain) -> u64 {
    match along {
        Along::Windows(axis) => domain.windows.axes()[*axis].span(),
        Along::Same(runs) => {
            let start = runs.iter().map(|run| run.start).min().unwrap_or(0);
            runs.iter().map(Run::last).max().map_or(1, |last| last + 1 - start)
        }
    }
}

/// Extents as large as blocks may be: the dimension is doubled that has the fewest windows to a block, as long as there is room.
fn grown(least: &[u64], mask: &Mask, domain: &Domain) -> Vec<u64> {
    let mut extents = least.to_vec();
    loop {
        let size = extents.iter().fold(1u64, |all, &extent| all.saturating_mul(extent));
        let can_grow = |&(d, _): &(usize, &Axis)| {
            let more = (2 * extents[d]).min(mask.array.shape[d]);
            more > extents[d] && size / extents[d] * more <= Blocks::ELEMENTS
        };
        let windows = |&(d, _): &(usize, &Axis)| extents[d] / least[d].max(1);
        let Some((d, _)) = mask.windowed(domain).filter(can_grow).min_by_key(windows) else { return extents };
        extents[d] = (2 * extents[d]).min(mask.array.shape[d]);
    }
}

/// Windows of a piece along an axis: each of them has a list of what it touches.
const MOST_WINDOWS: u64 = 1 << 16;

/// Cuts the windows along an axis into pieces of an extent.
fn pieces(axis: &Axis, extent: u64, all: u64) -> Vec<Piece> {
    let mut pieces = vec![];
    let mut first = 0;
    while first < axis.count() {
        let start = axis.start(first).min(all - extent);
        let fits = |window: u64| axis.start(window) + axis.span() <= start + extent;
        // The first window that does not fit.
        let (mut low, mut high) = (first + 1, axis.count().min(first + MOST_WINDOWS));
        while low < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle + 1 } else { high = middle }
        }
        pieces.push(Piece { start, windows: first..low });
        first = low;
    }
    pieces
}

/// All combinations, the last list fastest.
fn combinations(lists: &[Vec<Piece>]) -> Vec<Vec<Piece>> {
    lists.iter().fold(vec![vec![]], |all, list| {
        let with = |begun: &Vec<Piece>| {
            let begun = begun.clone();
            list.iter()
                .map(move |piece| [&begun[..], std::slice::from_ref(piece)].concat())
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(with).collect()
    })
}
