//! The body of an answer, read from its connection into the memory that decoders read.
//!
//! ```text
//! head (hyper) --> plain body of known length: read from the socket      --\
//!              --> chunked and the like: hyper's frames, copied          ---+-> pieces
//! reqwest      --> redirected, through a proxy: frames, copied           --/
//! ```

use super::buffers::{Buffer, Buffers};
use super::failed::Failed;
use super::pool::Home;
use super::socket::Socket;

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;
use object_store::client::{HttpError, HttpErrorKind, HttpRequestBody, HttpResponseBody};
use tokio::time::{Instant, Sleep};

/// What could not be read.
const OF_BODY: &str = "error reading the response body from its connection";
/// What there is no memory for.
const FOR_BODY: &str = "no memory for the response body";

/// A body whose pieces have memory of their own, and no more of it than they are long.
pub(super) struct Landing {
    source: Source,
    /// Bytes that have come and are in no piece yet.
    came: Bytes,
    /// The piece that is filled now, and how long it is to be.
    piece: Option<(Buffer, usize)>,
    /// Is told when the piece before it was.
    failed: Option<HttpError>,
    clock: Clock,
    buffers: Arc<Buffers>,
}

/// Where the bytes come from.
pub(super) enum Source {
    /// All that is left on this connection, `left` bytes with those that have come, is the body.
    Socket { socket: Socket, left: u64, home: Option<Home> },
    /// A body that hyper takes apart.
    Hyper(Mutex<Box<Driven>>),
    /// That of another client.
    Client(HttpResponseBody),
    /// There is nothing more, because of this.
    Broken(Option<HttpError>),
    /// There is nothing more.
    Ended,
}

/// A connection that hyper has, and the body that comes over it.
pub(super) struct Driven {
    pub connection: Connection<TokioIo<Socket>, HttpRequestBody>,
    /// Keeps the connection open.
    pub _sender: SendRequest<HttpRequestBody>,
    pub incoming: Incoming,
    /// Nothing more comes over the connection.
    pub ended: bool,
    pub home: Option<Home>,
}

/// Whether a piece is as it is to be.
enum Filled {
    Whole,
    /// It is the last one.
    Ended,
}

impl Landing {
    /// The longest piece, of bodies whose length is known.
    const MOST_BYTES: u64 = 16 << 20;
    /// The longest piece of those that are copied.
    const MOST_COPIED_BYTES: u64 = 1 << 20;

    /// `came` are the first bytes. It is an error if no more come for longer than `read_timeout`.
    pub fn new(source: Source, came: Bytes, read_timeout: Duration, buffers: Arc<Buffers>) -> Self {
        Self { source, came, piece: None, failed: None, clock: Clock::new(read_timeout), buffers }
    }

    /// The error of a body that cannot be read on.
    pub fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HttpError {
        Failed::of_connection(OF_BODY, error)
    }

    /// A body of another client, which waits as long as it likes.
    pub fn copied(body: HttpResponseBody, buffers: Arc<Buffers>) -> HttpResponseBody {
        HttpResponseBody::new(Self::new(Source::Client(body), Bytes::new(), Duration::MAX, buffers))
    }

    /// Bytes of the next piece, if all of them come.
    fn piece_bytes(&self) -> u64 {
        let known = |hint: SizeHint| hint.exact().unwrap_or(u64::MAX);
        let copied = match &self.source {
            Source::Socket { left, .. } => return (*left).min(Self::MOST_BYTES),
            Source::Hyper(driven) => known(lock(driven).incoming.size_hint()),
            Source::Client(body) => known(body.size_hint()),
            Source::Broken(_) | Source::Ended => 0,
        };
        copied.saturating_add(self.came.len() as u64).min(Self::MOST_COPIED_BYTES)
    }

