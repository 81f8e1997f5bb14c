//! Clients of object stores and web servers, from what the user says of credentials and endpoints.

mod config;
mod credentials;

use super::access::{Options, without_secrets};
use super::bucket_region::{BucketRegion, is_region};
use super::connections::Connections;
use super::retries::Retries;
use super::service::Service;
use super::traffic::Connector;
use crate::error::Result;
use crate::options::argument;
use config::{ClientConfig, ServiceBuilder};
pub(super) use credentials::Credentials;
use credentials::{Given, KeyFrom, is_unsigned};

use std::sync::{Arc, Once};

use hyper::Uri;
use object_store::ObjectStore;
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use rustls::pki_types::CertificateDer;
use serde_json::Value;

/// What a client is made of.
#[derive(Clone)]
pub(super) struct ClientBuilder {
    /// Of what all requests of the client go to and how they are signed: clients of the same name are the same. Has secrets in it.
    name: String,
    of: ServiceBuilder,
    /// Of a bucket of S3 for which none was given.
    region: Option<Arc<BucketRegion>>,
    retries: Retries,
    credentials: Credentials,
    /// What goes with every request behind the path of its URL. May be a secret.
    query: Arc<str>,
    /// Trusted beside those of the system.
    certificates: Arc<[CertificateDer<'static>]>,
}

impl ClientBuilder {
    /// A client at a URL with this scheme and host, which is a bucket of the clouds; `query` goes with every request. Sends no request.
    ///
    /// # Errors
    /// Names the option, or the part of the URL, that cannot be used.
    pub fn new(service: Service, scheme: &str, host: &str, query: &str, options: Options) -> Result<Self> {
        use_ring();
        let options_text = Value::from_iter(options.clone());
        let name = format!("{scheme}://{host}?{query} {options_text}");
        let mut config = ClientConfig::new(service, options)?;
        let of_options = config.has_access_key();
        if service == Service::S3 {
            config.add_profile(|name| std::env::var(name).ok())?;
        }
        let key_from = match (of_options, config.has_access_key()) {
            (true, _) => KeyFrom::Options,
            (false, true) => KeyFrom::Profile,
            (false, false) => KeyFrom::Environment,
        };
        let given = Given { key_from, headers: config.has_headers, query: !query.is_empty() };
        config.allow_http();
        let (retries, certificates) = (config.retries, std::mem::take(&mut config.certificates).into());
        let of = match service {
            Service::S3 => config.s3(host)?,
            Service::Google => config.google(host)?,
            Service::Azure => config.azure(host, scheme)?,
            Service::Http => config.http(&format!("{scheme}://{host}"))?,
        };
        let credentials = Credentials::of(&of, given);
        let mut builder =
            Self { name, of, region: None, retries, credentials, query: query.into(), certificates };
        if let ServiceBuilder::S3(of) = &builder.of
            && of.get_config_value(&AmazonS3ConfigKey::Region).is_none()
        {
            builder.region = Some(BucketRegion::of(host, &builder.place()));
        }
        builder.check(scheme, host)?;
        Ok(builder)
    }

    /// Refuses what no request can be made with: `object_store` finds that out by a panic.
    fn check(&self, scheme: &str, host: &str) -> Result<()> {
        if self.service() == Service::Http {
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
        for (name, url) in self.urls_of_credentials() {
            if !is_url(&url) {
                return refused(format!(
                    "the {name}, which is given there or in the environment, is no URL of a server"
                ));
            }
        }
        for (name, value) in self.words() {
            if !value.chars().all(|letter| letter.is_ascii_graphic()) {
                return refused(format!(
                    "the {name}, which is given there or in the environment, has a space, the end of a line or another sign in it that cannot be sent; give it without"
                ));
            }
            if name == "region" && !is_region(&value) {
                return refused(format!(
                    "the region \"{value}\", which is given there or in the environment, is no name of a region"
                ));
            }
        }
        Ok(())
    }

    /// The endpoints that are not the cloud's own.
    fn endpoints(&self) -> Vec<String> {
        let found = match &self.of {
            ServiceBuilder::S3(builder) => vec![
                builder.get_config_value(&AmazonS3ConfigKey::Endpoint),
                builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint),
            ],
            ServiceBuilder::Google(builder) => vec![builder.get_config_value(&GoogleConfigKey::BaseUrl)],
            ServiceBuilder::Azure(builder) => vec![builder.get_config_value(&AzureConfigKey::Endpoint)],
            ServiceBuilder::Http(_) => vec![],
        };
        found.into_iter().flatten().collect()
    }

