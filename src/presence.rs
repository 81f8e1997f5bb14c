//! Which samples touch no missing chunk: those that `missing_chunks="skip"` leaves.
//!
//! Whether a chunk is there is asked of its store once, before anything is read: of folders, zip files, Icechunk repositories and
//! references, where that takes no request. In folders the indexes of sharded chunks are read for their inner chunks. Then each sample's
//! chunks are looked up by the same rule by which batches are planned.

use crate::dataset::{ArrayInfo, Dataset, Sharding};
use crate::error::{Error, Result, log_once};
use crate::fetch::{decode_index, resolve as address_of};
use crate::options::{Arguments, MissingChunks, argument};
use crate::plan::shard_index::ShardIndex;
use crate::plan::{ArrayGeometry, ChunkKey, count_chunks, touched_chunks};
use crate::reader::Setup;
use crate::sampler::Choice;
use crate::store::Session;

use std::collections::HashMap;

/// The most read chunks of all arrays that are looked for.
const MOST_CHUNKS: u128 = 1 << 22;
/// The most chunks of all samples that are looked up.
const MOST_LOOKUPS: u64 = 1 << 30;

/// Leaves out samples that touch a missing chunk, if `missing_chunks` asks for it: [`Arguments::kept`] are those that are left.
///
/// # Errors
/// Stores that cannot say which chunks they have, more chunks or samples than are looked at, and no sample that is left.
pub fn resolve(arguments: &mut Arguments) -> Result<()> {
    if arguments.missing_chunks != MissingChunks::SKIP {
        return Ok(());
    }
    // What an epoch has of the samples, and where it starts, is decided behind this.
    let setup = Setup::new(&arguments.of_all_samples())?;
    let absent = Absent::find(&setup)?;
    if absent.first.is_none() {
        return Ok(());
    }
    let all = setup.domains.len();
    let of_sample = |sample| -> u64 {
        let counts = count_chunks(&setup.domains, &setup.geometry, sample);
        counts.into_iter().fold(0, |sum, (_, _, chunks)| sum.saturating_add(chunks))
    };
    let candidates = arguments.kept.as_ref().map_or(all, |kept| kept.len() as u64);
    if of_sample(0).saturating_mul(candidates) > MOST_LOOKUPS {
        let problem = format!(
            "\"skip\" has to look at the chunks of {candidates} samples, which are too many; give a larger stride, or \"fill\""
        );
        return Err(argument("missing_chunks", problem));
    }
    let is_whole = |sample: &u64| {
        let mut is_whole = true;
        touched_chunks(&setup.domains, &setup.geometry, *sample, |key, _| is_whole &= !absent.has(key));
        is_whole
    };
    let kept: Vec<u64> = match &arguments.kept {
        None => (0..all).filter(is_whole).take(Choice::MOST_LISTED as usize + 1).collect(),
        Some(kept) => kept.iter().copied().filter(is_whole).collect(),
    };
    let first = absent.first.as_deref().unwrap_or_default();
    if kept.is_empty() {
        let problem = format!(
            "each of {candidates} samples touches a chunk that is missing, such as {first}; write it, or give \"fill\""
        );
        return Err(argument("missing_chunks", problem));
    }
    if kept.len() as u64 > Choice::MOST_LISTED {
        let problem = format!(
            "\"skip\" leaves more than {} samples, which are too many to be listed; give a larger stride, or \"fill\"",
            Choice::MOST_LISTED
        );
        return Err(argument("missing_chunks", problem));
    }
    if (kept.len() as u64) < candidates {
        let left_out = candidates - kept.len() as u64;
        log_once(&format!(
            "missing_chunks=\"skip\" leaves out {left_out} of {candidates} samples, which touch missing chunks such as {first}"
        ));
        arguments.kept = Some(kept.into());
    }
    Ok(())
}

/// Read chunks that are not there.
struct Absent {
    /// By array and part, for each read chunk of the part whether it is missing. Parts that have all chunks are left out.
    parts: HashMap<(usize, usize), Vec<bool>>,
    /// One of them, in words.
    first: Option<String>,
}

impl Absent {
    /// Looks for all read chunks of all arrays.
    fn find(setup: &Setup) -> Result<Self> {
        let (dataset, mut budget) = (&setup.dataset, MOST_CHUNKS);
        let mut found = Self { parts: HashMap::new(), first: None };
        for geometry in &*setup.geometry {
            for (array, geometry) in geometry.iter().enumerate() {
                found.look_at(dataset, array, geometry, &mut budget)?;
            }
        }
        Ok(found)
    }

