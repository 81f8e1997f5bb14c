//! From what a user calls a store to the store.

use super::access::Access;
use super::cloud::CloudStore;
use super::cloud::is_cloud;
use super::contract::Store;
use super::folder::Folder;
use super::icechunk::{self, IcechunkStore};
use super::memory::MemoryStore;
use super::references::ReferenceStore;
use super::targets::{Origin, Targets};
use super::zip::ZipStore;
use crate::error::{Error, Result};
use crate::options::argument;

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Whether this is the URL of a store. The path of a folder that exists is never taken for a URL.
pub fn is_url(path: &str) -> bool {
    let place = path.strip_prefix(REFERENCE).unwrap_or(path);
    (is_cloud(place) && !Path::new(path).exists()) || MemoryStore::published(path).is_some()
}

/// What stands before the path or URL of references.
const REFERENCE: &str = "reference::";

/// The formats of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum References {
    Json,
    Parquet,
}

/// The format of references that a path or URL names by how it ends.
fn references_by_name(place: &str) -> Option<References> {
    let place = place.trim_end_matches('/').to_ascii_lowercase();
    let file = place.rsplit('/').next().unwrap_or_default();
    if file.ends_with(".parq") || file.ends_with(".parquet") {
        Some(References::Parquet)
    } else {
        (file.ends_with(".json") && file != "zarr.json").then_some(References::Json)
    }
}

/// What stands between the path or URL of a zip file and the path in it.
const IN_ZIP: &str = "|zip:";

/// A path or URL that may be of a zip file, and the path in it if one is given: `PLACE|zip:PATH`.
fn split_zip(path: &str) -> (&str, Option<&str>) {
    path.split_once(IN_ZIP).map_or((path, None), |(place, inner)| (place, Some(inner)))
}

/// Opens the store at a path of this machine, at a URL, or a published one at `memory://NAME`. A zip file is a store, too, and so are
/// references and a snapshot of an Icechunk repository.
///
/// # Errors
/// Says what is at the path instead of a folder, or why it cannot be looked at.
pub fn open(path: &str, access: &Access) -> Result<Arc<dyn Store>> {
    let (place, snapshot) = match icechunk::split(path) {
        Some((place, inner)) => (place, Some(inner)),
        None => (path, None),
    };
    let store = open_place(place, access)?;
    let is_repository = || store.folder().is_some_and(|folder| icechunk::is_repository(folder.path()));
    match snapshot.or_else(|| is_repository().then_some("")) {
        Some(snapshot) => {
            let origin = match store.folder() {
                Some(folder) => Origin::Folder(
                    folder
                        .path()
                        .canonicalize()
                        .map_err(|source| Error::Unreadable { path: place.into(), source })?,
                ),
                None => Origin::Url(place.trim_end_matches('/').into()),
            };
            Ok(Arc::new(IcechunkStore::new(store, snapshot, access.clone(), origin)?))
        }
        None => Ok(store),
    }
}

