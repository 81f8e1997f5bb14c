//! Finds a read chunk's bytes: the whole file of a chunk, or the range that the shard index gives.

use super::{Blob, Fetch};
use crate::dataset::{ArrayInfo, Sharding};
use crate::error::{Context, Error, Result};
use crate::memory;
use crate::plan::shard_index::ShardIndex;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use once_cell::sync::OnceCell;
use zarrs::array::{ArrayToBytesCodecTraits, CodecOptions, FillValue, data_type};

/// Where a read chunk's encoded bytes are.
pub enum Located {
    /// Nowhere: the chunk has no key, or no entry in its shard index.
    Missing,
    /// A range of a file.
    At {
        /// The file.
        blob: Arc<dyn Blob>,
        /// The range.
        range: Range<u64>,
    },
}

/// Finds read chunks; keeps the most recently opened sharded chunks with their indexes.
pub struct Locator {
    fetch: Arc<dyn Fetch>,
    /// Sharded chunks that are kept.
    most_open: usize,
    shards: Mutex<OpenShards>,
}

/// A sharded chunk that was opened, or `None` if it is missing.
type Shard = Option<OpenShard>;

struct OpenShard {
    blob: Arc<dyn Blob>,
    index: ShardIndex,
}

#[derive(Default)]
struct OpenShards {
    known: HashMap<ShardKey, Arc<OnceCell<Shard>>>,
    oldest_first: VecDeque<ShardKey>,
    /// Those whose indexes were announced and that nobody has opened since.
    prefetched: HashSet<ShardKey>,
}

/// Array and part of the dataset, and coordinates in the part's chunk grid.
type ShardKey = ((usize, usize), Vec<u64>);

impl OpenShards {
    /// Whether a shard's index is to be announced, which is noted.
    fn notes_index(&mut self, key: ShardKey) -> bool {
        if self.known.contains_key(&key) {
            return false;
        }
        // Some are never opened, as when an epoch is left. Announcing one twice costs little.
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
    /// Sharded chunks that are remembered from their announcement until they are opened, about as many as are
    /// announced ahead.
    const PREFETCHED_INDEXES: usize = 1024;

    /// A locator over a backend, which keeps as many indexes of at most `index_bytes` bytes as have room in `bytes` bytes.
    pub fn new(fetch: Arc<dyn Fetch>, index_bytes: u64, bytes: u64) -> Self {
        let most_open = (bytes / index_bytes.max(1)).clamp(1, Self::OPEN_SHARDS as u64) as usize;
        Self { fetch, most_open, shards: Mutex::default() }
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
        let Some(sharding) = &array.sharding else {
            let mut at = array.chunk_context(cell);
            return Ok(match self.open(array, &at)? {
                None => (Located::Missing, at),
                Some(blob) => {
                    let range = 0..blob.len();
                    at.byte_range = Some(range.clone());
                    (Located::At { blob, range }, at)
                }
            });
        };
        let grid = &sharding.inner_grid;
        let chunk = sharding.chunk_of(cell);
        let inner: Vec<u64> = cell.iter().zip(grid).map(|(cell, n)| cell % n).collect();
        let at = array.chunk_context(&chunk);
        let shard = self.shard(number, &chunk);
        let shard = shard.get_or_try_init(|| self.open_shard(array, sharding, &at))?;
        let inner_number = inner.iter().zip(grid).fold(0, |number, (i, n)| number * n + i);
        let mut at = Context { inner_chunk: Some(inner), ..at };
        let found = shard.as_ref().and_then(|shard| Some((shard, shard.index.range(inner_number)?)));
        Ok(match found {
            None => (Located::Missing, at),
            Some((shard, range)) => {
                at.byte_range = Some(range.clone());
                (Located::At { blob: shard.blob.clone(), range }, at)
            }
        })
    }

    /// Announces the index that will say where this read chunk is, if it is in a shard that nobody has opened.
    pub fn prefetch_index(&self, number: (usize, usize), array: &ArrayInfo, cell: &[u64]) {
        let Some(sharding) = &array.sharding else { return };
        let chunk = sharding.chunk_of(cell);
        if !self.lock().notes_index((number, chunk.clone())) {
            return;
        }
        // What is wrong is said when it is opened.
        if let Ok(Some(blob)) = self.open(array, &array.chunk_context(&chunk))
            && let Some(range) = sharding.index_range(blob.len())
        {
            blob.will_need(range);
        }
    }

    fn open(&self, array: &ArrayInfo, at: &Context) -> Result<Option<Arc<dyn Blob>>> {
        let key = at.key.as_deref().unwrap_or_default();
        self.fetch.open(&array.folder, key).map_err(|source| Error::Io { at: at.clone(), source })
    }

    /// The place of a sharded chunk among the open ones; its first user opens it while the others wait.
    fn shard(&self, array: (usize, usize), chunk: &[u64]) -> Arc<OnceCell<Shard>> {
        let key = (array, chunk.to_vec());
        let mut shards = self.lock();
        if let Some(known) = shards.known.get(&key) {
            return known.clone();
        }
        if shards.oldest_first.len() == self.most_open
            && let Some(oldest) = shards.oldest_first.pop_front()
        {
            shards.known.remove(&oldest);
        }
        // The next epoch announces it again, if it is not open by then.
        shards.prefetched.remove(&key);
        shards.oldest_first.push_back(key.clone());
        shards.known.entry(key).or_default().clone()
    }

    fn lock(&self) -> MutexGuard<'_, OpenShards> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_shard(&self, array: &ArrayInfo, sharding: &Sharding, at: &Context) -> Result<Shard> {
        let Some(blob) = self.open(array, at)? else { return Ok(None) };
        let size = sharding.index_bytes;
        let Some(range) = sharding.index_range(blob.len()) else {
            let problem = format!("needs {size} bytes, but the file has {}", blob.len());
            return Err(Error::ShardIndex { at: at.clone(), problem });
        };
        let at = Context { byte_range: Some(range.clone()), ..at.clone() };
        let mut encoded =
            memory::zeroed(size).map_err(|refused| Error::Memory { at: at.clone(), bytes: refused.bytes })?;
        blob.read_at(range.start, &mut encoded).map_err(|source| Error::Io { at: at.clone(), source })?;
        let index = decode_index(sharding, encoded, blob.len())
            .map_err(|problem| Error::ShardIndex { at, problem })?;
        Ok(Some(OpenShard { blob, index }))
    }
}

