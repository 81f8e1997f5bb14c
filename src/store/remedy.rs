//! What is wrong where a store answers with an error: in words without secrets, with the remedy.

use super::access::redact;
use super::client::Credentials;
use super::service::{Service, service_of};
use super::traffic::{is_of_certificate, with_causes};
use super::xml::element;
use crate::error::Obstacle;

use std::io;

/// What a store says, without secrets, and the remedy.
pub(super) fn failure(url: &str, credentials: Credentials, error: &object_store::Error) -> io::Error {
    use object_store::Error as Of;
    // Servers answer with whole pages.
    const MOST_SHOWN: usize = 1000;
    let said = with_causes(error);
    let is_web = service_of(url).is_some_and(|(service, ..)| service == Service::Http);
    let mut text = redact(&without_answer(&said));
    if let Some((end, _)) = text.char_indices().nth(MOST_SHOWN) {
        text.truncate(end);
        text.push_str("...");
    }
    let is_of_token = matches!(element(&said, "Code"), Some("ExpiredToken" | "InvalidToken"));
    if is_of_token || matches!(error, Of::PermissionDenied { .. } | Of::Unauthenticated { .. }) {
        text = format!("{text} (requested with {})", credentials.kind);
    }
    let (kind, remedy) = match error {
        Of::PermissionDenied { .. } if may_be_absent(&said) => {
            let obstacle =
                Obstacle::Forbidden { problem: format!("{url}: {text}"), remedy: credentials.remedy };
            return io::Error::new(io::ErrorKind::PermissionDenied, obstacle);
        }
        Of::PermissionDenied { .. } => (
            io::ErrorKind::PermissionDenied,
            "check the credentials and what they permit, the clock of this machine, and whether the object was archived",
        ),
        _ if is_of_token || matches!(error, Of::Unauthenticated { .. }) => {
            (io::ErrorKind::PermissionDenied, credentials.remedy)
        }
        _ if is_of_credentials(&text) => {
            text = format!("{text} (for {})", credentials.kind);
            (
                io::ErrorKind::Other,
                "no credentials could be had this way; give some in storage_options or the environment (of an AWS profile with single sign-on: aws configure export-credentials --format env), or for public data storage_options={\"anon\": True}",
            )
        }
        _ if matches!(error, Of::NotSupported { .. }) || text.contains("non-partial response") => (
            io::ErrorKind::Unsupported,
            "the server does not answer requests for a part of an object; use another server",
        ),
        Of::NotFound { .. } if is_of_bucket(&said) => (
            io::ErrorKind::Other,
            "the bucket or container is not there, or not any more; check its name, the endpoint and the account",
        ),
        _ if is_web && text.contains("redirect without LOCATION") => (
            io::ErrorKind::Other,
            "the server answers that the object is elsewhere and not where; check the URL, also whether it is https",
        ),
        _ if text.contains("incorrectly configured region")
            || element(&said, "Code") == Some("AuthorizationHeaderMalformed") =>
        {
            (
                io::ErrorKind::Other,
                "the bucket is in another region; remove the region from storage_options, AWS_REGION, AWS_DEFAULT_REGION and the profile, and an endpoint of one region, and the reader finds the bucket's region",
            )
        }
        _ if is_of_certificate(&said) => (
            io::ErrorKind::PermissionDenied,
            "check the name of the host, its certificate and the clock of this machine; if an authority of your own issued it, give storage_options={\"ca_bundle\": PATH}",
        ),
        _ if text.contains("Content-Length") => (
            io::ErrorKind::Unsupported,
            "the server, or a proxy before it, does not send the length of the object: it sends it in pieces (Transfer-Encoding: chunked), or changes it, as Google Cloud Storage does with objects that have Content-Encoding: gzip; use a server that sends objects as they are stored with their length, or for that encoding store objects without it",
        ),
        _ if (text.contains("Requested ") && text.contains(", got "))
            || text.contains("CONTENT_RANGE")
            || text.contains("Content-Range") =>
        {
            (
                io::ErrorKind::Unsupported,
                "the server, or a proxy before it, answers with other bytes than those that were asked for; use another server",
            )
        }
        _ if text.contains("Invalid last modified") => (
            io::ErrorKind::Unsupported,
            "the server, or a proxy before it, sends a Last-Modified that is no date; use another server",
        ),
        _ if text.contains("status code: 416") => (
            io::ErrorKind::Other,
            "the object ends before the bytes that were asked for: it is cut short or was replaced, or what refers to it is wrong",
        ),
        _ => (
            io::ErrorKind::Other,
            "check URL, endpoint, region, credentials and a proxy that HTTPS_PROXY or its like names, and whether the network is there",
        ),
    };
    io::Error::new(kind, Obstacle::Request { problem: format!("{url}: {text}"), remedy })
}

