//! A repository of Icechunk as a store: the groups and arrays of one snapshot, on this machine or at a URL.
//!
//! The snapshot is looked up when the first object is asked for, and stays the same from then on, whatever is committed meanwhile. It has all
//! metadata. Chunks are found in manifests: their bytes are in the manifest, in an object of the repository, or somewhere else.
//!
//! Source: Icechunk's specification, <https://icechunk.io/en/stable/reference/spec/>, versions 1 and 2 of the format.

mod elsewhere;
mod files;
mod manifests;
mod reference;
mod snapshot;

use super::access::Access;
use super::connections::Connections;
use super::contract::{Body, Extent, Head, Listing, Store, Version};
use super::targets::Origin;
use crate::error::{Obstacle, Result};
use elsewhere::Virtual;
use files::{absent, damaged, manifest_key, refused};
use manifests::{Chunk, Manifests};
use reference::{Reference, parse};
use snapshot::{Opened, chunk_of};

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

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
    connections: Option<Connections>,
    /// What is not in the repository, with these connections.
    elsewhere: Arc<OnceLock<Virtual>>,
}

/// What all connected stores know.
struct Shared {
    access: Access,
    origin: Origin,
    opened: OnceCell<Opened>,
    manifests: Manifests,
    elsewhere: OnceCell<Virtual>,
}

impl fmt::Debug for IcechunkStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}|icechunk:{:?}{}", self.store, self.reference, self.prefix)
    }
}

/// What a key names.
enum Object {
    /// A metadata file, and its snapshot.
    Metadata(Bytes, Version),
    Chunk(Chunk),
}

impl Object {
    fn head(&self) -> Head {
        match self {
            Self::Metadata(bytes, version) => {
                Head { object_bytes: bytes.len() as u64, version: version.clone() }
            }
            // A chunk that is written again has another object, or another place in a manifest.
            Self::Chunk(chunk) => Head { object_bytes: chunk.bytes(), version: Version::Immutable },
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
    /// What `inner` (`@branch.NAME/PATH` and so on) names in the repository that a store is. It lies at `origin`, which decides how objects that
    /// lie elsewhere are accessed.
    ///
    /// # Errors
    /// Says what in `inner` names no snapshot.
    pub fn new(store: Arc<dyn Store>, inner: &str, access: Access, origin: Origin) -> Result<Self> {
        let (reference, within) = parse(inner)?;
        let prefix = if within.is_empty() { within } else { format!("/{within}") };
        let (opened, elsewhere) = (OnceCell::new(), OnceCell::new());
        let shared = Arc::new(Shared { access, origin, opened, manifests: Manifests::default(), elsewhere });
        Ok(Self { store, reference, prefix, shared, connections: None, elsewhere: Arc::default() })
    }

    async fn opened(&self) -> io::Result<&Opened> {
        self.shared.opened.get_or_try_init(|| Opened::new(&*self.store, &self.reference)).await
    }

    /// The objects that are not in the repository.
    async fn elsewhere(&self) -> io::Result<&Virtual> {
        let Shared { access, origin, elsewhere, .. } = &*self.shared;
        let make = || Virtual::new(&*self.store, access.clone(), origin.clone());
        let unconnected = elsewhere.get_or_try_init(make).await?;
        Ok(match &self.connections {
            Some(connections) => self.elsewhere.get_or_init(|| unconnected.connect(connections)),
            None => unconnected,
        })
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
            "zarr.json" => {
                let version = Version::ETag(opened.id.to_string().into());
                let metadata = opened.metadata(&self.path(within))?;
                return Ok(metadata.map(|bytes| Object::Metadata(bytes, version)));
            }
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

    async fn answer(
        &self,
        key: &str,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Option<Body>> {
        let Some(object) = self.find(key).await? else { return Ok(None) };
        let part = |head: &Head| match expected {
            Some(expected) if *expected != head.version => Err(Obstacle::Changed),
            _ => extent.range_in(head.object_bytes),
        };
        let head = object.head();
        let (range, stream) = match object {
            Object::Chunk(Chunk::Virtual(object, piece)) => {
                let elsewhere = self.elsewhere().await?;
                let checksum = elsewhere::version(object.checksum.as_ref());
                // A version that was seen before is that of an object with this checksum.
                let expected = expected.or(checksum.as_ref());
                let name = elsewhere.name(&object)?;
                return elsewhere.targets().get(&name, Some(&piece), extent, expected).await.map(Some);
            }
            Object::Chunk(Chunk::Native(id, piece)) => {
                let range = part(&head)?;
                let key = format!("{CHUNKS_FILE_PATH}/{id}");
                let of_object = Extent::Range(piece.start + range.start..piece.start + range.end);
                let body = match range.is_empty() {
                    true => stream::empty().boxed(),
                    false => {
                        let body = self.store.get(&key, of_object, None).await;
                        body.map_err(Obstacle::of_present)?.ok_or_else(|| absent(&key))?.stream
                    }
                };
                (range, body)
            }
            Object::Metadata(bytes, _) | Object::Chunk(Chunk::Inline(bytes)) => {
                let range = part(&head)?;
                let part = bytes.slice(range.start as usize..range.end as usize);
                (range, stream::once(future::ready(Ok(part))).boxed())
            }
        };
        Ok(Some(Body { head, range, stream }))
    }
}

impl Store for IcechunkStore {
    fn connect(&self, connections: &Connections) -> io::Result<Option<Arc<dyn Store>>> {
        // A repository of this machine may name objects at URLs.
        let store = self.store.connect(connections)?.unwrap_or_else(|| self.store.clone());
        let (connections, elsewhere) = (Some(connections.clone()), Arc::default());
        Ok(Some(Arc::new(Self { store, connections, elsewhere, ..self.clone() })))
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{}|icechunk:@{}{}", self.store.identity()?, self.snapshot()?, self.prefix))
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
        async move { Ok(self.find(key).await?.map(|object| object.head())) }.boxed()
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
