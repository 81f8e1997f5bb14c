//! References as a store: a document of kerchunk's or VirtualiZarr's says which pieces of which other objects its objects are.
//!
//! A JSON document is read once and kept, packed. Of parquet files those are read that are needed, and a bounded number of them is kept. What
//! has no reference is missing; what a reference leads to has to be there.

mod documents;
mod json;
mod parquet;
mod table;

pub use documents::KeptDocuments;

use self::json::Table;
use self::parquet::{Catalogue, Record, Row};
use self::table::Reference;
use super::connections::Connections;
use super::contract::{Body, Extent, Head, Listing, Store, Version, read_body, read_whole};
use super::targets::Targets;
use crate::error::Obstacle;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};
use lru::LruCache;
use tokio::sync::OnceCell;

/// A store whose objects are named in a document.
#[derive(Clone)]
pub struct ReferenceStore {
    /// What holds the document.
    store: Arc<dyn Store>,
    /// Key of the document; of parquet files their folder, which ends with a slash unless it is empty.
    key: String,
    targets: Arc<Targets>,
    contents: Contents,
}

/// What is known of a document, by all stores of it.
#[derive(Clone)]
enum Contents {
    Json(Arc<OnceCell<(Arc<Table>, Version)>>),
    Parquet(Arc<Parquet>),
}

#[derive(Default)]
struct Parquet {
    catalogue: OnceCell<(Catalogue, Version)>,
    records: Mutex<Records>,
}

/// Name of an array and number of one of its parquet files.
type Name = (String, u64);

/// A parquet file and its version; `None` if there is none.
type Found = Option<(Record, Version)>;

/// Parquet files of references.
struct Records {
    /// Those that were used last, each with its bytes of memory once it is read.
    kept: LruCache<Name, (Arc<OnceCell<Found>>, u64)>,
    bytes: u64,
    /// Of all that were read: what is read again has to be the same.
    versions: HashMap<Name, Version>,
}

impl Default for Records {
    fn default() -> Self {
        Self { kept: LruCache::unbounded(), bytes: 0, versions: HashMap::new() }
    }
}

impl fmt::Debug for ReferenceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reference::{:?}/{}", self.store, self.key)
    }
}

impl ReferenceStore {
    /// The largest JSON document, in bytes: some million references.
    const MOST_JSON_BYTES: u64 = 512 << 20;
    /// The largest parquet file, and the largest file of metadata beside them, in bytes.
    pub(super) const MOST_FILE_BYTES: u64 = 64 << 20;
    /// Parquet files that are kept in memory, in bytes.
    const MOST_KEPT_BYTES: u64 = 256 << 20;

    /// The references of the JSON document that `key` names in a store.
    pub fn json(store: Arc<dyn Store>, key: &str, targets: Targets) -> Self {
        Self { store, key: key.into(), targets: Arc::new(targets), contents: Contents::Json(Arc::default()) }
    }

    /// The references in the parquet files below a key of a store.
    pub fn parquet(store: Arc<dyn Store>, key: &str, targets: Targets) -> Self {
        let key = if key.is_empty() { String::new() } else { format!("{key}/") };
        Self { store, key, targets: Arc::new(targets), contents: Contents::Parquet(Arc::default()) }
    }

    /// What stands for an object, and the version of what says so.
    async fn find(&self, key: &str) -> io::Result<Option<(Reference, Version)>> {
        match &self.contents {
            Contents::Json(table) => {
                let (table, version) = table.get_or_try_init(|| self.read_json()).await?;
                let found =
                    table.get(key).map_err(|problem| unreadable(&format!("key \"{key}\""), problem))?;
                Ok(found.map(|found| (found, version.clone())))
            }
            Contents::Parquet(parquet) => {
                let (catalogue, version) = self.catalogue(parquet).await?;
                if let Some(bytes) = catalogue.metadata.get(key) {
                    return Ok(Some((Reference::Inline(bytes.clone()), version.clone())));
                }
                let Some(row) = catalogue.row(key) else { return Ok(None) };
                let record = self.record(parquet, (catalogue, version), row).await?;
                let Some((record, version)) = record.get().and_then(Option::as_ref) else { return Ok(None) };
                let found = record.get(row.row).map_err(|problem| unreadable(&row.file(), problem))?;
                Ok(found.map(|found| (found, version.clone())))
            }
        }
    }

    async fn read_json(&self) -> io::Result<(Arc<Table>, Version)> {
        let body = self.store.get(&self.key, Extent::Whole, None).await?.ok_or_else(absent)?;
        let place = match self.store.folder() {
            Some(folder) => folder.path().join(&self.key).to_string_lossy().into_owned(),
            None => format!("{:?}/{}", self.store, self.key),
        };
        let (table, version) = match documents::find(&place, &body.head.version) {
            Some(table) => (table, body.head.version),
            None => {
                let (document, version) = read_body(body, Self::MOST_JSON_BYTES).await?;
                let table = Table::parse(&document).map_err(|problem| unreadable("", problem))?;
                (documents::note(&place, &version, table), version)
            }
        };
        let check = |name: &str| self.targets.check(name).map_err(|error| error.to_string());
        // Which says itself what to do.
        table.check(check).map_err(|problem| io::Error::from(Obstacle::References { problem }))?;
        Ok((table, version))
    }

