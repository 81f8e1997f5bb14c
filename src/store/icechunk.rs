//! A repository of Icechunk as a store: the groups and arrays of one snapshot, on this machine or at a URL.
//!
//! The snapshot is looked up when the first object is asked for, and stays the same from then on, whatever is committed meanwhile. It has all
//! metadata. Chunks are found in manifests: their bytes are in the manifest, in an object of the repository, or somewhere else.
//!
//! Source: Icechunk's specification, <https://icechunk.io/en/stable/reference/spec/>, versions 1 and 2 of the format.

mod files;
mod manifests;
mod reference;
mod snapshot;

use super::connections::Connections;
use super::contract::{Body, Extent, Head, Listing, Store, Version};
use crate::error::{Obstacle, Result};
use files::{absent, damaged, manifest_key, refused};
use manifests::{Chunk, Manifests};
use reference::{Reference, parse};
use snapshot::{Opened, chunk_of};

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use icechunk_format::format_constants::ICECHUNK_FORMAT_MAGIC_BYTES;
use icechunk_format::{CHUNKS_FILE_PATH, REPO_INFO_FILE_PATH, SNAPSHOTS_FILE_PATH, V1_REFS_FILE_PATH};
use tokio::sync::OnceCell;

pub use reference::{pinned, split};

/// The groups and arrays of a snapshot.
#[derive(Clone)]
pub struct IcechunkStore {
    /// What holds the repository.
    store: Arc<dyn Store>,
    reference: Reference,
    /// Path of what is read in the snapshot; empty, or with a leading slash.
    prefix: String,
    shared: Arc<Shared>,
}

/// What all connected stores know.
#[derive(Debug, Default)]
struct Shared {
    opened: OnceCell<Opened>,
    manifests: Manifests,
}

impl fmt::Debug for IcechunkStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}|icechunk:{:?}{}", self.store, self.reference, self.prefix)
    }
}

/// What a key names.
enum Object {
    Metadata(Bytes),
    Chunk(Chunk),
}

impl Object {
    fn bytes(&self) -> u64 {
        match self {
            Self::Metadata(bytes) | Self::Chunk(Chunk::Inline(bytes)) => bytes.len() as u64,
            Self::Chunk(Chunk::Native(_, range) | Chunk::Virtual(_, range)) => range.end - range.start,
        }
    }
}

/// Whether a folder of this machine is a repository.
pub fn is_repository(folder: &Path) -> bool {
    use std::io::Read;
    let mut begin = vec![];
    let info = folder.join(REPO_INFO_FILE_PATH);
    if info.is_file() {
        let most = ICECHUNK_FORMAT_MAGIC_BYTES.len() as u64;
        let read = std::fs::File::open(info).and_then(|file| file.take(most).read_to_end(&mut begin));
        return read.is_ok() && begin == ICECHUNK_FORMAT_MAGIC_BYTES;
    }
    folder.join(V1_REFS_FILE_PATH).join("branch.main").is_dir() && folder.join(SNAPSHOTS_FILE_PATH).is_dir()
}

impl IcechunkStore {
    /// What `inner` (`@branch.NAME/PATH` and so on) names in the repository that a store is.
    ///
    /// # Errors
    /// What `inner` names no snapshot with.
    pub fn new(store: Arc<dyn Store>, inner: &str) -> Result<Self> {
        let (reference, within) = parse(inner)?;
        let prefix = if within.is_empty() { within } else { format!("/{within}") };
        Ok(Self { store, reference, prefix, shared: Arc::default() })
    }

    async fn opened(&self) -> io::Result<&Opened> {
        self.shared.opened.get_or_try_init(|| Opened::new(&*self.store, &self.reference)).await
    }

    /// The path in the snapshot of a path in the store.
    fn path(&self, within: &str) -> String {
        match (self.prefix.as_str(), within) {
            ("", within) => format!("/{within}"),
            (prefix, "") => prefix.into(),
            (prefix, within) => format!("{prefix}/{within}"),
        }
    }

    /// What a key names. `None` if the snapshot has no such object.
    async fn find(&self, key: &str) -> io::Result<Option<Object>> {
        let opened = self.opened().await?;
        let (within, name) = key.rsplit_once('/').unwrap_or(("", key));
        match name {
            "zarr.json" => return Ok(opened.metadata(&self.path(within))?.map(Object::Metadata)),
            // Of format 2 of Zarr.
            ".zarray" | ".zgroup" | ".zattrs" | ".zmetadata" => return Ok(None),
            _ => {}
        }
        let Some((within, coordinates)) = chunk_of(key) else {
            return Err(refused(
                format!("\"{key}\" is no key of a chunk"),
                "write the array again with the default chunk key encoding and its separator \"/\", which is the only one that Icechunk has",
            ));
        };
        let Some(array) = opened.array(&self.path(within))? else { return Ok(None) };
        for id in array.covering(&coordinates) {
            let table = self.shared.manifests.table(&*self.store, &opened.manifest(id)?).await?;
            let chunk = table.chunk(&array.node, &coordinates);
            if let Some(chunk) = chunk.map_err(|problem| damaged(&manifest_key(id), problem))? {
                return Ok(Some(Object::Chunk(chunk)));
            }
        }
        Ok(None)
    }

    async fn head_of(&self, object: &Object) -> io::Result<Head> {
        let version = match object {
            Object::Metadata(_) => Version::ETag(self.opened().await?.id.to_string().into()),
            // Chunks that are written again have other objects.
            Object::Chunk(_) => Version::Immutable,
        };
        Ok(Head { object_bytes: object.bytes(), version })
    }

    async fn answer(
        &self,
        key: &str,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Option<Body>> {
        let Some(object) = self.find(key).await? else { return Ok(None) };
        let head = self.head_of(&object).await?;
        if expected.is_some_and(|expected| *expected != head.version) {
            return Err(Obstacle::Changed.into());
        }
        let range = extent.range_in(head.object_bytes)?;
        if range.is_empty() {
            return Ok(Some(Body { head, range, stream: stream::empty().boxed() }));
        }
        let stream = match object {
            Object::Metadata(bytes) | Object::Chunk(Chunk::Inline(bytes)) => {
                let part = bytes.slice(range.start as usize..range.end as usize);
                stream::once(future::ready(Ok(part))).boxed()
            }
            Object::Chunk(Chunk::Native(id, of_chunk)) => {
                let key = format!("{CHUNKS_FILE_PATH}/{id}");
                let part = Extent::Range(of_chunk.start + range.start..of_chunk.start + range.end);
                let body = self.store.get(&key, part, None).await.map_err(Obstacle::of_present)?;
                body.ok_or_else(|| absent(&key))?.stream
            }
            Object::Chunk(Chunk::Virtual(object, _)) => {
                return Err(refused(
                    format!("a chunk is virtual, in \"{}\"", object.location),
                    "virtual chunks are not read",
                ));
            }
        };
        Ok(Some(Body { head, range, stream }))
    }
}

impl Store for IcechunkStore {
    fn connect(&self, connections: &Connections) -> io::Result<Option<Arc<dyn Store>>> {
        let connected = self.store.connect(connections)?;
        Ok(connected.map(|store| Arc::new(Self { store, ..self.clone() }) as Arc<dyn Store>))
    }

    fn snapshot(&self) -> Option<String> {
        self.shared.opened.get().map(|opened| opened.id.to_string())
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        self.answer(key, extent, expected).boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        async move {
            match self.find(key).await? {
                Some(object) => Ok(Some(self.head_of(&object).await?)),
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        async move {
            let names = self.opened().await?.below(&self.path(key));
            Ok(Listing { names, identity: None })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
