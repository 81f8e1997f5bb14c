//! Objects that lie elsewhere and that a store names by URL or path: in other buckets, on other hosts, in files of this machine.
//!
//! Whoever wrote the document that names them decides where requests go. So options without a URL, which may be credentials, are for the
//! document's own bucket or host; others get what is given under their URL. Files of this machine are read for documents of this machine
//! only. That an object is absent is an error: the document says that it is there.

use super::access::{Access, Options, without_secrets};
use super::cloud::CloudStore;
use super::connections::Connections;
use super::contract::{Body, Extent, Head, Store, Version};
use super::folder::Folder;
use super::service::{Service, service_of};
use crate::error::Obstacle;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, TryStreamExt, stream};

/// Where the document lies that names the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In this folder of this machine, of which this is the whole path.
    Folder(PathBuf),
    /// Below this URL, which ends without a slash.
    Url(String),
}

impl Origin {
    /// The place that the URL of a document is in.
    pub fn of_url(document: &str) -> Self {
        let document = document.trim_end_matches('/');
        let below = document.rfind('/').filter(|&at| !document[..at].ends_with(['/', ':']));
        Self::Url(document[..below.unwrap_or(document.len())].into())
    }
}

/// Objects that are named by URL, or by a path that is relative to the document unless it begins with a slash.
pub struct Targets {
    access: Access,
    origin: Origin,
    connections: Option<Connections>,
    /// The buckets, hosts and folders that were asked so far.
    stores: Mutex<BTreeMap<StoreName, Arc<dyn Store>>>,
}

/// URL of a bucket, a host or a folder, and the URL that its options were given under.
type StoreName = (String, Option<String>);

/// The most buckets, hosts and folders that one document may name: each has connections of its own.
const MOST_STORES: usize = 1000;

/// What a name stands for.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    File(PathBuf),
    Url {
        /// Scheme and host or bucket.
        root: String,
        key: String,
    },
}