    async fn catalogue<'a>(&self, parquet: &'a Parquet) -> io::Result<&'a (Catalogue, Version)> {
        let read = || async {
            let key = format!("{}{}", self.key, Catalogue::KEY);
            let (document, version) = self.read(&key, Self::MOST_FILE_BYTES).await?.ok_or_else(absent)?;
            let catalogue = Catalogue::parse(document);
            Ok((catalogue.map_err(|problem| unreadable(Catalogue::KEY, problem))?, version))
        };
        parquet.catalogue.get_or_try_init(read).await
    }

    /// The parquet file that a row is in, once it is read.
    async fn record(
        &self,
        parquet: &Parquet,
        (catalogue, version): (&Catalogue, &Version),
        row: Row<'_>,
    ) -> io::Result<Arc<OnceCell<Found>>> {
        let name = (row.array.to_string(), row.record);
        let lock = || parquet.records.lock().unwrap_or_else(PoisonError::into_inner);
        let (cell, known) = {
            let mut records = lock();
            let cell = records.kept.get_or_insert(name.clone(), Default::default).0.clone();
            (cell, records.versions.get(&name).cloned())
        };
        let read = || async {
            let file = row.file();
            let found = self.read(&format!("{}{file}", self.key), Self::MOST_FILE_BYTES).await?;
            if known.is_some() && known.as_ref() != found.as_ref().map(|(_, version)| version) {
                return Err(io::Error::from(Obstacle::Changed));
            }
            let Some((bytes, version)) = found else {
                // As long as the other files are there, this one was never written.
                let key = format!("{}{}", self.key, Catalogue::KEY);
                let there = self.store.get(&key, Extent::Whole, Some(version)).await;
                there.map_err(Obstacle::of_present)?.ok_or(Obstacle::Changed)?;
                return Ok(None);
            };
            let record = catalogue.record(bytes).map_err(|problem| unreadable(&file, problem))?;
            let mut records = lock();
            records.note(name, record.memory_bytes(), version.clone());
            drop(records);
            Ok(Some((record, version)))
        };
        cell.get_or_try_init(read).await?;
        Ok(cell)
    }

    /// All bytes of a file of the document.
    async fn read(&self, key: &str, most_bytes: u64) -> io::Result<Option<(Vec<u8>, Version)>> {
        read_whole(&*self.store, key, most_bytes).await
    }

    async fn answer(
        &self,
        key: &str,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Option<Body>> {
        let (bytes, version) = match self.find(key).await? {
            None => return Ok(None),
            Some((Reference::Target { name, piece }, _)) => {
                return self.targets.get(&name, piece.as_ref(), extent, expected).await.map(Some);
            }
            Some((Reference::Inline(bytes), version)) => (bytes, version),
        };
        if expected.is_some_and(|expected| *expected != version) {
            return Err(Obstacle::Changed.into());
        }
        let range = extent.range_in(bytes.len() as u64)?;
        let part = bytes.slice(range.start as usize..range.end as usize);
        let head = Head { object_bytes: bytes.len() as u64, version };
        Ok(Some(Body {
            head,
            range,
            stream: stream::once(future::ready(Ok::<Bytes, io::Error>(part))).boxed(),
        }))
    }
}

impl Records {
    /// Notes that a file was read, and drops those that were not used for the longest time if there are too many.
    fn note(&mut self, name: Name, bytes: u64, version: Version) {
        self.versions.insert(name.clone(), version);
        if let Some((_, noted)) = self.kept.get_mut(&name) {
            self.bytes = self.bytes - *noted + bytes;
            *noted = bytes;
        }
        while self.bytes > ReferenceStore::MOST_KEPT_BYTES && self.kept.len() > 1 {
            let Some((_, (_, bytes))) = self.kept.pop_lru() else { break };
            self.bytes -= bytes;
        }
    }
}

impl Row<'_> {
    /// Key of the parquet file, in the folder of all.
    fn file(&self) -> String {
        format!("{}/refs.{}.parq", self.array, self.record)
    }
}

fn absent() -> io::Error {
    let problem = "there is no such document of references".into();
    Obstacle::Request { problem, remedy: "check its path or URL" }.into()
}

/// An error about a part of the references.
fn unreadable(part: &str, problem: String) -> io::Error {
    let of = if part.is_empty() { String::new() } else { format!("{part}: ") };
    let problem = format!("{of}{problem}; write them again with kerchunk or VirtualiZarr");
    Obstacle::References { problem }.into()
}

