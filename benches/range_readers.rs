//! Bare readers of parts of objects, for `benches/remote.py`: what a server gives to clients that do nothing with the bytes.
//!
//! ```text
//! cargo run --release --example range_readers -- URL LIST CONNECTIONS SECONDS [--hyper THREADS [--keep MIB]] [--ca PEM]
//! ```
//!
//! LIST is a file with a line for each request: a key below URL, and where not the whole object is asked for the first byte and the one behind
//! the last. Each connection asks for the next of them, over and over. It has a thread of its own that reads into a buffer of 256 KiB, or with
//! `--hyper N` is one of those that hyper polls on N single-threaded runtimes. The first second is not counted, or half of the time if that is
//! less. With `--keep M`, connections of hyper copy what comes into M MiB of memory, one place behind the other, as a client has to that is given
//! memory for the bytes. The last line of the output is JSON: `gb_per_s`, bytes of bodies; `cpu_s_per_gb`, of this process; `requests_per_s`; `ms_to_first_byte`,
//! the median.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

type Failure = Box<dyn Error + Send + Sync>;

const BUFFER_BYTES: usize = 256 << 10;

/// What all connections have in common.
struct Work {
    /// Host and port.
    host: String,
    /// Target and range of each request.
    requests: Vec<(String, Option<String>)>,
    tls: Option<Arc<ClientConfig>>,
    /// Bytes of memory for each of hyper's connections. Pieces that are larger, at most some 400 kB, are not copied.
    kept_bytes: usize,
    next: AtomicUsize,
    done: AtomicBool,
    bytes: AtomicU64,
    answered: AtomicU64,
    times: Mutex<Vec<Duration>>,
}

impl Work {
    fn next(&self) -> Option<&(String, Option<String>)> {
        if self.done.load(Ordering::Relaxed) {
            return None;
        }
        self.requests.get(self.next.fetch_add(1, Ordering::Relaxed) % self.requests.len())
    }

    fn began(&self, asked: Instant) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push(asked.elapsed());
    }

    fn came(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.drain(at..(at + 2).min(arguments.len())).nth(1)
    };
    let (hyper_threads, kept, ca) = (option("--hyper"), option("--keep"), option("--ca"));
    let [url, list, connections, seconds] = &arguments[..] else {
        return Err("give URL LIST CONNECTIONS SECONDS [--hyper THREADS [--keep MIB]] [--ca PEM]".into());
    };
    let (connections, seconds): (usize, f64) = (connections.parse()?, seconds.parse()?);
    let mut work = work(url, &std::fs::read_to_string(list)?, ca.as_deref())?;
    work.kept_bytes = kept.map_or(Ok(0), |mib| mib.parse::<usize>())? * (1 << 20) / connections.max(1);
    let work = Arc::new(work);
    let threads: usize = hyper_threads.as_ref().map_or(Ok(connections), |threads| threads.parse())?;
    for thread in 0..threads {
        let (work, hyper) = (work.clone(), hyper_threads.is_some());
        let connections = connections / threads + usize::from(thread < connections % threads);
        std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
            let read = if hyper { poll(&work, connections) } else { read(&work) };
            if let Err(error) = read {
                eprintln!("{error}");
                std::process::exit(1);
            }
        })?;
    }
    std::thread::sleep(Duration::from_secs_f64((seconds / 2.0).min(1.0)));
    work.times.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let counted =
        || (work.bytes.load(Ordering::Relaxed), work.answered.load(Ordering::Relaxed), cpu_seconds());
    let (began, before) = (Instant::now(), counted());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (elapsed, after) = (began.elapsed().as_secs_f64(), counted());
    work.done.store(true, Ordering::Relaxed);
    let mut times = std::mem::take(&mut *work.times.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_unstable();
    let median = times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let gb = (after.0 - before.0) as f64 / 1e9;
    println!(
        r#"{{"gb_per_s": {:.4}, "cpu_s_per_gb": {:.4}, "requests_per_s": {:.1}, "ms_to_first_byte": {median:.3}}}"#,
        gb / elapsed,
        (after.2 - before.2) / gb.max(1e-9),
        (after.1 - before.1) as f64 / elapsed,
    );
    Ok(())
}

