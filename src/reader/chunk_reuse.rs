//! Which read chunks belong to several samples, and how many bytes of decoded chunks later batches can reuse.

use super::checks::too_many_groups;
use crate::dataset::Dataset;
use crate::decode::device_pool::DevicePool;
use crate::error::Result;
use crate::options::Options;
use crate::plan::{ArrayGeometry, Geometry, count_cells};
use crate::sampler::{Axis, Domain, Domains, Grid, Groups};

use std::ops::Range;
use std::sync::Arc;

/// Which read chunks belong to several samples.
pub(super) struct ChunkSharing {
    /// Samples grouped by chunk; `None` if no chunk belongs to several samples.
    pub groups: Option<Arc<Groups>>,
    /// Decoded bytes of a group that is cut along the first dimension, along the first two, and so on.
    pub group_bytes: Vec<u64>,
    /// Bytes of a sample, of the arrays that samples are taken from.
    pub sample_bytes: u64,
    /// Decoded bytes worth caching.
    pub reuse: ChunkReuse,
    /// Stores that are read separately, or 1.
    stores: usize,
}

/// Decoded bytes worth caching for later batches.
pub struct ChunkReuse {
    /// Decoded bytes of the arrays that are the same for every sample, or for every sample of a store.
    pub every_sample_bytes: u64,
    /// Decoded bytes of all arrays.
    pub all_bytes: u64,
    between: ReusedBetween,
}

/// Samples that share chunks.
enum ReusedBetween {
    /// No two samples.
    None,
    /// Neighbouring samples, read in order.
    Neighbours {
        /// Samples grouped by chunk.
        groups: Arc<Groups>,
        /// Decoded bytes of a group.
        group_bytes: u64,
        /// The most decoded bytes of arrays that are the same for every sample of a store.
        store_bytes: u64,
        batch_size: u64,
    },
    /// Any samples.
    Any,
}

impl ChunkReuse {
    /// The most bytes that can be reused within an epoch, with `depth` batches in flight.
    pub fn useful_bytes(&self, depth: u64) -> u64 {
        match &self.between {
            ReusedBetween::None => self.every_sample_bytes,
            ReusedBetween::Neighbours { groups, group_bytes, store_bytes, batch_size } => {
                // Chunks of batches in flight are still in memory when the planner is done with them. Of large batches only
                // the chunks that windows touch across the borders between batches are reused.
                let all = groups.reach(batch_size.saturating_mul(depth.saturating_add(1)));
                let at_borders = groups.span(1).saturating_mul(depth.saturating_add(2));
                let bytes = group_bytes.saturating_mul(all.min(at_borders));
                // Each border between batches is in one store.
                let store_bytes = store_bytes.saturating_mul(depth.saturating_add(2));
                store_bytes.min(self.every_sample_bytes).saturating_add(bytes).min(self.all_bytes)
            }
            ReusedBetween::Any => self.all_bytes,
        }
    }
}

/// In which order samples are visited.
#[derive(Clone, Copy, Debug)]
pub(super) enum Visiting {
    /// One behind the other.
    InOrder {
        /// Samples of a batch.
        batch_size: u64,
    },
    /// As a list says.
    AsListed {
        /// Whether a sample may come several times in an epoch.
        repeats: bool,
    },
    /// In random order.
    Shuffled {
        /// Whether a sample may come several times in an epoch.
        repeats: bool,
    },
}

impl ChunkSharing {
    /// The most windows along a dimension that are looked at one by one.
    const MOST_WINDOWS: u64 = 1 << 26;

