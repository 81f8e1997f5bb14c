//! A fast web server over a folder, for `benches/remote.py`: ranges of files from the page cache, with the delays and faults of object stores.
//!
//! ```text
//! cargo run --release --example range_server -- FOLDER [--tls PEM]
//! ```
//!
//! The first line of its output is its URL. A thread for each connection sends files with sendfile(2), or through rustls if a PEM file with a
//! certificate and its key is given. `GET /-/?NAME=VALUE&...` changes how it answers from then on, and returns what it has counted as JSON:
//!
//! | name | meaning | at first |
//! |---|---|---|
//! | `ms` | milliseconds to the first byte of each answer | 0 |
//! | `late`, `late_ms` | this share of requests takes so long | 0, 2000 |
//! | `busy` | this share of requests is answered 503 | 0 |
//! | `mb_per_s` | all connections together, 0: no limit | 0 |
//! | `connection_mb_per_s` | each connection, 0: no limit | 0 |

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

type Failure = Box<dyn Error + Send + Sync>;

/// Bytes that are sent at once where a rate is limited.
const STEP_BYTES: u64 = 64 << 10;
/// Bytes that are encrypted at once.
const TLS_STEP_BYTES: usize = 256 << 10;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (root, pem) = match &arguments[..] {
        [root] => (root, None),
        [root, flag, pem] if flag == "--tls" => (root, Some(pem)),
        _ => return Err("give FOLDER [--tls PEM]".into()),
    };
    let tls = pem.map(tls_config).transpose()?;
    let server = Arc::new(Server { root: std::fs::canonicalize(root)?, ..Server::default() });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    println!("{scheme}://{}", listener.local_addr()?);
    for connection in listener.incoming() {
        let (server, tls) = (server.clone(), tls.clone());
        let serve = move |socket: TcpStream| -> Result<(), Failure> {
            socket.set_nodelay(true)?;
            match tls {
                None => server.serve(Plain(socket)),
                Some(config) => {
                    let mut session = ServerConnection::new(config)?;
                    session.set_buffer_limit(None);
                    server.serve(StreamOwned::new(session, socket))
                }
            }
        };
        let Ok(socket) = connection else { continue };
        // Clients that go away are no matter.
        std::thread::Builder::new().stack_size(256 << 10).spawn(move || drop(serve(socket)))?;
    }
    Ok(())
}

fn tls_config(pem: &String) -> Result<Arc<ServerConfig>, Failure> {
    let certificates = CertificateDer::pem_file_iter(pem)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(pem)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_no_client_auth().with_single_cert(certificates, key)?))
}

/// A connection that sends parts of files.
trait Connection: Read + Write {
    fn send_file(&mut self, file: &File, range: Range<u64>) -> io::Result<()>;
}

struct Plain(TcpStream);

