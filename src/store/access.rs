//! How stores are accessed: what the user says of links, credentials and endpoints.

use super::service::{Service, service_of};
use crate::error::Result;
use crate::options::{Arguments, argument};

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// How the stores of a reader are accessed.
#[derive(Clone, Debug)]
pub struct Access {
    /// Whether symbolic links may lead out of a store's folder.
    pub follow_links: bool,
    /// Credentials, endpoints and whatever else clients of stores take.
    pub storage_options: StorageOptions,
}

impl Access {
    /// What a reader's arguments say of it.
    ///
    /// # Errors
    /// `storage_options` that are no JSON object.
    pub fn new(arguments: &Arguments) -> Result<Self> {
        let storage_options = StorageOptions::parse(&arguments.storage_options)?;
        Ok(Self { follow_links: arguments.follow_links, storage_options })
    }

    /// Access to folders, with links or without.
    pub fn to_folders(follow_links: bool) -> Self {
        Self { follow_links, storage_options: StorageOptions::default() }
    }
}

/// `storage_options`: options by name, and options for the stores below a URL. Values may be secrets, so that only names are ever shown.
#[derive(Clone, Default)]
pub struct StorageOptions {
    all: Options,
    by_prefix: BTreeMap<String, Options>,
}

/// Options of one client by name.
pub type Options = BTreeMap<String, Value>;

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |options: &Options| options.keys().cloned().collect::<Vec<_>>();
        let by_prefix =
            self.by_prefix.iter().map(|(prefix, options)| (without_secrets(prefix), names(options)));
        f.debug_struct("StorageOptions")
            .field("all", &names(&self.all))
            .field("by_prefix", &by_prefix.collect::<Vec<_>>())
            .finish()
    }
}

impl StorageOptions {
    /// Reads the JSON object that the argument is; an empty text has no options.
    ///
    /// # Errors
    /// Texts that are no such object.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |problem: &str| argument("storage_options", problem.into());
        if text.is_empty() {
            return Ok(Self::default());
        }
        // What the parser says could quote a secret.
        let Ok(Value::Object(entries)) = serde_json::from_str(text) else {
            return Err(refused("is no JSON object of options, such as {\"anon\": true}"));
        };
        let mut options = Self::default();
        for (name, value) in entries {
            if !name.contains("://") {
                options.all.insert(name, value);
                continue;
            }
            let prefix = without_secrets(&name);
            if service_of(&name).is_none() {
                return Err(refused(&format!(
                    "has options for \"{prefix}\", which is no URL of a bucket or a web server"
                )));
            }
            let Value::Object(of_prefix) = value else {
                return Err(refused(&format!("has no options for \"{prefix}\": give it an object of them")));
            };
            options.by_prefix.insert(name, of_prefix.into_iter().collect());
        }
        Ok(options)
    }

    /// The options for an object that a document elsewhere names: those for the longest prefix of its URL that there are any for, and of those for
    /// all what is no credential and leads nowhere else.
    pub(super) fn of_other(&self, url: &str) -> Options {
        let harmless = |(name, value): &(&String, &Value)| is_harmless(name, value);
        let all = self.all.iter().filter(harmless).map(|(name, value)| (name.clone(), value.clone()));
        Self { all: all.collect(), by_prefix: self.by_prefix.clone() }.of(url)
    }

    /// Whether there are options for all that [`StorageOptions::of_other`] leaves out, and none for a prefix of this URL.
    pub(super) fn withholds(&self, url: &str) -> bool {
        self.prefix_of(url).is_none() && self.all.iter().any(|(name, value)| !is_harmless(name, value))
    }

    /// The longest prefix of a URL that there are options for.
    pub(super) fn prefix_of(&self, url: &str) -> Option<&str> {
        let fitting = self.by_prefix.keys().filter(|prefix| is_prefix(prefix, url));
        // Behind the scheme, since several are alike.
        let depth = |prefix: &&String| prefix.split_once("://").map_or(0, |(_, rest)| rest.len());
        fitting.max_by_key(depth).map(String::as_str)
    }

    /// Adds options for what is below a URL, unless there are some for it.
    pub(super) fn suggest(&mut self, prefix: &str, options: Options) {
        if !options.is_empty() && self.prefix_of(prefix).is_none() {
            self.by_prefix.insert(prefix.into(), options);
        }
    }

    /// The options for a store: those for all, and those for the longest prefix of its URL that there are any for.
    pub fn of(&self, url: &str) -> Options {
        let mut options = self.all.clone();
        if let Some(of_prefix) = self.prefix_of(url).and_then(|prefix| self.by_prefix.get(prefix)) {
            options.extend(of_prefix.clone());
        }
        options
    }
}

/// Whether an option is no credential and does not say where requests go.
fn is_harmless(name: &str, value: &Value) -> bool {
    const HARMLESS: [&str; 7] =
        ["anon", "ca_bundle", "connect_timeout", "proxy_url", "read_timeout", "retry_config", "timeout"];
    HARMLESS.contains(&name) || (name == "token" && value == "anon")
}

/// Whether a URL is at or below another. Credentials for one host or bucket are not for one whose name begins alike. Schemes are alike if they are of one
/// service, such as `s3` and `s3a`; that of web servers has to be the same.
fn is_prefix(prefix: &str, url: &str) -> bool {
    let (Some((service, scheme, prefix)), Some((other, its, url))) = (service_of(prefix), service_of(url))
    else {
        return false;
    };
    let is_alike = service == other && (service != Service::Http || scheme == its);
    is_alike
        && url
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with(['/', '?']))
}

