//! Errors of connections, and which of them let a request be sent again.

use std::error::Error;
use std::fmt;
use std::io;

use object_store::client::{HttpError, HttpErrorKind};

/// A problem, and what is behind it.
#[derive(Debug)]
pub(super) struct Failed {
    what: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

impl Failed {
    /// An error of a request whose kind is known.
    pub fn http(
        kind: HttpErrorKind,
        what: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> HttpError {
        HttpError::new(kind, Self { what, source: source.into() })
    }

    /// An error of a connection that was open.
    pub fn of_connection(what: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> HttpError {
        let source = source.into();
        Self::http(kind_of(&*source), what, source)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl Error for Failed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The kind of a connection's error. Requests over these connections are GETs, which `object_store` sends again after errors of all kinds but
/// `Decode` and `Unknown`. Where it says `Unknown` of its own client's errors because it cannot tell the cause, this says `Interrupted`: only an
/// answer that is no HTTP stays what it is when it is asked for again.
fn kind_of(error: &(dyn Error + 'static)) -> HttpErrorKind {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_parse() {
                return HttpErrorKind::Unknown;
            }
            if error.is_timeout() {
                return HttpErrorKind::Timeout;
            }
            if error.is_closed() || error.is_canceled() || error.is_incomplete_message() {
                return HttpErrorKind::Request;
            }
        }
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::TimedOut
        {
            return HttpErrorKind::Timeout;
        }
        cause = error.source();
    }
    HttpErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_and_of_tls_are_interruptions() {
        use io::ErrorKind as Of;
        let of_rustls = io::Error::new(Of::InvalidData, rustls::Error::DecryptError);
        let without_notify =
            io::Error::new(Of::UnexpectedEof, "peer closed connection without sending TLS close_notify");
        for (error, kind) in [
            (Of::ConnectionReset.into(), HttpErrorKind::Interrupted),
            (Of::ConnectionAborted.into(), HttpErrorKind::Interrupted),
            (Of::BrokenPipe.into(), HttpErrorKind::Interrupted),
            (Of::NotConnected.into(), HttpErrorKind::Interrupted),
            (Of::HostUnreachable.into(), HttpErrorKind::Interrupted),
            (Of::TimedOut.into(), HttpErrorKind::Timeout),
            (without_notify, HttpErrorKind::Interrupted),
            (of_rustls, HttpErrorKind::Interrupted),
            (io::Error::from_raw_os_error(libc::ECONNRESET), HttpErrorKind::Interrupted),
            (io::Error::from_raw_os_error(libc::ETIMEDOUT), HttpErrorKind::Timeout),
        ] {
            let said = error.to_string();
            let failed = Failed::of_connection("error sending request", error);
            assert_eq!(failed.kind(), kind, "{said}");
            assert_eq!(failed.to_string(), "HTTP error: error sending request");
        }
    }
}
