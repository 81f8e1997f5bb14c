//! The contract of all stores: an object is named by a key and read in whole or in part.

use super::connections::Connections;
use super::folder::Folder;
use super::stamp::Stamp;
use crate::error::Obstacle;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// What tells the bytes of an object from those that it had before or has later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// Of a file: device, inode, length and times.
    File(Stamp),
    /// What an object store calls the entity tag.
    ETag(Arc<str>),
    /// When an object was written, in nanoseconds since 1970, of servers that have no entity tags.
    Modified {
        /// The time.
        at_ns: i64,
    },
    /// Objects under this key never change.
    Immutable,
    /// Any version that was written by then. Expected of objects that are named elsewhere with a time; no object has it.
    NotSince {
        /// Seconds since 1970; what came within that second counts as written by then.
        at_s: i64,
    },
}

impl Version {
    /// Whether all answers with this version have the bytes of one object, so that parts of several may be put together. Times are too coarse
    /// for that, and weak tags are of objects that mean the same.
    pub fn tells_bytes(&self) -> bool {
        match self {
            Self::File(_) | Self::Immutable => true,
            Self::ETag(tag) => !tag.starts_with("W/"),
            Self::Modified { .. } | Self::NotSince { .. } => false,
        }
    }
}

/// What is asked for of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of its bytes.
    Whole,
    /// A range of its bytes; the end is excluded.
    Range(Range<u64>),
    /// Its first bytes, as many as this; all of them if it has fewer.
    Prefix(u64),
    /// Its last bytes, as many as this; all of them if it has fewer.
    Suffix(u64),
}

impl Extent {
    /// The range that this is of an object of `object_bytes` bytes.
    ///
    /// # Errors
    /// [`Obstacle::OutOfRange`] for a range that ends past the object.
    pub fn range_in(&self, object_bytes: u64) -> Result<Range<u64>, Obstacle> {
        match self {
            Self::Whole => Ok(0..object_bytes),
            Self::Prefix(bytes) => Ok(0..object_bytes.min(*bytes)),
            Self::Suffix(bytes) => Ok(object_bytes.saturating_sub(*bytes)..object_bytes),
            Self::Range(range) if range.start <= range.end && range.end <= object_bytes => Ok(range.clone()),
            Self::Range(range) => Err(Obstacle::OutOfRange { range: range.clone(), object_bytes }),
        }
    }
}

/// An object, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Length of the whole object.
    pub object_bytes: u64,
    /// The version that it has now.
    pub version: Version,
}

/// The answer to a request: what the object is, and the bytes that were asked for as they arrive.
pub struct Body {
    /// The object.
    pub head: Head,
    /// Which of its bytes the stream yields.
    pub range: Range<u64>,
    /// The bytes of the range, in order. [`Body::read_to`] checks that all of them come. A piece holds no more memory than it is long, or
    /// memory that is there without it.
    pub stream: BoxStream<'static, io::Result<Bytes>>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("head", &self.head).field("range", &self.range).finish_non_exhaustive()
    }
}

impl Body {
    /// Appends all bytes to `into`, which has room for them already.
    ///
    /// # Errors
    /// What the store says, or that more or fewer bytes came than the range has.
    pub async fn read_to(self, into: &mut Vec<u8>) -> io::Result<Head> {
        self.read(|piece| into.extend_from_slice(&piece)).await
    }

    /// Appends all bytes to `pieces`, without a copy.
    ///
    /// # Errors
    /// As [`Body::read_to`]; what came is there.
    pub async fn read_pieces(self, pieces: &mut Vec<Bytes>) -> io::Result<Head> {
        self.read(|piece| pieces.push(piece)).await
    }

    async fn read(mut self, mut take: impl FnMut(Bytes)) -> io::Result<Head> {
        let (mut received, expected) = (0, self.range.end - self.range.start);
        while let Some(piece) = self.stream.next().await {
            let piece = piece?;
            received += piece.len() as u64;
            if received > expected {
                return Err(Obstacle::Overlong { expected_bytes: expected }.into());
            }
            take(piece);
        }
        match received == expected {
            true => Ok(self.head),
            false => Err(Obstacle::CutShort { expected_bytes: expected, received_bytes: received }.into()),
        }
    }
}

/// The groups and arrays below a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names directly below the key, in no order. None is empty: its key would be the one that is listed.
    pub names: Vec<String>,
    /// What tells this folder from others where links can lead back to it: device and inode.
    pub identity: Option<(u64, u64)>,
}

/// Names of the folders directly below one, whose name ends with a slash unless it is empty, by the names of all objects. A folder without a name, as
/// in `/a` and `a//b`, is none: its key would be that of the folder that it is in.
pub fn folders_below<T>(objects: &BTreeMap<String, T>, below: &str) -> Vec<String> {
    let objects = objects.range(below.to_string()..).map_while(|(name, _)| name.strip_prefix(below));
    let folders = objects.filter_map(|name| Some(name.split_once('/')?.0));
    let mut names: Vec<String> = folders.filter(|name| !name.is_empty()).map(str::to_string).collect();
    names.dedup();
    names
}

/// A store of objects by key. Keys have no leading slash; the empty key is the store's root.
///
/// Requests are futures. Those of a store with connections have to be polled by a tokio runtime, those of folders and memory are ready at
/// the first poll.
pub trait Store: fmt::Debug + Send + Sync {
    /// The same store with the connections of a thread that polls requests; `None` if it needs none. A store that needs connections answers
    /// no request without them.
    ///
    /// # Errors
    /// A client that cannot be made.
    fn connect(&self, connections: &Connections) -> io::Result<Option<Arc<dyn Store>>> {
        let _ = connections;
        Ok(None)
    }

