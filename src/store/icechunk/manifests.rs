//! Manifests: where the chunks of arrays are. Each is read once, made a table, and kept as long as there is room.

use super::super::contract::Store;
use super::files::{self, damaged, guarded, manifest_key};

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use icechunk_format::manifest::{Checksum, ChunkPayload, Manifest, VirtualChunkRef};
use icechunk_format::snapshot::ManifestFileInfo;
use icechunk_format::{ChunkId, IcechunkFormatError, ManifestId, NodeId};
use lru::LruCache;
use tokio::sync::{OnceCell, Semaphore};

/// Where the bytes of a chunk are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// In the manifest.
    Inline(Bytes),
    /// In an object of the repository.
    Native(ChunkId, Range<u64>),
    /// In an object that lies elsewhere.
    Virtual(Arc<Elsewhere>, Range<u64>),
}

impl Chunk {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Native(_, piece) | Self::Virtual(_, piece) => piece.end - piece.start,
        }
    }
}

/// An object that is not in the repository.
#[derive(Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// A URL, or `vcc://NAME/PATH` below the URL that the repository's configuration has under a name.
    pub location: String,
    /// What it had when the chunk was written, if that is known.
    pub checksum: Option<Checksum>,
}

/// The chunks that one manifest names.
#[derive(Debug, Default)]
pub struct Table {
    arrays: HashMap<NodeId, Chunks>,
    /// What it takes.
    bytes: u64,
}

/// The chunks of one array that a manifest names.
#[derive(Debug, Default)]
struct Chunks {
    dimensions: usize,
    /// Coordinates of all chunks, one behind the other, sorted.
    coordinates: Vec<u32>,
    chunks: Vec<Chunk>,
}

impl Table {
    /// The largest table that is made, in bytes: 20 million chunks of three dimensions, of which each takes 52 bytes.
    const MOST_BYTES: u64 = 1 << 30;

    /// The chunks of a manifest, of which there are `expected`.
    ///
    /// # Errors
    /// What is wrong with the manifest.
    pub fn new(manifest: Manifest, expected: u64) -> io::Result<Self> {
        let key = manifest_key(&manifest.id());
        let manifest = Arc::new(manifest);
        let (mut table, mut found) = (Self::default(), 0);
        let made = guarded(&key, || {
            let nodes: Vec<NodeId> = manifest.arrays().collect();
            for node in nodes {
                let mut chunks = Chunks::default();
                let mut elsewhere = HashMap::new();
                for chunk in manifest.clone().iter(node.clone())? {
                    let (coordinates, payload) = chunk?;
                    found += 1;
                    let chunk = match chunk_of(payload, &mut elsewhere, &mut table.bytes) {
                        Ok(chunk) => chunk,
                        Err(problem) => return Ok(Err(problem)),
                    };
                    if let Err(problem) = chunks.push(&coordinates.0, chunk) {
                        return Ok(Err(problem));
                    }
                    table.bytes += (size_of_val(&coordinates.0[..]) + size_of::<Chunk>()) as u64;
                    if table.bytes > Self::MOST_BYTES {
                        return Ok(Err(
                            "it names too many chunks, write it again in several (Icechunk's ManifestSplittingConfig)",
                        ));
                    }
                }
                if table.arrays.insert(node, chunks).is_some() {
                    return Ok(Err("it has an array twice"));
                }
            }
            Ok::<_, IcechunkFormatError>(Ok(()))
        });
        made?.map_err(|problem| damaged(&key, problem))?;
        match found == expected {
            true => Ok(table),
            false => {
                Err(damaged(&key, &format!("it names {found} chunks, and the snapshot says {expected}")))
            }
        }
    }

    /// Where a chunk of an array is. `None` if the manifest, which names chunks of the array, does not name this one.
    ///
    /// # Errors
    /// A manifest of other arrays, or of an array of another number of dimensions.
    pub fn chunk(&self, node: &NodeId, coordinates: &[u32]) -> Result<Option<Chunk>, &'static str> {
        let Some(chunks) = self.arrays.get(node) else { return Err("it names no chunk of the array") };
        if coordinates.len() != chunks.dimensions {
            return Err("its chunks have another number of dimensions than the array");
        }
        let (mut begin, mut end) = (0, chunks.chunks.len());
        while begin < end {
            let middle = begin + (end - begin) / 2;
            match chunks.coordinates(middle).cmp(coordinates) {
                std::cmp::Ordering::Less => begin = middle + 1,
                std::cmp::Ordering::Equal => return Ok(chunks.chunks.get(middle).cloned()),
                std::cmp::Ordering::Greater => end = middle,
            }
        }
        Ok(None)
    }
}

