//! From what a user calls a store to the store.

use super::access::Access;
use super::cloud::CloudStore;
use super::cloud::is_cloud;
use super::contract::Store;
use super::folder::Folder;
use super::memory::MemoryStore;
use crate::error::{Error, Result};

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Whether this is the URL of a store. The path of a folder that exists is never taken for a URL.
pub fn is_url(path: &str) -> bool {
    (is_cloud(path) && !Path::new(path).exists()) || MemoryStore::published(path).is_some()
}

/// Opens the store at a path of this machine, at a URL, or a published one at `memory://NAME`.
///
/// # Errors
/// Says what is at the path instead of a folder, or why it cannot be looked at.
pub fn open(path: &str, access: &Access) -> Result<Arc<dyn Store>> {
    if let Some(store) = MemoryStore::published(path) {
        return Ok(store);
    }
    if is_url(path) {
        return Ok(Arc::new(CloudStore::new(path, access.storage_options.of(path))?));
    }
    let unreadable = |source| Error::Unreadable { path: path.into(), source };
    let root = Path::new(path);
    match root.metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Error::StoreIsFile { path: path.into() }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::StoreNotFound { path: path.into() });
        }
        Err(error) => return Err(unreadable(error)),
    }
    Ok(Arc::new(Folder::new(root, access.follow_links).map_err(unreadable)?))
}
