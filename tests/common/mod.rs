//! What several tests share.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use zarr_dali::store::{Body, Extent, Head, Listing, MemoryStore, Store, Version};

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store refuses it.
    Denied,
    /// The store has no time.
    Unavailable,
    /// The connection ends in the middle of the bytes.
    CutShort,
    /// More bytes come than were announced.
    Overlong,
}

/// A store in memory that is slow, sends its bytes in small pieces, and fails now and then.
#[derive(Debug, Default)]
pub struct FakeStore {
    /// What it holds.
    pub objects: MemoryStore,
    /// Until the first byte of each answer.
    pub latency: Duration,
    /// Every so many requests for a chunk fail, and how. A chunk is what has a key with a `c/` in it.
    pub fault: Option<(u64, Fault)>,
    /// Objects of which every request fails, and folders that cannot be listed.
    pub faulty: Vec<(&'static str, Fault)>,
    /// Requests that were made for chunks.
    pub requests_made: AtomicU64,
}

impl FakeStore {
    /// Bytes of a piece of an answer.
    const PIECE_BYTES: usize = 1000;

    /// Requests that were made for chunks.
    pub fn requests(&self) -> u64 {
        self.requests_made.load(Ordering::Relaxed)
    }

    async fn wait(&self) {
        // Metadata are read by threads that wait.
        match tokio::runtime::Handle::try_current() {
            Ok(_) => tokio::time::sleep(self.latency).await,
            Err(_) => std::thread::sleep(self.latency),
        }
    }

    fn fault_of_next(&self, key: &str) -> Option<Fault> {
        if let Some((_, fault)) = self.faulty.iter().find(|(faulty, _)| *faulty == key) {
            return Some(*fault);
        }
        if !key.contains("c/") {
            return None;
        }
        let number = self.requests_made.fetch_add(1, Ordering::Relaxed) + 1;
        self.fault.filter(|(every, _)| number.is_multiple_of(*every)).map(|(_, fault)| fault)
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
            let fault = self.fault_of_next(key);
            self.wait().await;
            match fault {
                Some(Fault::Denied) => return Err(io::ErrorKind::PermissionDenied.into()),
                Some(Fault::Unavailable) => return Err(io::Error::other("503 Slow Down")),
                _ => {}
            }
            let Some(body) = self.objects.get(key, extent, expected).await? else { return Ok(None) };
            let (head, range) = (body.head.clone(), body.range.clone());
            let mut bytes = Vec::new();
            body.read_to(&mut bytes).await?;
            match fault {
                Some(Fault::CutShort) => bytes.truncate(bytes.len() / 2),
                Some(Fault::Overlong) => bytes.push(0),
                _ => {}
            }
            let pieces: Vec<_> =
                bytes.chunks(Self::PIECE_BYTES).map(|piece| Ok(piece.to_vec().into())).collect();
            Ok(Some(Body { head, range, stream: futures::stream::iter(pieces).boxed() }))
        }
        .boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        self.objects.head(key)
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        match self.faulty.iter().any(|(faulty, _)| *faulty == key) {
            true => async { Err(io::ErrorKind::PermissionDenied.into()) }.boxed(),
            false => self.objects.list(key),
        }
    }
}