    /// If samples are shuffled, `options` limit the memory of their groups.
    ///
    /// # Errors
    /// More groups than memory holds.
    pub fn new(
        dataset: &Dataset,
        geometry: &Geometry,
        domains: &Domains,
        visiting: Visiting,
        options: &Options,
    ) -> Result<Self> {
        let pairs = domains.iter().zip(geometry);
        let sampled: Vec<Sampled<'_>> =
            pairs.map(|(domain, geometry)| Sampled::new(dataset, geometry, domain)).collect();
        let counts = domains.iter().flat_map(|domain| domain.windows.axes()).map(Axis::count);
        let countable = counts.fold(0, u64::saturating_add) <= Self::MOST_WINDOWS;
        let groups =
            countable.then(|| Groups::new(domains, &sampled.iter().map(Sampled::grids).collect::<Vec<_>>()));
        let repeats = match visiting {
            Visiting::InOrder { .. } => false,
            Visiting::AsListed { repeats } | Visiting::Shuffled { repeats } => repeats,
        };
        let shares = repeats || groups.as_ref().is_none_or(Groups::share);
        let cut = |groups: Groups| match visiting {
            Visiting::Shuffled { .. } => cut(groups, options),
            _ => Ok(groups),
        };
        let groups = groups.filter(|_| shares).map(cut).transpose()?.map(Arc::new);
        let most = |cut: usize| sampled.iter().map(|sampled| sampled.group_bytes(cut)).max().unwrap_or(0);
        let every_sample_bytes = sampled.iter().map(Sampled::every_sample_bytes).fold(0, u64::saturating_add);
        let dimensions = domains.first().dimensions();
        let between = match (shares, visiting, &groups) {
            (false, ..) => ReusedBetween::None,
            // In order along one dimension only neighbouring batches share chunks.
            (true, Visiting::InOrder { batch_size }, Some(groups)) if dimensions == 1 => {
                let store_bytes = sampled.iter().map(Sampled::every_sample_bytes).max().unwrap_or(0);
                let groups = groups.clone();
                ReusedBetween::Neighbours { groups, group_bytes: most(1), store_bytes, batch_size }
            }
            (true, ..) => ReusedBetween::Any,
        };
        let all_bytes = sampled
            .iter()
            .map(|sampled| sampled.group_bytes(0))
            .fold(every_sample_bytes, u64::saturating_add);
        Ok(Self {
            group_bytes: (1..=dimensions).map(most).collect(),
            sample_bytes: sampled.iter().map(Sampled::sample_bytes).max().unwrap_or(0),
            groups,
            reuse: ChunkReuse { every_sample_bytes, all_bytes, between },
            stores: sampled.len(),
        })
    }

    /// How many of the bytes that a shuffle may have are for arrays that are the same for every sample: as many as these need;
    /// half, if each of several stores has its own.
    pub fn shuffle_reserve(&self, bytes: u64) -> u64 {
        let most = if self.stores > 1 { bytes / 2 } else { bytes };
        self.reuse.every_sample_bytes.min(most)
    }
}

/// Makes groups ready to be shuffled, if memory holds them.
fn cut(groups: Groups, options: &Options) -> Result<Groups> {
    let bytes = options.most_host_memory_bytes.saturating_add(Options::UNCOUNTED_HOST_BYTES);
    groups.cut(bytes / Groups::BYTES_PER_CELL).map_err(|groups| too_many_groups(groups, options))
}

/// The arrays that samples of a domain are taken along, and how their chunks lie.
struct Sampled<'a> {
    dataset: &'a Dataset,
    geometry: &'a [ArrayGeometry],
    domain: &'a Domain,
    /// The numbers of these arrays.
    numbers: Vec<usize>,
    /// Stores that are joined: parts of each of these arrays.
    parts: usize,
}

impl<'a> Sampled<'a> {
    fn new(dataset: &'a Dataset, geometry: &'a [ArrayGeometry], domain: &'a Domain) -> Self {
        let numbers: Vec<usize> =
            (0..geometry.len()).filter(|&number| geometry[number].follows_samples()).collect();
        let parts = numbers.first().map_or(0, |&number| geometry[number].parts.len());
        Self { dataset, geometry, domain, numbers, parts }
    }

    /// Extents of the read chunks of these parts along a sampled dimension.
    fn extents(&self, dimension: usize, parts: Range<usize>) -> Vec<u64> {
        let own = self.numbers.iter().filter_map(|&number| {
            let geometry = &self.geometry[number];
            Some((&geometry.parts[parts.clone()], geometry.dimension(dimension)?))
        });
        own.flat_map(|(parts, d)| parts.iter().map(move |part| part.read_chunk_shape[d])).collect()
    }