    /// Where credentials are asked for, with its name, as far as that is given.
    fn urls_of_credentials(&self) -> Vec<(&'static str, String)> {
        let found = match &self.of {
            ServiceBuilder::S3(builder) => vec![
                ("metadata endpoint", builder.get_config_value(&AmazonS3ConfigKey::MetadataEndpoint)),
                ("endpoint of STS", builder.get_config_value(&AmazonS3ConfigKey::StsEndpoint)),
                (
                    "full URI of container credentials",
                    builder.get_config_value(&AmazonS3ConfigKey::ContainerCredentialsFullUri),
                ),
                (
                    "relative URI of container credentials",
                    builder
                        .get_config_value(&AmazonS3ConfigKey::ContainerCredentialsRelativeUri)
                        .map(|path| format!("http://host{path}")),
                ),
            ],
            ServiceBuilder::Google(_) => {
                let hosts = ["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"];
                let url = |name| std::env::var(name).ok().map(|host| format!("http://{host}/"));
                hosts.map(|name| (name, url(name))).to_vec()
            }
            ServiceBuilder::Azure(builder) => vec![
                ("authority host", builder.get_config_value(&AzureConfigKey::AuthorityHost)),
                ("endpoint of managed identities", builder.get_config_value(&AzureConfigKey::MsiEndpoint)),
            ],
            ServiceBuilder::Http(_) => vec![],
        };
        found.into_iter().filter_map(|(name, url)| Some((name, url?))).collect()
    }

    /// What stands in headers and names of hosts, with its name.
    fn words(&self) -> Vec<(&'static str, String)> {
        let found = match &self.of {
            ServiceBuilder::S3(builder) if is_unsigned(builder) => {
                vec![("region", builder.get_config_value(&AmazonS3ConfigKey::Region))]
            }
            ServiceBuilder::S3(builder) => [
                ("region", AmazonS3ConfigKey::Region),
                ("access key", AmazonS3ConfigKey::AccessKeyId),
                ("secret key", AmazonS3ConfigKey::SecretAccessKey),
                ("session token", AmazonS3ConfigKey::Token),
            ]
            .map(|(name, key)| (name, builder.get_config_value(&key)))
            .to_vec(),
            ServiceBuilder::Azure(builder) => vec![
                ("account name", builder.get_config_value(&AzureConfigKey::AccountName)),
                ("tenant", builder.get_config_value(&AzureConfigKey::AuthorityId)),
            ],
            ServiceBuilder::Google(_) | ServiceBuilder::Http(_) => vec![],
        };
        found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// What requests carry as credentials.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }

    /// What the client is of.
    pub fn service(&self) -> Service {
        match &self.of {
            ServiceBuilder::S3(_) => Service::S3,
            ServiceBuilder::Google(_) => Service::Google,
            ServiceBuilder::Azure(_) => Service::Azure,
            ServiceBuilder::Http(_) => Service::Http,
        }
    }

    /// What requests go to besides the URL: an endpoint that is not the cloud's own, and the account that a container is in. Without secrets.
    pub fn place(&self) -> String {
        let account = match &self.of {
            ServiceBuilder::Azure(builder) => vec![
                builder.get_config_value(&AzureConfigKey::AccountName),
                builder.get_config_value(&AzureConfigKey::UseEmulator),
            ],
            ServiceBuilder::S3(_) | ServiceBuilder::Google(_) | ServiceBuilder::Http(_) => vec![],
        };
        let place: Vec<_> =
            self.endpoints().into_iter().chain(account.into_iter().map(Option::unwrap_or_default)).collect();
        let shown = place.iter().map(|value| without_secrets(value));
        shown.collect::<Vec<_>>().join(" ")
    }

    /// The region of the bucket, if none was given.
    pub fn region(&self) -> Option<&BucketRegion> {
        self.region.as_deref()
    }

    /// The client for these connections, in the bucket's region if that is known.
    ///
    /// # Errors
    /// Options that do not fit together.
    pub fn client(&self, connections: &Connections) -> object_store::Result<Arc<dyn ObjectStore>> {
        let make = || self.build(connections);
        match self.region().and_then(BucketRegion::named) {
            None => connections.client(&self.name, make),
            Some(region) => connections.client(&format!("{} in {region}", self.name), make),
        }
    }

    fn build(&self, connections: &Connections) -> object_store::Result<Arc<dyn ObjectStore>> {
        let retry = self.retries.config(connections.retry_timeout);
        let counting = || Connector {
            traffic: connections.traffic.clone(),
            query: self.query.clone(),
            certificates: self.certificates.clone(),
            buffers: connections.buffers.clone(),
            region: self.region.clone(),
        };
        Ok(match self.of.clone() {
            ServiceBuilder::S3(mut builder) => {
                if let Some(region) = self.region().and_then(BucketRegion::named) {
                    *builder = builder.with_region(region);
                }
                Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?)
            }
            ServiceBuilder::Google(builder) => {
                Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?)
            }
            ServiceBuilder::Azure(builder) => {
                Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?)
            }
            ServiceBuilder::Http(builder) => {
                Arc::new(builder.with_retry(retry).with_http_connector(counting()).build()?)
            }
        })
    }
}

