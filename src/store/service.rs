//! The services whose buckets and servers are read, and the schemes of their URLs.

/// The services, by the schemes of their URLs.
const SCHEMES: [(&str, Service); 12] = [
    ("s3", Service::S3),
    ("s3a", Service::S3),
    ("gs", Service::Google),
    ("gcs", Service::Google),
    ("az", Service::Azure),
    ("azure", Service::Azure),
    ("adl", Service::Azure),
    ("abfs", Service::Azure),
    ("abfss", Service::Azure),
    ("wasbs", Service::Azure),
    ("http", Service::Http),
    ("https", Service::Http),
];

/// What a bucket or a server belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Google,
    Azure,
    Http,
}

/// Service, scheme, and what follows it.
pub(super) fn service_of(url: &str) -> Option<(Service, &'static str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, service) = SCHEMES.into_iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known))?;
    Some((service, scheme, rest))
}
