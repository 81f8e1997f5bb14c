//! From what a user calls a store to the store.

use super::{Folder, MemoryStore, Store};
use crate::error::{Error, Result};

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Whether a URL names a store that was published in this process.
pub fn is_published(url: &str) -> bool {
    MemoryStore::published(url).is_some()
}

/// Opens the store at a path of this machine, or a published one at `memory://NAME`. With `follow_links` symbolic links may lead out of
/// a folder.
///
/// # Errors
/// Says what is at the path instead of a folder, or why it cannot be looked at.
pub fn open(path: &str, follow_links: bool) -> Result<Arc<dyn Store>> {
    if let Some(store) = MemoryStore::published(path) {
        return Ok(store);
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
    Ok(Arc::new(Folder::new(root, follow_links).map_err(unreadable)?))
}
