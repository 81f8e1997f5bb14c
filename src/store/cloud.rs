//! Object stores and web servers, through the crate `object_store`.
//!
//! It signs requests, refreshes credentials and repeats what failed. What is asked for, and when, is decided elsewhere.

use super::access::{Options, without_secrets};
use super::bucket_region::BucketRegion;
use super::client::ClientBuilder;
use super::connections::Connections;
use super::contract::{Body, Extent, Head, Listing, Store, Version};
use super::remedy::{failure, is_of_bucket};
use super::service::{Service, service_of};
use super::traffic::with_causes;
use crate::error::{Error, Obstacle, Result};
use crate::options::argument;

use std::fmt;
use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Attribute, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use once_cell::sync::OnceCell;

/// A store in a bucket or on a web server.
pub struct CloudStore {
    /// Without secrets.
    url: String,
    /// Of all keys.
    prefix: Path,
    builder: ClientBuilder,
    /// Only a store with connections has them.
    connected: Option<Connected>,
}

/// Clients of a bucket or a web server.
struct Connected {
    connections: Connections,
    client: Arc<dyn ObjectStore>,
    /// Once an answer has named the bucket's region.
    in_region: OnceCell<Arc<dyn ObjectStore>>,
}

impl fmt::Debug for CloudStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

/// Whether a store at this URL is one of these.
pub fn is_cloud(url: &str) -> bool {
    service_of(url).is_some()
}