impl Store for ReferenceStore {
    fn connect(&self, connections: &Connections) -> io::Result<Option<Arc<dyn Store>>> {
        let store = self.store.connect(connections)?.unwrap_or_else(|| self.store.clone());
        let targets = Arc::new(self.targets.connect(connections));
        Ok(Some(Arc::new(Self { store, targets, ..self.clone() })))
    }

    /// What the document refers to may be elsewhere, wherever the document is.
    fn identity(&self) -> Option<String> {
        let place = match self.store.folder() {
            Some(folder) => folder.path().canonicalize().ok()?.to_string_lossy().into_owned(),
            None => self.store.identity()?,
        };
        Some(format!("reference::{place}/{}", self.key))
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
            Ok(match self.find(key).await? {
                None => None,
                Some((Reference::Inline(bytes), version)) => {
                    Some(Head { object_bytes: bytes.len() as u64, version })
                }
                // The piece is as long as the document says; what it is of is not asked.
                Some((Reference::Target { piece: Some(piece), .. }, version)) => {
                    Some(Head { object_bytes: piece.end - piece.start, version })
                }
                Some((Reference::Target { name, piece: None }, _)) => Some(self.targets.head(&name).await?),
            })
        }
        .boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        async move {
            let below = if key.is_empty() { String::new() } else { format!("{key}/") };
            let names = match &self.contents {
                Contents::Json(table) => table.get_or_try_init(|| self.read_json()).await?.0.folders(&below),
                Contents::Parquet(parquet) => self.catalogue(parquet).await?.0.folders(&below),
            };
            Ok(Listing { names, identity: None })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::Access;
    use super::super::memory::MemoryStore;
    use super::super::targets::Origin;
    use super::parquet::tests::parquet;
    use super::*;

    use futures::executor::block_on;

    /// The store of a document in `documents` that names files in a folder.
    fn connected(store: &ReferenceStore) -> Arc<dyn Store> {
        store.connect(&Connections::without_retries()).unwrap().unwrap()
    }

    fn targets(folder: &tempfile::TempDir) -> Targets {
        Targets::new(Access::to_folders(true), Origin::Folder(folder.path().into()))
    }

    fn get(store: &dyn Store, key: &str, extent: Extent) -> io::Result<Option<(Vec<u8>, Head)>> {
        block_on(async {
            let Some(body) = store.get(key, extent, None).await? else { return Ok(None) };
            let mut bytes = vec![];
            let head = body.read_to(&mut bytes).await?;
            Ok(Some((bytes, head)))
        })
    }

    fn bytes(store: &dyn Store, key: &str) -> Option<Vec<u8>> {
        get(store, key, Extent::Whole).unwrap().map(|(bytes, _)| bytes)
    }

    #[test]
    fn objects_are_inline_or_elsewhere_or_missing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x"), "0123456789").unwrap();
        let documents = Arc::new(MemoryStore::default());
        documents.put(
            "d",
            r#"{"a/.zarray": {"n": 1}, "a/0": ["x", 2, 5], "a/1": ["x"], "a/2": "text", "a/3": ["y"]}"#,
        );
        let store = connected(&ReferenceStore::json(documents.clone(), "d", targets(&folder)));
        assert_eq!(bytes(&*store, "a/.zarray").unwrap(), b"{\"n\":1}");
        assert_eq!(bytes(&*store, "a/0").unwrap(), b"23456");
        assert_eq!(bytes(&*store, "a/1").unwrap(), b"0123456789");
        assert_eq!(bytes(&*store, "a/2").unwrap(), b"text");
        assert_eq!(bytes(&*store, "a/4"), None);
        let (part, head) = get(&*store, "a/0", Extent::Suffix(2)).unwrap().unwrap();
        assert_eq!((&*part, head.object_bytes), (&b"56"[..], 5));
        let (part, head) = get(&*store, "a/2", Extent::Range(1..3)).unwrap().unwrap();
        assert_eq!((&*part, head.object_bytes), (&b"ex"[..], 4));
        let length = |key: &str| block_on(store.head(key)).unwrap().map(|head| head.object_bytes);
        assert_eq!(["a/0", "a/1", "a/2", "a/4"].map(length), [Some(5), Some(10), Some(4), None]);
        assert_eq!(block_on(store.list("")).unwrap().names, ["a"]);
        // Only the document says what is missing.
        let absent = get(&*store, "a/3", Extent::Whole).unwrap_err();
        assert!(absent.to_string().contains("\"y\"") && absent.kind() == io::ErrorKind::Other, "{absent}");
        // Versions are those of the document, and of the object.
        let version = |key: &str| get(&*store, key, Extent::Whole).unwrap().unwrap().1.version;
        assert_eq!(version("a/2"), Version::ETag("1".into()));
        assert!(matches!(version("a/0"), Version::File(_)));
        let changed = block_on(store.get("a/2", Extent::Whole, Some(&Version::Immutable)));
        assert!(changed.unwrap_err().to_string().contains("changed"));
    }

