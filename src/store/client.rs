//! Clients of object stores and web servers, from what the user says of credentials and endpoints.

use super::access::{Options, without_secrets};
use super::aws_profile;
use super::connections::Connections;
use super::retries::{Retries, duration, no_duration};
use super::traffic::Connector;
use crate::error::Result;
use crate::options::argument;

use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Once};
use std::time::Duration;

use hyper::Uri;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{Certificate, ClientConfigKey, ClientOptions, HeaderMap, HeaderValue, ObjectStore};
use reqwest::header::HeaderName;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

/// What a client is made of.
#[derive(Clone)]
pub(super) struct Builder {
    /// Of what all requests of the client go to and how they are signed: clients of the same name are the same. Has secrets in it.
    pub name: String,
    of: Of,
    retries: Retries,
    /// What goes with every request behind the path of its URL. May be a secret.
    query: Arc<str>,
    /// Trusted beside those of the system.
    certificates: Arc<[CertificateDer<'static>]>,
}

#[derive(Clone)]
enum Of {
    S3(Box<AmazonS3Builder>),
    Google(Box<GoogleCloudStorageBuilder>),
    Azure(Box<MicrosoftAzureBuilder>),
    Http(Box<HttpBuilder>),
}

impl Builder {
    /// A client at a URL with this scheme and host, which is a bucket of the clouds; `query` goes with every request. Sends no request.
    ///
    /// # Errors
    /// Names the option, or the part of the URL, that cannot be used.
    pub fn new(kind: Kind, scheme: &str, host: &str, query: &str, options: Options) -> Result<Self> {
        use_ring();
        let options_text = Value::from_iter(options.clone());
        let name = format!("{scheme}://{host}?{query} {options_text}");
        let mut config = Config::new(kind, options)?;
        if kind == Kind::S3 {
            config.add_profile(|name| std::env::var(name).ok())?;
        }
        config.allow_http();
        let (retries, certificates) = (config.retries, std::mem::take(&mut config.certificates).into());
        let of = match kind {
            Kind::S3 => config.s3(host)?,
            Kind::Google => config.google(host)?,
            Kind::Azure => config.azure(host, scheme)?,
            Kind::Http => config.http(&format!("{scheme}://{host}"))?,
        };
        let builder = Self { name, of, retries, query: query.into(), certificates };
        builder.check(scheme, host)?;
        Ok(builder)
    }

    /// Refuses what no request can be made with: `object_store` finds that out by a panic.
    fn check(&self, scheme: &str, host: &str) -> Result<()> {
        if self.kind() == Kind::Http {
            return Ok(()); // `build` says it
        }
        if format!("http://host/{host}/").parse::<Uri>().is_err() {
            let problem = format!("\"{scheme}://{host}\" has a name of a bucket that no URL can have");
            return Err(argument("path", problem));
        }
        let refused = |problem| Err(argument("storage_options", problem));
        for endpoint in self.endpoints() {
            if !is_of_server(&endpoint) {
                let shown = without_secrets(&endpoint);
                let shown = shown.rsplit_once('@').map_or(shown.as_str(), |(_, host)| host);
                return refused(format!(
                    "the endpoint \"{shown}\", which is given there or in the environment, is no URL of a server; give it as in \"http://localhost:9000\""
                ));
            }
        }
        for (name, value) in self.words() {
            if !value.chars().all(|letter| letter.is_ascii_graphic()) {
                return refused(format!(
                    "the {name}, which is given there or in the environment, has a space, the end of a line or another sign in it that cannot be sent; give it without"
                ));
            }
        }
        Ok(())
    }

    /// The endpoints that are not the cloud's own.
    fn endpoints(&self) -> Vec<String> {
        let found = match &self.of {
            Of::S3(builder) => vec![
                builder.get_config_value(&AmazonS3ConfigKey::Endpoint),
                builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint),
            ],
            Of::Google(builder) => vec![builder.get_config_value(&GoogleConfigKey::BaseUrl)],
            Of::Azure(builder) => vec![builder.get_config_value(&AzureConfigKey::Endpoint)],
            Of::Http(_) => vec![],
        };
        found.into_iter().flatten().collect()
    }