impl Chunks {
    fn coordinates(&self, number: usize) -> &[u32] {
        &self.coordinates[number * self.dimensions..][..self.dimensions]
    }

    /// Adds a chunk behind those that are there.
    fn push(&mut self, coordinates: &[u32], chunk: Chunk) -> Result<(), &'static str> {
        if let Some(last) = self.chunks.len().checked_sub(1)
            && (coordinates.len() != self.dimensions || self.coordinates(last) >= coordinates)
        {
            return Err("its chunks are not in order");
        }
        self.dimensions = coordinates.len();
        self.coordinates.extend_from_slice(coordinates);
        self.chunks.push(chunk);
        Ok(())
    }
}

/// A chunk as a manifest has it. Chunks of the same object share its URL. Adds what is not in the chunk itself to `bytes`.
fn chunk_of(
    payload: ChunkPayload,
    elsewhere: &mut HashMap<(String, Option<Checksum>), Arc<Elsewhere>>,
    bytes: &mut u64,
) -> Result<Chunk, &'static str> {
    let range = |offset: u64, length: u64| {
        let end = offset.checked_add(length);
        end.map(|end| offset..end).ok_or("a chunk ends behind all that can be")
    };
    Ok(match payload {
        ChunkPayload::Inline(inline) => {
            *bytes += inline.len() as u64;
            Chunk::Inline(inline)
        }
        ChunkPayload::Ref(chunk) => Chunk::Native(chunk.id, range(chunk.offset, chunk.length)?),
        ChunkPayload::Virtual(VirtualChunkRef { location, offset, length, checksum }) => {
            let object = match elsewhere.entry((location.url().to_string(), checksum)) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(new) => {
                    let (location, checksum) = new.key().clone();
                    *bytes += (location.len() + size_of::<Elsewhere>()) as u64;
                    new.insert(Arc::new(Elsewhere { location, checksum })).clone()
                }
            };
            Chunk::Virtual(object, range(offset, length)?)
        }
        _ => return Err("it has a kind of chunk that is not known; update zarr-dali"),
    })
}

/// The manifests that were used last.
pub struct Manifests {
    kept: Mutex<Kept>,
    /// How much is read at once.
    permits: Semaphore,
}

struct Kept {
    tables: LruCache<ManifestId, Arc<OnceCell<Arc<Table>>>>,
    /// Of all tables that are there.
    bytes: u64,
}

impl Default for Manifests {
    fn default() -> Self {
        let kept = Kept { tables: LruCache::unbounded(), bytes: 0 };
        Self { kept: Mutex::new(kept), permits: Semaphore::new(Self::PERMITS as usize) }
    }
}

impl Manifests {
    /// The most bytes of tables that are kept; one is kept whatever its size. Manifests are needed again and again, and each costs a request and its decoding.
    const KEPT_BYTES: u64 = 512 << 20;
    /// A manifest that is read takes one of these for each [`Self::PERMIT_BYTES`] bytes of its file, a large one all.
    const PERMITS: u32 = 32;
    const PERMIT_BYTES: u64 = 4 << 20;

    /// The table of a manifest, which is read unless it is known. Requests for the same one wait for each other.
    ///
    /// # Errors
    /// What the store says, or what is wrong with the manifest.
    pub async fn table(&self, store: &dyn Store, info: &ManifestFileInfo) -> io::Result<Arc<Table>> {
        let cell = self.lock().tables.get_or_insert(info.id.clone(), Arc::default).clone();
        let read = async {
            let permits = u32::try_from(info.size_bytes / Self::PERMIT_BYTES).unwrap_or(u32::MAX);
            let permits = permits.saturating_add(1).min(Self::PERMITS);
            let _permit = self.permits.acquire_many(permits).await.map_err(io::Error::other)?;
            let table = Table::new(files::manifest(store, info).await?, info.num_chunk_refs.into())?;
            self.lock().keep(&info.id, &cell, table.bytes);
            Ok::<_, io::Error>(Arc::new(table))
        };
        cell.get_or_try_init(|| read).await.cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Counts a table that was made, and removes those that were used longest ago to make room.
    fn keep(&mut self, id: &ManifestId, cell: &Arc<OnceCell<Arc<Table>>>, bytes: u64) {
        // What was removed while it was read belongs to those who wait for it.
        if !self.tables.get(id).is_some_and(|kept| Arc::ptr_eq(kept, cell)) {
            return;
        }
        self.bytes += bytes;
        while self.bytes > Manifests::KEPT_BYTES
            && self.tables.peek_lru().is_some_and(|(oldest, _)| oldest != id)
            && let Some((_, removed)) = self.tables.pop_lru()
        {
            self.bytes -= removed.get().map_or(0, |table| table.bytes);
        }
    }
}