impl fmt::Debug for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Targets").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Targets {
    /// Objects that a document at `origin` names. Without connections none of them can be asked for.
    pub fn new(access: Access, origin: Origin) -> Self {
        Self { access, origin, connections: None, stores: Mutex::default() }
    }

    /// The same with the connections of a thread. Clients are made when they are needed.
    pub fn connect(&self, connections: &Connections) -> Self {
        let connections = Some(connections.clone());
        Self {
            access: self.access.clone(),
            origin: self.origin.clone(),
            connections,
            stores: Mutex::default(),
        }
    }

    /// Adds options for what is below a URL, unless the user gave some for it, or the document itself is there.
    pub fn suggest(&mut self, prefix: &str, options: Options) {
        if !self.is_own(prefix) {
            self.access.storage_options.suggest(prefix, options);
        }
    }

    /// Checks that an object of this name may be asked for, without asking.
    ///
    /// # Errors
    /// Names that cannot be used, and files of this machine that the document may not name.
    pub fn check(&self, name: &str) -> io::Result<()> {
        let checked = match self.place(name) {
            Ok(Place::File(path)) => self.file(&path).map(drop).map_err(text_of),
            place => place.map(drop),
        };
        checked.map_err(|problem| failed(name, problem))
    }

    /// Asks for bytes of an object or of a piece of it. Length and ranges of the answer are those of the piece; the version is the object's.
    ///
    /// # Errors
    /// What the object's store says, with the URL; that the object is absent; that it has another version than the one that is expected.
    pub async fn get(
        &self,
        name: &str,
        piece: Option<&Range<u64>>,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Body> {
        let answer = self.answer(name, piece, extent, expected).await;
        let body = answer.map_err(|error| self.explained(name, error))?;
        let of = without_secrets(name);
        let stream = body.stream.map_err(move |error| failed(&of, text_of(error)));
        Ok(Body { stream: stream.boxed(), ..body })
    }

    /// Length and version of an object.
    ///
    /// # Errors
    /// As [`Targets::get`].
    pub async fn head(&self, name: &str) -> io::Result<Head> {
        let found = async {
            let (store, key) = self.find(name)?;
            store.head(&key).await?.ok_or_else(absent)
        };
        found.await.map_err(|error| self.explained(name, error))
    }

    async fn answer(
        &self,
        name: &str,
        piece: Option<&Range<u64>>,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Body> {
        let Some(piece) = piece else {
            let (store, key) = self.find(name)?;
            return store.get(&key, extent, expected).await?.ok_or_else(absent);
        };
        let object_bytes = piece.end.saturating_sub(piece.start);
        let range = extent.range_in(object_bytes)?;
        let whole = Extent::Range(piece.start + range.start..piece.start + range.end);
        if range.is_empty() {
            let version = expected.cloned().unwrap_or(Version::Immutable);
            return Ok(Body { head: Head { object_bytes, version }, range, stream: stream::empty().boxed() });
        }
        let (store, key) = self.find(name)?;
        let body = store.get(&key, whole, expected).await?.ok_or_else(absent)?;
        Ok(Body { head: Head { object_bytes, version: body.head.version }, range, stream: body.stream })
    }

    /// The store that an object is in, and its key there.
    fn find(&self, name: &str) -> io::Result<(Arc<dyn Store>, String)> {
        match self.place(name).map_err(io::Error::other)? {
            Place::File(path) => self.find_file(&path),
            Place::Url { root, key } => {
                let url = format!("{root}/{key}");
                let prefix = self.access.storage_options.prefix_of(&url).map(str::to_string);
                let store = self.kept((root, prefix), |root| {
                    let options = self.options(&url);
                    let store = CloudStore::new(root, options).map_err(|error| error.to_string());
                    let store = store.map_err(io::Error::other)?;
                    let connections = self.connections.as_ref();
                    let connections =
                        connections.ok_or_else(|| io::Error::other("there are no connections"))?;
                    Ok(store.connect(connections)?.unwrap_or_else(|| Arc::new(store)))
                })?;
                Ok((store, key))
            }
        }
    }

    fn find_file(&self, path: &Path) -> io::Result<(Arc<dyn Store>, String)> {
        let (root, key) = self.file(path)?.ok_or_else(absent)?;
        let name = root.to_string_lossy().into_owned();
        let follow_links = self.access.follow_links;
        let store = self.kept((name, None), |_| Ok(Arc::new(Folder::new(&root, follow_links)?)))?;
        Ok((store, key))
    }

    /// The folder that a file has to be in, and its key there. `None` if it is known to be absent.
    fn file(&self, path: &Path) -> io::Result<Option<(PathBuf, String)>> {
        let below = |root: &Path, path: &Path| Some(path.strip_prefix(root).ok()?.to_str()?.to_string());
        let Origin::Folder(folder) = &self.origin else { return Ok(None) };
        let (root, key) = if self.access.follow_links {
            (PathBuf::from("/"), below(Path::new("/"), path))
        } else {
            let root = folder.canonicalize()?;
            let key = match path.canonicalize() {
                Ok(path) => below(&root, &path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            (root, key)
        };
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            let problem = format!(
                "is not in the folder {folder:?} of what refers to it; copy it there, or give follow_links=True for references that you trust"
            );
            return Err(io::Error::other(problem));
        };
        Ok(Some((root, key)))
    }

    /// The store that is kept under a name, which is made if there is none.
    fn kept(
        &self,
        name: StoreName,
        make: impl FnOnce(&str) -> io::Result<Arc<dyn Store>>,
    ) -> io::Result<Arc<dyn Store>> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&name) {
            return Ok(store.clone());
        }
        if stores.len() >= MOST_STORES {
            let problem = format!(
                "is in one of more than {MOST_STORES} buckets or hosts that the document names; write several documents"
            );
            return Err(io::Error::other(problem));
        }
        let store = make(&name.0)?;
        stores.insert(name, store.clone());
        Ok(store)
    }

    /// What a name stands for.
    fn place(&self, name: &str) -> Result<Place, String> {
        if service_of(name).is_some() {
            return url(name);
        }
        let path = match (name.split_once("://"), name.strip_prefix("file:")) {
            // A host's name may stand there, but no relative path.
            (_, Some(path)) => path.strip_prefix("//localhost").or(path.strip_prefix("//")).unwrap_or(path),
            (Some((scheme, _)), None) if is_scheme(scheme) => {
                return Err(format!(
                    "is a URL of a kind that is not read; the document has to name s3://, gs://, az://, abfs(s)://, http(s):// or files, not {scheme}://"
                ));
            }
            (_, None) => name,
        };
        if path.is_empty() || path.contains('\0') || (name.starts_with("file:") && !path.starts_with('/')) {
            return Err("names no object; write the document again".into());
        }
        match &self.origin {
            Origin::Folder(folder) => Ok(Place::File(folder.join(path))),
            Origin::Url(below) if !path.starts_with('/') => url(&joined(below, path)?),
            Origin::Url(_) => Err(
                "is a file of this machine, which nothing that lies elsewhere may name; copy the document to this machine if you trust it, or have it name URLs"
                    .into(),
            ),
        }
    }

    /// Options for the object at a URL: all of them only where the document itself is.
    fn options(&self, url: &str) -> Options {
        if self.is_own(url) {
            self.access.storage_options.of(url)
        } else {
            self.access.storage_options.of_other(url)
        }
    }

    /// Whether a URL is in the document's own bucket, or on its own host.
    fn is_own(&self, url: &str) -> bool {
        let Origin::Url(own) = &self.origin else { return false };
        root_of(url).is_some_and(|root| root_of(own) == Some(root))
    }

    /// An error about an object, with its URL and what is to be done about options that were not used for it.
    fn explained(&self, name: &str, error: io::Error) -> io::Error {
        let withheld = match self.place(name) {
            Ok(Place::Url { root, key }) => {
                let url = format!("{root}/{key}");
                let withholds = !self.is_own(&url) && self.access.storage_options.withholds(&url);
                withholds.then_some(root)
            }
            _ => None,
        };
        let error = Obstacle::of_present(error);
        let problem = match withheld {
            Some(root) => format!(
                "{} (storage_options without a URL are for where the references lie, and are not used for it: give {{\"{root}\": {{...}}}} for it)",
                text_of(error)
            ),
            None => text_of(error),
        };
        failed(name, problem)
    }
}

