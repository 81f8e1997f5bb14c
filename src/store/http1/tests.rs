//! Answers of a server that says what a test has written down.

use super::*;
use crate::store::traffic::with_causes;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;

use futures::StreamExt;

/// What a server does with the requests that come over one connection, one after the other; then it closes it.
type Script = Vec<Vec<Step>>;

#[derive(Clone)]
enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// What a server of this object answers, with these headers beside, whose range was asked for, or all of it.
    Object(&'static str, Vec<u8>),
    /// Ends the connection so that the other end's system takes it for an error.
    Reset,
}

/// A server with a script for each connection, in the order in which they are opened.
struct Scripted {
    url: String,
    connections: Arc<AtomicUsize>,
    /// All that was asked.
    heads: Arc<Mutex<Vec<String>>>,
}

fn serve(scripts: Vec<Script>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (connections, heads) = (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<Vec<String>>>::default());
    let (opened, asked) = (connections.clone(), heads.clone());
    std::thread::spawn(move || {
        for (script, socket) in scripts.into_iter().zip(listener.incoming()) {
            opened.fetch_add(1, Ordering::Relaxed);
            let (asked, mut socket) = (asked.clone(), socket.unwrap());
            std::thread::spawn(move || follow(&mut socket, script, &asked));
        }
    });
    Scripted { url, connections, heads }
}

fn follow(socket: &mut TcpStream, script: Script, asked: &Mutex<Vec<String>>) {
    for steps in script {
        let mut head = vec![];
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match socket.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        asked.lock().unwrap().push(head.clone());
        for step in steps {
            match step {
                // A client may have gone away.
                Step::Send(bytes) => drop(socket.write_all(&bytes)),
                Step::Wait(time) => std::thread::sleep(time),
                Step::Object(headers, object) => {
                    let _ = socket.write_all(&object_of(&head, headers, &object));
                }
                Step::Reset => return resets_when_closed(socket),
            }
        }
    }
    let _ = socket.shutdown(Shutdown::Both);
}

/// What is asked for of an object.
fn object_of(asked: &str, headers: &str, object: &[u8]) -> Vec<u8> {
    let wanted = asked.lines().find_map(|line| {
        let (name, value) = line.split_once(": bytes=")?;
        let (start, end) = value.split_once('-').filter(|_| name.eq_ignore_ascii_case("range"))?;
        let end = end.parse::<usize>().map_or(object.len(), |last| object.len().min(last + 1));
        Some((start.parse::<usize>().unwrap(), end))
    });
    let (start, end) = wanted.unwrap_or((0, object.len()));
    let (status, range) = match wanted {
        Some(_) => ("206 Part", format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, object.len())),
        None => ("200 OK", String::new()),
    };
    let head = format!("HTTP/1.1 {status}\r\n{headers}{range}Content-Length: {}\r\n\r\n", end - start);
    [head.as_bytes(), &object[start..end]].concat()
}

fn resets_when_closed(socket: &TcpStream) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let same = socket.try_clone().unwrap();
    same.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(same).unwrap().set_zero_linger().unwrap();
}

fn send(bytes: impl Into<Vec<u8>>) -> Step {
    Step::Send(bytes.into())
}

/// Bytes that tell their place.
fn body(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// An answer with this head, to which the length is added, and this body.
fn plain(status: &str, headers: &str, body: &[u8]) -> Step {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    send([head.as_bytes(), body].concat())
}

const READ_TIMEOUT: Duration = Duration::from_millis(300);

fn options() -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_allow_http(true)
        .with_read_timeout(READ_TIMEOUT)
        .with_connect_timeout(Duration::from_secs(5))
        .with_user_agent(HeaderValue::from_static("test/1"))
}

fn client() -> Http1 {
    Http1::new(&options(), Arc::default(), Buffers::new(64 << 20)).unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), work).await.expect("it ends") })
}

fn get(url: &str) -> HttpRequest {
    http::Request::get(url).body(HttpRequestBody::empty()).unwrap()
}

