//! What clients see of their requests that those who make them do not: what failed and was sent again.

use super::bucket_region::BucketRegion;
use super::buffers::Buffers;
use super::http1::{Answered, Http1};
use super::landing::Landing;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Method;
use hyper::http::response::Parts;
use hyper_util::client::legacy::connect::HttpInfo;
use lru::LruCache;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use rustls::pki_types::CertificateDer;

/// Counts requests that failed for a reason that may pass, and connections.
#[derive(Debug)]
pub struct Traffic {
    failed: AtomicU64,
    refused: AtomicU64,
    opened: AtomicU64,
    /// Ends of the connections that the last answers came over, here and there.
    connections: Mutex<LruCache<(SocketAddr, SocketAddr), ()>>,
}

/// Connections that are known again: many more than there are at once.
const KNOWN_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

impl Default for Traffic {
    fn default() -> Self {
        let connections = Mutex::new(LruCache::new(KNOWN_CONNECTIONS));
        Self { failed: AtomicU64::new(0), refused: AtomicU64::new(0), opened: AtomicU64::new(0), connections }
    }
}

impl Traffic {
    /// Requests that failed since this was called last, most of which are sent again.
    pub fn take_failed(&self) -> u64 {
        self.failed.swap(0, Ordering::Relaxed)
    }

    /// Whether a store answered 503 or 429 since this was called last.
    pub fn take_refused(&self) -> bool {
        self.refused.swap(0, Ordering::Relaxed) > 0
    }

    /// Connections over which a first answer came since this was called last.
    pub fn take_opened(&self) -> u64 {
        self.opened.swap(0, Ordering::Relaxed)
    }

    /// An answer came over a connection between these ends.
    fn note_connection(&self, here: SocketAddr, there: SocketAddr) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.put((here, there), ()).is_none() {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request was answered with this status, or not at all.
    pub fn note(&self, status: Option<u16>) {
        if status.is_none_or(|status| matches!(status, 408 | 429 | 500..)) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(429 | 503) = status {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes clients whose requests are counted.
pub(super) struct Connector {
    pub traffic: Arc<Traffic>,
    /// What every request has behind the path of its URL, such as a signature. Empty if nothing.
    pub query: Arc<str>,
    /// Trusted beside those of the system.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// Memory for bodies.
    pub buffers: Arc<Buffers>,
    /// Is told the region of the bucket, where that has to be found.
    pub region: Option<Arc<BucketRegion>>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("traffic", &self.traffic).finish_non_exhaustive()
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let http1 = Http1::new(options, self.certificates.clone(), self.buffers.clone());
        let (traffic, query, buffers) = (self.traffic.clone(), self.query.clone(), self.buffers.clone());
        let region = self.region.clone();
        Ok(HttpClient::new(Counted { http1, client, traffic, query, buffers, region }))
    }
}

/// What an error says, and the causes that it does not tell, such as a certificate or a timeout.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

/// Whether an error, with its causes, is about a server's certificate.
pub(super) fn is_of_certificate(said: &str) -> bool {
    said.contains("invalid peer certificate")
}

struct Counted {
    /// Asks for what it can; `None` if options say how connections are used.
    http1: Option<Http1>,
    /// Asks for the rest.
    client: HttpClient,
    traffic: Arc<Traffic>,
    query: Arc<str>,
    buffers: Arc<Buffers>,
    region: Option<Arc<BucketRegion>>,
}

impl Counted {
    /// Whether a redirect names the region of the bucket, which has to be found. It is not followed then: the signature is not for where it leads.
    fn names_region(&self, head: &Parts) -> bool {
        let unknown = self.region.as_ref().filter(|region| region.named().is_none());
        unknown.is_some_and(|region| {
            region.note_head(head.status, &head.headers);
            region.named().is_some()
        })
    }

    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(http1) = &self.http1 {
            match http1.call(&request).await? {
                Answered::Here(answer, ends) => {
                    if let Some((here, there)) = ends {
                        self.traffic.note_connection(here, there);
                    }
                    return Ok(answer);
                }
                Answered::Elsewhere(Some(head)) if self.names_region(&head) => {
                    return Ok(HttpResponse::from_parts(head, Bytes::new().into()));
                }
                Answered::Elsewhere(_) => {}
            }
        }
        let is_get = *request.method() == Method::GET;
        let answer = self.client.execute(request).await?;
        if let Some(ends) = answer.extensions().get::<HttpInfo>() {
            self.traffic.note_connection(ends.local_addr(), ends.remote_addr());
        }
        Ok(if is_get { answer.map(|body| Landing::copied(body, self.buffers.clone())) } else { answer })
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query may be a secret.
        f.debug_struct("Counted").field("client", &self.client).finish_non_exhaustive()
    }
}

impl HttpService for Counted {
    fn call<'a, 'b>(&'a self, mut request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        async move {
            if !self.query.is_empty() {
                let url = format!("{}?{}", request.uri(), self.query);
                *request.uri_mut() =
                    url.parse().map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
            }
            let mut answer = self.answer(request).await;
            self.traffic.note(answer.as_ref().ok().map(|answer| answer.status().as_u16()));
            if let (Some(region), Ok(answer)) = (&self.region, &answer) {
                region.note_head(answer.status(), answer.headers());
            }
            // Weak tags do not tell the bytes, and the client would put bodies together by them.
            if let Ok(answer) = &mut answer
                && answer.headers().get("etag").is_some_and(|tag| tag.as_bytes().starts_with(b"W/"))
            {
                answer.headers_mut().remove("etag");
            }
            // Clients repeat requests for which there was no connection, but a certificate stays as it is.
            answer.map_err(|error| match is_of_certificate(&with_causes(&error)) {
                true => HttpError::new(HttpErrorKind::Unknown, error),
                false => error,
            })
        }
        .boxed()
    }
}