fn absent() -> io::Error {
    io::Error::other("is not there; restore it, or correct the document that names it")
}

fn text_of(error: io::Error) -> String {
    error.to_string()
}

fn failed(name: &str, problem: String) -> io::Error {
    Obstacle::Target { url: without_secrets(name), problem }.into()
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.:".contains(c))
}

/// Where requests for a URL go: service and bucket, or scheme and host.
fn root_of(url: &str) -> Option<(Service, &'static str, &str)> {
    let (service, scheme, rest) = service_of(url)?;
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // What is sent over https is not for http; the schemes of a cloud mean the same.
    Some((service, if service == Service::Http { scheme } else { "" }, host))
}

/// Root and key of an object's URL.
fn url(url: &str) -> Result<Place, String> {
    let Some((service, scheme, rest)) = service_of(url) else { return Err("is no URL".into()) };
    let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
    if host.is_empty() || key.is_empty() || key.ends_with('/') {
        return Err("names no object; write the document again".into());
    }
    if (service != Service::Azure && host.contains('@')) || host.contains(['?', '#']) {
        return Err(
            "has a user or a query in front of the path; have the document name it without, and give what signs requests in storage_options"
                .into(),
        );
    }
    let key = if service == Service::Http {
        if key.contains(['?', '#']) {
            return Err(
                "has a query; have the document name it without, and give what signs requests in storage_options".into(),
            );
        }
        object_store::path::Path::from_url_path(key)
            .map_err(|error| format!("cannot be a URL ({error})"))?
            .to_string()
    } else {
        key.into()
    };
    Ok(Place::Url { root: format!("{scheme}://{host}"), key })
}