impl Read for Plain {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Plain {
    fn send_file(&mut self, file: &File, range: Range<u64>) -> io::Result<()> {
        let mut offset = range.start;
        while offset < range.end {
            let left = (range.end - offset) as usize;
            if rustix::fs::sendfile(&self.0, file, Some(&mut offset), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Connection for StreamOwned<ServerConnection, TcpStream> {
    fn send_file(&mut self, file: &File, range: Range<u64>) -> io::Result<()> {
        let mut buffer = vec![0; TLS_STEP_BYTES.min((range.end - range.start) as usize)];
        let mut offset = range.start;
        while offset < range.end {
            let bytes = buffer.len().min((range.end - offset) as usize);
            file.read_exact_at(&mut buffer[..bytes], offset)?;
            self.write_all(&buffer[..bytes])?;
            offset += bytes as u64;
        }
        self.flush()
    }
}

/// A moment before which nothing more may be sent.
#[derive(Default)]
struct Pace(Option<Instant>);

impl Pace {
    /// Reserves the time that `bytes` take at the limited rate. Returns when they may be sent.
    fn take(&mut self, bytes: u64, mb_per_s: u64) -> Instant {
        let now = Instant::now();
        let start = self.0.map_or(now, |at| at.max(now));
        self.0 = Some(start + Duration::from_nanos(bytes * 1000 / mb_per_s.max(1)));
        start
    }
}

/// What is served, and how.
#[derive(Default)]
struct Server {
    root: PathBuf,
    settings: Settings,
    pace: Mutex<Pace>,
    /// All requests but those of settings.
    requests: AtomicU64,
    now: AtomicU64,
    peak: AtomicU64,
    bytes: AtomicU64,
    late: AtomicU64,
    busy: AtomicU64,
}

/// Shares are in millionths.
#[derive(Default)]
struct Settings {
    ms: AtomicU64,
    late: AtomicU64,
    late_ms: AtomicU64,
    busy: AtomicU64,
    mb_per_s: AtomicU64,
    connection_mb_per_s: AtomicU64,
}

impl Server {
    /// Answers the requests of one connection.
    fn serve(&self, mut connection: impl Connection) -> Result<(), Failure> {
        let mut buffer = vec![];
        let mut pace = Pace::default();
        loop {
            let end = loop {
                if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                    break end + 4;
                }
                let mut more = [0; 4096];
                match connection.read(&mut more)? {
                    0 => return Ok(()),
                    bytes if buffer.len() < 1 << 16 => buffer.extend_from_slice(&more[..bytes]),
                    _ => return Err("a request is too long".into()),
                }
            };
            let head = String::from_utf8(buffer.drain(..end).collect())?;
            self.answer(&mut connection, &head, &mut pace)?;
        }
    }

    fn answer(&self, connection: &mut impl Connection, head: &str, pace: &mut Pace) -> Result<(), Failure> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let header = |name: &str| {
            head.split("\r\n").skip(1).find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if path == "/-/" {
            self.set(query)?;
            return send(connection, "200 OK", "", &self.counted());
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(now, Ordering::Relaxed);
        let of = |setting: &AtomicU64| setting.load(Ordering::Relaxed);
        let mut wait = of(&self.settings.ms);
        // Two numbers below a million that look like chance.
        let chance = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (first, second) = ((chance >> 40) % 1_000_000, (chance >> 16) % 1_000_000);
        if first < of(&self.settings.late) {
            self.late.fetch_add(1, Ordering::Relaxed);
            wait = wait.max(of(&self.settings.late_ms));
        }
        if wait > 0 {
            std::thread::sleep(Duration::from_millis(wait));
        }
        let sent = if second < of(&self.settings.busy) {
            self.busy.fetch_add(1, Ordering::Relaxed);
            send(connection, "503 Service Unavailable", "", "SlowDown")
        } else {
            self.object(connection, path, header("range"), header("if-match"), method == "HEAD", pace)
        };
        self.now.fetch_sub(1, Ordering::Relaxed);
        sent
    }

    fn object(
        &self,
        connection: &mut impl Connection,
        path: &str,
        range: Option<&str>,
        expected: Option<&str>,
        is_head: bool,
        pace: &mut Pace,
    ) -> Result<(), Failure> {
        let path = Path::new(path.trim_start_matches('/'));
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        let opened = if is_below { File::open(self.root.join(path)).ok() } else { None };
        let found =
            opened.and_then(|file| Some((file.metadata().ok().filter(|found| found.is_file())?, file)));
        let Some((metadata, file)) = found else { return send(connection, "404 Not Found", "", "") };
        let bytes = metadata.len();
        let tag = format!("\"{:x}-{bytes:x}\"", metadata.mtime_nsec() ^ metadata.mtime() << 30);
        if expected.is_some_and(|expected| expected != tag) {
            return send(connection, "412 Precondition Failed", "", "");
        }
        let (status, range) = match range.map(|range| parse(range, bytes)) {
            None => ("200 OK", 0..bytes),
            Some(Some(range)) => ("206 Partial Content", range),
            Some(None) => return send(connection, "416 Range Not Satisfiable", "", ""),
        };
        let length = range.end - range.start;
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: {tag}\r\nLast-Modified: Sat, 01 Aug 2026 00:00:00 GMT\r\n"
        );
        if status.starts_with("206") {
            head += &format!("Content-Range: bytes {}-{}/{bytes}\r\n", range.start, range.end.max(1) - 1);
        }
        connection.write_all(format!("{head}\r\n").as_bytes())?;
        if is_head {
            return Ok(connection.flush()?);
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
        self.send_range(connection, &file, range, pace)
    }

    /// Sends a part of a file as fast as all connections and this one may.
    fn send_range(
        &self,
        connection: &mut impl Connection,
        file: &File,
        range: Range<u64>,
        pace: &mut Pace,
    ) -> Result<(), Failure> {
        let of = |setting: &AtomicU64| setting.load(Ordering::Relaxed);
        let (all, each) = (of(&self.settings.mb_per_s), of(&self.settings.connection_mb_per_s));
        if all == 0 && each == 0 {
            return Ok(connection.send_file(file, range)?);
        }
        let mut offset = range.start;
        while offset < range.end {
            let bytes = STEP_BYTES.min(range.end - offset);
            let mut start = Instant::now();
            if all > 0 {
                start = self.pace.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, all);
            }
            if each > 0 {
                start = start.max(pace.take(bytes, each));
            }
            std::thread::sleep(start.saturating_duration_since(Instant::now()));
            connection.send_file(file, offset..offset + bytes)?;
            offset += bytes;
        }
        Ok(())
    }

    fn set(&self, query: &str) -> Result<(), Failure> {
        let Settings { ms, late, late_ms, busy, mb_per_s, connection_mb_per_s } = &self.settings;
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value: f64 = value.parse()?;
            let (setting, value) = match name {
                "ms" => (ms, value),
                "late" => (late, value * 1e6),
                "late_ms" => (late_ms, value),
                "busy" => (busy, value * 1e6),
                "mb_per_s" => (mb_per_s, value),
                "connection_mb_per_s" => (connection_mb_per_s, value),
                _ => return Err(format!("there is no setting {name}").into()),
            };
            setting.store(value as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn counted(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // The peak is of the time since it was asked for.
        let peak = self.peak.swap(of(&self.now), Ordering::Relaxed);
        format!(
            r#"{{"requests": {}, "peak": {peak}, "bytes": {}, "late": {}, "busy": {}}}"#,
            of(&self.requests),
            of(&self.bytes),
            of(&self.late),
            of(&self.busy)
        )
    }
}

fn send(connection: &mut impl Connection, status: &str, headers: &str, body: &str) -> Result<(), Failure> {
    let length = body.len();
    write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}")?;
    Ok(connection.flush()?)
}

/// The bytes that a `Range` header asks for, if there are any.
fn parse(range: &str, bytes: u64) -> Option<Range<u64>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", last) => bytes.saturating_sub(last.parse().ok()?)..bytes,
        (first, "") => first.parse().ok()?..bytes,
        (first, last) => first.parse().ok()?..bytes.min(last.parse::<u64>().ok()?.saturating_add(1)),
    };
    (range.start < range.end).then_some(range)
}
