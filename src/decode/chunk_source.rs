//! Finds the encoded bytes of chunks, and prefetches the bytes of chunks that will be read soon.

use super::chunk::Chunk;
use super::prefetch::{self, Prefetcher};
use crate::codec;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Context, Error, Result};
use crate::fetch::{self, Encoded, Locator, Wanted};
use crate::options::MissingChunks;
use crate::stats::Counters;

use std::sync::Arc;

/// Finds and prefetches the encoded bytes of the chunks of a reader.
pub struct ChunkSource {
    /// The arrays.
    pub dataset: Arc<Dataset>,
    /// Finds chunks in files.
    pub locator: Locator,
    /// Fetches chunks that are not in files of this machine.
    pub remote: Option<Arc<fetch::Remote<Arc<Chunk>>>>,
    /// Knows which chunks will be read.
    pub prefetcher: Arc<Prefetcher>,
    /// What a missing chunk means.
    pub missing_chunks: MissingChunks,
    /// The host memory that the reader may use. An encoded chunk without another bound is no longer than that.
    pub host_memory_bytes: u64,
    /// The counters of the reader.
    pub counters: Arc<Counters>,
}

impl ChunkSource {
    /// The array of a chunk.
    pub fn array(&self, chunk: &Chunk) -> &ArrayInfo {
        self.dataset.part(chunk.key.array, chunk.key.part)
    }

    /// Finds the encoded bytes of a chunk, and the chunk as the place of later errors. `None` for a missing chunk that stands for
    /// the fill value.
    ///
    /// # Errors
    /// Files that cannot be opened, shard indexes that cannot be right, a store that changed, and missing chunks if these are an
    /// error.
    pub fn find(&self, chunk: &Chunk) -> Result<(Option<Encoded>, Context)> {
        let (located, at) = match chunk.take_location() {
            Some(location) => location,
            None => self.locate(chunk)?,
        };
        match located {
            Some(encoded) => {
                if !self.prefetcher.is_active() && !encoded.blob().is_cached(encoded.range()) {
                    self.prefetcher.observe(false);
                }
                if encoded.blob().is_in_disk_cache() {
                    chunk.set_cache_entry(Some(encoded.clone()));
                }
                self.counters.chunks_read.add(1);
                self.counters.bytes_read.add(encoded.bytes());
                Ok((Some(encoded), at))
            }
            None if self.missing_chunks != MissingChunks::Error => {
                self.counters.chunks_missing.add(1);
                // A chunk may be absent because the whole store is gone. The store is checked here for the first missing chunk of
                // a batch, and for all of them when the batch is handed over.
                if chunk.note_absent() {
                    self.array(chunk).check_present()?;
                }
                Ok((None, at))
            }
            None => {
                self.array(chunk).check_present()?;
                Err(Error::MissingChunk { at })
            }
        }
    }

    /// Fetches a chunk from its store that could not be read or decoded out of the disk cache.
    ///
    /// # Errors
    /// The error that it is given, if it is not about bytes out of the disk cache.
    pub fn fetch_again(&self, chunk: &Arc<Chunk>, error: Error) -> Result<()> {
        let is_about_bytes = matches!(error, Error::Io { .. } | Error::Damaged { .. } | Error::Decode { .. });
        let (Some(entry), Some(remote), true) = (chunk.set_cache_entry(None), &self.remote, is_about_bytes)
        else {
            return Err(error);
        };
        entry.blob().discard();
        chunk.put_back();
        let (part, cell) = (chunk.part(), chunk.read_chunk.clone());
        remote.fetch_again(Wanted { chunk: chunk.clone(), part, cell });
        Ok(())
    }

    /// Prefetches chunks that will be read soon, if the store is not in the page cache.
    pub fn prefetch(&self) {
        for chunk in self.prefetcher.next_indexes() {
            self.locator.prefetch_index(chunk.part(), self.array(&chunk), &chunk.read_chunk);
        }
        let mut ranges = vec![];
        self.prefetcher.prefetch(|chunk| {
            // An error comes back when the chunk is read.
            let fetched = chunk.location();
            let is_fetched = fetched.is_some();
            let found = fetched.map_or_else(|| self.locate(chunk), Ok);
            let Ok((Some(encoded), at)) = found else { return None };
            if is_fetched && !encoded.blob().is_in_disk_cache() {
                // It is in memory.
                return None;
            }
            let (blob, range) = (encoded.blob(), encoded.range());
            let cached = blob.is_cached(range);
            self.prefetcher.observe(cached);
            if cached {
                return None;
            }
            let bytes = encoded.bytes();
            self.counters.chunks_prefetched.add(1);
            let may_stay_open = blob.may_stay_open();
            // A file that others have open, as a shard, is kept open anyway.
            if may_stay_open || Arc::strong_count(blob) > 1 {
                ranges.push(encoded.clone());
            } else {
                blob.will_need(range.clone());
            }
            if may_stay_open && !is_fetched {
                chunk.keep_location((Some(encoded), at));
            }
            Some(bytes)
        });
        for joined in prefetch::joined(ranges) {
            joined.blob().will_need(joined.range().clone());
        }
    }

    /// The longest encoded chunk of an array that is read, in bytes.
    pub fn most_encoded_bytes(&self, array: &ArrayInfo) -> u64 {
        array.codec.encoded_bound.map_or(self.host_memory_bytes, codec::lenient_bound)
    }

    fn locate(&self, chunk: &Chunk) -> Result<(Option<Encoded>, Context)> {
        let (located, at) = self.locator.locate(chunk.part(), self.array(chunk), &chunk.read_chunk)?;
        Ok((Encoded::located(located), at))
    }
}