    /// The borders of chunks along each sampled dimension. Stores are joined along the first.
    fn grids(&self) -> Vec<Grid> {
        let grid = |dimension: usize| match (dimension, self.numbers.first()) {
            (0, Some(&number)) => {
                let starts = self.geometry[number].parts.iter().map(|part| part.start);
                Grid::new(starts.enumerate().map(|(part, start)| (start, self.extents(0, part..part + 1))))
            }
            _ => Grid::new([(0, self.extents(dimension, 0..self.parts))]),
        };
        (0..self.domain.windows.dimensions()).map(grid).collect()
    }

    /// Decoded bytes of the arrays that are the same for every sample.
    fn every_sample_bytes(&self) -> u64 {
        let same = (0..self.geometry.len()).filter(|&number| !self.geometry[number].follows_samples());
        same.map(|number| self.decoded_bytes(number, 0)).fold(0, u64::saturating_add)
    }

    /// Bytes of a sample, of the arrays that samples are taken from.
    fn sample_bytes(&self) -> u64 {
        let bytes = |&number: &usize| {
            let array = &self.geometry[number];
            let extents = array.sample_extents(&self.domain.windows);
            let size = self.dataset.part(number, array.first_part).stored.size_bytes() as u64;
            extents.iter().fold(size, |bytes, &extent| bytes.saturating_mul(extent))
        };
        self.numbers.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Decoded bytes of a group of samples: the chunks of all sampled arrays, cut along the first `cut` dimensions.
    fn group_bytes(&self, cut: usize) -> u64 {
        self.numbers.iter().map(|&number| self.decoded_bytes(number, cut)).fold(0, u64::saturating_add)
    }

    /// Decoded bytes of an array's chunks in a box: as large as the largest chunks along the first `cut` dimensions, and
    /// along the others all that any sample touches.
    fn decoded_bytes(&self, number: usize, cut: usize) -> u64 {
        let array = &self.geometry[number];
        // Samples do not differ in what is chosen.
        let runs = array.runs(&self.domain.windows, &self.domain.windows.places(0));
        let extent = |d: usize| match array.axes[d] {
            Some(axis) if axis < cut => self.extents(axis, 0..self.parts).into_iter().max().unwrap_or(1),
            Some(axis) => {
                let axis = &self.domain.windows.axes()[axis];
                axis.start(axis.count() - 1) + axis.span() - axis.start(0)
            }
            None => array.shape[d],
        };
        let of_part = |part: usize| {
            let chunk = &array.parts[part].read_chunk_shape;
            let along = |d: usize| match array.chosen[d] {
                Some(_) => count_cells(&runs[d], chunk[d]),
                None => extent(d).div_ceil(chunk[d]),
            };
            let chunks = (0..chunk.len()).map(along).fold(1, u64::saturating_mul);
            let chunk_bytes = self.dataset.part(number, array.first_part + part).read_chunk_bytes();
            chunks.saturating_mul(DevicePool::padded(chunk_bytes))
        };
        (0..array.parts.len()).map(of_part).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory_needs::tests::write_array;
    use super::super::setup::Setup;
    use crate::options::Arguments;

    #[test]
    fn samples_that_share_chunks_reuse_their_bytes() {
        /// Decoded bytes of a chunk in the pool.
        const CHUNK: u64 = 4096;
        let folder = tempfile::tempdir().unwrap();
        write_array(folder.path(), [64, 1000], [1, 1000], "");
        let reuse = |window: i64, batch_size: i64, random_shuffle: bool| {
            let arguments = Arguments {
                window: Some(vec![window]),
                batch_size,
                random_shuffle,
                ..Arguments::new(folder.path().to_str().unwrap())
            };
            Setup::new(&arguments).unwrap().reuse
        };
        let single = reuse(1, 8, false);
        assert_eq!((single.useful_bytes(5), single.every_sample_bytes, single.all_bytes), (0, 0, 64 * CHUNK));
        // One batch in flight and the next have two windows, which touch six chunks.
        assert_eq!(reuse(5, 1, false).useful_bytes(1), 6 * CHUNK);
        // Windows across the borders of three batches touch five chunks each.
        assert_eq!(reuse(5, 8, false).useful_bytes(1), 15 * CHUNK);
        assert_eq!(reuse(5, 8, false).useful_bytes(1000), 64 * CHUNK);
        assert_eq!(reuse(5, 8, true).useful_bytes(1), 64 * CHUNK);
        assert_eq!(reuse(1, 8, true).useful_bytes(1), 0);
    }
}