fn decode_index(sharding: &Sharding, encoded: Vec<u8>, file_bytes: u64) -> Result<ShardIndex, String> {
    let refused = |error: &dyn std::fmt::Display| format!("cannot be decoded ({error})");
    let mut shape: Vec<_> =
        sharding.inner_grid.iter().filter_map(|&n| std::num::NonZeroU64::new(n)).collect();
    shape.extend(std::num::NonZeroU64::new(2));
    let decoded = sharding
        .index_codecs
        .decode(
            encoded.into(),
            &shape,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
            &CodecOptions::default(),
        )
        .map_err(|e| refused(&e))?
        .into_fixed()
        .map_err(|e| refused(&e))?;
    let mut entries = vec![];
    memory::reserve(&mut entries, decoded.len() as u64 / 8)?;
    entries.extend(decoded.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)));
    ShardIndex::new(entries, sharding.inner_chunks(), file_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::store::Folder;

    use std::io;

    type Ranges = Vec<(String, Range<u64>)>;

    /// Files of 1000 zeros, apart from one that is missing, and what was announced of which.
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
        let dataset = Dataset::open(&[folder.path().to_str().unwrap().into()], &[], true).unwrap();
        (dataset, folder)
    }

    /// Where the index of a sharded chunk is: 4 entries of 16 bytes, and a checksum.
    fn index(shard: u64) -> (String, Range<u64>) {
        (format!("c/{shard}/0"), 1000 - 68..1000)
    }

    #[test]
    fn the_index_of_each_shard_that_nobody_has_opened_is_announced_once() {
        let (dataset, _folder) = sharded();
        let array = dataset.part(0, 0);
        let zeros = Zeros::default();
        let locator = Locator::new(Arc::new(zeros.clone()), 64, 1 << 20);
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
    fn each_epoch_announces_the_indexes_of_the_shards_that_are_not_open_any_more() {
        let (dataset, _folder) = sharded();
        let array = dataset.part(0, 0);
        let zeros = Zeros::default();
        let locator = Locator::new(Arc::new(zeros.clone()), 64, 1 << 20);
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