    /// The files that keys are, if this is a folder of this machine: threads that decode then read for themselves.
    fn folder(&self) -> Option<&Folder> {
        None
    }

    /// The name of the snapshot that is read, of a store that has several. It is known once an object was asked for, and stays the same.
    fn snapshot(&self) -> Option<String> {
        None
    }

    /// What tells this store from all others wherever it is opened, without secrets, so that bytes of it can be kept under that name. `None` if they
    /// cannot be, or need not be, as those of a folder.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Whether each object is a request, metadata files as well.
    fn costs_requests(&self) -> bool {
        false
    }

    /// Asks for the bytes of an object. `None` if it is absent.
    ///
    /// # Errors
    /// What the store says; [`Obstacle::OutOfRange`]; [`Obstacle::Changed`] if `expected` is given and the object has another version.
    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>>;

    /// Length and version of an object. `None` if it is absent.
    ///
    /// # Errors
    /// What the store says.
    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>>;

    /// Whether what lies below a key can be listed.
    fn lists(&self) -> bool {
        true
    }

    /// What lies below a key.
    ///
    /// # Errors
    /// What the store says; `Unsupported` from one that cannot be listed.
    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>>;
}

/// All bytes of a small object, such as a metadata file, and its version. `None` if it is absent.
///
/// # Errors
/// What the store says, or [`Obstacle::TooLarge`] for more than `most_bytes`.
pub async fn read_whole(
    store: &dyn Store,
    key: &str,
    most_bytes: u64,
) -> io::Result<Option<(Vec<u8>, Version)>> {
    let answer = read_answer(store, key, Extent::Whole, None, most_bytes).await?;
    Ok(answer.map(|(bytes, _, head)| (bytes, head.version)))
}

/// All bytes of a small object that was asked for, and its version.
///
/// # Errors
/// As [`read_whole`].
pub async fn read_body(body: Body, most_bytes: u64) -> io::Result<(Vec<u8>, Version)> {
    let bytes = body.head.object_bytes;
    if bytes > most_bytes {
        return Err(Obstacle::TooLarge { bytes, most_bytes }.into());
    }
    let mut read = vec![];
    crate::memory::reserve(&mut read, bytes).map_err(io::Error::other)?;
    let head = body.read_to(&mut read).await?;
    Ok((read, head.version))
}

/// The bytes of a part of an object, and what it is. `None` if it is absent.
///
/// # Errors
/// What the store says, and parts for which there is no memory.
pub async fn read_part(store: &dyn Store, key: &str, extent: Extent) -> io::Result<Option<(Vec<u8>, Head)>> {
    let answer = read_answer(store, key, extent, None, u64::MAX).await?;
    Ok(answer.map(|(bytes, _, head)| (bytes, head)))
}

/// The bytes of an answer, where they are in the object, and the object. `None` if it is absent.
///
/// # Errors
/// As of [`read_whole`].
pub(super) async fn read_answer(
    store: &dyn Store,
    key: &str,
    extent: Extent,
    expected: Option<&Version>,
    most_bytes: u64,
) -> io::Result<Option<(Vec<u8>, Range<u64>, Head)>> {
    /// How often an answer is asked for again whose connection breaks. Clients resume those of objects whose versions tell their bytes.
    const MOST_RETRIES: usize = 5;
    for retries in 0.. {
        let Some(body) = store.get(key, extent.clone(), expected).await? else {
            return if retries == 0 { Ok(None) } else { Err(Obstacle::Changed.into()) };
        };
        let (range, bytes) = (body.range.clone(), body.range.end - body.range.start);
        if bytes > most_bytes {
            return Err(Obstacle::TooLarge { bytes, most_bytes }.into());
        }
        let is_last = retries == MOST_RETRIES || body.head.version.tells_bytes();
        let mut read = vec![];
        crate::memory::reserve(&mut read, bytes).map_err(io::Error::other)?;
        match body.read_to(&mut read).await {
            Ok(head) => return Ok(Some((read, range, head))),
            Err(error) if is_last => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_is_a_range_within_the_object() {
        assert_eq!(Extent::Whole.range_in(5), Ok(0..5));
        assert_eq!(Extent::Suffix(2).range_in(5), Ok(3..5));
        assert_eq!(Extent::Suffix(9).range_in(5), Ok(0..5));
        assert_eq!(Extent::Range(1..5).range_in(5), Ok(1..5));
        assert_eq!(Extent::Range(5..5).range_in(5), Ok(5..5));
        let past = Extent::Range(1..6).range_in(5).unwrap_err().to_string();
        assert!(past.contains("1..6") && past.contains('5'), "{past}");
        assert!(Extent::Range(Range { start: 3, end: 2 }).range_in(5).is_err());
    }

    #[test]
    fn a_body_has_as_many_bytes_as_it_said() {
        let body = |parts: &[&'static [u8]]| Body {
            head: Head { object_bytes: 9, version: Version::Immutable },
            range: 2..6,
            stream: futures::stream::iter(
                parts.iter().map(|part| Ok(Bytes::from_static(part))).collect::<Vec<_>>(),
            )
            .boxed(),
        };
        let read = |parts: &[&'static [u8]]| {
            let mut bytes = b"x".to_vec();
            futures::executor::block_on(body(parts).read_to(&mut bytes)).map(|_| bytes)
        };
        assert_eq!(read(&[b"ab", b"", b"cd"]).unwrap(), b"xabcd");
        assert!(read(&[b"ab", b"c"]).unwrap_err().to_string().contains("3 of 4 bytes"));
        assert!(read(&[b"ab", b"cde"]).unwrap_err().to_string().contains("more than the 4 bytes"));
    }
}
