//! Objects in this process's memory, for tests and for stores that are made up as they are opened.

use super::contract::{Body, Extent, Head, Listing, Store, Version};
use crate::error::Obstacle;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};

/// The stores of this process by their URLs.
static PUBLISHED: Mutex<BTreeMap<String, Arc<dyn Store>>> = Mutex::new(BTreeMap::new());

/// A store of objects in memory. Each write gives an object a new version.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: RwLock<Objects>,
}

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<String, (Bytes, Version)>,
    writes: u64,
}

impl MemoryStore {
    /// Puts an object under a key, in place of what was there.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.writes += 1;
        let version = Version::ETag(objects.writes.to_string().into());
        objects.by_key.insert(key.into(), (bytes.into(), version));
    }

    /// Removes the object under a key, if there is one.
    pub fn remove(&self, key: &str) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).by_key.remove(key);
    }

    /// Makes a store known in this process as `memory://NAME`, in place of one of that name.
    pub fn publish(name: &str, store: Arc<dyn Store>) {
        PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner).insert(format!("memory://{name}"), store);
    }

    /// The store that was published under this URL.
    pub(super) fn published(url: &str) -> Option<Arc<dyn Store>> {
        PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner).get(url).cloned()
    }

    fn find(&self, key: &str) -> Option<(Bytes, Version)> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).by_key.get(key).cloned()
    }

    fn answer(&self, key: &str, extent: &Extent, expected: Option<&Version>) -> io::Result<Option<Body>> {
        let Some((bytes, version)) = self.find(key) else { return Ok(None) };
        if expected.is_some_and(|expected| *expected != version) {
            return Err(Obstacle::Changed.into());
        }
        let object_bytes = bytes.len() as u64;
        let range = extent.range_in(object_bytes)?;
        let part = bytes.slice(range.start as usize..range.end as usize);
        let head = Head { object_bytes, version };
        Ok(Some(Body { head, range, stream: stream::once(future::ready(Ok(part))).boxed() }))
    }
}

impl Store for MemoryStore {
    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        future::ready(self.answer(key, &extent, expected)).boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        let found = self.find(key);
        future::ready(Ok(found.map(|(bytes, version)| Head { object_bytes: bytes.len() as u64, version })))
            .boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        let prefix = if key.is_empty() { String::new() } else { format!("{key}/") };
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        let below = objects.by_key.range(prefix.clone()..).map_while(|(key, _)| key.strip_prefix(&prefix));
        let mut names: Vec<String> =
            below.filter_map(|rest| Some(rest.split_once('/')?.0.to_string())).collect();
        names.dedup();
        future::ready(Ok(Listing { names, identity: None })).boxed()
    }
}