    #[test]
    fn what_a_document_must_not_name_is_refused_when_it_is_read() {
        let documents = Arc::new(MemoryStore::default());
        documents.put("d", r#"{".zgroup": "{}", "a/0": ["s3://b/x"], "a/1": ["/etc/hostname", 0, 1]}"#);
        let targets = Targets::new(Access::to_folders(true), Origin::of_url("https://host/d"));
        let store = connected(&ReferenceStore::json(documents, "d", targets));
        let refused = get(&*store, ".zgroup", Extent::Whole).unwrap_err().to_string();
        assert!(
            refused.contains("a/1")
                && refused.contains("/etc/hostname")
                && refused.contains("copy the document"),
            "{refused}"
        );
        let nothing = Targets::new(Access::to_folders(true), Origin::of_url("https://host/d"));
        let store = connected(&ReferenceStore::json(Arc::new(MemoryStore::default()), "d", nothing));
        assert!(get(&*store, "x", Extent::Whole).unwrap_err().to_string().contains("no such document"));
    }

    const CATALOGUE: &str = r#"{"record_size": 3, "metadata": {".zgroup": {"zarr_format": 2}, "g/a/.zarray": {"shape": [4, 2], "chunks": [2, 1]}}}"#;

    #[test]
    fn of_parquet_files_those_that_are_needed_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x"), "0123456789").unwrap();
        let documents = Arc::new(MemoryStore::default());
        documents.put("r/.zmetadata", CATALOGUE);
        let first = [(Some("x"), 1, 2, None), (Some("x"), 0, 0, None), (None, 0, 0, None)];
        documents.put("r/g/a/refs.0.parq", parquet(&first));
        documents.put("r/g/a/refs.1.parq", parquet(&[(None, 0, 0, Some(&b"raw"[..]))]));
        let store = connected(&ReferenceStore::parquet(documents.clone(), "r", targets(&folder)));
        assert_eq!(bytes(&*store, ".zgroup").unwrap(), b"{\"zarr_format\":2}");
        assert_eq!(block_on(store.list("g")).unwrap().names, ["a"]);
        assert_eq!(bytes(&*store, "g/a/0.0").unwrap(), b"12");
        assert_eq!(bytes(&*store, "g/a/0.1").unwrap(), b"0123456789");
        assert_eq!(bytes(&*store, "g/a/1.0"), None);
        assert_eq!(bytes(&*store, "g/a/1.1").unwrap(), b"raw");
        assert_eq!((bytes(&*store, "g/a/2.0"), bytes(&*store, "g/b/0.0")), (None, None));
        // A file that is not there has no references, unless all of them went away.
        documents.remove("r/g/a/refs.0.parq");
        let opened = || connected(&ReferenceStore::parquet(documents.clone(), "r", targets(&folder)));
        let (store, other) = (opened(), opened());
        assert_eq!((bytes(&*store, "g/a/0.0"), bytes(&*other, "g/b/0.0")), (None, None));
        documents.put("r/.zmetadata", CATALOGUE);
        let changed = get(&*other, "g/a/0.0", Extent::Whole).unwrap_err().to_string();
        assert!(changed.contains("changed while it was read"), "{changed}");
        documents.remove("r/.zmetadata");
        assert!(get(&*other, "g/a/0.0", Extent::Whole).is_err());
        assert_eq!(bytes(&*store, "g/a/0.1"), None);
        documents.put("r/g/a/refs.1.parq", &b"PAR1 damaged PAR1"[..]);
        let damaged = get(&*store, "g/a/1.1", Extent::Whole).unwrap_err().to_string();
        assert!(damaged.contains("g/a/refs.1.parq") && damaged.contains("damaged"), "{damaged}");
    }

    #[test]
    fn files_that_were_not_used_for_long_are_dropped_and_read_again() {
        let name = |number| ("a".to_string(), number);
        let mut records = Records::default();
        let bytes = ReferenceStore::MOST_KEPT_BYTES / 4;
        for number in 0..6 {
            records.kept.get_or_insert(name(number), Default::default);
            records.note(name(number), bytes, Version::Immutable);
        }
        assert_eq!((records.kept.len(), records.bytes), (4, 4 * bytes));
        assert!(!records.kept.contains(&name(1)) && records.versions.len() == 6);
        // One that is larger than all of them may have is kept alone.
        records.kept.get_or_insert(name(9), Default::default);
        records.note(name(9), 9 * bytes, Version::Immutable);
        assert_eq!((records.kept.len(), records.bytes), (1, 9 * bytes));
    }
}
