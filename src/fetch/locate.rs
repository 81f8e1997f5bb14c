//! Finds the bytes of read chunks in files of this machine: the whole file of a chunk, or the range that the shard index gives.

use super::resolve::{Address, InShard, decode_index, resolve, too_small};
use super::{Blob, Fetch};
use crate::dataset::{ArrayInfo, Sharding};
use crate::error::{Context, Error, Result};
use crate::memory;
use crate::plan::shard_index::ShardIndex;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use once_cell::sync::OnceCell;

/// Where a read chunk's encoded bytes are.
#[derive(Clone)]
pub enum Located {
    /// Nowhere: the chunk has no key, or no entry in its shard index.
    Missing,
    /// A range of an object.
    At {
        /// The object.
        blob: Arc<dyn Blob>,
        /// The range.
        range: Range<u64>,
    },
}

/// Finds read chunks; keeps the sharded chunks that were used last open, with their indexes.
pub struct Locator {
    fetch: Arc<dyn Fetch>,
    shards: Mutex<OpenShards>,
}

/// A sharded chunk that was opened, or `None` if it is missing.
type Shard = Option<OpenShard>;

struct OpenShard {
    blob: Arc<dyn Blob>,
    index: ShardIndex,
}

struct OpenShards {
    opened: LruCache<ShardKey, Arc<OnceCell<Shard>>>,
    /// Sharded chunks whose indexes were prefetched and that no thread has opened since.
    prefetched: HashSet<ShardKey>,
}

/// Array and part of the dataset, and coordinates in the part's chunk grid.
pub type ShardKey = ((usize, usize), Vec<u64>);

impl OpenShards {
    /// Whether the index of a sharded chunk is to be prefetched, which is noted.
    fn note_prefetch(&mut self, key: ShardKey) -> bool {
        if self.opened.contains(&key) {
            return false;
        }
        // Some are never opened, as when an epoch is left. Prefetching an index twice costs little.
        if self.prefetched.len() == Locator::PREFETCHED_INDEXES {
            self.prefetched.clear();
        }
        self.prefetched.insert(key)
    }
}

impl Locator {
    /// Open sharded chunks that are kept, each with a file handle. Batches touch neighbouring chunks, so that a
    /// few dozen suffice; the usual limit on open files is 1024.
    const OPEN_SHARDS: usize = 128;
    /// Sharded chunks that are remembered from the prefetch of their index until they are opened, about as many as are
    /// prefetched ahead.
    const PREFETCHED_INDEXES: usize = 1024;

    /// A locator over a backend, which keeps `kept_indexes` indexes of sharded chunks, but no more than files may well be open.
    pub fn new(fetch: Arc<dyn Fetch>, kept_indexes: NonZeroUsize) -> Self {
        let most = const { NonZeroUsize::new(Self::OPEN_SHARDS).unwrap() };
        let opened = LruCache::new(kept_indexes.min(most));
        Self { fetch, shards: Mutex::new(OpenShards { opened, prefetched: HashSet::new() }) }
    }

    /// Finds the read chunk at `cell` of the read-chunk grid of `array`, which is that array and part of the dataset.
    /// The context names the chunk for errors that come later.
    ///
    /// # Errors
    /// Files that cannot be opened and shard indexes that cannot be right.
    pub fn locate(
        &self,
        number: (usize, usize),
        array: &ArrayInfo,
        cell: &[u64],
    ) -> Result<(Located, Context)> {
        let address = resolve(array, cell);
        let (Some(sharding), Some(in_shard)) = (&array.sharding, &address.in_shard) else {
            return Ok(match self.open(array, &address)? {
                None => (Located::Missing, address.at),
                Some(blob) => {
                    let range = 0..blob.len();
                    (Located::At { blob, range: range.clone() }, address.with_range(range))
                }
            });
        };
        let shard = self.shard(number, in_shard);
        let shard = shard.get_or_try_init(|| self.open_shard(array, sharding, &address))?;
        let found = shard.as_ref().and_then(|shard| Some((shard, shard.index.range(in_shard.number)?)));
        Ok(match found {
            None => (Located::Missing, address.at),
            Some((shard, range)) => {
                let blob = shard.blob.clone();
                (Located::At { blob, range: range.clone() }, address.with_range(range))
            }
        })
    }

    /// Prefetches the index that will say where this read chunk is, if it is in a sharded chunk that no thread has opened.
    pub fn prefetch_index(&self, number: (usize, usize), array: &ArrayInfo, cell: &[u64]) {
        let Some(sharding) = array.sharding.as_ref().filter(|_| array.objects.folder().is_some()) else {
            return;
        };
        if !self.lock().note_prefetch((number, sharding.chunk_of(cell))) {
            return;
        }
        let address = resolve(array, cell);
        // What is wrong is said when the sharded chunk is opened.
        if let Ok(Some(blob)) = self.open(array, &address)
            && let Some(range) = sharding.index_range(blob.len())
        {
            blob.will_need(range);
        }
    }

    fn open(&self, array: &ArrayInfo, address: &Address) -> Result<Option<Arc<dyn Blob>>> {
        let Some(folder) = array.objects.folder() else {
            let message = format!("{} is in no folder, and was not fetched before", address.at);
            return Err(Error::Panic { place: "a worker".into(), message });
        };
        let opened = self.fetch.open(folder, address.key());
        opened.map_err(|source| Error::Io { at: address.of_object(), source })
    }

