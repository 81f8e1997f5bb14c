//! Object stores and web servers, through the crate `object_store`.
//!
//! It signs requests, refreshes credentials and repeats what failed. What is asked for, and when, is decided elsewhere.

use super::access::{Options, redact, without_secrets};
use super::contract::{Body, Extent, Head, Listing, Store, Version};
use crate::error::{Error, Obstacle, Result};
use crate::options::argument;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    Certificate, ClientConfigKey, ClientOptions, GetOptions, GetRange, HeaderMap, HeaderValue, ObjectMeta,
    ObjectStore, ObjectStoreExt, RetryConfig,
};
use reqwest::header::HeaderName;
use serde_json::Value;

/// A store in a bucket or on a web server.
pub struct CloudStore {
    /// Without secrets.
    url: String,
    /// Of all keys.
    prefix: Path,
    builder: Builder,
    client: Arc<dyn ObjectStore>,
}

impl fmt::Debug for CloudStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

/// What a client is made of.
#[derive(Clone)]
enum Builder {
    S3(Box<AmazonS3Builder>),
    Google(Box<GoogleCloudStorageBuilder>),
    Azure(Box<MicrosoftAzureBuilder>),
    Http(Box<HttpBuilder>),
}

impl Builder {
    fn build(&self, patience: Duration) -> object_store::Result<Arc<dyn ObjectStore>> {
        let retry = RetryConfig { retry_timeout: patience, ..RetryConfig::default() };
        Ok(match self.clone() {
            Self::S3(builder) => Arc::new(builder.with_retry(retry).build()?),
            Self::Google(builder) => Arc::new(builder.with_retry(retry).build()?),
            Self::Azure(builder) => Arc::new(builder.with_retry(retry).build()?),
            Self::Http(builder) => Arc::new(builder.with_retry(retry).build()?),
        })
    }
}

/// The kinds of stores, by the schemes of their URLs.
const SCHEMES: [(&str, Kind); 12] = [
    ("s3", Kind::S3),
    ("s3a", Kind::S3),
    ("gs", Kind::Google),
    ("gcs", Kind::Google),
    ("az", Kind::Azure),
    ("azure", Kind::Azure),
    ("adl", Kind::Azure),
    ("abfs", Kind::Azure),
    ("abfss", Kind::Azure),
    ("wasbs", Kind::Azure),
    ("http", Kind::Http),
    ("https", Kind::Http),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Google,
    Azure,
    Http,
}

/// Whether a store at this URL is one of these.
pub fn is_cloud(url: &str) -> bool {
    kind_of(url).is_some()
}

/// Kind, scheme, and what follows it.
fn kind_of(url: &str) -> Option<(Kind, &'static str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, kind) = SCHEMES.into_iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known))?;
    Some((kind, scheme, rest))
}