fn work(url: &str, list: &str, ca: Option<&str>) -> Result<Work, Failure> {
    let (scheme, rest) = url.split_once("://").ok_or("the URL has no scheme")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let base = if path.is_empty() { String::new() } else { format!("/{}", path.trim_matches('/')) };
    let requests = list.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut words = line.split(' ');
        let target = format!("{base}/{}", words.next().unwrap_or_default());
        let range = words.next().zip(words.next());
        let range =
            range.map(|(start, end)| Ok::<_, Failure>(format!("bytes={start}-{}", end.parse::<u64>()? - 1)));
        Ok((target, range.transpose()?))
    });
    let requests: Vec<_> = requests.collect::<Result<_, Failure>>()?;
    if requests.is_empty() {
        return Err("the list is empty".into());
    }
    let tls = match scheme {
        "https" => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(ca.ok_or("https needs --ca")?)? {
                roots.add(certificate?)?;
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config =
                ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
            Some(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
        }
        _ => None,
    };
    Ok(Work {
        host: host.into(),
        requests,
        tls,
        kept_bytes: 0,
        next: AtomicUsize::new(0),
        done: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        times: Mutex::default(),
    })
}

fn server_name(host: &str) -> Result<ServerName<'static>, Failure> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    Ok(ServerName::try_from(name.to_string())?)
}

/// CPU seconds of this process, in hundredths.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = behind_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / 100.0
}

/// One connection on this thread, which waits for it.
fn read(work: &Work) -> Result<(), Failure> {
    let socket = TcpStream::connect(&work.host)?;
    socket.set_nodelay(true)?;
    match &work.tls {
        None => read_from(work, socket),
        Some(config) => {
            let session = ClientConnection::new(config.clone(), server_name(&work.host)?)?;
            read_from(work, StreamOwned::new(session, socket))
        }
    }
}

fn read_from(work: &Work, mut connection: impl Read + Write) -> Result<(), Failure> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some((target, range)) = work.next() {
        let range = range.as_ref().map_or(String::new(), |range| format!("Range: {range}\r\n"));
        let asked = Instant::now();
        write!(connection, "GET {target} HTTP/1.1\r\nHost: {}\r\n{range}\r\n", work.host)?;
        let mut filled = 0;
        let head = loop {
            let bytes = connection.read(&mut buffer[filled..])?;
            filled += bytes;
            match buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None if bytes == 0 || filled == buffer.len() => return Err("an answer has no end".into()),
                None => {}
            }
        };
        work.began(asked);
        let text = std::str::from_utf8(&buffer[..head])?.to_ascii_lowercase();
        if !text.starts_with("http/1.1 20") {
            return Err(format!("{target}: {}", text.lines().next().unwrap_or_default()).into());
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let mut left = length.ok_or("an answer has no length")?.trim().parse::<usize>()? - (filled - head);
        work.came(filled - head);
        while left > 0 {
            let most = left.min(buffer.len());
            match connection.read(&mut buffer[..most])? {
                0 => return Err("an answer is cut short".into()),
                bytes => {
                    left -= bytes;
                    work.came(bytes);
                }
            }
        }
    }
    Ok(())
}

/// Several connections on this thread, which polls them.
fn poll(work: &Arc<Work>, connections: usize) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let polled = (0..connections).map(|_| {
            let work = work.clone();
            async move {
                let socket = tokio::net::TcpStream::connect(&work.host).await?;
                socket.set_nodelay(true)?;
                match &work.tls {
                    None => poll_one(&work, TokioIo::new(socket)).await,
                    Some(config) => {
                        let connector = tokio_rustls::TlsConnector::from(config.clone());
                        let session = connector.connect(server_name(&work.host)?, socket).await?;
                        poll_one(&work, TokioIo::new(session)).await
                    }
                }
            }
        });
        futures::future::try_join_all(polled).await.map(drop)
    })
}

async fn poll_one<C>(work: &Work, connection: C) -> Result<(), Failure>
where
    C: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(connection).await?;
    tokio::spawn(connection);
    let (mut kept, mut filled) = (vec![1; work.kept_bytes], 0);
    while let Some((target, range)) = work.next() {
        let mut request = Request::get(target).header("host", &work.host);
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let asked = Instant::now();
        let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        work.began(asked);
        if !answer.status().is_success() {
            return Err(format!("{target}: {}", answer.status()).into());
        }
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
            work.came(bytes.len());
            if bytes.len() <= kept.len() {
                filled = if filled + bytes.len() > kept.len() { 0 } else { filled };
                kept[filled..filled + bytes.len()].copy_from_slice(bytes);
                filled += bytes.len();
            }
        }
    }
    Ok(())
}