    /// Fills the piece.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<Filled, HttpError>> {
        if self.piece.is_none() {
            let bytes = self.piece_bytes();
            let taken = self.buffers.take(bytes);
            let buffer = taken.map_err(|refused| Failed::http(HttpErrorKind::Unknown, FOR_BODY, refused))?;
            self.piece = Some((buffer, bytes as usize));
        }
        loop {
            let Some((buffer, bytes)) = &mut self.piece else { return Poll::Ready(Ok(Filled::Ended)) };
            let room = *bytes - buffer.len();
            let now = room.min(self.came.len());
            buffer.append(&self.came[..now]);
            self.came.advance(now);
            if let Source::Socket { left, .. } = &mut self.source {
                *left -= now as u64;
            }
            let room = room - now;
            if room == 0 && *bytes > 0 {
                return Poll::Ready(Ok(Filled::Whole));
            }
            let came = match &mut self.source {
                Source::Socket { left: 0, .. } | Source::Ended => return Poll::Ready(Ok(Filled::Ended)),
                Source::Broken(error) => {
                    return Poll::Ready(error.take().map_or(Ok(Filled::Ended), Err));
                }
                Source::Socket { socket, left, .. } => {
                    buffer.poll_read(socket, room, cx).map(|read| match read {
                        Ok(0) => {
                            let problem = format!("the connection ended {left} bytes before the body");
                            let error = io::Error::new(io::ErrorKind::UnexpectedEof, problem);
                            Err(Failed::of_connection(OF_BODY, error))
                        }
                        Ok(read) => {
                            *left -= read as u64;
                            Ok(Some(Bytes::new()))
                        }
                        Err(error) => Err(Failed::of_connection(OF_BODY, error)),
                    })
                }
                Source::Hyper(driven) => {
                    let driven = driven.get_mut().unwrap_or_else(PoisonError::into_inner);
                    driven.poll_data(cx)
                }
                Source::Client(body) => poll_data(Pin::new(body), cx),
            };
            match came {
                Poll::Ready(came) => {
                    self.clock.goes_on();
                    match came? {
                        Some(came) => self.came = came,
                        None => return Poll::Ready(Ok(Filled::Ended)),
                    }
                }
                Poll::Pending if matches!(self.source, Source::Client(_)) => return Poll::Pending,
                Poll::Pending => {
                    ready!(self.clock.poll(cx));
                    return Poll::Ready(Err(Failed::http(HttpErrorKind::Timeout, OF_BODY, "timed out")));
                }
            }
        }
    }

    /// The piece, if there is anything in it, in memory of its length.
    fn take_piece(&mut self) -> Option<Bytes> {
        let (buffer, bytes) = self.piece.take()?;
        let whole = buffer.len() == bytes;
        match buffer.is_empty() {
            true => None,
            false if whole => Some(Bytes::from_owner(buffer)),
            false => Some(Bytes::copy_from_slice(&buffer)),
        }
    }

    /// Gives the connection back, which can be asked for something else now.
    fn end(&mut self) {
        match std::mem::replace(&mut self.source, Source::Ended) {
            Source::Socket { socket, left: 0, home: Some(home) } if self.came.is_empty() => home.park(socket),
            Source::Hyper(driven) => {
                let Driven { connection, ended, home, .. } =
                    *driven.into_inner().unwrap_or_else(PoisonError::into_inner);
                let parts = connection.into_parts();
                if let (Some(home), false, true) = (home, ended, parts.read_buf.is_empty()) {
                    home.park(parts.io.into_inner());
                }
            }
            _ => {}
        }
    }
}

impl Body for Landing {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = self.get_mut();
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let piece = match ready!(this.poll_fill(cx)) {
            Ok(Filled::Whole) => {
                let piece = this.take_piece();
                if matches!(this.source, Source::Socket { left: 0, .. }) {
                    this.end();
                }
                piece
            }
            Ok(Filled::Ended) => {
                this.end();
                this.take_piece()
            }
            Err(error) => {
                this.source = Source::Ended;
                this.came.clear();
                match this.take_piece() {
                    None => return Poll::Ready(Some(Err(error))),
                    piece => {
                        this.failed = Some(error);
                        piece
                    }
                }
            }
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Socket { left, .. } => SizeHint::with_exact(*left),
            _ => SizeHint::default(),
        }
    }
}

impl Driven {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, HttpError>> {
        if let Poll::Ready(data) = poll_data(Pin::new(&mut self.incoming), cx) {
            return Poll::Ready(data);
        }
        // What is wrong with the connection, the body says.
        self.ended = self.ended || self.connection.poll_without_shutdown(cx).is_ready();
        let data = poll_data(Pin::new(&mut self.incoming), cx);
        match self.ended && data.is_pending() {
            true => {
                let ended =
                    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended before the body");
                Poll::Ready(Err(Failed::of_connection(OF_BODY, ended)))
            }
            false => data,
        }
    }
}

fn lock(driven: &Mutex<Box<Driven>>) -> std::sync::MutexGuard<'_, Box<Driven>> {
    driven.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next bytes of a body.
fn poll_data<B>(mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, HttpError>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    loop {
        match ready!(body.as_mut().poll_frame(cx)) {
            None => return Poll::Ready(Ok(None)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Poll::Ready(Ok(Some(data)));
                }
            }
            Some(Err(error)) => {
                let failed = match error.into().downcast::<HttpError>() {
                    Ok(error) => *error,
                    Err(error) => Failed::of_connection(OF_BODY, error),
                };
                return Poll::Ready(Err(failed));
            }
        }
    }
}

/// How long nothing comes.
struct Clock {
    read_timeout: Duration,
    /// Runs while nothing comes.
    sleep: Option<Pin<Box<Sleep>>>,
    runs: bool,
}

impl Clock {
    fn new(read_timeout: Duration) -> Self {
        Self { read_timeout, sleep: None, runs: false }
    }

    /// Something came.
    fn goes_on(&mut self) {
        self.runs = false;
    }

    /// Nothing came. Ready when that has been so for too long.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let read_timeout = self.read_timeout;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(read_timeout)));
        if !self.runs {
            sleep.as_mut().reset(Instant::now() + read_timeout);
            self.runs = true;
        }
        sleep.as_mut().poll(cx)
    }
}
