//! A zip file as a store, on this machine or at a URL. Its entries are byte ranges of it as long as they are stored without compression.
//!
//! The central directory is read once, with one request or two; a whole entry costs one request then, and a part of one a further request the
//! first time, because only the local header says where its bytes begin.

mod directory;

use self::directory::{Directory, END_BYTES, Entry, LOCAL_BYTES, TAIL_BYTES, find};
use super::connections::Connections;
use super::contract::{Body, Extent, Head, Listing, Store, Version, read_answer};
use crate::error::Obstacle;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::sync::OnceCell;

/// A zip file whose entries are objects.
#[derive(Clone)]
pub struct ZipStore {
    /// What holds the zip file.
    store: Arc<dyn Store>,
    /// Key of the zip file.
    key: String,
    /// Of the names of all entries; ends with a slash unless it is empty.
    prefix: String,
    contents: Arc<OnceCell<Contents>>,
}

/// What is known of a zip file that was opened.
#[derive(Debug)]
struct Contents {
    /// The version of the zip file whose directory this is.
    version: Version,
    directory: Directory,
}

impl fmt::Debug for ZipStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}|zip:{}", self.store, self.key, self.prefix)
    }
}

impl ZipStore {
    /// The largest central directory that is read, in bytes: about a million of entries. It is kept, with its names, for as long as the store is open.
    const MOST_DIRECTORY_BYTES: u64 = 128 << 20;

    /// The entries below `prefix` of the zip file that `key` names in a store.
    pub fn new(store: Arc<dyn Store>, key: &str, prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { store, key: key.into(), prefix, contents: Arc::default() }
    }

    async fn contents(&self) -> io::Result<&Contents> {
        self.contents.get_or_try_init(|| self.read_contents()).await
    }

    async fn read_contents(&self) -> io::Result<Contents> {
        let absent = || {
            let problem = "there is no such zip file".into();
            io::Error::from(Obstacle::Request { problem, remedy: "check its path or URL" })
        };
        let (tail, tail_range, head) = match self.read(Extent::Suffix(TAIL_BYTES), None).await {
            Ok(answer) => answer.ok_or_else(absent)?,
            // Of an empty object there are no last bytes: web servers refuse the request (416).
            Err(error) => match self.store.head(&self.key).await {
                Ok(Some(head)) if head.object_bytes == 0 => return Err(too_short(0)),
                _ => return Err(error),
            },
        };
        if head.object_bytes < END_BYTES {
            return Err(too_short(head.object_bytes));
        }
        let place = find(&tail, head.object_bytes).map_err(damaged)?;
        let bytes = place.range.end - place.range.start;
        if bytes > Self::MOST_DIRECTORY_BYTES {
            return Err(Obstacle::TooLarge { bytes, most_bytes: Self::MOST_DIRECTORY_BYTES }.into());
        }
        let directory = if place.range.start >= tail_range.start {
            let within = |at: u64| (at - tail_range.start) as usize;
            Directory::new(&tail[within(place.range.start)..within(place.range.end)], &place)
        } else {
            Directory::new(&self.read_place(place.range.clone(), &head.version).await?, &place)
        };
        Ok(Contents { version: head.version, directory: directory.map_err(damaged)? })
    }