/// A URL as it may be shown: without a user's name and password, and without the query, in which signatures are.
pub fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.into() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // What stands where a port would be is a password: one with a slash, or one behind which the host is missing. Names of buckets have no port.
    if service_of(url).is_none_or(|(service, ..)| service == Service::Http)
        && let Some((before, port)) = authority.rsplit_once(':')
        && !authority.contains(['@', '['])
        && !port.bytes().all(|byte| byte.is_ascii_digit())
    {
        return match path.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://{host}"),
            None => format!("{scheme}://{before}{path}"),
        };
    }
    // In `abfss://container@account...` the part before the `@` is no secret.
    let has_container = ["abfs", "abfss", "wasbs"].iter().any(|azure| scheme.eq_ignore_ascii_case(azure));
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) if !has_container => host,
        _ => authority,
    };
    format!("{scheme}://{authority}{path}")
}

/// A text in which URLs have no secrets any more.
pub fn redact(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let scheme = rest[..at].rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |before| before + 1);
        // A character before the scheme can have several bytes.
        let scheme = (scheme..=at).find(|&i| rest.is_char_boundary(i)).unwrap_or(at);
        let end = rest[at + 3..].find(|c: char| c.is_whitespace() || "\"'()<>,".contains(c));
        let end = end.map_or(rest.len(), |end| at + 3 + end);
        shown.push_str(&rest[..scheme]);
        shown.push_str(&without_secrets(&rest[scheme..end]));
        rest = &rest[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_of_a_prefix_are_for_what_is_below_it() {
        let text =
            r#"{"anon": false, "s3://one": {"key": "k"}, "s3://one/deep/": {"key": "d", "anon": true}}"#;
        let options = StorageOptions::parse(text).unwrap();
        let of = |url: &str| serde_json::to_value(options.of(url)).unwrap();
        assert_eq!(of("s3://one/a"), json!({"anon": false, "key": "k"}));
        assert_eq!(of("s3://one"), json!({"anon": false, "key": "k"}));
        assert_eq!(of("s3://one/deep/a"), json!({"anon": true, "key": "d"}));
        // Schemes of one service are alike, also in capitals.
        assert_eq!(of("S3A://one/a"), json!({"anon": false, "key": "k"}));
        // Another bucket, and another host.
        assert_eq!(of("s3://one-more/a"), json!({"anon": false}));
        assert_eq!(of("https://one/a"), json!({"anon": false}));
        assert!(StorageOptions::parse("").unwrap().of("s3://x").is_empty());
    }

    #[test]
    fn the_longest_prefix_counts_whatever_its_scheme() {
        let options =
            StorageOptions::parse(r#"{"azure://c": {"a": 1}, "az://c/d": {"a": 2}, "http://h": {"a": 3}}"#)
                .unwrap();
        let of = |url: &str| serde_json::to_value(options.of(url)).unwrap();
        assert_eq!(of("adl://c/d/e"), json!({"a": 2}));
        assert_eq!(of("az://c/e"), json!({"a": 1}));
        // Without TLS others can read them.
        assert_eq!(of("https://h/x"), json!({}));
    }

    #[test]
    fn suggested_options_never_replace_those_of_the_user() {
        let mut options =
            StorageOptions::parse(r#"{"s3://one/a": {"key": "k"}, "s3://two/deep": {"key": "d"}}"#).unwrap();
        for prefix in ["s3://one/a/b/", "s3://two/"] {
            options.suggest(prefix, Options::from([("anon".into(), json!(true))]));
        }
        let of = |url: &str| serde_json::to_value(options.of_other(url)).unwrap();
        assert_eq!(of("s3://one/a/b/c"), json!({"key": "k"}));
        assert_eq!(of("s3://two/x"), json!({"anon": true}));
        assert_eq!(of("s3://two/deep/x"), json!({"key": "d"}));
    }

    #[test]
    fn what_is_no_object_is_refused_without_being_quoted() {
        for text in ["[1]", "{\"secret\": s3cr3t", "\"s3cr3t\"", r#"{"s3://one": "s3cr3t"}"#] {
            let error = StorageOptions::parse(text).unwrap_err().to_string();
            assert!(error.contains("storage_options") && !error.contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let options =
            StorageOptions::parse(r#"{"secret": "s3cr3t", "https://u:s3cr3t@h/?t=s3cr3t": {"a": "s3cr3t"}}"#);
        assert!(!format!("{:?}", options.unwrap()).contains("s3cr3t"));
        for (text, shown) in [
            ("https://user:pass@host/a/b?sig=1#x", "https://host/a/b"),
            ("s3://bucket/a b", "s3://bucket/a b"),
            ("abfss://c@account.dfs.core.windows.net/a?sv=2", "abfss://c@account.dfs.core.windows.net/a"),
            ("/local/path?x", "/local/path?x"),
            ("HTTPS://user:pass@host/a", "HTTPS://host/a"),
            ("http://user:pa/ss@host:80/a", "http://host:80/a"),
            ("http://host:pass", "http://host"),
            ("http://host:80/a@b", "http://host:80/a@b"),
            ("ftp://user:pa/ss@host/a", "ftp://host/a"),
            ("s3://arn:aws:s3:r:1:accesspoint/a@b", "s3://arn:aws:s3:r:1:accesspoint/a@b"),
            ("http://[::1]:80/a", "http://[::1]:80/a"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
        let text = "error for (https://h/a?sig=1), \"s3://b/c?d\" and ä://x?y: 403";
        assert_eq!(redact(text), "error for (https://h/a), \"s3://b/c\" and ä://x 403");
        assert_eq!(redact("no URL: at all"), "no URL: at all");
    }
}