/// Status, what came of the body, and why it ended.
async fn read(client: &Http1, request: &HttpRequest) -> (StatusCode, Vec<u8>, Option<HttpError>) {
    let Answered::Here(answer, _) = client.call(request).await.unwrap() else { panic!("asked elsewhere") };
    let (head, body) = answer.into_parts();
    let (mut came, mut stream) = (vec![], body.bytes_stream());
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) => came.extend_from_slice(&piece),
            Err(error) => {
                assert!(stream.next().await.is_none_or(|more| more.is_ok_and(|more| more.is_empty())));
                return (head.status, came, Some(error));
            }
        }
    }
    (head.status, came, None)
}

/// The same of a server that answers one request, and what the error says.
fn answered(steps: Vec<Step>) -> (u16, Vec<u8>, Option<(HttpErrorKind, String)>) {
    let server = serve(vec![vec![steps]]);
    let (status, came, error) = run(async { read(&client(), &get(&server.url)).await });
    (status.as_u16(), came, error.map(|error| (error.kind(), with_causes(&error))))
}

fn refused(steps: Vec<Step>) -> (HttpErrorKind, String) {
    let server = serve(vec![vec![steps]]);
    let error = run(async { client().call(&get(&server.url)).await }).err().expect("an error");
    (error.kind(), with_causes(&error))
}

#[test]
fn bodies_of_all_lengths_come_as_they_are() {
    for bytes in [0, 1, 100, 8192, 65536, 1 << 20, (16 << 20) + 5, 40_000_001] {
        let sent = body(bytes);
        let (status, came, error) = answered(vec![plain("200 OK", "", &sent)]);
        assert!(status == 200 && came == sent && error.is_none(), "{bytes} bytes: {error:?}");
    }
}

#[test]
fn pieces_have_no_more_memory_than_they_are_long() {
    let server = serve(vec![vec![vec![plain("200 OK", "", &body(20 << 20))]]]);
    run(async {
        let Answered::Here(answer, _) = client().call(&get(&server.url)).await.unwrap() else { panic!() };
        let pieces: Vec<_> =
            answer.into_body().bytes_stream().map(|piece| piece.unwrap().len()).collect().await;
        assert_eq!(pieces, [16 << 20, 4 << 20]);
    });
}

#[test]
fn a_request_says_what_it_has_to() {
    let answer = || vec![plain("200 OK", "", b"x")];
    let server = serve(vec![vec![answer(), answer()]]);
    let mut request = get(&format!("{}/a%20b/c?sig=1&x=%2F", server.url));
    request.headers_mut().insert("range", HeaderValue::from_static("bytes=1-2"));
    request.headers_mut().insert("user-agent", HeaderValue::from_static("mine"));
    let client = client();
    run(async {
        read(&client, &request).await;
        read(&client, &get(&server.url)).await;
    });
    let heads = server.heads.lock().unwrap().clone();
    let host = server.url.strip_prefix("http://").unwrap();
    let has = |head: &str, line: String| {
        assert!(head.lines().any(|found| found.eq_ignore_ascii_case(&line)), "{line}: {head}");
    };
    assert!(heads[0].starts_with("GET /a%20b/c?sig=1&x=%2F HTTP/1.1\r\n"), "{}", heads[0]);
    for line in ["range: bytes=1-2".into(), "user-agent: mine".into(), format!("host: {host}")] {
        has(&heads[0], line);
    }
    assert!(heads[1].starts_with("GET / HTTP/1.1\r\n"), "{}", heads[1]);
    has(&heads[1], "user-agent: test/1".into());
    has(&heads[1], "accept: */*".into());
    assert_eq!(heads[0].to_lowercase().matches("user-agent").count(), 1);
}

#[test]
fn a_body_that_ends_early_is_an_error_behind_what_came() {
    let sent = body(300_000);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n".as_bytes();
    for (sent_bytes, said) in [(0, "300000 bytes"), (100, "299900 bytes"), (299_999, "1 bytes")] {
        // At once, so that hyper sees the end, and so that it does not.
        for pause in [Duration::ZERO, READ_TIMEOUT / 3] {
            let steps = vec![send(head), send(&sent[..sent_bytes]), Step::Wait(pause)];
            let (status, came, error) = answered(steps);
            let (kind, text) = error.expect("an error");
            assert_eq!((&came[..], kind), (&sent[..sent_bytes], HttpErrorKind::Interrupted), "{text}");
            assert!(status == 200 && text.contains("error reading the response body"), "{text}");
            assert!(pause.is_zero() || text.contains("connection") && text.contains(said), "{text}");
        }
    }
}