    /// What stands in headers and names of hosts, with its name.
    fn words(&self) -> Vec<(&'static str, String)> {
        let found = match &self.of {
            Of::S3(builder) if is_unsigned(builder) => {
                vec![("region", builder.get_config_value(&AmazonS3ConfigKey::Region))]
            }
            Of::S3(builder) => [
                ("region", AmazonS3ConfigKey::Region),
                ("access key", AmazonS3ConfigKey::AccessKeyId),
                ("secret key", AmazonS3ConfigKey::SecretAccessKey),
                ("session token", AmazonS3ConfigKey::Token),
            ]
            .map(|(name, key)| (name, builder.get_config_value(&key)))
            .to_vec(),
            Of::Azure(builder) => {
                vec![("account name", builder.get_config_value(&AzureConfigKey::AccountName))]
            }
            Of::Google(_) | Of::Http(_) => vec![],
        };
        found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// What the client is of.
    pub fn kind(&self) -> Kind {
        match &self.of {
            Of::S3(_) => Kind::S3,
            Of::Google(_) => Kind::Google,
            Of::Azure(_) => Kind::Azure,
            Of::Http(_) => Kind::Http,
        }
    }

    /// What requests go to besides the URL: an endpoint that is not the cloud's own, and the account that a container is in. Without secrets.
    pub fn place(&self) -> String {
        let account = match &self.of {
            Of::Azure(builder) => vec![
                builder.get_config_value(&AzureConfigKey::AccountName),
                builder.get_config_value(&AzureConfigKey::UseEmulator),
            ],
            Of::S3(_) | Of::Google(_) | Of::Http(_) => vec![],
        };
        let place: Vec<_> =
            self.endpoints().into_iter().chain(account.into_iter().map(Option::unwrap_or_default)).collect();
        let shown = place.iter().map(|value| without_secrets(value));
        shown.collect::<Vec<_>>().join(" ")
    }

    /// A client for these connections.
    ///
    /// # Errors
    /// Options that do not fit together.
    pub fn build(&self, connections: &Connections) -> object_store::Result<Arc<dyn ObjectStore>> {
        let retry = self.retries.config(connections.patience);
        let counting = || Connector {
            traffic: connections.traffic.clone(),
            query: self.query.clone(),
            certificates: self.certificates.clone(),
            buffers: connections.buffers.clone(),
        };
        Ok(match self.of.clone() {
            Of::S3(builder) => Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?),
            Of::Google(builder) => {
                Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?)
            }
            Of::Azure(builder) => {
                Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?)
            }
            Of::Http(builder) => Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?),
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
pub(super) enum Kind {
    S3,
    Google,
    Azure,
    Http,
}

/// Kind, scheme, and what follows it.
pub(super) fn kind_of(url: &str) -> Option<(Kind, &'static str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, kind) = SCHEMES.into_iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known))?;
    Some((kind, scheme, rest))
}

/// Options of a store under the names that `object_store` has for them.
struct Config {
    kind: Kind,
    named: Vec<(String, String)>,
    client: ClientOptions,
    /// Those of `client` that are trusted beside those of the system.
    certificates: Vec<CertificateDer<'static>>,
    /// Sent with every request.
    headers: HeaderMap,
    /// The name of a profile of the AWS tools.
    profile: Option<String>,
    retries: Retries,
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
        let mut config = Self {
            kind,
            named: vec![],
            client,
            certificates: vec![],
            headers: HeaderMap::new(),
            profile: None,
            retries: Retries::default(),
        };
        config.add(options)?;
        config.client = config.client.with_default_headers(std::mem::take(&mut config.headers));
        Ok(config)
    }

    /// Adds what a profile of the AWS tools has and the options have not.
    fn add_profile(&mut self, environment: impl Fn(&str) -> Option<String>) -> Result<()> {
        let is_given = |(name, value): &(String, String)| {
            let key = AmazonS3ConfigKey::from_str(name).ok()?;
            let is_off = key == AmazonS3ConfigKey::SkipSignature && value != "true";
            (!is_off).then(|| key.as_ref().trim_start_matches("aws_").to_string())
        };
        let given = self.named.iter().filter_map(is_given).collect();
        self.named.extend(aws_profile::options(self.profile.as_deref(), &given, environment)?);
        Ok(())
    }

    /// Allows connections without TLS where an endpoint asks for them.
    fn allow_http(&mut self) {
        let over_http = |(name, value): &(String, String)| {
            (name.contains("endpoint") || name == "base_url") && is_over_http(value)
        };
        if self.named.iter().any(over_http) || (self.kind == Kind::S3 && environment_is_over_http()) {
            self.client = std::mem::take(&mut self.client).with_allow_http(true);
        }
    }

