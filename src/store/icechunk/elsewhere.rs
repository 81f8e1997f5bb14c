//! Chunks that are not in the repository: virtual ones, which are ranges of objects that the manifests name by URL.
//!
//! The repository's configuration can say where such objects are (virtual chunk containers). It is not trusted with credentials: requests to an
//! endpoint that it names are not signed, unless the user gave options for the URL.

use super::super::access::{Access, Options};
use super::super::connections::Connections;
use super::super::contract::{Store, Version};
use super::super::targets::{Origin, Targets};
use super::files::{guarded, refused, repo_info};
use super::manifests::Elsewhere;
use super::reference::decoded;

use std::collections::BTreeMap;
use std::io;

use icechunk_format::REPO_INFO_FILE_PATH;
use icechunk_format::manifest::{Checksum, VCC_RELATIVE_URL_SCHEME};
use serde_json::{Value, json};

/// The objects that a repository names.
pub struct Virtual {
    targets: Targets,
    /// URLs by the names that the repository has for them.
    named: BTreeMap<String, String>,
}

impl Virtual {
    /// The objects that the repository in a store names. It lies at `origin`.
    ///
    /// # Errors
    /// What the store says, or what is wrong with the configuration of the repository.
    pub async fn new(store: &dyn Store, access: Access, origin: Origin) -> io::Result<Self> {
        let mut made = Self { targets: Targets::new(access, origin), named: BTreeMap::new() };
        // Format 1 has its configuration in a file of another kind, and no names.
        let Some(info) = repo_info(store).await? else { return Ok(made) };
        let config: Option<Value> = guarded(REPO_INFO_FILE_PATH, || info.config())?;
        let containers = config.as_ref().and_then(|config| config["virtual_chunk_containers"].as_object());
        for container in containers.into_iter().flat_map(|containers| containers.values()) {
            let Some(prefix) = container["url_prefix"].as_str() else { continue };
            if let Some(name) = container["name"].as_str() {
                made.named.insert(name.into(), prefix.into());
            }
            made.targets.suggest(prefix, suggested(&container["store"]));
        }
        Ok(made)
    }

    /// The same with the connections of a thread.
    pub fn connect(&self, connections: &Connections) -> Self {
        Self { targets: self.targets.connect(connections), named: self.named.clone() }
    }

    /// What answers requests for the objects.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// The name of an object for [`Virtual::targets`].
    ///
    /// # Errors
    /// A name that the repository's configuration has no URL for.
    pub fn name(&self, object: &Elsewhere) -> io::Result<String> {
        let Some(relative) = object.location.strip_prefix(VCC_RELATIVE_URL_SCHEME) else {
            return Ok(unescaped(&object.location));
        };
        let (name, path) = relative.split_once('/').unwrap_or((relative, ""));
        let Some(prefix) = self.named.get(name) else {
            return Err(refused(
                format!(
                    "a chunk is in \"{}\", and the repository's configuration has no virtual chunk container \"{name}\"",
                    object.location
                ),
                "add the container to the repository's configuration",
            ));
        };
        Ok(unescaped(&format!("{}/{path}", prefix.trim_end_matches('/'))))
    }
}

/// The version that an object has to have, if the manifest says.
pub fn version(checksum: Option<&Checksum>) -> Option<Version> {
    Some(match checksum? {
        Checksum::LastModified(time) => Version::NotSince { at_s: time.0.into() },
        // Writers leave out the quotes now and then.
        Checksum::ETag(tag) if tag.0.ends_with('"') => Version::ETag(tag.0.as_str().into()),
        Checksum::ETag(tag) => Version::ETag(format!("\"{}\"", tag.0).into()),
    })
}

/// Options for the objects of a container, of those that harm nobody: who asks is not told to an endpoint that the repository names.
fn suggested(store: &Value) -> Options {
    let mut options = Options::new();
    let Some(s3) = ["s3", "s3_compatible", "tigris"].iter().find_map(|kind| store.get(kind)) else {
        return options;
    };
    if let Some(region) = s3["region"].as_str() {
        options.insert("region".into(), json!(region));
    }
    if let Some(endpoint) = s3["endpoint_url"].as_str() {
        options.insert("endpoint_url".into(), json!(endpoint));
    }
    if s3["anonymous"] == true || s3["endpoint_url"].is_string() {
        options.insert("anon".into(), json!(true));
    }
    options
}

/// A location as others write it: of object stores and files the key itself stands behind the host, where Icechunk has it escaped.
fn unescaped(location: &str) -> String {
    let is_http = location.split_once("://").is_none_or(|(scheme, _)| scheme.starts_with("http"));
    if is_http {
        return location.into();
    }
    let location = location.split(['?', '#']).next().unwrap_or_default();
    decoded(location).unwrap_or_else(|| location.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use icechunk_format::manifest::SecondsSinceEpoch;

    #[test]
    fn locations_are_names_of_objects() {
        let made = Virtual {
            targets: Targets::new(Access::to_folders(true), Origin::Url("s3://b".into())),
            named: BTreeMap::from([("here".into(), "gs://bucket/in/".into())]),
        };
        let name = |location: &str| made.name(&Elsewhere { location: location.into(), checksum: None });
        for (location, expected) in [
            ("s3://b/a%20b/%25c?x#y", "s3://b/a b/%c"),
            ("file:///data/a%20b", "file:///data/a b"),
            ("https://h/a%20b", "https://h/a%20b"),
            ("vcc://here/x/y%2B", "gs://bucket/in/x/y+"),
        ] {
            assert_eq!(name(location).unwrap(), expected);
        }
        let refused = name("vcc://there/x").unwrap_err().to_string();
        assert!(refused.contains("no virtual chunk container \"there\""), "{refused}");
    }

    #[test]
    fn checksums_are_versions() {
        let checksum = |tag: &str| serde_json::from_value::<Checksum>(json!({"ETag": tag})).unwrap();
        let tag = |tag: &str| version(Some(&checksum(tag)));
        assert_eq!(tag("\"a\""), Some(Version::ETag("\"a\"".into())));
        assert_eq!(tag("a"), Some(Version::ETag("\"a\"".into())));
        assert_eq!(tag("W/\"a\""), Some(Version::ETag("W/\"a\"".into())));
        let time = Checksum::LastModified(SecondsSinceEpoch(7));
        assert_eq!(version(Some(&time)), Some(Version::NotSince { at_s: 7 }));
        assert_eq!(version(None), None);
    }

    #[test]
    fn an_endpoint_that_a_repository_names_gets_no_signed_requests() {
        let s3 =
            |options: Value| serde_json::to_value(suggested(&json!({"s3_compatible": options}))).unwrap();
        let endpoint =
            json!({"region": "r", "endpoint_url": "http://h", "anonymous": false, "requester_pays": true});
        assert_eq!(s3(endpoint), json!({"region": "r", "endpoint_url": "http://h", "anon": true}));
        assert_eq!(
            s3(json!({"region": "r", "endpoint_url": null, "anonymous": false})),
            json!({"region": "r"})
        );
        assert!(
            suggested(&json!({"local_file_system": "/data"})).is_empty()
                && suggested(&Value::Null).is_empty()
        );
    }
}