    async fn answer(
        &self,
        key: &str,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Option<Body>> {
        let Contents { version, directory } = self.contents().await?;
        if expected.is_some_and(|expected| expected != version) {
            return Err(Obstacle::Changed.into());
        }
        let Some(entry) = directory.entry(&format!("{}{key}", self.prefix)) else { return Ok(None) };
        if let Some(problem) = entry.obstacle {
            return Err(Obstacle::Zip { problem }.into());
        }
        let head = Head { object_bytes: entry.bytes, version: version.clone() };
        let range = extent.range_in(entry.bytes)?;
        if range.is_empty() {
            return Ok(Some(Body { head, range, stream: stream::empty().boxed() }));
        }
        let stream = match entry.start() {
            Some(start) => {
                let place = start + range.start..start + range.end;
                self.place(place, version).await?.stream
            }
            // Clients resume a body that breaks off within the header only if the version tells its bytes.
            None if range.end - range.start == entry.bytes && version.tells_bytes() => {
                // What was deleted before the next entry is not read.
                let most = (LOCAL_BYTES + 2 * u64::from(u16::MAX)).saturating_add(entry.bytes);
                let end = entry.room.end.min(entry.room.start.saturating_add(most));
                let body = self.place(entry.room.start..end, version).await?;
                behind_header(body, entry).await?
            }
            None => {
                let end = entry.room.end.min(entry.room.start + entry.header_bytes());
                let header = self.read_place(entry.room.start..end, version).await?;
                let start = entry.set_start(&header).map_err(damaged)?;
                self.place(start + range.start..start + range.end, version).await?.stream
            }
        };
        Ok(Some(Body { head, range, stream }))
    }

    /// Bytes of the zip file, which has to be the one whose directory was read. Only the directory says what is absent.
    async fn place(&self, range: Range<u64>, version: &Version) -> io::Result<Body> {
        let body = self.store.get(&self.key, Extent::Range(range), Some(version)).await;
        Ok(body.map_err(Obstacle::of_present)?.ok_or(Obstacle::Changed)?)
    }

    /// The same, all of them.
    async fn read_place(&self, range: Range<u64>, version: &Version) -> io::Result<Vec<u8>> {
        let answer = self.read(Extent::Range(range), Some(version)).await?;
        Ok(answer.ok_or(Obstacle::Changed)?.0)
    }

    async fn read(
        &self,
        extent: Extent,
        version: Option<&Version>,
    ) -> io::Result<Option<(Vec<u8>, Range<u64>, Head)>> {
        read_answer(&*self.store, &self.key, extent, version, u64::MAX).await.map_err(Obstacle::of_present)
    }
}

/// The bytes of an entry out of a body that begins with its local header.
async fn behind_header(mut body: Body, entry: &Entry) -> io::Result<BoxStream<'static, io::Result<Bytes>>> {
    let (mut begin, mut header) = (vec![], vec![]);
    while (header.len() as u64) < entry.header_bytes() {
        let Some(piece) = body.stream.next().await.transpose()? else { break };
        let missing = entry.header_bytes() - header.len() as u64;
        header.extend_from_slice(&piece[..piece.len().min(missing as usize)]);
        begin.push(Ok(piece));
    }
    let start = entry.set_start(&header).map_err(damaged)?;
    let (mut skip, mut left) = (start - entry.room.start, entry.bytes);
    let begin = stream::iter(begin);
    // What is skipped, and what follows the entry, is not handed on.
    let bytes = begin.chain(body.stream).map_ok(move |mut piece| {
        let skipped = skip.min(piece.len() as u64);
        skip -= skipped;
        piece = piece.slice(skipped as usize..);
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= piece.len() as u64;
        piece
    });
    Ok(bytes.boxed())
}

fn too_short(file_bytes: u64) -> io::Error {
    Obstacle::TooShortForZip { file_bytes }.into()
}

fn damaged(problem: &'static str) -> io::Error {
    Obstacle::Zip { problem }.into()
}

