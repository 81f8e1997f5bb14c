//! The region of an S3 bucket for which none was given.
//!
//! Its client asks `us-east-1` first. Where the bucket is in another region the answer names that: in a header, or in the text of the error.

use super::xml::element;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper::StatusCode;
use object_store::HeaderMap;

/// The region, as far as it was named.
#[derive(Debug, Default)]
pub(super) struct BucketRegion(OnceLock<String>);

impl BucketRegion {
    /// The region that clients of `object_store` ask if none is given.
    const FIRST: &str = "us-east-1";

    /// That of a bucket at an endpoint, which may be named already: all stores in it share it, and later readers of the process.
    pub fn of(bucket: &str, endpoint: &str) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<(String, String), Arc<BucketRegion>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((bucket.into(), endpoint.into())).or_default().clone()
    }

    /// The region that was named.
    pub fn named(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Takes the region from the head of an answer, if that is one to a request for another region. Other failures, such as an absent object, may name
    /// one as well.
    pub fn note_head(&self, status: StatusCode, headers: &HeaderMap) {
        if !status.is_redirection() && status != StatusCode::BAD_REQUEST {
            return;
        }
        self.set(headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok()));
    }

    /// Takes the region from an error that is about it.
    pub fn note_error(&self, said: &str) {
        if element(said, "Code") == Some("AuthorizationHeaderMalformed") {
            self.set(element(said, "Region"));
        }
    }

    fn set(&self, region: Option<&str>) {
        let is_other = |region: &&str| is_region(region) && *region != Self::FIRST;
        if let Some(region) = region.filter(is_other) {
            let _ = self.0.set(region.to_string());
        }
    }
}

/// Whether this can be the name of a region. It becomes a part of a host's name, and nothing else may: what is signed is sent there.
pub(super) fn is_region(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=64).contains(&name.len()) && name.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    use object_store::HeaderValue;

    #[test]
    fn the_region_is_taken_from_heads_and_errors_that_name_another_one() {
        let error = |code: &str| format!("400: <Error><Code>{code}</Code><Region>eu-west-1</Region></Error>");
        let region = BucketRegion::default();
        let mut headers = HeaderMap::new();
        let moved = StatusCode::MOVED_PERMANENTLY;
        region.note_head(moved, &headers);
        for refused in ["", "eu.evil.example/", "a b", "us-east-1"] {
            headers.insert("x-amz-bucket-region", HeaderValue::from_str(refused).unwrap());
            region.note_head(moved, &headers);
        }
        region.note_error(&error("AccessDenied"));
        assert_eq!(region.named(), None);
        headers.insert("x-amz-bucket-region", HeaderValue::from_static("eu-north-1"));
        for other in [StatusCode::NOT_FOUND, StatusCode::FORBIDDEN, StatusCode::SERVICE_UNAVAILABLE] {
            region.note_head(other, &headers);
            assert_eq!(region.named(), None);
        }
        region.note_head(moved, &headers);
        // It stays.
        region.note_error(&error("AuthorizationHeaderMalformed"));
        assert_eq!(region.named(), Some("eu-north-1"));

        let region = BucketRegion::default();
        region.note_error(&error("AuthorizationHeaderMalformed"));
        assert_eq!(region.named(), Some("eu-west-1"));
    }
}
