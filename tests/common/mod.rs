//! What several tests share.

use std::collections::HashSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use zarr_dali::error::Obstacle;
use zarr_dali::store::{Body, Extent, Head, Listing, MemoryStore, Store, Version, read_whole};

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store refuses it.
    Denied,
    /// The store says 403, which can mean that the object is absent.
    Forbidden,
    /// The store has no time.
    Unavailable,
    /// The connection ends in the middle of the bytes.
    CutShort,
    /// The connection breaks in the middle of the bytes.
    Broken,
    /// Another object is there from now on.
    Replaced,
    /// More bytes come than were announced.
    Overlong,
    /// The client panics.
    Panic,
}

/// A store in memory that is slow, sends its bytes in small pieces, and fails now and then.
#[derive(Debug, Default)]
pub struct FakeStore {
    /// What it holds.
    pub objects: MemoryStore,
    /// Until the first byte of each answer.
    pub latency: Duration,
    /// `(n, fault)`: each n-th request for a chunk fails with `fault`. A chunk is what has a key with a `c/` in it.
    pub fault: Option<(u64, Fault)>,
    /// `(n, time)`: each n-th request for a chunk takes `time`.
    pub late: Option<(u64, Duration)>,
    /// `(key, n, time)`: the first `n` requests for that chunk take `time`.
    pub late_at_first: Option<(&'static str, usize, Duration)>,
    /// Whether it has no entity tags, but times, which do not change here.
    pub untagged: bool,
    /// Whether its objects never change and have no entity tags.
    pub immutable: bool,
    /// Objects of which every request fails, and folders that cannot be listed.
    pub faulty: Vec<(&'static str, Fault)>,
    /// Requests that were made for chunks.
    pub requests_made: AtomicU64,
    /// What was asked for of chunks, in this order.
    pub asked: Mutex<Vec<(String, Extent)>>,
    /// The threads that asked for chunks.
    pub threads: Mutex<HashSet<ThreadId>>,
}

impl FakeStore {
    /// Bytes of a piece of an answer.
    const PIECE_BYTES: usize = 1000;

    /// Requests that were made for chunks.
    pub fn requests(&self) -> u64 {
        self.requests_made.load(Ordering::Relaxed)
    }

    async fn wait(&self, key: &str, number: u64) {
        let late = self.late.filter(|(every, _)| number > 0 && number.is_multiple_of(*every));
        let asked = || self.asked.lock().unwrap().iter().filter(|(asked, _)| asked == key).count();
        let at_first = self.late_at_first.filter(|(late, first, _)| *late == key && asked() <= *first);
        let time = late.map(|(_, time)| time).or(at_first.map(|(.., time)| time)).unwrap_or(self.latency);
        // Metadata are read by threads that wait.
        match tokio::runtime::Handle::try_current() {
            Ok(_) => tokio::time::sleep(time).await,
            Err(_) => std::thread::sleep(time),
        }
    }

    /// What the store says of an object.
    fn shown(&self, head: Head) -> Head {
        match (self.untagged, self.immutable) {
            (true, _) => Head { version: Version::Modified { at_ns: 7 }, ..head },
            (_, true) => Head { version: Version::Immutable, ..head },
            _ => head,
        }
    }

    /// Number of a request for a chunk, and how it fails.
    fn next(&self, key: &str, extent: &Extent) -> (u64, Option<Fault>) {
        if let Some((_, fault)) = self.faulty.iter().find(|(faulty, _)| *faulty == key) {
            return (0, Some(*fault));
        }
        if !key.contains("c/") {
            return (0, None);
        }
        self.asked.lock().unwrap().push((key.into(), extent.clone()));
        self.threads.lock().unwrap().insert(std::thread::current().id());
        let number = self.requests_made.fetch_add(1, Ordering::Relaxed) + 1;
        let fault = self.fault.filter(|(every, _)| number.is_multiple_of(*every));
        (number, fault.map(|(_, fault)| fault))
    }
}

impl Store for FakeStore {
    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        async move {
            let (number, fault) = self.next(key, &extent);
            self.wait(key, number).await;
            match fault {
                Some(Fault::Denied) => return Err(io::ErrorKind::PermissionDenied.into()),
                Some(Fault::Forbidden) => {
                    return Err(Obstacle::Forbidden { problem: "403".into(), remedy: "" }.into());
                }
                Some(Fault::Panic) => panic!("on purpose"),
                Some(Fault::Unavailable) => return Err(io::Error::other("503 Slow Down")),
                _ => {}
            }
            if fault == Some(Fault::Replaced)
                && let Some((bytes, _)) = read_whole(&self.objects, key, u64::MAX).await?
            {
                self.objects.put(key, bytes.iter().map(|byte| !byte).collect::<Vec<u8>>());
            }
            let version = expected.filter(|_| !self.untagged && !self.immutable);
            let Some(body) = self.objects.get(key, extent, version).await? else { return Ok(None) };
            let (head, range) = (self.shown(body.head.clone()), body.range.clone());
            let mut bytes = Vec::new();
            body.read_to(&mut bytes).await?;
            match fault {
                Some(Fault::CutShort | Fault::Broken) => bytes.truncate(bytes.len() / 2),
                Some(Fault::Overlong) => bytes.push(0),
                _ => {}
            }
            let mut pieces: Vec<_> =
                bytes.chunks(Self::PIECE_BYTES).map(|piece| Ok(piece.to_vec().into())).collect();
            if fault == Some(Fault::Broken) {
                pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
            }
            Ok(Some(Body { head, range, stream: futures::stream::iter(pieces).boxed() }))
        }
        .boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        async move { Ok(self.objects.head(key).await?.map(|head| self.shown(head))) }.boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        match self.faulty.iter().any(|(faulty, _)| *faulty == key) {
            true => async { Err(io::ErrorKind::PermissionDenied.into()) }.boxed(),
            false => self.objects.list(key),
        }
    }
}