impl CloudStore {
    /// A store at a URL. Sends no request.
    ///
    /// # Errors
    /// Names the option, or the part of the URL, that cannot be used.
    pub fn new(url: &str, options: Options) -> Result<Self> {
        let shown = without_secrets(url);
        let Some((kind, scheme, rest)) = kind_of(url) else {
            return Err(Error::StoreNotFound { path: shown });
        };
        use_ring();
        let options = Config::new(kind, options)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            let what = if kind == Kind::Http { "host" } else { "bucket" };
            return Err(argument("path", format!("\"{shown}\" names no {what}")));
        }
        // With neither, the URL can be shown wherever the store is named.
        if path.contains(['?', '#']) || host.contains(['?', '#']) {
            let problem = format!(
                "\"{shown}\" has a query, which would be for one object only; give the store's URL without it, and what signs requests in storage_options"
            );
            return Err(argument("path", problem));
        }
        if kind != Kind::Azure && host.contains('@') {
            let problem = format!(
                "\"{shown}\" has a user in front of the host; give the URL without, and storage_options={{\"headers\": {{\"authorization\": ...}}}}"
            );
            return Err(argument("path", problem));
        }
        let raw = |path: &str| {
            Path::parse(path.trim_end_matches('/'))
                .map_err(|error| argument("path", format!("\"{shown}\" cannot be a key ({error})")))
        };
        let (builder, prefix) = match kind {
            Kind::S3 => (options.s3(host)?, raw(path)?),
            Kind::Google => (options.google(host)?, raw(path)?),
            Kind::Azure => (options.azure(host, scheme)?, raw(path)?),
            Kind::Http => {
                let prefix = Path::from_url_path(path.trim_end_matches('/'))
                    .map_err(|error| argument("path", format!("\"{shown}\" cannot be a URL ({error})")))?;
                (options.http(&format!("{scheme}://{host}"))?, prefix)
            }
        };
        let client = builder.build(Duration::ZERO).map_err(|error| {
            let problem = format!("\"{shown}\" cannot be opened: {}", redact(&error.to_string()));
            argument("path", problem)
        })?;
        Ok(Self { url: shown, prefix, builder, client })
    }

    fn path(&self, key: &str) -> io::Result<Path> {
        let text = match (self.prefix.as_ref(), key) {
            (prefix, "") => prefix.to_string(),
            ("", key) => key.to_string(),
            (prefix, key) => format!("{prefix}/{key}"),
        };
        Path::parse(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    /// Asks for an object. The range is known to have bytes.
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
        let range = match extent {
            Extent::Whole => None,
            Extent::Range(range) => Some(GetRange::Bounded(range)),
            // Azure has no ranges from the end.
            Extent::Suffix(bytes) if matches!(self.builder, Builder::Azure(_)) => {
                let Some(head) = self.ask_head(&path).await? else { return Ok(None) };
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
        let answer =
            self.client.get_opts(&path, GetOptions { range, if_match, ..GetOptions::default() }).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if self.says_absent(&error) => return Ok(None),
            Err(object_store::Error::Precondition { .. }) => return Err(Obstacle::Changed.into()),
            Err(error) => return Err(self.failed(&error)),
        };
        let head = head_of(&answer.meta);
        if expected.is_some_and(|expected| *expected != head.version) {
            return Err(Obstacle::Changed.into());
        }
        let range = answer.range.clone();
        if let Some(GetRange::Bounded(asked)) = bounds
            && range != asked
        {
            return Err(Obstacle::OutOfRange { range: asked, object_bytes: head.object_bytes }.into());
        }
        let url = self.url.clone();
        let stream = answer.into_stream().map_err(move |error| failure(&url, &error));
        Ok(Some(Body { head, range, stream: stream.boxed() }))
    }

    async fn ask_head(&self, path: &Path) -> io::Result<Option<Head>> {
        match self.client.head(path).await {
            Ok(meta) => Ok(Some(head_of(&meta))),
            Err(error) if self.says_absent(&error) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Whether an object is absent. `object_store` says so of a web server's 405, too, which a proxy may answer with.
    fn says_absent(&self, error: &object_store::Error) -> bool {
        let object_store::Error::NotFound { .. } = error else { return false };
        !matches!(self.builder, Builder::Http(_)) || !error.to_string().contains("405 Method Not Allowed")
    }

    fn failed(&self, error: &object_store::Error) -> io::Error {
        failure(&self.url, error)
    }
}

fn head_of(meta: &ObjectMeta) -> Head {
    let version = match &meta.e_tag {
        Some(tag) => Version::ETag(tag.as_str().into()),
        None => Version::Modified { at_ns: meta.last_modified.timestamp_nanos_opt().unwrap_or(0) },
    };
    Head { object_bytes: meta.size, version }
}

/// What a store says, without secrets, and the remedy.
fn failure(url: &str, error: &object_store::Error) -> io::Error {
    use object_store::Error as Of;
    let text = redact(&error.to_string());
    let (kind, remedy) = match error {
        Of::PermissionDenied { .. } => (
            io::ErrorKind::PermissionDenied,
            "the credentials lack the permission to read it; for public data give storage_options={\"anon\": True}",
        ),
        Of::Unauthenticated { .. } => (
            io::ErrorKind::PermissionDenied,
            "credentials are missing, wrong or expired; for public data give storage_options={\"anon\": True}",
        ),
        _ if matches!(error, Of::NotSupported { .. }) || text.contains("non-partial response") => (
            io::ErrorKind::Unsupported,
            "the server does not answer requests for a part of an object; use another server",
        ),
        _ => (
            io::ErrorKind::Other,
            "check URL, endpoint, region and credentials, and whether the network is there",
        ),
    };
    io::Error::new(kind, Obstacle::Request { problem: format!("{url}: {text}"), remedy })
}

impl Store for CloudStore {
    fn connect(&self, patience: Duration) -> io::Result<Option<Arc<dyn Store>>> {
        let client = self.builder.build(patience).map_err(|error| self.failed(&error))?;
        let (url, prefix, builder) = (self.url.clone(), self.prefix.clone(), self.builder.clone());
        Ok(Some(Arc::new(Self { url, prefix, builder, client })))
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

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        async move {
            if matches!(self.builder, Builder::Http(_)) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let path = self.path(key)?;
            let found =
                self.client.list_with_delimiter(Some(&path)).await.map_err(|error| self.failed(&error))?;
            let names = found.common_prefixes.iter().filter_map(|below| Some(below.filename()?.to_string()));
            Ok(Listing { names: names.collect(), identity: None })
        }
        .boxed()
    }
}

/// rustls takes its arithmetic from what a process installs first.
fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Another library of the process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// Options of a store under the names that `object_store` has for them.
struct Config {
    kind: Kind,
    named: Vec<(String, String)>,
    client: ClientOptions,
    /// Sent with every request.
    headers: HeaderMap,
}

impl Config {
    /// Until the first byte of an answer, and between any two.
    const READ_TIMEOUT: Duration = Duration::from_secs(30);

    /// Maps fsspec's names to those of obstore, which are `object_store`'s.
    fn new(kind: Kind, options: Options) -> Result<Self> {
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_read_timeout(Self::READ_TIMEOUT)
            .with_connect_timeout(Duration::from_secs(10))
            .with_user_agent(HeaderValue::from_static(concat!("zarr-dali/", env!("CARGO_PKG_VERSION"))));
        let mut config = Self { kind, named: vec![], client, headers: HeaderMap::new() };
        config.add(options)?;
        let over_http = |(name, value): &(String, String)| {
            (name.contains("endpoint") || name == "base_url") && value.starts_with("http://")
        };
        if config.named.iter().any(over_http) || (kind == Kind::S3 && environment_is_over_http()) {
            config.client = config.client.with_allow_http(true);
        }
        config.client = config.client.with_default_headers(std::mem::take(&mut config.headers));
        Ok(config)
    }

    fn add(&mut self, options: Options) -> Result<()> {
        let refused = |problem: String| Err(argument("storage_options", problem));
        for (name, value) in options {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("client_kwargs", Value::Object(more)) => self.add(more.into_iter().collect())?,
                ("headers", Value::Object(headers)) => self.add_headers(&headers)?,
                (name, Value::Object(_) | Value::Array(_)) => {
                    return refused(format!("has a \"{name}\" that is no text, number or truth value"));
                }
                ("anon", anon) => self.anonymous(anon == true || anon == "true"),
                ("token", token) if token == "anon" => self.anonymous(true),
                ("ca_bundle", path) => self.add_certificates(&text_of(&path))?,
                ("requester_pays", value) => self.requester_pays(&text_of(&value))?,
                (name, value) => self.named.push((self.renamed(name).into(), text_of(&value))),
            }
        }
        Ok(())
    }

    /// What `object_store` calls an option of fsspec's.
    fn renamed<'a>(&self, name: &'a str) -> &'a str {
        match (self.kind, name) {
            (Kind::S3, "key") => "access_key_id",
            (Kind::S3, "secret") => "secret_access_key",
            (Kind::S3, "region_name") => "region",
            (Kind::Google, "endpoint_url") => "base_url",
            (Kind::Google, "token") => "application_credentials",
            (Kind::Azure, "endpoint_url") => "endpoint",
            _ => name,
        }
    }

    fn anonymous(&mut self, is: bool) {
        if self.kind != Kind::Http {
            self.named.push(("skip_signature".into(), is.to_string()));
        }
    }

    fn requester_pays(&mut self, value: &str) -> Result<()> {
        match self.kind {
            Kind::S3 => self.named.push(("request_payer".into(), value.into())),
            Kind::Google if ["true", "false"].contains(&value) => {
                let problem = "has requester_pays without a project; give the name of the project that pays";
                return Err(argument("storage_options", problem.into()));
            }
            Kind::Google => self.add_header("x-goog-user-project", value)?,
            Kind::Azure | Kind::Http => {}
        }
        Ok(())
    }

    fn add_headers(&mut self, headers: &serde_json::Map<String, Value>) -> Result<()> {
        headers.iter().try_for_each(|(name, value)| self.add_header(name, &text_of(value)))
    }

    fn add_header(&mut self, name: &str, value: &str) -> Result<()> {
        let refused = || argument("storage_options", format!("has a header \"{name}\" that cannot be sent"));
        let mut value = HeaderValue::from_str(value).map_err(|_| refused())?;
        value.set_sensitive(true);
        self.headers.insert(HeaderName::from_str(name).map_err(|_| refused())?, value);
        Ok(())
    }

    fn add_certificates(&mut self, path: &str) -> Result<()> {
        let refused =
            |problem: String| argument("storage_options", format!("has ca_bundle=\"{path}\", {problem}"));
        let pem = std::fs::read(path).map_err(|error| refused(format!("which cannot be read ({error})")))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|_| refused("which is no PEM file".into()))?;
        if certificates.is_empty() {
            return Err(refused("in which there is no certificate".into()));
        }
        for certificate in certificates {
            self.client = self.client.clone().with_root_certificate(certificate);
        }
        Ok(())
    }

    fn s3(self, bucket: &str) -> Result<Builder> {
        let mut builder =
            AmazonS3Builder::from_env().with_bucket_name(bucket).with_client_options(self.client);
        for (name, value) in self.named {
            builder = builder.with_config(key::<AmazonS3ConfigKey>(&name, "S3")?, value);
        }
        Ok(Builder::S3(Box::new(builder)))
    }

    fn google(self, bucket: &str) -> Result<Builder> {
        let mut builder =
            GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_client_options(self.client);
        for (name, value) in self.named {
            builder = builder.with_config(key::<GoogleConfigKey>(&name, "Google Cloud Storage")?, value);
        }
        Ok(Builder::Google(Box::new(builder)))
    }

    fn azure(self, host: &str, scheme: &str) -> Result<Builder> {
        let mut builder = MicrosoftAzureBuilder::from_env().with_client_options(self.client);
        for (name, value) in self.named {
            builder = builder.with_config(key::<AzureConfigKey>(&name, "Azure")?, value);
        }
        let (container, account) = host.split_once('@').map_or((host, None), |(c, host)| (c, Some(host)));
        if let Some(account) = account {
            let Some((account, _)) = account.split_once('.') else {
                let problem = format!(
                    "\"{scheme}://{host}\" names no account; give {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/..."
                );
                return Err(argument("path", problem));
            };
            builder = builder.with_account(account);
        }
        Ok(Builder::Azure(Box::new(builder.with_container_name(container))))
    }

    fn http(self, url: &str) -> Result<Builder> {
        let mut client = self.client.with_allow_http(true);
        for (name, value) in self.named {
            client = client.with_config(key::<ClientConfigKey>(&name, "HTTP")?, value);
        }
        Ok(Builder::Http(Box::new(HttpBuilder::new().with_url(url).with_client_options(client))))
    }
}