#[test]
fn a_body_that_stalls_is_an_error_behind_what_came() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789";
    let (_, came, error) = answered(vec![send(head), Step::Wait(4 * READ_TIMEOUT)]);
    assert_eq!((came.len(), error.unwrap().0), (10, HttpErrorKind::Timeout));
    // Slowly is not too slowly.
    let mut slowly = vec![send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")];
    (0..6).for_each(|_| slowly.extend([Step::Wait(READ_TIMEOUT / 2), send("x")]));
    let (_, came, error) = answered(slowly);
    assert!(came == b"xxxxxx" && error.is_none());
    let (kind, text) = refused(vec![Step::Wait(4 * READ_TIMEOUT)]);
    assert!(kind == HttpErrorKind::Timeout && text.contains("timed out"), "{text}");
}

#[test]
fn a_connection_is_used_again_unless_bytes_follow_the_body() {
    let again = vec![plain("200 OK", "", b"second")];
    for (first, connections) in [
        (vec![plain("200 OK", "", &body(200_000))], 1),
        (vec![plain("200 OK", "", b"x")], 1),
        (vec![plain("200 OK", "", b"")], 1),
        (vec![plain("404 Not Found", "", b"no")], 1),
        (vec![send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")], 1),
        (vec![send("HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")], 1),
        (vec![plain("200 OK", "", b"x"), send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")], 2),
        (vec![plain("200 OK", "Connection: close\r\n", b"x")], 2),
        (vec![plain("200 OK", "Connection: keep-alive, Close\r\n", b"x")], 2),
        (vec![send("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx")], 2),
    ] {
        let server = serve(vec![vec![first, again.clone()], vec![again.clone()]]);
        let client = client();
        run(async {
            let (_, _, error) = read(&client, &get(&server.url)).await;
            assert!(error.is_none(), "{error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let (_, came, error) = read(&client, &get(&server.url)).await;
            assert!(came == b"second" && error.is_none(), "{error:?}");
        });
        assert_eq!(server.connections.load(Ordering::Relaxed), connections);
    }
}

#[test]
fn a_body_that_is_not_read_to_its_end_takes_its_connection_along() {
    let again = vec![plain("200 OK", "", b"second")];
    for read_first in [false, true] {
        let first = vec![plain("200 OK", "", &body(30 << 20))];
        let server = serve(vec![vec![first, again.clone()], vec![again.clone()]]);
        let client = client();
        run(async {
            let Answered::Here(answer, _) = client.call(&get(&server.url)).await.unwrap() else { panic!() };
            let mut stream = answer.into_body().bytes_stream();
            if read_first {
                assert_eq!(stream.next().await.unwrap().unwrap(), body(30 << 20)[..16 << 20]);
            }
            drop(stream);
            let (_, came, _) = read(&client, &get(&server.url)).await;
            assert_eq!(came, b"second");
        });
        assert_eq!(server.connections.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn a_connection_that_was_closed_meanwhile_costs_nothing() {
    let answer = vec![plain("200 OK", "", b"x")];
    // Closed while it waits, and when the request comes.
    for script in [vec![answer.clone()], vec![answer.clone(), vec![]]] {
        let server = serve(vec![script, vec![answer.clone()]]);
        let client = client();
        run(async {
            read(&client, &get(&server.url)).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let (_, came, error) = read(&client, &get(&server.url)).await;
            assert!(came == b"x" && error.is_none());
        });
        assert_eq!(server.connections.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn what_hyper_has_to_take_apart_comes_as_it_means() {
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let sent = body(3 << 20);
    let chunks: Vec<u8> = sent.chunks(100_000).flat_map(chunk).collect();
    for (head, rest) in [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", [&chunks[..], b"0\r\n\r\n"].concat()),
        // Up to the end of the connection.
        ("HTTP/1.1 200 OK\r\n\r\n", sent.clone()),
        ("HTTP/1.0 200 OK\r\n\r\n", sent.clone()),
        // Informational ones come before.
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3145728\r\n\r\n",
            sent.clone(),
        ),
        // What the bytes mean is said elsewhere.
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3145728\r\n\r\n", sent.clone()),
        ("HTTP/1.1 500 No\r\nContent-Length: 3145728\r\n\r\n", sent.clone()),
    ] {
        let (_, came, error) = answered(vec![send(head), Step::Wait(READ_TIMEOUT / 10), send(rest)]);
        assert!(came == sent && error.is_none(), "{head}: {} bytes, {error:?}", came.len());
    }
    let (_, came, error) =
        answered(vec![send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), send(chunk(b"abc"))]);
    assert!(came == b"abc" && error.is_some_and(|(kind, _)| kind == HttpErrorKind::Interrupted));
}

#[test]
fn a_part_of_another_length_than_it_says_is_copied_piece_by_piece() {
    for (range, bytes) in [("0-99/1000", 1000), ("0-999/1000", 100), ("x", 100)] {
        let headers = format!("Content-Range: bytes {range}\r\n");
        let (status, came, error) = answered(vec![plain("206 Partial Content", &headers, &body(bytes))]);
        assert!(status == 206 && came == body(bytes) && error.is_none(), "{range}");
    }
    // No memory is taken for what a server only speaks of.
    let head = format!(
        "HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-9/10\r\nContent-Length: {}\r\n\r\nx",
        1u64 << 60
    );
    let (_, came, error) = answered(vec![send(head)]);
    assert!(came == b"x" && error.is_some());
    assert_eq!(ranged_bytes(&HeaderValue::from_static("bytes 5-9/10")), Some(5));
    for wrong in ["bytes 9-5/10", "bytes */10", "bytes 0-18446744073709551615/*", "5-9/10"] {
        assert_eq!(ranged_bytes(&HeaderValue::from_static(wrong)), None, "{wrong}");
    }
}

#[test]
fn heads_that_cannot_be_understood_are_errors() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(600_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(200));
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy";
    let minus = "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n";
    for answer in [long.as_str(), &many, two, minus, "SSH-2.0-x\r\n\r\n"] {
        let (kind, text) = refused(vec![send(answer)]);
        assert!(kind == HttpErrorKind::Unknown && text.contains("error sending request"), "{kind:?} {text}");
    }
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let (kind, text) = refused(vec![send(answer)]);
        assert!([HttpErrorKind::Request, HttpErrorKind::Interrupted].contains(&kind), "{kind:?} {text}");
    }
    // A long one that can be understood is no problem.
    let long = format!("X: {}\r\n", "x".repeat(100_000));
    assert_eq!(answered(vec![plain("200 OK", &long, b"abc")]).1, b"abc");
}

#[test]
fn what_other_clients_do_is_left_to_them() {
    let elsewhere = |client: &Http1, request: HttpRequest| {
        matches!(run(async { client.call(&request).await }), Ok(Answered::Elsewhere(_)))
    };
    let mut head = get("http://127.0.0.1:1/");
    *head.method_mut() = Method::HEAD;
    assert!(elsewhere(&client(), head));
    let secure = Http1::new(&options().with_allow_http(false), Arc::default(), Buffers::none()).unwrap();
    assert!(elsewhere(&secure, get("http://127.0.0.1:1/")));
    let moved = || vec![vec![plain("302 Found", "Location: /b\r\n", b"")]];
    let (server, client) =
        (serve(vec![moved()[0].clone().into_iter().map(|step| vec![step]).collect()]), client());
    assert!(elsewhere(&client, get(&server.url)));
    // It is not asked again only to be sent elsewhere.
    assert!(elsewhere(&client, get(&server.url)) && server.connections.load(Ordering::Relaxed) == 1);
    let none = |options: ClientOptions| Http1::new(&options, Arc::default(), Buffers::none()).is_none();
    assert!(none(options().with_allow_invalid_certificates(true)));
    assert!(none(options().with_proxy_url("http://proxy:1")));
    assert!(none(options().with_allow_http2()));
    assert!(none(options().with_timeout(Duration::from_secs(1))));
}

#[test]
fn a_server_that_is_not_there_is_an_error_of_the_connection() {
    let error = run(async { client().call(&get("http://127.0.0.1:1/")).await }).err().unwrap();
    assert!(error.kind() == HttpErrorKind::Connect, "{error:?}");
    assert!(with_causes(&error).contains("error opening a connection"), "{}", with_causes(&error));
}

mod asked_again;