impl Store for ZipStore {
    fn connect(&self, connections: &Connections) -> io::Result<Option<Arc<dyn Store>>> {
        let connected = self.store.connect(connections)?;
        Ok(connected.map(|store| Arc::new(Self { store, ..self.clone() }) as Arc<dyn Store>))
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{}/{}|zip:{}", self.store.identity()?, self.key, self.prefix))
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
            let Contents { version, directory } = self.contents().await?;
            let entry = directory.entry(&format!("{}{key}", self.prefix));
            Ok(entry.map(|entry| Head { object_bytes: entry.bytes, version: version.clone() }))
        }
        .boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        async move {
            let below = if key.is_empty() { self.prefix.clone() } else { format!("{}{key}/", self.prefix) };
            let names = self.contents().await?.directory.folders(&below);
            Ok(Listing { names, identity: None })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryStore;
    use super::directory::tests::{Made, zip};
    use super::*;
    use futures::executor::block_on;

    /// The bytes of a part of an object, where they are in it, and its length.
    type Answer = Option<(Vec<u8>, Range<u64>, u64)>;

    fn get(store: &dyn Store, key: &str, extent: Extent) -> io::Result<Answer> {
        let answer = block_on(read_answer(store, key, extent, None, u64::MAX))?;
        Ok(answer.map(|(bytes, range, head)| (bytes, range, head.object_bytes)))
    }

    #[test]
    fn entries_are_objects_that_are_read_in_whole_and_in_part() {
        let object: Vec<u8> = (0..500u32).map(|i| (i % 251) as u8).collect();
        let entries: &[(&str, u16, &[u8])] = &[
            ("in/a/c/0", 0, &object),
            ("in/b/c/0", 0, &[1; 9]),
            ("in/empty", 0, b""),
            ("in/x", 8, b"x"),
            ("out", 0, b"o"),
        ];
        for made in [
            Made::default(),
            Made { comment_bytes: 65535, in_front: 99, wide: true, extra_bytes: 300 },
            Made { extra_bytes: 65535, ..Made::default() },
        ] {
            let memory = Arc::new(MemoryStore::default());
            memory.put("f.zip", zip(entries, made));
            for (extent, range) in [
                (Extent::Range(17..400), 17..400),
                (Extent::Suffix(16), 484..500),
                (Extent::Prefix(20), 0..20),
                (Extent::Whole, 0..500),
                (Extent::Range(0..500), 0..500),
                (Extent::Range(500..500), 500..500),
            ] {
                // The first answer, of a store that knows no local header, and later ones.
                let store = ZipStore::new(memory.clone(), "f.zip", "/in/");
                for _ in 0..2 {
                    let (bytes, found, whole) = get(&store, "a/c/0", extent.clone()).unwrap().unwrap();
                    assert_eq!((&found, whole), (&range, 500), "{extent:?} {made:?}");
                    assert_eq!(
                        bytes,
                        object[range.start as usize..range.end as usize],
                        "{extent:?} {made:?}"
                    );
                }
            }
            let store = ZipStore::new(memory.clone(), "f.zip", "in");
            assert!(get(&store, "out", Extent::Whole).unwrap().is_none());
            assert!(get(&store, "c/0", Extent::Whole).unwrap().is_none());
            assert_eq!(get(&store, "empty", Extent::Whole).unwrap().unwrap().1, 0..0);
            let refused = get(&store, "x", Extent::Whole).unwrap_err().to_string();
            assert!(refused.contains("deflated") && refused.contains("zip -0"), "{refused}");
            assert_eq!(block_on(store.list("")).unwrap().names, ["a", "b"]);
            assert_eq!(block_on(store.head("b/c/0")).unwrap().unwrap().object_bytes, 9);
            // Another file in its place, even with the same entries.
            memory.put("f.zip", zip(entries, made));
            let changed = get(&store, "a/c/0", Extent::Whole).unwrap_err().to_string();
            assert!(changed.contains("changed while it was read"), "{changed}");
        }
    }

    #[test]
    fn what_is_no_zip_file_is_an_error() {
        let memory = Arc::new(MemoryStore::default());
        memory.put("text", b"no zip file at all, but some text".to_vec());
        memory.put("empty", vec![]);
        memory.put("short", b"some bytes".to_vec());
        for (key, problem) in [
            ("text", "no central directory"),
            ("empty", "the file is empty and not a zip archive"),
            ("short", "the file has 10 bytes, too few for a zip archive"),
            ("nothing", "no such zip file"),
        ] {
            let store = ZipStore::new(memory.clone(), key, "");
            let error = get(&store, "zarr.json", Extent::Whole).unwrap_err();
            assert!(
                error.to_string().contains(problem) && error.kind() != io::ErrorKind::NotFound,
                "{error}"
            );
        }
    }
}