    fn look_at(
        &mut self,
        dataset: &Dataset,
        array: usize,
        geometry: &ArrayGeometry,
        budget: &mut u128,
    ) -> Result<()> {
        for part in geometry.first_part..geometry.first_part + geometry.parts.len() {
            let info = dataset.part(array, part);
            check_store(info)?;
            let grid: Vec<u64> = grid_of(info);
            let chunks: u128 = grid.iter().map(|&n| u128::from(n)).product();
            *budget = budget.checked_sub(chunks).ok_or_else(|| {
                let problem = format!(
                    "\"skip\" looks for each chunk, of {MOST_CHUNKS} at most, and with {} there are more; give \"fill\", or leave out \
                     samples with `exclude` or `samples`",
                    info.context()
                );
                argument("missing_chunks", problem)
            })?;
            let mut store = Looking::new(info)?;
            let mut is_absent = vec![];
            let mut cell = vec![0; grid.len()];
            for number in 0..chunks as usize {
                if !store.has(&cell)? {
                    is_absent.resize(chunks as usize, false);
                    is_absent[number] = true;
                    self.first.get_or_insert_with(|| address_of(info, &cell).at.to_string());
                }
                next(&mut cell, &grid);
            }
            if !is_absent.is_empty() {
                self.parts.insert((array, part), is_absent);
            }
        }
        Ok(())
    }

    fn has(&self, key: ChunkKey) -> bool {
        self.parts.get(&(key.array, key.part)).is_some_and(|absent| absent[key.number as usize])
    }
}

/// How many read chunks there are along each dimension.
fn grid_of(array: &ArrayInfo) -> Vec<u64> {
    array.shape.iter().zip(array.read_chunk_shape()).map(|(extent, &chunk)| extent.div_ceil(chunk)).collect()
}

/// Moves on in a grid, row by row.
fn next(cell: &mut [u64], grid: &[u64]) {
    for d in (0..cell.len()).rev() {
        cell[d] += 1;
        if cell[d] < grid[d] {
            return;
        }
        cell[d] = 0;
    }
}

/// Refuses stores where it takes requests to learn which chunks there are.
fn check_store(array: &ArrayInfo) -> Result<()> {
    let problem = if array.objects.costs_requests() {
        "a request for each chunk would be needed to learn which are missing"
    } else if array.sharding.is_some() && array.objects.folder().is_none() {
        "it is sharded, and the index of each shard would have to be read to learn which inner chunks are missing"
    } else {
        return Ok(());
    };
    let remedy = "read it from a folder, through Icechunk or references, or leave samples out with `exclude`, `samples` or `mask`";
    Err(argument("missing_chunks", format!("\"skip\": {}: {problem}; {remedy}", array.context())))
}

/// Asks the store of an array for its chunks.
struct Looking<'a> {
    array: &'a ArrayInfo,
    session: Session,
    /// The indexes of sharded chunks by their place; none of those that are missing.
    shards: HashMap<Vec<u64>, Option<ShardIndex>>,
}

impl<'a> Looking<'a> {
    fn new(array: &'a ArrayInfo) -> Result<Self> {
        let session = Session::new(&array.objects, Session::WHILE_OPENING)
            .map_err(|source| Error::Io { at: array.context(), source })?;
        Ok(Self { array, session, shards: HashMap::new() })
    }

    /// Whether the read chunk at `cell` is there.
    fn has(&mut self, cell: &[u64]) -> Result<bool> {
        let Some(sharding) = &self.array.sharding else {
            let key = self.array.chunk_context(cell);
            let found = self.session.head(key.key.as_deref().unwrap_or_default());
            return Ok(found.map_err(|source| Error::Io { at: key, source })?.is_some());
        };
        let (shard, (_, inner)) = (sharding.chunk_of(cell), sharding.inner_of(cell));
        if !self.shards.contains_key(&shard) {
            let index = self.index(sharding, &shard)?;
            self.shards.insert(shard.clone(), index);
        }
        Ok(self.shards[&shard].as_ref().is_some_and(|index| index.range(inner).is_some()))
    }

    /// The index of a sharded chunk, if there is that chunk.
    fn index(&self, sharding: &Sharding, shard: &[u64]) -> Result<Option<ShardIndex>> {
        let at = self.array.chunk_context(shard);
        let read = self.session.read_part(at.key.as_deref().unwrap_or_default(), sharding.index_extent());
        match read {
            Ok(None) => Ok(None),
            Ok(Some((encoded, head))) => decode_index(sharding, encoded, head.object_bytes, &at).map(Some),
            Err(source) => Err(Error::Io { at, source }),
        }
    }
}