/// Whether the environment names an endpoint without TLS, or allows it.
fn environment_is_over_http() -> bool {
    let is = |name: &str, fits: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| fits(&value));
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .iter()
        .any(|name| is(name, |url| url.starts_with("http://")))
        || is("AWS_ALLOW_HTTP", |value| value.eq_ignore_ascii_case("true"))
}

/// The key of an option.
fn key<K: FromStr>(name: &str, of: &str) -> Result<K> {
    K::from_str(name).map_err(|_| {
        let problem =
            format!("has \"{name}\", which is no option of {of}; the page \"Remote stores\" lists them");
        argument("storage_options", problem)
    })
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn open(url: &str, options: Value) -> Result<CloudStore> {
        CloudStore::new(url, serde_json::from_value(options).unwrap())
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
            assert!(store.connect(Duration::ZERO).unwrap().is_some());
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        for (url, options, text) in [
            ("s3:///x", json!({}), "names no bucket"),
            ("https:///x", json!({}), "names no host"),
            ("s3://b/x", json!({"sekret": 1}), "\"sekret\", which is no option of S3"),
            ("gs://b/x", json!({"region": "x"}), "\"region\", which is no option of Google"),
            (
                "az://c/x",
                json!({"account_name": "a", "region": "x"}),
                "\"region\", which is no option of Azure",
            ),
            ("https://h/x", json!({"region": "x"}), "\"region\", which is no option of HTTP"),
            ("https://h/x?sig=s3cr3t", json!({}), "has a query"),
            ("az://c/x?sv=1&sig=s3cr3t", json!({"account_name": "a"}), "has a query"),
            ("HTTPS://u:s3cr3t@h/x", json!({}), "has a user"),
            ("gs://b/x", json!({"requester_pays": true}), "the project that pays"),
            ("s3://b/x", json!({"secret": ["s3cr3t"]}), "no text, number or truth value"),
            ("s3://b/x", json!({"ca_bundle": "/nowhere"}), "cannot be read"),
            ("https://h/x", json!({"headers": {"a b": "s3cr3t"}}), "header \"a b\""),
            ("abfss://c@account/x", json!({}), "names no account"),
            ("s3://b/a//b", json!({}), "cannot be a key"),
        ] {
            let error = open(url, options).expect_err(url).to_string();
            assert!(error.contains(text) && !error.contains("s3cr3t"), "{url}: {error}");
        }
    }
}
