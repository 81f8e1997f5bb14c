//! Connections to web servers, with TLS and without.

use super::failed::Failed;
use super::stream;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use object_store::client::{HttpError, HttpErrorKind};
use once_cell::sync::OnceCell;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CipherSuite, ClientConfig};
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

/// Opens connections.
pub(super) struct Dialer {
    connector: HttpConnector<Shuffled>,
    /// Until a connection can be used.
    timeout: Duration,
    /// Trusted beside those of the system.
    certificates: Arc<[CertificateDer<'static>]>,
    tls: OnceCell<TlsConnector>,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Dialer {
    /// What is read from a socket at once below TLS, whose records have 16 KiB: rustls itself asks for 4 KiB at a time.
    const TLS_READ_BYTES: usize = 64 << 10;
    /// As reqwest has it: a host that is gone is noticed within a minute.
    const KEEPALIVE: Duration = Duration::from_secs(15);
    const KEEPALIVE_RETRIES: u32 = 3;
    const USER_TIMEOUT: Duration = Duration::from_secs(30);

    /// Trusts what the system trusts, and these.
    pub fn new(timeout: Duration, certificates: Arc<[CertificateDer<'static>]>) -> Self {
        let mut connector = HttpConnector::new_with_resolver(Shuffled(GaiResolver::new()));
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_keepalive(Some(Self::KEEPALIVE));
        connector.set_keepalive_interval(Some(Self::KEEPALIVE));
        connector.set_keepalive_retries(Some(Self::KEEPALIVE_RETRIES));
        connector.set_tcp_user_timeout(Some(Self::USER_TIMEOUT));
        Self { connector, timeout, certificates, tls: OnceCell::new() }
    }

    /// A connection to the host of this URL.
    pub async fn open(&self, uri: &Uri) -> Result<Socket, HttpError> {
        let failed = |source| Failed::http(HttpErrorKind::Connect, "error opening a connection", source);
        match tokio::time::timeout(self.timeout, self.opened(uri)).await {
            Ok(opened) => opened.map_err(failed),
            Err(_) => Err(failed("timed out".into())),
        }
    }

    async fn opened(&self, uri: &Uri) -> Result<Socket, Box<dyn std::error::Error + Send + Sync>> {
        let socket = self.connector.clone().call(uri.clone()).await?.into_inner();
        if uri.scheme_str() != Some("https") {
            return Ok(Socket::Plain(socket));
        }
        let name = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_string();
        let tls = self.tls.get_or_try_init(|| self.tls_connector())?;
        let socket = BufReader::with_capacity(Self::TLS_READ_BYTES, socket);
        Ok(Socket::Tls(Box::new(tls.connect(ServerName::try_from(name)?, socket).await?)))
    }

    fn tls_connector(&self) -> Result<TlsConnector, rustls::Error> {
        let mut provider = rustls::crypto::ring::default_provider();
        // Servers that follow their clients take the first one. Both AES-128 and AES-256, which rustls prefers, are unbroken; AES-128 takes 10 rounds
        // in place of 14. Those of TLS 1.2 stay as they are: it is for old servers.
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
        let provider = Arc::new(provider);
        let verifier = Verifier::new_with_extra_roots(self.certificates.iter().cloned(), provider.clone())?;
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec!["http/1.1".into()];
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

impl Socket {
    /// The ends of the connection, here and there.
    pub fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(session) => session.get_ref().0.get_ref(),
        };
        Ok((socket.local_addr()?, socket.peer_addr()?))
    }

    /// Whether the other end still waits for a request: it has closed nothing, and sent nothing that was not asked for.
    pub fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(futures::task::noop_waker_ref());
        Pin::new(self).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, into),
            // One record. Who reads goes on until nothing more has come.
            Self::Tls(session) => {
                let came = ready!(Pin::new(&mut *session).poll_fill_buf(cx))?;
                let bytes = stream::append(into, came);
                Pin::new(session).consume(bytes);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(session) => Pin::new(session).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bytes),
            Self::Tls(session) => Pin::new(session).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(session) => session.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(session) => Pin::new(session).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(session) => Pin::new(session).poll_shutdown(cx),
        }
    }
}

/// The addresses of a name in another order each time, so that connections spread over the servers of a store.
#[derive(Clone)]
struct Shuffled(GaiResolver);

impl Service<Name> for Shuffled {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = self.0.call(name);
        async move {
            let mut addresses: Vec<SocketAddr> = found.await?.collect();
            let chance = std::hash::RandomState::new();
            addresses.sort_by_cached_key(|address| std::hash::BuildHasher::hash_one(&chance, address));
            Ok(addresses.into_iter())
        }
        .boxed()
    }
}
