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

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Whether this is the URL of a store. The path of a folder that exists is never taken for a URL.
pub fn is_url(path: &str) -> bool {
    let (_, place) = split_reference(path);
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

/// Whether a path or URL is said to be of references, and the rest of it.
fn split_reference(path: &str) -> (bool, &str) {
    path.strip_prefix(REFERENCE).map_or((false, path), |place| (true, place))
}

/// What stands between the path or URL of a zip file and the path in it.
const IN_ZIP: &str = "|zip:";

/// A path or URL that may be of a zip file, and the path in it if one is given: `PLACE|zip:PATH`.
fn split_zip(path: &str) -> (&str, Option<&str>) {
    path.split_once(IN_ZIP).map_or((path, None), |(place, inner)| (place, Some(inner)))
}

/// What a path or URL leads to, apart from an Icechunk repository, which is looked for in what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format<'a> {
    /// Objects by key.
    Objects,
    /// A zip file, and the path in it.
    Zip(&'a str),
    References(References),
}

impl Format<'_> {
    /// Whether this is one object, or one file, and not a folder of them.
    fn is_object(self) -> bool {
        matches!(self, Self::Zip(_) | Self::References(References::Json))
    }

    /// The store of this format in what another has at a key, which is empty for all of it.
    fn open(self, store: Arc<dyn Store>, key: &str, origin: Origin, access: &Access) -> Arc<dyn Store> {
        let targets = || Targets::new(access.clone(), origin);
        match self {
            Self::Objects => store,
            Self::Zip(inner) => Arc::new(ZipStore::new(store, key, inner)),
            Self::References(References::Json) => Arc::new(ReferenceStore::json(store, key, targets())),
            Self::References(References::Parquet) => Arc::new(ReferenceStore::parquet(store, key, targets())),
        }
    }
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
    let store = match MemoryStore::published(place) {
        Some(store) => store,
        None if is_url(place) => open_url(place, access)?,
        None => open_local(place, access)?,
    };
    let is_repository = || store.folder().is_some_and(|folder| icechunk::is_repository(folder.path()));
    let Some(snapshot) = snapshot.or_else(|| is_repository().then_some("")) else { return Ok(store) };
    let unreadable = |source| Error::Unreadable { path: place.into(), source };
    let origin = match store.folder() {
        Some(folder) => Origin::Folder(folder.path().canonicalize().map_err(unreadable)?),
        None => Origin::Url(without_query(place).trim_end_matches('/').into()),
    };
    Ok(Arc::new(IcechunkStore::new(store, snapshot, access.clone(), origin)?))
}

/// A URL without its query: the format of what is at the URL is told by the path alone.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn open_url(path: &str, access: &Access) -> Result<Arc<dyn Store>> {
    let (is_reference, path) = split_reference(path);
    let (url, inner) = split_zip(path);
    let place = without_query(url);
    let format = match (inner, references_by_name(place)) {
        (Some(inner), _) => Format::Zip(inner),
        (None, Some(format)) => Format::References(format),
        (None, None) if is_reference && place.ends_with('/') => Format::References(References::Parquet),
        (None, None) if is_reference => Format::References(References::Json),
        (None, None) if place.trim_end_matches('/').to_ascii_lowercase().ends_with(".zip") => Format::Zip(""),
        (None, None) => Format::Objects,
    };
    let store = Arc::new(CloudStore::new(url, access.storage_options.of(url))?);
    // The empty key is what the URL itself names.
    Ok(format.open(store, "", Origin::of_url(place), access))
}

fn open_local(path: &str, access: &Access) -> Result<Arc<dyn Store>> {
    let (is_reference, path) = split_reference(path);
    let (place, inner) = split_zip(path);
    let unreadable = |source| Error::Unreadable { path: path.into(), source };
    let root = Path::new(place);
    let found = root.metadata().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::StoreNotFound { path: path.into() },
        _ => unreadable(error),
    })?;
    let format = match inner {
        Some(inner) if found.is_file() => Format::Zip(inner),
        Some(_) => {
            let problem = format!("\"{path}\" names a path in a zip file, but \"{place}\" is no file");
            return Err(argument("path", problem));
        }
        None if is_reference && found.is_file() => Format::References(References::Json),
        None if is_reference && found.is_dir() => Format::References(References::Parquet),
        None => match format_of(root, &found).map_err(unreadable)? {
            Some(format) => format,
            None => return Err(Error::StoreIsFile { path: path.into() }),
        },
    };
    let folder = |root: &Path| Folder::new(root, access.follow_links).map_err(unreadable).map(Arc::new);
    if format == Format::Objects {
        return Ok(folder(root)?);
    }
    // What lies in a document, and beside it, is relative to where it really is.
    let document = root.canonicalize().map_err(unreadable)?;
    let parent = document.parent().unwrap_or(&document);
    let origin = Origin::Folder(parent.into());
    if !format.is_object() {
        return Ok(format.open(folder(&document)?, "", origin, access));
    }
    let name = document.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(format.open(folder(parent)?, name, origin, access))
}

/// What a file or a folder is, by what is in it. `None` for a file that is no store.
fn format_of(path: &Path, found: &Metadata) -> io::Result<Option<Format<'static>>> {
    if found.is_dir() {
        let parquet = has_references(path)?.then_some(Format::References(References::Parquet));
        return Ok(Some(parquet.unwrap_or(Format::Objects)));
    }
    if !found.is_file() {
        return Ok(None);
    }
    // A file of that name that is none is said to be damaged; so is a zip file below.
    let is_called_json = path.to_str().and_then(references_by_name) == Some(References::Json);
    if is_called_json || begins_as_references(path)? {
        return Ok(Some(Format::References(References::Json)));
    }
    let is_called_zip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zip"));
    Ok((is_called_zip || begins_as_zip(path)?).then_some(Format::Zip("")))
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
