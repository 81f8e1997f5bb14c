//! Requests for objects over connections of our own, whose bodies land where decoders read them.
//!
//! hyper sends a request and takes the head of the answer apart. A body of known length is read from the socket then, without the copy that
//! hyper's buffer costs. What needs more than that is left to another client: proxies, redirects, HTTP/2, other methods.

use super::buffers::Buffers;
use super::failed::Failed;
use super::landing::{Driven, Landing, Source};
use super::pool::{Home, Pool};
use super::socket::{Dialer, Socket};

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper::header::{ACCEPT, CONNECTION, CONTENT_RANGE, HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, Response, StatusCode, Version, http};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::pki_types::CertificateDer;

/// Sends requests over HTTP/1.1.
#[derive(Debug)]
pub(super) struct Http1 {
    dialer: Dialer,
    pool: Arc<Pool>,
    /// Whether `http` URLs may be asked for.
    allows_http: bool,
    /// Between any two bytes of an answer, and before the first.
    read_timeout: Duration,
    /// Sent with each request that has none of the name.
    headers: HeaderMap,
    proxies: Matcher,
    /// A server sent one elsewhere: another client follows.
    redirects: AtomicBool,
    buffers: Arc<Buffers>,
}

/// An answer, or what another client has to ask for.
pub(super) enum Answered {
    Here(HttpResponse, Ends),
    /// With the head of a redirect, if that is why.
    Elsewhere(Option<http::response::Parts>),
}

/// The ends of a connection that was opened for an answer.
pub(super) type Ends = Option<(std::net::SocketAddr, std::net::SocketAddr)>;

/// What is left of hyper when the head of an answer has come.
struct Begun {
    answer: Response<Incoming>,
    connection: Connection<TokioIo<Socket>, HttpRequestBody>,
    sender: SendRequest<HttpRequestBody>,
    ended: bool,
}