/// Opens what is at a path or URL, apart from repositories.
fn open_place(path: &str, access: &Access) -> Result<Arc<dyn Store>> {
    if let Some(store) = MemoryStore::published(path) {
        return Ok(store);
    }
    let (is_reference, path) = path.strip_prefix(REFERENCE).map_or((false, path), |place| (true, place));
    let (place, inner) = split_zip(path);
    if is_url(path) {
        let store = Arc::new(CloudStore::new(place, access.storage_options.of(place))?);
        let format = references_by_name(place).filter(|_| inner.is_none());
        let by_prefix = if place.ends_with('/') { References::Parquet } else { References::Json };
        if let Some(format) = format.or(is_reference.then_some(by_prefix)) {
            let targets = Targets::new(access.clone(), Origin::of_url(place));
            return Ok(references(format, store, "", targets));
        }
        let is_zip = inner.is_some() || place.trim_end_matches('/').to_ascii_lowercase().ends_with(".zip");
        // The empty key is what the URL itself names.
        return Ok(if is_zip {
            Arc::new(ZipStore::new(store, "", inner.unwrap_or_default()))
        } else {
            store
        });
    }
    let unreadable = |source| Error::Unreadable { path: path.into(), source };
    let root = Path::new(place);
    let folder = |root: &Path| Folder::new(root, access.follow_links).map_err(unreadable);
    let of_references = |format| {
        // Names are relative to where the document really is.
        let document = root.canonicalize().map_err(unreadable)?;
        let parent = document.parent().unwrap_or(&document);
        let targets = Targets::new(access.clone(), Origin::Folder(parent.into()));
        let (store, key) = match format {
            References::Json => {
                (parent, document.file_name().and_then(|name| name.to_str()).unwrap_or_default())
            }
            References::Parquet => (&*document, ""),
        };
        Ok(references(format, Arc::new(folder(store)?), key, targets))
    };
    match root.metadata() {
        Ok(found)
            if found.is_dir()
                && inner.is_none()
                && (is_reference || has_references(root).map_err(unreadable)?) =>
        {
            of_references(References::Parquet)
        }
        Ok(found)
            if found.is_file()
                && inner.is_none()
                && (is_reference || begins_as_references(root).map_err(unreadable)?) =>
        {
            of_references(References::Json)
        }
        Ok(found) if found.is_dir() && inner.is_none() => Ok(Arc::new(folder(root)?)),
        Ok(found) if found.is_file() && (inner.is_some() || begins_as_zip(root).map_err(unreadable)?) => {
            // The file itself may be a link.
            let file = root.canonicalize().map_err(unreadable)?;
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let store = Arc::new(folder(file.parent().unwrap_or(&file))?);
            Ok(Arc::new(ZipStore::new(store, name, inner.unwrap_or_default())))
        }
        Ok(_) if inner.is_some() => {
            let problem = format!("\"{path}\" names a path in a zip file, but \"{place}\" is no file");
            Err(argument("path", problem))
        }
        Ok(_) => Err(Error::StoreIsFile { path: path.into() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::StoreNotFound { path: path.into() }),
        Err(error) => Err(unreadable(error)),
    }
}

/// The references in a document or below a key.
fn references(format: References, store: Arc<dyn Store>, key: &str, targets: Targets) -> Arc<dyn Store> {
    Arc::new(match format {
        References::Json => ReferenceStore::json(store, key, targets),
        References::Parquet => ReferenceStore::parquet(store, key, targets),
    })
}

/// Whether a folder is one of parquet files with references: it has their metadata, and none of a Zarr store.
fn has_references(path: &Path) -> io::Result<bool> {
    let has = |file: &str| path.join(file).is_file();
    if !has(".zmetadata") || ["zarr.json", ".zgroup", ".zarray"].into_iter().any(has) {
        return Ok(false);
    }
    let mut metadata = vec![];
    File::open(path.join(".zmetadata"))?.take(ReferenceStore::MOST_FILE_BYTES).read_to_end(&mut metadata)?;
    const NAME: &[u8] = b"\"record_size\"";
    Ok(metadata.windows(NAME.len()).any(|text| text == NAME))
}

/// Whether a file that is not metadata of a Zarr store begins as JSON documents do.
fn begins_as_references(path: &Path) -> io::Result<bool> {
    const METADATA: [&str; 5] = ["zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"];
    if path.file_name().is_some_and(|name| METADATA.iter().any(|&file| name == file)) {
        return Ok(false);
    }
    let mut begin = vec![];
    File::open(path)?.take(64).read_to_end(&mut begin)?;
    Ok(begin.trim_ascii_start().first() == Some(&b'{'))
}

/// Whether a file begins as zip files do.
fn begins_as_zip(path: &Path) -> io::Result<bool> {
    let mut begin = vec![];
    File::open(path)?.take(2).read_to_end(&mut begin)?;
    Ok(begin == b"PK")
}