    /// The entry of a sharded chunk among the open ones; the thread that gets it first opens the chunk while the others wait.
    fn shard(&self, array: (usize, usize), in_shard: &InShard) -> Arc<OnceCell<Shard>> {
        let key = (array, in_shard.shard.clone());
        let mut shards = self.lock();
        if let Some(opened) = shards.opened.get(&key) {
            return opened.clone();
        }
        // The next epoch prefetches the index again, if the chunk is not open by then.
        shards.prefetched.remove(&key);
        shards.opened.get_or_insert(key, Arc::default).clone()
    }

    fn lock(&self) -> MutexGuard<'_, OpenShards> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_shard(&self, array: &ArrayInfo, sharding: &Sharding, address: &Address) -> Result<Shard> {
        let Some(blob) = self.open(array, address)? else { return Ok(None) };
        let at = address.of_object();
        let Some(range) = sharding.index_range(blob.len()) else {
            return Err(Error::ShardIndex { at, problem: too_small(sharding, blob.len()) });
        };
        let at = Context { byte_range: Some(range.clone()), ..at };
        let mut encoded = memory::zeroed(sharding.index_bytes)
            .map_err(|refused| Error::Memory { at: at.clone(), bytes: refused.bytes })?;
        blob.read_at(range.start, &mut encoded).map_err(|source| Error::Io { at: at.clone(), source })?;
        let index = decode_index(sharding, encoded, blob.len(), &at)?;
        Ok(Some(OpenShard { blob, index }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::store::{Access, Folder};

    use std::io;

    type Ranges = Vec<(String, Range<u64>)>;

    /// Files of 1000 zeros, apart from one that is missing, and what was prefetched of which.
    #[derive(Clone, Default)]
    struct Zeros(Arc<Mutex<Ranges>>);

    struct Zero(String, Zeros);

    impl Fetch for Zeros {
        fn open(&self, _folder: &Folder, key: &str) -> io::Result<Option<Arc<dyn Blob>>> {
            Ok((key != "c/2/0").then(|| Arc::new(Zero(key.into(), self.clone())) as Arc<dyn Blob>))
        }
    }

    impl Blob for Zero {
        fn len(&self) -> u64 {
            1000
        }
        fn version(&self) -> u64 {
            0
        }
        fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
            into.fill(0);
            Ok(())
        }
        fn check_unchanged(&self) -> io::Result<()> {
            Ok(())
        }
        fn will_need(&self, range: Range<u64>) {
            self.1.0.lock().unwrap().push((self.0.clone(), range));
        }
    }

    /// A dataset of 2000 sharded chunks of 2 x 2 inner ones, and where its files are.
    fn sharded() -> (Dataset, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let metadata = r#"{"zarr_format": 3, "node_type": "array", "shape": [4000, 8], "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 8]}}, "fill_value": 0,
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [1, 4], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}]}"#;
        std::fs::write(folder.path().join("zarr.json"), metadata).unwrap();
        let dataset =
            Dataset::open(&[folder.path().to_str().unwrap().into()], &[], &Access::to_folders(true)).unwrap();
        (dataset, folder)
    }

    /// Where the index of a sharded chunk is: 4 entries of 16 bytes, and a checksum.
    fn index(shard: u64) -> (String, Range<u64>) {
        (format!("c/{shard}/0"), 1000 - 68..1000)
    }

    #[test]
    fn the_index_of_each_shard_that_nobody_has_opened_is_prefetched_once() {
        let (dataset, _folder) = sharded();
        let array = dataset.part(0, 0);
        let zeros = Zeros::default();
        let locator = Locator::new(Arc::new(zeros.clone()), NonZeroUsize::MAX);
        let prefetched = |cells: &[[u64; 2]]| {
            cells.iter().for_each(|cell| locator.prefetch_index((0, 0), array, cell));
            std::mem::take(&mut *zeros.0.lock().unwrap())
        };
        assert_eq!(prefetched(&[[0, 0], [0, 1], [1, 0], [2, 1], [3, 0], [1, 1]]), [index(0), index(1)]);
        // It is missing.
        assert_eq!(prefetched(&[[4, 0]]), []);
        // Zeros are no index; whoever opens it says so.
        assert!(locator.locate((0, 0), array, &[6, 0]).is_err());
        assert_eq!(prefetched(&[[6, 0]]), []);
        // Many later they are forgotten.
        let last = 4 + Locator::PREFETCHED_INDEXES as u64;
        let many: Vec<_> = (4..=last).map(|shard| [2 * shard, 0]).collect();
        assert_eq!(prefetched(&many).len(), many.len());
        assert_eq!(prefetched(&[[0, 0], [2 * last, 0]]), [index(0)]);
    }

    #[test]
    fn each_epoch_prefetches_the_indexes_of_the_shards_that_are_not_open_any_more() {
        let (dataset, _folder) = sharded();
        let array = dataset.part(0, 0);
        let zeros = Zeros::default();
        let locator = Locator::new(Arc::new(zeros.clone()), NonZeroUsize::MAX);
        let shards = 3..4 + Locator::OPEN_SHARDS as u64;
        for epoch in 0..3 {
            for shard in shards.clone() {
                locator.prefetch_index((0, 0), array, &[2 * shard, 0]);
                // Zeros are no index, but whoever opens it takes a place among the open ones.
                assert!(locator.locate((0, 0), array, &[2 * shard, 0]).is_err());
            }
            let prefetched = std::mem::take(&mut *zeros.0.lock().unwrap());
            assert_eq!(prefetched, shards.clone().map(index).collect::<Vec<_>>(), "epoch {epoch}");
        }
    }
}