    fn add(&mut self, options: Options) -> Result<()> {
        let refused = |problem: String| Err(argument("storage_options", problem));
        for (name, value) in options {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("client_kwargs" | "client_options", Value::Object(more)) => {
                    self.add(more.into_iter().collect())?
                }
                ("retry_config", Value::Object(retries)) => self.retries = Retries::new(&retries)?,
                ("headers" | "default_headers", Value::Object(headers)) => self.add_headers(&headers)?,
                ("token", token) if self.kind == Kind::Google && token != "anon" => self.add_token(token)?,
                (
                    name @ ("client_kwargs" | "client_options" | "retry_config" | "headers"
                    | "default_headers"),
                    _,
                ) => return refused(format!("has a \"{name}\" that is no object with names and values")),
                (name, value) if name.ends_with("timeout") || name == "http2_keep_alive_interval" => {
                    let Some(duration) = duration(&value) else {
                        return refused(format!("has \"{name}\" {}", no_duration(&value)));
                    };
                    self.named.push((name.into(), humantime::format_duration(duration).to_string()));
                }
                (name, Value::Object(_) | Value::Array(_)) => {
                    return refused(format!("has a \"{name}\" that is no text, number or truth value"));
                }
                ("anon", anon) => self.anonymous(anon == true || anon == "true"),
                ("token", token) if token == "anon" => self.anonymous(true),
                ("profile", name) if self.kind == Kind::S3 => self.profile = Some(text_of(&name)),
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
            (Kind::Azure, "endpoint_url") => "endpoint",
            _ => name,
        }
    }

    /// gcsfs' `token`: a file of credentials, or what is in one. No error shows it.
    fn add_token(&mut self, token: Value) -> Result<()> {
        let text = match token {
            Value::Object(_) => token.to_string(),
            token => text_of(&token),
        };
        let name = if text.trim_start().starts_with('{') {
            "service_account_key"
        } else if Path::new(&text).is_file() {
            "application_credentials"
        } else {
            let problem = "has a \"token\" that is neither \"anon\", the path of a file of credentials nor what is in one";
            return Err(argument("storage_options", problem.into()));
        };
        self.named.push((name.into(), text));
        Ok(())
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
        let no_pem = || refused("which is no PEM file".into());
        let certificates = Certificate::from_pem_bundle(&pem).map_err(|_| no_pem())?;
        let trusted = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
        self.certificates.extend(trusted.map_err(|_| no_pem())?);
        if certificates.is_empty() {
            return Err(refused("in which there is no certificate".into()));
        }
        for certificate in certificates {
            self.client = self.client.clone().with_root_certificate(certificate);
        }
        Ok(())
    }

    fn s3(self, bucket: &str) -> Result<Of> {
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket).with_client_options(self.client);
        // A session token of the environment does not belong to keys that come from elsewhere.
        let has_keys = |(name, _): &(String, String)| name.ends_with("access_key_id");
        let has_keys = self.named.iter().any(has_keys);
        for (name, value) in std::env::vars_os() {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            let key = Some(name).filter(|name| name.starts_with("AWS_")).map(str::to_ascii_lowercase);
            let Some(Ok(key)) = key.as_deref().map(AmazonS3ConfigKey::from_str) else { continue };
            if !has_keys || key != AmazonS3ConfigKey::Token {
                builder = builder.with_config(key, value);
            }
        }
        for (name, value) in self.named {
            builder = builder.with_config(key::<AmazonS3ConfigKey>(&name, "S3")?, value);
        }
        Ok(Of::S3(Box::new(builder)))
    }

    fn google(self, bucket: &str) -> Result<Of> {
        let mut builder =
            GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_client_options(self.client);
        for (name, value) in self.named {
            builder = builder.with_config(key::<GoogleConfigKey>(&name, "Google Cloud Storage")?, value);
        }
        Ok(Of::Google(Box::new(builder)))
    }

    fn azure(self, host: &str, scheme: &str) -> Result<Of> {
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
        Ok(Of::Azure(Box::new(builder.with_container_name(container))))
    }

    fn http(self, url: &str) -> Result<Of> {
        // A redirect from `https` to `http` would show to others what is asked for.
        let mut client = self.client.with_allow_http(url.starts_with("http://"));
        for (name, value) in self.named {
            client = client.with_config(key::<ClientConfigKey>(&name, "HTTP")?, value);
        }
        Ok(Of::Http(Box::new(HttpBuilder::new().with_url(url).with_client_options(client))))
    }
}

/// Whether the environment names an endpoint without TLS, or allows it.
fn environment_is_over_http() -> bool {
    let is = |name: &str, fits: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| fits(&value));
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().any(|name| is(name, is_over_http))
        || is("AWS_ALLOW_HTTP", |value| value.eq_ignore_ascii_case("true"))
}

/// Whether the keys of a store, if it has any, are left alone.
fn is_unsigned(builder: &AmazonS3Builder) -> bool {
    builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).as_deref() == Some("true")
}

fn is_over_http(url: &str) -> bool {
    url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
}