/// Whether requests can be sent to a URL and what stands behind it.
fn is_of_server(url: &str) -> bool {
    is_url(url) && url.parse::<Uri>().is_ok_and(|uri| uri.query().is_none())
}

/// Whether a request can be sent to a URL.
fn is_url(url: &str) -> bool {
    // The scheme and the host that it has for the client, which does not ask for slashes.
    let parsed = reqwest::Url::parse(url);
    url.contains("://")
        && url.parse::<Uri>().is_ok()
        && parsed.is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
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
    use super::super::service::service_of;
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
            ("s3", json!({"anon": "s3cr3t"}), "has \"anon\" that is neither true nor false"),
            (
                "s3",
                json!({"skip_signature": "s3cr3t"}),
                "skip_signature\", there or in the environment, that",
            ),
            (
                "az",
                json!({"use_emulator": "s3cr3t"}),
                "emulator\", there or in the environment, that is neither",
            ),
            (
                "gs",
                json!({"allow_http": "s3cr3t"}),
                "allow_http\", there or in the environment, that is neither",
            ),
            (
                "https",
                json!({"randomize_addresses": "s3cr3t"}),
                "addresses\", there or in the environment, that",
            ),
            (
                "gs",
                json!({"service_account": "{\"private_key\": \"s3cr3t\"}"}),
                "file of credentials and not its path",
            ),
            (
                "gs",
                json!({"application_credentials": " {\"private_key\": \"s3cr3t\"}"}),
                "file of credentials and not its path",
            ),
            ("s3", json!({"metadata_endpoint": "s3cr3t"}), "the metadata endpoint, which"),
            ("s3", json!({"metadata_endpoint": "http://a b"}), "the metadata endpoint, which"),
            ("s3", json!({"container_credentials_relative_uri": " a b"}), "the relative URI of"),
            ("az", json!({"authority_host": "s3cr3t", "account_name": "a"}), "the authority host, which"),
            ("az", json!({"tenant_id": "s3cr3t t", "account_name": "a"}), "the tenant, which"),
            (
                "https",
                json!({"headers": {"authorization: s3cr3t": "x"}}),
                "has a header \"authorization\" that",
            ),
            ("s3", json!({"region": "eu west"}), "the region, which"),
            ("s3", json!({"region": ""}), "is no name of a region"),
            ("s3", json!({"region": "host.example/x"}), "the region \"host.example/x\", which"),
            ("s3", json!({"anon": true, "region": "a@b"}), "is no name of a region"),
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
            ("https", json!({"headers": {"a b": "s3cr3t"}}), "header \"a\" that cannot be sent"),
        ] {
            let url = format!("{scheme}://host");
            let (service, scheme, host) = service_of(&url).unwrap();
            let refused =
                ClientBuilder::new(service, scheme, host, "", serde_json::from_value(options).unwrap());
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
            let (service, ..) = service_of(&format!("{scheme}://host")).unwrap();
            let config = ClientConfig::new(service, serde_json::from_value(options).unwrap()).unwrap();
            let named: Vec<_> =
                config.named.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(named, expected, "{scheme}");
        }
    }

    #[test]
    fn the_kind_of_credentials_is_named_without_them() {
        let account = "account_name";
        for (url, options, kind) in [
            ("s3://b", json!({"anon": true}), "no credentials"),
            ("s3://b", json!({"key": "k", "secret": "s"}), "the access key of storage_options"),
            ("s3://b", json!({"web_identity_token_file": "/t", "role_arn": "r"}), "a web identity"),
            ("s3://b", json!({"skip_signature": "1"}), "no credentials"),
            ("s3://b", json!({"skip_signature": "Yes", "key": "k", "secret": "s"}), "no credentials"),
            ("s3://b", json!({"anon": "True"}), "no credentials"),
            ("s3://b", json!({"anon": 0, "key": "k", "secret": "s"}), "the access key of storage_options"),
            (
                "s3://b",
                json!({"anon": true, "headers": {"x-key": "s"}}),
                "no credentials but the headers of storage_options",
            ),
            ("gs://b", json!({"token": "anon"}), "no credentials"),
            ("gs://b", json!({"bearer_token": "s"}), "a bearer token"),
            ("gs://b", json!({"token": {"type": "service_account"}}), "the key of a service account"),
            ("gs://b", json!({"token": env!("CARGO_MANIFEST_PATH")}), "a file of application credentials"),
            ("az://b", json!({"anon": true, account: "a"}), "no credentials"),
            ("az://b", json!({"account_key": "cw==", account: "a"}), "the account key"),
            ("az://b", json!({"sas_token": "sig=s", account: "a"}), "a shared access signature (SAS)"),
            ("az://b", json!({"sas_token": "sig=s", "bearer_token": "s", account: "a"}), "a bearer token"),
            ("az://b", json!({"use_emulator": "True"}), "the emulator's account key"),
            (
                "az://b",
                json!({"use_emulator": 1, "account_key": "cw==", "bearer_token": "s"}),
                "the account key",
            ),
            ("az://b", json!({"use_azure_cli": "on", account: "a"}), "the login of the Azure CLI"),
            (
                "az://b",
                json!({"credential_type": "managed_identity", account: "a"}),
                "the managed identity of the machine",
            ),
            ("gs://b", json!({"token": "anon", "requester_pays": "p"}), "no credentials"),
            ("https://b", json!({}), "no credentials"),
            ("https://b", json!({"headers": {"authorization": "s"}}), "the headers of storage_options"),
            ("https://b?sig=s", json!({}), "the query of the URL"),
            (
                "https://b?sig=s",
                json!({"headers": {"accept": "x"}}),
                "the query of the URL and the headers of storage_options",
            ),
        ] {
            let (service, scheme, rest) = service_of(url).unwrap();
            let (host, query) = rest.split_once('?').unwrap_or((rest, ""));
            let options = serde_json::from_value(options).unwrap();
            let builder = ClientBuilder::new(service, scheme, host, query, options).unwrap();
            assert_eq!(builder.credentials().kind, kind, "{url}");
        }
    }
}