impl Http1 {
    /// A client with these options; `None` if they ask for what only others do. `certificates` are trusted beside those of the system.
    pub fn new(
        options: &ClientOptions,
        certificates: Arc<[CertificateDer<'static>]>,
        buffers: Arc<Buffers>,
    ) -> Option<Self> {
        use ClientConfigKey as Key;
        let value = |key: Key| options.get_config_value(&key);
        let is = |key: Key| value(key).is_some_and(|value| value == "true");
        let duration = |key: Key| humantime::parse_duration(&value(key)?).ok();
        let others = [Key::ProxyUrl, Key::PoolIdleTimeout, Key::PoolMaxIdlePerHost, Key::Timeout];
        let not = [Key::AllowInvalidCertificates, Key::NoSystemCertificates, Key::Http2Only];
        if others.into_iter().any(|key| value(key).is_some())
            || not.into_iter().any(is)
            || ![Key::Http1Only, Key::RandomizeAddresses].into_iter().all(is)
            || options.dns_resolver().is_some()
        {
            return None;
        }
        let mut headers = options.get_default_headers().cloned().unwrap_or_default();
        let mut otherwise = |name, value| {
            headers.entry(name).or_insert(value);
        };
        otherwise(USER_AGENT, HeaderValue::from_str(&value(Key::UserAgent)?).ok()?);
        otherwise(ACCEPT, HeaderValue::from_static("*/*"));
        Some(Self {
            dialer: Dialer::new(duration(Key::ConnectTimeout)?, certificates),
            pool: Arc::default(),
            allows_http: is(Key::AllowHttp),
            read_timeout: duration(Key::ReadTimeout)?,
            headers,
            proxies: Matcher::from_system(),
            redirects: AtomicBool::new(false),
            buffers,
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// A server that no connection can be opened to, and a connection that ends before the head of the answer has come.
    pub async fn call(&self, request: &HttpRequest) -> Result<Answered, HttpError> {
        let uri = request.uri();
        let scheme = uri.scheme_str().unwrap_or_default();
        let is_plain = *request.method() == Method::GET && request.body().is_empty();
        if !is_plain
            || !(scheme == "https" || scheme == "http" && self.allows_http)
            || self.redirects.load(Ordering::Relaxed)
            || self.proxies.intercept(uri).is_some()
        {
            return Ok(Answered::Elsewhere(None));
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let origin: Arc<str> = format!("{scheme}://{authority}").into();
        let prepared = || self.prepared(request);
        while let Some(socket) = self.pool.take(&origin) {
            match self.begun(socket, prepared()?).await {
                Ok(begun) => return self.answered(begun, &origin, None),
                // It was closed as the request was sent: another one may not be.
                Err(error) if matches!(error.kind(), HttpErrorKind::Request | HttpErrorKind::Interrupted) => {
                }
                Err(error) => return Err(error),
            }
        }
        let socket = self.dialer.open(uri).await?;
        let ends = socket.ends().ok();
        let begun = self.begun(socket, prepared()?).await?;
        self.answered(begun, &origin, ends)
    }

    /// The request as it is sent to a server.
    fn prepared(&self, request: &HttpRequest) -> Result<HttpRequest, HttpError> {
        let failed =
            |error: http::Error| Failed::http(HttpErrorKind::Unknown, "error sending request", error);
        let uri = request.uri();
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let mut prepared = http::Request::get(target).body(HttpRequestBody::empty()).map_err(failed)?;
        let host = match (uri.host().unwrap_or_default(), uri.scheme_str(), uri.port_u16()) {
            (host, _, None) | (host, Some("http"), Some(80)) | (host, Some("https"), Some(443)) => {
                host.into()
            }
            (host, _, Some(port)) => format!("{host}:{port}"),
        };
        let host = HeaderValue::from_str(&host).map_err(|error| failed(error.into()))?;
        let headers = prepared.headers_mut();
        headers.insert(HOST, host);
        for (name, value) in request.headers() {
            headers.append(name, value.clone());
        }
        for (name, value) in &self.headers {
            if !request.headers().contains_key(name) {
                headers.append(name, value.clone());
            }
        }
        Ok(prepared)
    }

    /// Sends a request and waits for the head of the answer.
    async fn begun(&self, socket: Socket, request: HttpRequest) -> Result<Begun, HttpError> {
        const WHAT: &str = "error sending request";
        let failed = |error: hyper::Error| Failed::of_connection(WHAT, error);
        let (mut sender, mut connection) = handshake(TokioIo::new(socket)).await.map_err(failed)?;
        let mut ended = false;
        let answer = {
            let mut answer = pin!(sender.send_request(request));
            let both = poll_fn(|cx| {
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(answer);
                }
                if !ended {
                    ended = connection.poll_without_shutdown(cx).is_ready();
                }
                answer.as_mut().poll(cx)
            });
            match tokio::time::timeout(self.read_timeout, both).await {
                Ok(answer) => answer.map_err(failed)?,
                Err(_) => return Err(Failed::http(HttpErrorKind::Timeout, WHAT, "timed out")),
            }
        };
        Ok(Begun { answer, connection, sender, ended })
    }

    /// The answer with its body.
    fn answered(&self, begun: Begun, origin: &Arc<str>, ends: Ends) -> Result<Answered, HttpError> {
        let Begun { answer, connection, sender, ended } = begun;
        let (head, incoming) = answer.into_parts();
        if matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            self.redirects.store(true, Ordering::Relaxed);
            return Ok(Answered::Elsewhere(Some(head)));
        }
        let stays = head.version == Version::HTTP_11 && !says_close(&head.headers);
        let home = stays.then(|| Home { pool: self.pool.clone(), origin: origin.clone() });
        let (source, came) = match plain_bytes(&head, &incoming) {
            Some(bytes) => taken_over(connection, incoming, bytes, home.filter(|_| !ended)),
            None => {
                let driven = Driven { connection, _sender: sender, incoming, ended, home };
                (Source::Hyper(Mutex::new(Box::new(driven))), Bytes::new())
            }
        };
        let body = Landing::new(source, came, self.read_timeout, self.buffers.clone());
        Ok(Answered::Here(HttpResponse::from_parts(head, HttpResponseBody::new(body)), ends))
    }
}

/// A body of `bytes` bytes whose rest is read without hyper, and what hyper has read of it.
fn taken_over(
    connection: Connection<TokioIo<Socket>, HttpRequestBody>,
    mut incoming: Incoming,
    bytes: u64,
    home: Option<Home>,
) -> (Source, Bytes) {
    let (mut came, mut broken) = (BytesMut::new(), None);
    while let Some(Some(frame)) = incoming.frame().now_or_never() {
        match frame {
            Ok(frame) => came.extend(frame.into_data().ok()),
            Err(error) => {
                broken = Some(Landing::broken(error));
                break;
            }
        }
    }
    let parts = connection.into_parts();
    came.extend_from_slice(&parts.read_buf);
    // Nobody knows what bytes behind the body are.
    let home = home.filter(|_| came.len() as u64 <= bytes);
    came.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    let source = match broken {
        Some(error) => Source::Broken(Some(error)),
        None => Source::Socket { socket: parts.io.into_inner(), left: bytes, home },
    };
    (source, came.freeze())
}

/// The length of a body that has nothing but the bytes that were asked for.
fn plain_bytes(head: &http::response::Parts, incoming: &Incoming) -> Option<u64> {
    let bytes = incoming.size_hint().exact().filter(|bytes| *bytes > 0)?;
    let fits = match head.status {
        StatusCode::OK => true,
        // A body of another length is read no further than it has to be.
        StatusCode::PARTIAL_CONTENT => ranged_bytes(head.headers.get(CONTENT_RANGE)?) == Some(bytes),
        _ => false,
    };
    fits.then_some(bytes)
}

/// Bytes of a `Content-Range`.
fn ranged_bytes(value: &HeaderValue) -> Option<u64> {
    let range = value.to_str().ok()?.trim().strip_prefix("bytes ")?.split_once('/')?.0;
    let (first, last) = range.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

fn says_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case("close"))
}

#[cfg(test)]
mod tests;