/// A URL below another one, from a relative path.
fn joined(below: &str, path: &str) -> Result<String, String> {
    let mut url = below.to_string();
    let root = below.find("://").map_or(0, |at| at + 3);
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match url[root..].rfind('/') {
                Some(at) => url.truncate(root + at),
                None => return Err("leads out of the bucket or host of the document".into()),
            },
            part => {
                url.push('/');
                url.push_str(part);
            }
        }
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StorageOptions;

    use std::time::Duration;

    use futures::executor::block_on;
    use serde_json::{Value, json};

    fn targets(origin: Origin, follow_links: bool, options: &Value) -> Targets {
        let storage_options = StorageOptions::parse(&options.to_string()).unwrap();
        let connections = Connections::without_retries();
        Targets::new(Access { follow_links, storage_options }, origin).connect(&connections)
    }

    fn read(
        targets: &Targets,
        name: &str,
        piece: Option<Range<u64>>,
        extent: Extent,
    ) -> Result<(Vec<u8>, Range<u64>, Head), String> {
        block_on(async {
            let body = targets.get(name, piece.as_ref(), extent, None).await?;
            let (mut bytes, range) = (vec![], body.range.clone());
            let head = body.read_to(&mut bytes).await?;
            io::Result::Ok((bytes, range, head))
        })
        .map_err(|error| {
            assert!(Obstacle::of(&error).is_some() && error.kind() == io::ErrorKind::Other, "{error:?}");
            error.to_string()
        })
    }

    #[test]
    fn a_piece_of_a_file_is_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a b%20.nc");
        std::fs::write(&file, (0..100).collect::<Vec<u8>>()).unwrap();
        let name = file.to_str().unwrap();
        for follow_links in [true, false] {
            let targets = targets(Origin::Folder(folder.path().into()), follow_links, &json!({}));
            for name in [
                name,
                &format!("file://{name}"),
                &format!("file://localhost{name}"),
                "a b%20.nc",
                "./a b%20.nc",
            ] {
                for (piece, extent, expected, bytes) in [
                    (Some(10..30), Extent::Whole, 0..20, 10..30),
                    (Some(10..30), Extent::Range(5..7), 5..7, 15..17),
                    (Some(10..30), Extent::Suffix(3), 17..20, 27..30),
                    (Some(10..30), Extent::Suffix(99), 0..20, 10..30),
                    (Some(10..30), Extent::Prefix(99), 0..20, 10..30),
                    (Some(10..10), Extent::Whole, 0..0, 0..0),
                    (None, Extent::Range(1..3), 1..3, 1..3),
                    (None, Extent::Whole, 0..100, 0..100),
                ] {
                    let object_bytes =
                        piece.as_ref().map_or(100, |piece: &Range<u64>| piece.end - piece.start);
                    let (found, range, head) = read(&targets, name, piece, extent).unwrap();
                    assert_eq!((range, head.object_bytes), (expected, object_bytes));
                    assert_eq!(found, bytes.collect::<Vec<u8>>());
                }
            }
            let past = read(&targets, name, Some(90..101), Extent::Whole).unwrap_err();
            assert!(past.contains(name) && past.contains("90..101"), "{past}");
            assert!(read(&targets, name, Some(90..u64::MAX), Extent::Whole).is_err());
            assert!(read(&targets, name, Some(9..12), Extent::Range(0..4)).is_err());
            let absent = read(&targets, "other.nc", None, Extent::Whole).unwrap_err();
            assert!(absent.contains("other.nc") && absent.contains("is not there"), "{absent}");
        }
    }

    #[test]
    fn a_file_has_the_time_and_the_tag_that_were_noted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        std::fs::write(&file, "x").unwrap();
        let at = std::time::UNIX_EPOCH + Duration::new(1_000_000, 5_006_000);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(at).unwrap();
        let targets = targets(Origin::Folder(folder.path().into()), true, &json!({}));
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let tag = |bytes: u64| Version::ETag(format!("\"{inode:x}-e8d4a5238e-{bytes:x}\"").into());
        for (expected, fits) in [
            (Version::NotSince { at_s: 1_000_000 }, true),
            (Version::NotSince { at_s: 999_999 }, false),
            (tag(1), true),
            (tag(2), false),
        ] {
            let answer = block_on(targets.get("x", None, Extent::Whole, Some(&expected)));
            let said = answer.map(drop).map_err(|error| error.to_string());
            assert_eq!(said.is_ok(), fits, "{expected:?}");
            assert!(fits || said.unwrap_err().contains("changed"));
        }
    }

    #[test]
    fn files_stay_in_the_documents_folder_if_they_have_to() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("document");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(parent.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
        let free = targets(Origin::Folder(folder.clone()), true, &json!({}));
        let confined = targets(Origin::Folder(folder), false, &json!({}));
        let absolute = parent.path().join("secret");
        assert!(confined.check("absent").is_ok());
        for name in ["../secret", "link", absolute.to_str().unwrap()] {
            assert_eq!(read(&free, name, None, Extent::Whole).unwrap().0, b"x", "{name}");
            let refused = read(&confined, name, None, Extent::Whole).unwrap_err();
            assert!(refused.contains("follow_links=True"), "{refused}");
            assert_eq!(confined.check(name).unwrap_err().to_string(), refused);
        }
    }

    #[test]
    fn documents_elsewhere_name_no_files_of_this_machine() {
        let targets = targets(Origin::of_url("https://host/a/b.json"), true, &json!({}));
        for name in
            ["/etc/hostname", "file:///etc/hostname", "file:/etc/hostname", "file://localhost/etc/hostname"]
        {
            let refused = targets.check(name).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("copy the document"), "{refused}");
            assert!(
                read(&targets, name, Some(0..1), Extent::Whole).unwrap_err().contains("copy the document")
            );
        }
    }

    #[test]
    fn names_are_urls_or_relative_to_the_document() {
        let url = |root: &str, key: &str| Ok(Place::Url { root: root.into(), key: key.into() });
        let place = |origin: &str, name: &str| targets(Origin::of_url(origin), true, &json!({})).place(name);
        for (origin, name, expected) in [
            ("s3://b/refs/d.json", "s3://c/x y%20?/z", url("s3://c", "x y%20?/z")),
            ("s3://b/refs/d.json", "HTTPS://h:9/x%20y", url("https://h:9", "x y")),
            ("s3://b/refs/d.json", "../data/./x", url("s3://b", "data/x")),
            ("s3://b/refs/d.parq/", "x", url("s3://b", "refs/x")),
            ("https://h/d.json", "x", url("https://h", "x")),
            ("s3://b", "x", url("s3://b", "x")),
        ] {
            assert_eq!(place(origin, name), expected, "{origin} {name}");
        }
        for (name, problem) in [
            ("../../x", "leads out"),
            ("", "names no object"),
            ("s3://b", "names no object"),
            ("s3://b/x/", "names no object"),
            ("file://host/x", "names no object"),
            ("ftp://h/x", "not ftp://"),
            ("simplecache::s3://h/x", "not simplecache::s3://"),
            ("https://u:s3cr3t@h/x", "user"),
            ("https://h/x?sig=s3cr3t", "query"),
        ] {
            let error =
                targets(Origin::of_url("s3://b/r/d"), true, &json!({})).check(name).unwrap_err().to_string();
            assert!(
                error.contains(problem) && !error.contains("s3cr3t@") && !error.contains("sig="),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn credentials_are_for_the_documents_own_place_or_for_a_url() {
        let options = json!({
            "key": "k", "anon": true, "headers": {"a": "b"}, "read_timeout": "1 second",
            "s3://theirs": {"key": "t"},
        });
        let of = |origin: Origin, url: &str| {
            serde_json::to_value(targets(origin, true, &options).options(url)).unwrap()
        };
        let own = || Origin::of_url("s3://ours/d.json");
        let all = json!({"key": "k", "anon": true, "headers": {"a": "b"}, "read_timeout": "1 second"});
        let few = json!({"anon": true, "read_timeout": "1 second"});
        assert_eq!(of(own(), "s3://ours/x"), all);
        assert_eq!(of(own(), "s3a://ours/x"), all);
        assert_eq!(of(own(), "s3://ours-too/x"), few);
        assert_eq!(of(own(), "gs://ours/x"), few);
        assert_eq!(of(Origin::Folder("/".into()), "s3://ours/x"), few);
        assert_eq!(of(Origin::of_url("https://h/d.json"), "http://h/x"), few);
        assert_eq!(of(own(), "s3://theirs/x"), json!({"anon": true, "read_timeout": "1 second", "key": "t"}));
    }

    #[test]
    fn an_error_says_that_options_were_not_used() {
        let place = Origin::of_url("https://127.0.0.1:1/d.json");
        let targets = targets(place, true, &json!({"headers": {"authorization": "s3cr3t"}}));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |name: &str| {
            let asked = runtime.block_on(targets.get(name, None, Extent::Whole, None));
            asked.unwrap_err().to_string()
        };
        let other = ask("http://127.0.0.1:2/x");
        assert!(other.contains("{\"http://127.0.0.1:2\": {...}}") && !other.contains("s3cr3t"), "{other}");
        assert!(!ask("x").contains("{...}"));
    }
}
