//! A folder of this machine as a store.

use super::contract::{Body, Extent, Head, Listing, Store, Version};
use super::folder::Folder;
use super::stamp::Stamp;
use crate::error::Obstacle;

use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, future, stream};

impl Store for Folder {
    fn folder(&self) -> Option<&Folder> {
        Some(self)
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        future::ready(answer(self, key, &extent, expected)).boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        let found = self.stamp(key);
        let head = |stamp: Stamp| Head { object_bytes: stamp.len(), version: Version::File(stamp) };
        future::ready(found.map(|stamp| stamp.map(head))).boxed()
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        let found = self.folders(key);
        let listing = |(names, identity)| Listing { names, identity: Some(identity) };
        future::ready(found.map(listing)).boxed()
    }
}

/// Reads a part of the file that a key names. `None` if there is none.
fn answer(
    folder: &Folder,
    key: &str,
    extent: &Extent,
    expected: Option<&Version>,
) -> io::Result<Option<Body>> {
    let Some((file, stamp)) = folder.open(key)? else { return Ok(None) };
    let head = Head { object_bytes: stamp.len(), version: Version::File(stamp) };
    let fits = |expected: &Version| match expected {
        Version::NotSince { at_s } => stamp.modified_s() <= *at_s,
        Version::ETag(tag) => **tag == *stamp.entity_tag(),
        expected => *expected == head.version,
    };
    if !expected.is_none_or(fits) {
        return Err(Obstacle::Changed.into());
    }
    let range = extent.range_in(stamp.len())?;
    // Read when the stream is asked, so that a file of any size can be asked for its length.
    let part = range.clone();
    let read = move || {
        let mut bytes = crate::memory::zeroed(part.end - part.start).map_err(io::Error::other)?;
        let read = file.read_exact_at(&mut bytes, part.start);
        // A file that was cut short meanwhile ends too early.
        if !stamp.holds(&file.metadata()?)? {
            return Err(Obstacle::Written.into());
        }
        read.map(|()| Bytes::from(bytes))
    };
    Ok(Some(Body { head, range, stream: stream::once(future::lazy(move |_| read())).boxed() }))
}
