//! Options of stores, under the names of fsspec and obstore, as those that `object_store` knows.

use super::super::access::Options;
use super::super::aws_profile;
use super::super::retries::{Retries, duration, no_duration};
use super::super::service::Service;
use crate::error::Result;
use crate::options::argument;

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{Certificate, ClientConfigKey, ClientOptions, HeaderMap, HeaderValue};
use reqwest::header::{self, HeaderName};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

/// What `object_store` makes a client of.
#[derive(Clone)]
pub(super) enum ServiceBuilder {
    S3(Box<AmazonS3Builder>),
    Google(Box<GoogleCloudStorageBuilder>),
    Azure(Box<MicrosoftAzureBuilder>),
    Http(Box<HttpBuilder>),
}

/// Options of a store under the names that `object_store` has for them.
pub(super) struct ClientConfig {
    service: Service,
    pub(super) named: Vec<(String, String)>,
    client: ClientOptions,
    /// Those of `client` that are trusted beside those of the system.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Sent with every request.
    headers: HeaderMap,
    /// Whether the options have any.
    pub(super) has_headers: bool,
    /// The name of a profile of the AWS tools.
    profile: Option<String>,
    pub(super) retries: Retries,
}

impl ClientConfig {
    /// Until the first byte of an answer, and between any two.
    const READ_TIMEOUT: Duration = Duration::from_secs(30);

    /// Maps fsspec's names to those of obstore, which are `object_store`'s.
    pub(super) fn new(service: Service, options: Options) -> Result<Self> {
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_read_timeout(Self::READ_TIMEOUT)
            .with_connect_timeout(Duration::from_secs(10))
            .with_user_agent(HeaderValue::from_static(concat!("zarr-dali/", env!("CARGO_PKG_VERSION"))));
        let mut config = Self {
            service,
            named: vec![],
            client,
            certificates: vec![],
            headers: HeaderMap::new(),
            has_headers: false,
            profile: None,
            retries: Retries::default(),
        };
        config.add(options)?;
        config.client = config.client.with_default_headers(std::mem::take(&mut config.headers));
        Ok(config)
    }

    /// Whether there is an access key of S3 in the options, or in the profile once that is added.
    pub(super) fn has_access_key(&self) -> bool {
        self.named.iter().any(|(name, _)| name.ends_with("access_key_id"))
    }

    /// Adds what a profile of the AWS tools has and the options have not.
    pub(super) fn add_profile(&mut self, environment: impl Fn(&str) -> Option<String>) -> Result<()> {
        let is_given = |(name, value): &(String, String)| {
            let key = AmazonS3ConfigKey::from_str(name).ok()?;
            let is_off = key == AmazonS3ConfigKey::SkipSignature && flag(value) != Some(true);
            (!is_off).then(|| key.as_ref().trim_start_matches("aws_").to_string())
        };
        let given = self.named.iter().filter_map(is_given).collect();
        self.named.extend(aws_profile::options(self.profile.as_deref(), &given, environment)?);
        Ok(())
    }