impl CloudStore {
    /// A store at a URL. Sends no request.
    ///
    /// # Errors
    /// Names the option, or the part of the URL, that cannot be used.
    pub fn new(url: &str, options: Options) -> Result<Self> {
        let shown = without_secrets(url);
        let Some((service, scheme, rest)) = service_of(url) else {
            return Err(Error::StoreNotFound { path: shown });
        };
        // Web servers take signatures in the query, which goes with every request then and is never shown.
        let (rest, query) = match rest.split_once('?') {
            Some(parts) if service == Service::Http => parts,
            _ => (rest, ""),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            let what = if service == Service::Http { "host" } else { "bucket" };
            return Err(argument("path", format!("\"{shown}\" names no {what}")));
        }
        let (separators, problem): (&[char], _) = match service {
            Service::Http => (
                &['#'],
                "a fragment (#...), which servers do not see; leave it out, or write %23 for a # in a name",
            ),
            _ => (
                &['?', '#'],
                "a query or a fragment, which no URL of a bucket has; give the store's URL without it, and what signs requests in storage_options",
            ),
        };
        if url.contains(separators) {
            return Err(argument("path", format!("\"{shown}\" has {problem}")));
        }
        if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!(
                "\"{shown}\" has a query with characters that no URL has; write them as %20 and the like"
            );
            return Err(argument("path", problem));
        }
        if service != Service::Azure && host.contains('@') {
            let problem = format!(
                "\"{shown}\" has a user in front of the host; give the URL without, and storage_options={{\"headers\": {{\"authorization\": ...}}}}"
            );
            return Err(argument("path", problem));
        }
        let builder = ClientBuilder::new(service, scheme, host, query, options)?;
        let prefix = match (service, path.trim_end_matches('/')) {
            (Service::Http, path) => Path::from_url_path(path),
            (_, path) => Path::parse(path),
        };
        let prefix = prefix.map_err(|error| {
            let problem = format!(
                "\"{shown}\" cannot be read ({error}); give a URL in UTF-8 without empty parts (//), \".\", \"..\" and control characters, and move a store whose keys have them"
            );
            argument("path", problem)
        })?;
        Ok(Self { url: shown, prefix, builder, connected: None })
    }

    fn client(&self) -> io::Result<&dyn ObjectStore> {
        let Some(Connected { connections, client, in_region }) = &self.connected else {
            return Err(io::Error::other(format!("{} has no connections", self.url)));
        };
        if self.builder.region().and_then(BucketRegion::named).is_none() {
            return Ok(&**client);
        }
        let client = in_region.get_or_try_init(|| self.builder.client(connections));
        Ok(&**client.map_err(|error| self.failed(&error))?)
    }

    /// The answer of [`CloudStore::client`]; where it fails because the bucket is in another region, that of the client there.
    async fn answer_of<'a, T>(
        &'a self,
        ask: impl Fn(&'a dyn ObjectStore) -> BoxFuture<'a, object_store::Result<T>>,
    ) -> io::Result<object_store::Result<T>> {
        let unknown = self.builder.region().filter(|region| region.named().is_none());
        let answer = ask(self.client()?).await;
        let (Some(region), Err(error)) = (unknown, &answer) else { return Ok(answer) };
        region.note_error(&with_causes(error));
        match region.named() {
            None => Ok(answer),
            Some(_) => Ok(ask(self.client()?).await),
        }
    }

    fn path(&self, key: &str) -> io::Result<Path> {
        let text = match (self.prefix.as_ref(), key) {
            (prefix, "") => prefix.to_string(),
            ("", key) => key.to_string(),
            (prefix, key) => format!("{prefix}/{key}"),
        };
        Path::parse(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    /// Asks for an object.
    async fn answer(
        &self,
        key: &str,
        extent: Extent,
        expected: Option<&Version>,
    ) -> io::Result<Option<Body>> {
        let path = self.path(key)?;
        if let Extent::Range(range) = &extent
            && range.is_empty()
        {
            // There is no request for no bytes.
            let head =
                Head { object_bytes: range.end, version: expected.cloned().unwrap_or(Version::Immutable) };
            return Ok(Some(Body { head, range: range.clone(), stream: stream::empty().boxed() }));
        }
        let is_prefix = matches!(extent, Extent::Prefix(_));
        let range = match extent {
            Extent::Whole => None,
            Extent::Prefix(bytes) => Some(GetRange::Bounded(0..bytes)),
            Extent::Range(range) => Some(GetRange::Bounded(range)),
            // Azure has no ranges from the end.
            Extent::Suffix(bytes) if self.builder.service() == Service::Azure => {
                let head = match self.ask_head(&path).await {
                    Ok(Some(head)) => head,
                    Err(error) if !Obstacle::is_forbidden(&error) => return Err(error),
                    // The answer to a HEAD has no body, which says whether the container is gone, and why the object may not be read: an archived
                    // one is not absent.
                    denied => {
                        return match (Box::pin(self.answer(key, Extent::Prefix(1), None)).await?, denied) {
                            (None, _) => Ok(None),
                            (Some(_), Ok(_)) => Err(Obstacle::Changed.into()),
                            (Some(_), Err(error)) => Err(Obstacle::of_present(error)),
                        };
                    }
                };
                if expected.is_none() {
                    // What is at the end is only there as long as the object has this length.
                    let range = head.object_bytes.saturating_sub(bytes)..head.object_bytes;
                    return Box::pin(self.answer(key, Extent::Range(range), Some(&head.version))).await;
                }
                Some(GetRange::Bounded(head.object_bytes.saturating_sub(bytes)..head.object_bytes))
            }
            Extent::Suffix(bytes) => Some(GetRange::Suffix(bytes)),
        };
        // Weak tags are for caches: servers never take them for a match.
        let if_match = match expected {
            Some(Version::ETag(tag)) if !tag.starts_with("W/") => Some(tag.to_string()),
            _ => None,
        };
        let bounds = range.clone();
        let options = GetOptions { range, if_match, ..GetOptions::default() };
        let answer = match self.answer_of(|client| client.get_opts(&path, options.clone())).await? {
            Ok(answer) => answer,
            Err(error) if self.says_absent(&error) => return Ok(None),
            Err(object_store::Error::Precondition { .. }) => return Err(Obstacle::Changed.into()),
            Err(error) => return Err(self.failed(&error)),
        };
        if let Some(encoding) = answer.attributes.get(&Attribute::ContentEncoding).filter(|it| compresses(it))
        {
            return Err(self.encoded(encoding));
        }
        let head = head_of(&answer.meta);
        let fits = |expected: &Version| match expected {
            Version::NotSince { at_s } => answer.meta.last_modified.timestamp() <= *at_s,
            expected => *expected == head.version,
        };
        if !expected.is_none_or(fits) {
            return Err(Obstacle::Changed.into());
        }
        let range = answer.range.clone();
        if let Some(GetRange::Bounded(asked)) = bounds
            && range != (asked.start..if is_prefix { asked.end.min(head.object_bytes) } else { asked.end })
        {
            return Err(Obstacle::OutOfRange { range: asked, object_bytes: head.object_bytes }.into());
        }
        let (url, credentials) = (self.url.clone(), self.builder.credentials());
        let stream = answer.into_stream().map_err(move |error| failure(&url, credentials, &error));
        Ok(Some(Body { head, range, stream: stream.boxed() }))
    }

    async fn ask_head(&self, path: &Path) -> io::Result<Option<Head>> {
        match self.answer_of(|client| client.head(path).boxed()).await? {
            Ok(meta) => Ok(Some(head_of(&meta))),
            Err(error) if self.says_absent(&error) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Whether an object is absent. `object_store` says so of a web server's 405, too, which a proxy may answer with, and where the whole
    /// bucket is gone.
    fn says_absent(&self, error: &object_store::Error) -> bool {
        let object_store::Error::NotFound { .. } = error else { return false };
        let said = error.to_string();
        match self.builder.service() {
            Service::Http => !said.contains("405 Method Not Allowed"),
            _ => !is_of_bucket(&said),
        }
    }

    fn failed(&self, error: &object_store::Error) -> io::Error {
        failure(&self.url, self.builder.credentials(), error)
    }

    /// Of an object that a web browser would decompress before it shows it.
    fn encoded(&self, encoding: &str) -> io::Error {
        let problem = format!("{}: the object is stored with Content-Encoding: {encoding}", self.url);
        let remedy = "codecs of the array compress its chunks; store objects without it";
        io::Error::new(io::ErrorKind::Unsupported, Obstacle::Request { problem, remedy })
    }
}

/// Whether an object of this `Content-Encoding` has other bytes than its users mean. `aws-chunked` is left behind by uploads.
fn compresses(encoding: &str) -> bool {
    const NAMES: [&str; 7] = ["gzip", "x-gzip", "compress", "x-compress", "deflate", "br", "zstd"];
    encoding.split(',').any(|name| NAMES.iter().any(|it| name.trim().eq_ignore_ascii_case(it)))
}

fn head_of(meta: &ObjectMeta) -> Head {
    let version = match &meta.e_tag {
        Some(tag) => Version::ETag(tag.as_str().into()),
        None => Version::Modified { at_ns: meta.last_modified.timestamp_nanos_opt().unwrap_or(0) },
    };
    Head { object_bytes: meta.size, version }
}

impl Store for CloudStore {
    fn connect(&self, connections: &Connections) -> io::Result<Option<Arc<dyn Store>>> {
        let client = self.builder.client(connections).map_err(|error| self.failed(&error))?;
        let connected = Connected { connections: connections.clone(), client, in_region: OnceCell::new() };
        let (url, prefix, builder) = (self.url.clone(), self.prefix.clone(), self.builder.clone());
        Ok(Some(Arc::new(Self { url, prefix, builder, connected: Some(connected) })))
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{} {}", self.url, self.builder.place()))
    }

    fn costs_requests(&self) -> bool {
        true
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        self.answer(key, extent, expected).boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        async move { self.ask_head(&self.path(key)?).await }.boxed()
    }

    fn lists(&self) -> bool {
        self.builder.service() != Service::Http
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        async move {
            if !self.lists() {
                let problem = format!("{}: web servers have no listings", self.url);
                let remedy =
                    "name the arrays, or consolidate the metadata of the store (zarr.consolidate_metadata)";
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    Obstacle::Request { problem, remedy },
                ));
            }
            let path = self.path(key)?;
            let found = self.answer_of(|client| client.list_with_delimiter(Some(&path))).await?;
            let found = found.map_err(|error| self.failed(&error))?;
            let names = found.common_prefixes.iter().filter_map(|below| Some(below.filename()?.to_string()));
            Ok(Listing { names: names.collect(), identity: None })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::{Value, json};

    fn open(url: &str, options: Value) -> Result<CloudStore> {
        CloudStore::new(url, serde_json::from_value(options).unwrap())
    }

    #[test]
    fn a_content_encoding_that_compresses_is_told_from_others() {
        for (encoding, is) in
            [("gzip", true), ("aws-chunked, GZIP", true), ("zstd", true), ("aws-chunked", false), ("", false)]
        {
            assert_eq!(compresses(encoding), is, "{encoding}");
        }
    }

    #[test]
    fn an_identity_tells_endpoints_and_accounts_apart_and_not_credentials() {
        let identity = |url: &str, options: Value| open(url, options).unwrap().identity().unwrap();
        let s3 = |more: Value| {
            let mut options = json!({"region": "r", "key": "k", "secret": "s3cr3t"});
            options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            identity("s3://bucket/a", options)
        };
        let plain = s3(json!({}));
        assert_eq!(plain, s3(json!({"key": "other", "secret": "0ther"})));
        assert!(plain.contains("s3://bucket/a") && !plain.contains("s3cr3t"), "{plain}");
        let one = s3(json!({"endpoint_url": "http://user:s3cr3t@one:9"}));
        assert!(
            one != plain && one != s3(json!({"endpoint_url": "http://two:9"})) && !one.contains("s3cr3t")
        );
        let google = |endpoint: &str| identity("gs://b/a", json!({"anon": true, "endpoint_url": endpoint}));
        assert!(google("http://one:9") != google("http://two:9"));
        let azure = |account: &str| identity("az://c/a", json!({"anon": true, "account_name": account}));
        assert!(azure("one") != azure("two"));
        assert!(identity("http://one/a", json!({})) != identity("http://two/a", json!({})));
    }

    #[test]
    fn urls_of_all_clouds_are_opened_without_a_request() {
        let azure = json!({"account_name": "a", "anon": true});
        for (url, options, prefix) in [
            ("s3://bucket/a b/%41.zarr/", json!({"anon": true, "region": "eu-west-1"}), "a b/%41.zarr"),
            (
                "s3a://bucket",
                json!({"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": "http://h:9"}}),
                "",
            ),
            ("gs://bucket/x", json!({"token": "anon"}), "x"),
            (
                "gcs://bucket/x",
                json!({"anon": true, "endpoint_url": "http://h:9", "requester_pays": "p"}),
                "x",
            ),
            ("az://container/x", azure.clone(), "x"),
            ("abfss://container@account.dfs.core.windows.net/x", json!({"anon": true}), "x"),
            (
                "https://host/a%20b/x.zarr",
                json!({"headers": {"authorization": "Bearer t"}, "timeout": "1 minute"}),
                "a b/x.zarr",
            ),
            ("HTTP://host:80", json!({}), ""),
        ] {
            let store = open(url, options).unwrap();
            assert_eq!(store.prefix.as_ref(), prefix, "{url}");
            let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
            assert_eq!(store.path("c/0/1").unwrap().as_ref(), format!("{prefix}c/0/1"));
            assert!(store.connect(&Connections::without_retries()).unwrap().is_some());
        }
    }

    #[test]
    fn stores_in_one_bucket_with_the_same_options_share_a_client() {
        let connections = Connections::without_retries();
        let options = json!({"anon": true, "region": "eu-west-1"});
        for (url, options, clients) in [
            ("s3://bucket/a.zarr", &options, 1),
            ("s3://bucket/b/c.zarr", &options, 1),
            ("s3://other/a.zarr", &options, 2),
            ("s3://bucket/a.zarr", &json!({"anon": false, "region": "eu-west-1"}), 3),
            ("https://bucket/a.zarr", &json!({}), 4),
            ("https://bucket/b.zarr", &json!({}), 4),
            ("http://bucket/b.zarr", &json!({}), 5),
        ] {
            assert!(open(url, options.clone()).unwrap().connect(&connections).unwrap().is_some());
            assert_eq!(connections.clients(), clients, "{url}");
        }
    }

    #[test]
    fn options_that_do_not_fit_together_are_refused_with_the_url() {
        let store = open("az://container/x", json!({"anon": true})).unwrap();
        let error = store.connect(&Connections::without_retries()).unwrap_err().to_string();
        assert!(error.contains("az://container/x") && error.contains("ccount"), "{error}");
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused() {
        for (url, options, text) in [
            ("s3:///x", json!({}), "names no bucket"),
            ("https:///x", json!({}), "names no host"),
            ("https://h/x?sig=s3cr3t ", json!({}), "no URL has"),
            ("https://h/x#s3cr3t", json!({}), "has a fragment (#...), which servers do not see"),
            ("https://h/x?a#s3cr3t", json!({}), "has a fragment"),
            ("https://h/x//y", json!({}), "without empty parts"),
            ("s3://b/x#s3cr3t", json!({}), "has a query or a fragment"),
            ("az://c/x?sv=1&sig=s3cr3t", json!({"account_name": "a"}), "has a query"),
            ("HTTPS://u:s3cr3t@h/x", json!({}), "has a user"),
            ("abfss://c@account/x", json!({}), "names no account"),
            ("s3://b/a//b", json!({}), "without empty parts"),
            ("s3://b/a/../b", json!({}), "without empty parts"),
            ("https://h/x", json!({"headers": {"Range": "bytes=0-3"}}), "\"range\", which would change"),
            ("s3://b/x", json!({"headers": {"if-match": "\"s3cr3t\""}}), "\"if-match\", which would change"),
            ("s3://b/x", json!({"sekret": "s3cr3t"}), "\"sekret\", which is no option of S3"),
        ] {
            let error = open(url, options).expect_err(url).to_string();
            assert!(error.contains(text) && !error.contains("s3cr3t"), "{url}: {error}");
        }
    }
}