/// Whether requests can be sent to a URL and what stands behind it.
fn is_of_server(url: &str) -> bool {
    let sent = url.parse::<Uri>().is_ok_and(|uri| uri.query().is_none());
    // The scheme and the host that it has for the client, which does not ask for slashes.
    let parsed = reqwest::Url::parse(url);
    sent && url.contains("://")
        && parsed.is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
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

/// rustls takes its arithmetic from what a process installs first.
fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Another library of the process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_that_cannot_be_used_are_refused_by_name() {
        for (scheme, options, text) in [
            ("s3", json!({"sekret": 1}), "\"sekret\", which is no option of S3"),
            ("gs", json!({"region": "x"}), "\"region\", which is no option of Google"),
            ("az", json!({"account_name": "a", "region": "x"}), "\"region\", which is no option of Azure"),
            ("https", json!({"region": "x"}), "\"region\", which is no option of HTTP"),
            ("gs", json!({"requester_pays": true}), "the project that pays"),
            ("s3", json!({"secret": ["s3cr3t"]}), "no text, number or truth value"),
            ("s3", json!({"endpoint_url": "localhost:9000"}), "the endpoint \"localhost:9000\", which"),
            ("s3", json!({"endpoint_url": "me:s3cr3t@minio"}), "the endpoint \"minio\", which"),
            ("s3", json!({"endpoint_url": ""}), "the endpoint \"\", which"),
            ("s3", json!({"endpoint_url": "https://host:99999"}), "is no URL of a server"),
            ("s3", json!({"endpoint_url": "http://host/?a=b"}), "is no URL of a server"),
            ("gs", json!({"endpoint_url": "ftp://host"}), "is no URL of a server"),
            ("az", json!({"endpoint_url": "localhost:9000"}), "is no URL of a server"),
            ("s3", json!({"key": "k", "secret": "s3cr3t\n"}), "the secret key, which"),
            ("s3", json!({"region": "eu west"}), "the region, which"),
            ("https", json!({"headers": "x"}), "\"headers\" that is no object"),
            ("s3", json!({"retry_config": 3}), "\"retry_config\" that is no object"),
            ("s3", json!({"ca_bundle": "/nowhere"}), "cannot be read"),
            ("s3", json!({"timeout": "abc"}), "has \"timeout\" \"abc\", which is no duration; give a number"),
            ("gs", json!({"read_timeout": -1}), "has \"read_timeout\" -1, which is no duration"),
            ("az", json!({"connect_timeout": "30"}), "has \"connect_timeout\" \"30\", which is no duration"),
            ("https", json!({"timeout": 1e300}), "has \"timeout\" 1e+300, which is no duration"),
            (
                "https",
                json!({"client_options": {"timeout": true}}),
                "has \"timeout\" true, which is no duration",
            ),
            ("https", json!({"headers": {"a b": "s3cr3t"}}), "header \"a b\""),
        ] {
            let url = format!("{scheme}://host");
            let (kind, scheme, host) = kind_of(&url).unwrap();
            let refused = Builder::new(kind, scheme, host, "", serde_json::from_value(options).unwrap());
            let error = refused.err().expect(&url).to_string();
            assert!(error.contains(text) && !error.contains("s3cr3t"), "{url}: {error}");
        }
    }

    #[test]
    fn names_of_fsspec_become_those_of_object_store() {
        for (scheme, options, expected) in [
            (
                "s3",
                json!({"key": "k", "secret": "s", "client_kwargs": {"region_name": "r"}, "requester_pays": true}),
                vec![
                    ("region", "r"),
                    ("access_key_id", "k"),
                    ("request_payer", "true"),
                    ("secret_access_key", "s"),
                ],
            ),
            (
                "gs",
                json!({"token": env!("CARGO_MANIFEST_PATH"), "endpoint_url": "http://h:9"}),
                vec![("base_url", "http://h:9"), ("application_credentials", env!("CARGO_MANIFEST_PATH"))],
            ),
            ("gs", json!({"token": {"type": "t"}}), vec![("service_account_key", "{\"type\":\"t\"}")]),
            ("gs", json!({"token": "anon"}), vec![("skip_signature", "true")]),
            (
                "az",
                json!({"endpoint_url": "https://h", "anon": false}),
                vec![("skip_signature", "false"), ("endpoint", "https://h")],
            ),
            ("https", json!({"anon": true, "timeout": null}), vec![]),
            (
                "https",
                json!({"read_timeout": 1.5, "connect_timeout": "30 s", "timeout": 90}),
                vec![("connect_timeout", "30s"), ("read_timeout", "1s 500ms"), ("timeout", "1m 30s")],
            ),
        ] {
            let (kind, ..) = kind_of(&format!("{scheme}://host")).unwrap();
            let config = Config::new(kind, serde_json::from_value(options).unwrap()).unwrap();
            let named: Vec<_> =
                config.named.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(named, expected, "{scheme}");
        }
    }
}