    /// Allows connections without TLS where an endpoint asks for them.
    pub(super) fn allow_http(&mut self) {
        let over_http = |(name, value): &(String, String)| {
            (name.contains("endpoint") || name == "base_url") && is_over_http(value)
        };
        if self.named.iter().any(over_http) || (self.service == Service::S3 && environment_is_over_http()) {
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
                ("token", token) if self.service == Service::Google && token != "anon" => {
                    self.add_token(token)?
                }
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
                ("anon", anon) => match flag(&text_of(&anon)) {
                    Some(is) => self.anonymous(is),
                    None => return refused(format!("has \"anon\" {NO_FLAG}")),
                },
                ("token", token) if token == "anon" => self.anonymous(true),
                ("profile", name) if self.service == Service::S3 => self.profile = Some(text_of(&name)),
                ("ca_bundle", path) => self.add_certificates(&text_of(&path))?,
                ("requester_pays", value) => self.requester_pays(&text_of(&value))?,
                (name, value) => self.named.push((self.renamed(name).into(), text_of(&value))),
            }
        }
        Ok(())
    }

    /// What `object_store` calls an option of fsspec's.
    fn renamed<'a>(&self, name: &'a str) -> &'a str {
        match (self.service, name) {
            (Service::S3, "key") => "access_key_id",
            (Service::S3, "secret") => "secret_access_key",
            (Service::S3, "region_name") => "region",
            (Service::Google, "endpoint_url") => "base_url",
            (Service::Azure, "endpoint_url") => "endpoint",
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
        if self.service != Service::Http {
            self.named.push(("skip_signature".into(), is.to_string()));
        }
    }

    fn requester_pays(&mut self, value: &str) -> Result<()> {
        match self.service {
            Service::S3 => self.named.push(("request_payer".into(), value.into())),
            Service::Google if ["true", "false"].contains(&value) => {
                let problem = "has requester_pays without a project; give the name of the project that pays";
                return Err(argument("storage_options", problem.into()));
            }
            Service::Google => self.add_header("x-goog-user-project", value)?,
            Service::Azure | Service::Http => {}
        }
        Ok(())
    }

    fn add_headers(&mut self, headers: &serde_json::Map<String, Value>) -> Result<()> {
        self.has_headers |= !headers.is_empty();
        headers.iter().try_for_each(|(name, value)| self.add_header(name, &text_of(value)))
    }

    fn add_header(&mut self, name: &str, value: &str) -> Result<()> {
        // A name that cannot be sent may have the value in it.
        let shown = name.split(|c: char| c == ':' || !c.is_ascii_graphic()).next().unwrap_or_default();
        let refused = || argument("storage_options", format!("has a header \"{shown}\" that cannot be sent"));
        let mut value = HeaderValue::from_str(value).map_err(|_| refused())?;
        value.set_sensitive(true);
        let name = HeaderName::from_str(name).map_err(|_| refused())?;
        if OWN_HEADERS.contains(&name) {
            let problem =
                format!("has a header \"{name}\", which would change what is asked for; leave it out");
            return Err(argument("storage_options", problem));
        }
        self.headers.insert(name, value);
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

    pub(super) fn s3(self, bucket: &str) -> Result<ServiceBuilder> {
        // A session token of the environment does not belong to keys that come from elsewhere.
        let has_keys = self.has_access_key();
        let mut builder = AmazonS3Builder::new().with_client_options(self.client);
        for (name, value) in std::env::vars_os() {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            if value.is_empty() {
                continue;
            }
            let key = Some(name).filter(|name| name.starts_with("AWS_")).map(str::to_ascii_lowercase);
            let Some(Ok(key)) = key.as_deref().map(AmazonS3ConfigKey::from_str) else { continue };
            if !has_keys || key != AmazonS3ConfigKey::Token {
                builder = builder.with_config(key, value);
            }
        }
        for (name, value) in self.named {
            builder = builder.with_config(key::<AmazonS3ConfigKey>(&name, "S3")?, value);
        }
        use AmazonS3ConfigKey as Key;
        let flags = [
            Key::SkipSignature,
            Key::VirtualHostedStyleRequest,
            Key::UnsignedPayload,
            Key::ImdsV1Fallback,
            Key::S3Express,
            Key::RequestPayer,
        ];
        let flags = flags.into_iter().chain(CLIENT_FLAGS.map(Key::Client));
        for (key, is) in flags_of(flags, |key| builder.get_config_value(key))? {
            builder = builder.with_config(key, is);
        }
        // Whatever else names a bucket, such as AWS_BUCKET: that of the URL is read.
        Ok(ServiceBuilder::S3(Box::new(builder.with_bucket_name(bucket))))
    }

    pub(super) fn google(self, bucket: &str) -> Result<ServiceBuilder> {
        let mut builder =
            GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_client_options(self.client);
        for (name, value) in self.named {
            builder = builder.with_config(key::<GoogleConfigKey>(&name, "Google Cloud Storage")?, value);
        }
        use GoogleConfigKey as Key;
        for key in [Key::ServiceAccount, Key::ApplicationCredentials] {
            // The client would show it as a path that is not there.
            if builder.get_config_value(&key).is_some_and(|path| path.trim_start().starts_with('{')) {
                let name = key.as_ref();
                let problem = format!(
                    "has a \"{name}\", there or in the environment, that is what is in a file of credentials and not its path; give it as \"token\""
                );
                return Err(argument("storage_options", problem));
            }
        }
        let flags = [Key::SkipSignature].into_iter().chain(CLIENT_FLAGS.map(Key::Client));
        for (key, is) in flags_of(flags, |key| builder.get_config_value(key))? {
            builder = builder.with_config(key, is);
        }
        Ok(ServiceBuilder::Google(Box::new(builder)))
    }

    pub(super) fn azure(self, host: &str, scheme: &str) -> Result<ServiceBuilder> {
        let mut builder = MicrosoftAzureBuilder::from_env().with_client_options(self.client);
        for (name, value) in self.named {
            builder = builder.with_config(key::<AzureConfigKey>(&name, "Azure")?, value);
        }
        use AzureConfigKey as Key;
        let flags = [Key::SkipSignature, Key::UseEmulator, Key::UseAzureCli, Key::UseFabricEndpoint];
        let flags = flags.into_iter().chain(CLIENT_FLAGS.map(Key::Client));
        for (key, is) in flags_of(flags, |key| builder.get_config_value(key))? {
            builder = builder.with_config(key, is);
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
        Ok(ServiceBuilder::Azure(Box::new(builder.with_container_name(container))))
    }

    pub(super) fn http(self, url: &str) -> Result<ServiceBuilder> {
        // A redirect from `https` to `http` would show to others what is asked for.
        let mut client = self.client.with_allow_http(url.starts_with("http://"));
        for (name, value) in self.named {
            client = client.with_config(key::<ClientConfigKey>(&name, "HTTP")?, value);
        }
        for (key, is) in flags_of(CLIENT_FLAGS, |key| client.get_config_value(key))? {
            client = client.with_config(key, is);
        }
        Ok(ServiceBuilder::Http(Box::new(HttpBuilder::new().with_url(url).with_client_options(client))))
    }
}

/// Headers that say which bytes are asked for, of which version and of whom.
const OWN_HEADERS: [HeaderName; 9] = [
    header::CONTENT_LENGTH,
    header::HOST,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
    header::TRANSFER_ENCODING,
];

/// Options of all clients that are true or false.
const CLIENT_FLAGS: [ClientConfigKey; 4] = [
    ClientConfigKey::AllowHttp,
    ClientConfigKey::AllowInvalidCertificates,
    ClientConfigKey::Http1Only,
    ClientConfigKey::RandomizeAddresses,
];
const NO_FLAG: &str = "that is neither true nor false";

/// A truth value as `object_store` reads it.
fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Some(true),
        "0" | "false" | "off" | "no" | "n" => Some(false),
        _ => None,
    }
}

/// Those of the keys that have a value, which is "true" or "false" then, however it was given.
///
/// # Errors
/// Names the key whose value is neither.
fn flags_of<K: AsRef<str>>(
    keys: impl IntoIterator<Item = K>,
    value: impl Fn(&K) -> Option<String>,
) -> Result<Vec<(K, String)>> {
    let mut flags = vec![];
    for key in keys {
        let Some(text) = value(&key) else { continue };
        let Some(is) = flag(&text) else {
            let name = key.as_ref();
            let problem = format!("has a \"{name}\", there or in the environment, {NO_FLAG}");
            return Err(argument("storage_options", problem));
        };
        flags.push((key, is.to_string()));
    }
    Ok(flags)
}

/// Whether the environment names an endpoint without TLS, or allows it.
fn environment_is_over_http() -> bool {
    let is = |name: &str, fits: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| fits(&value));
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().any(|name| is(name, is_over_http))
        || is("AWS_ALLOW_HTTP", |value| flag(value) == Some(true))
}

fn is_over_http(url: &str) -> bool {
    url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"))
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