/// An error without the answer of S3 and its like, of which code and message are left: the answer can repeat tokens and whole requests.
fn without_answer(said: &str) -> String {
    let Some((before, answer)) = said.split_once("<Error>") else { return said.into() };
    let parts = [element(answer, "Code"), element(answer, "Message")];
    // Behind its first line a message of Azure's has what names the request.
    let parts: Vec<&str> = parts.into_iter().flatten().filter_map(|part| part.lines().next()).collect();
    let before = before.split("<?xml").next().unwrap_or_default();
    let before = before.trim_end_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    format!("{before} {}", parts.join(": "))
}

/// Whether a 404 is about the bucket, or container, and not about an object in it.
pub(super) fn is_of_bucket(said: &str) -> bool {
    element(said, "Code").is_some_and(|code| code.contains("Bucket") || code.contains("Container"))
}

/// Whether an error is about a request for credentials and not about one for an object.
fn is_of_credentials(text: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "/latest/api/token",
        "/latest/meta-data/iam/",
        "/computeMetadata/v1/instance/service-accounts/",
        "/metadata/identity/oauth2/",
        "//169.254.170.2/",
        "/v1/credentials",
        "performing token request",
        "AssumeRoleWithWebIdentity",
    ];
    SIGNS.iter().any(|sign| text.contains(sign))
}

/// Whether a 403 can stand for an object that is absent: other codes than this are about objects that are there, such as archived ones.
fn may_be_absent(said: &str) -> bool {
    element(said, "Code").is_none_or(|code| code == "AccessDenied" && !said.contains("kms:"))
}

#[cfg(test)]
mod tests {
    use super::super::access::Options;
    use super::super::client::ClientBuilder;
    use super::*;

    #[test]
    fn an_answer_of_a_store_is_shown_by_its_code_and_message_only() {
        let answer = "failed with status 400 Bad Request: <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message><Token-0>secret</Token-0></Error>";
        let shown = without_answer(answer);
        assert_eq!(shown, "failed with status 400 Bad Request: ExpiredToken: The token has expired.");
        let answer = "403: \u{feff}<?xml version=\"1.0\" standalone=\"yes\"?><Error><Code>No</Code><Message>No.\nRequestId: 1</Message></Error>";
        assert_eq!(without_answer(answer), "403: No: No.");
        assert_eq!(without_answer("nothing of the kind"), "nothing of the kind");
    }

    #[test]
    fn only_denied_access_can_stand_for_an_absent_object() {
        for (said, absent) in [
            ("403 Forbidden", true),
            ("403: <Error><Code>AccessDenied</Code></Error>", true),
            ("403: <Error><Code>InvalidObjectState</Code></Error>", false),
            ("403: <Error><Code>RequestTimeTooSkewed</Code></Error>", false),
            ("403: <Error><Code>AccessDenied</Code><Message>no kms:Decrypt</Message></Error>", false),
        ] {
            assert_eq!(may_be_absent(said), absent, "{said}");
        }
    }

    #[test]
    fn a_bucket_that_is_gone_is_not_an_absent_object() {
        for (said, is) in [
            ("404 Not Found: <Error><Code>NoSuchBucket</Code></Error>", true),
            ("404 Not Found: <Error><Code>ContainerNotFound</Code></Error>", true),
            ("404 Not Found: <Error><Code>NoSuchKey</Code><BucketName>b</BucketName></Error>", false),
            ("404 Not Found: <Error><Code>BlobNotFound</Code></Error>", false),
            ("404 Not Found: ", false),
        ] {
            assert_eq!(is_of_bucket(said), is, "{said}");
        }
    }

    #[test]
    fn what_a_server_says_comes_with_its_remedy() {
        let generic =
            |said: &'static str| object_store::Error::Generic { store: "HTTP", source: said.into() };
        let anonymous =
            ClientBuilder::new(Service::Http, "https", "h", "", Options::default()).unwrap().credentials();
        for (url, said, remedy) in [
            (
                "https://h/x",
                "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
                "not where",
            ),
            (
                "s3://b/x",
                "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
                "in another region",
            ),
            ("https://h/x", "Invalid last modified 'never'", "no date"),
            ("https://h/x", "Requested 164..232, got 165..233", "other bytes than those"),
            ("https://h/x", "Content-Range header not present in partial response", "other bytes than those"),
            ("https://h/x", "Content-Length Header missing from response", "does not send the length"),
            (
                "https://h/x",
                "Server returned non-2xx status code: 416 Range Not Satisfiable: ",
                "ends before the bytes",
            ),
        ] {
            let text = failure(url, anonymous, &generic(said)).to_string();
            assert!(text.contains(said) && text.contains(remedy), "{text}");
        }
    }
}
