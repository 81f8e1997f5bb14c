//! Connections that break in all ways: what kind of error it is, and that the request is sent again.

use super::*;
use crate::store::{CloudStore, Connections, Store, contract};

const TAG: &str = "ETag: \"a\"\r\n";
/// Is followed by a body of `BYTES` bytes.
const HEAD: &str = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 300000\r\n\r\n";
const BYTES: usize = 300_000;

/// How an answer may break, and the kind of error where it breaks before its body: what the server sends, and what it does then.
fn breaks() -> Vec<(&'static str, Vec<Step>, Option<HttpErrorKind>)> {
    use HttpErrorKind as Kind;
    let stall = || Step::Wait(4 * READ_TIMEOUT);
    let (some, more) = (|| send(&body(BYTES)[..1000]), || send(&body(BYTES)[1000..2000]));
    vec![
        ("closed before the head", vec![], Some(Kind::Request)),
        ("reset before the head", vec![Step::Reset], Some(Kind::Interrupted)),
        ("no head", vec![stall()], Some(Kind::Timeout)),
        ("closed in the head", vec![send(&HEAD[..30])], Some(Kind::Request)),
        ("reset in the head", vec![send(&HEAD[..30]), Step::Reset], Some(Kind::Interrupted)),
        ("half a head", vec![send(&HEAD[..30]), stall()], Some(Kind::Timeout)),
        ("closed behind the head", vec![send(HEAD)], None),
        ("reset behind the head", vec![send(HEAD), Step::Reset], None),
        ("no body", vec![send(HEAD), stall()], None),
        ("closed in the body", vec![send(HEAD), some()], None),
        ("reset in the body", vec![send(HEAD), some(), Step::Reset], None),
        (
            "reset in the body, later",
            vec![send(HEAD), some(), Step::Wait(READ_TIMEOUT / 3), more(), Step::Reset],
            None,
        ),
        ("half a body", vec![send(HEAD), some(), stall()], None),
    ]
}

/// The same of bodies whose length is not known. No object has one: clients ask for the length.
fn breaks_of_chunks() -> [(&'static str, Vec<Step>); 2] {
    let chunk = || send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n");
    [
        ("closed in a chunk", vec![chunk()]),
        ("reset in a chunk", vec![chunk(), Step::Wait(READ_TIMEOUT / 3), Step::Reset]),
    ]
}

/// All bytes of the object `x` of a store of web servers.
fn read_object(url: &str) -> std::io::Result<Option<Vec<u8>>> {
    let options = serde_json::json!({"read_timeout": "300ms"});
    let options = options.as_object().unwrap().clone();
    let store = CloudStore::new(url, options.into_iter().collect()).unwrap();
    let connections = Connections::new(Duration::from_secs(10), Arc::default(), Buffers::new(1 << 20));
    let store = store.connect(&connections).unwrap().unwrap();
    let read = run(contract::read_whole(&*store, "x", 1 << 20));
    Ok(read?.map(|(bytes, _)| bytes))
}

#[test]
fn the_kind_of_an_error_lets_the_request_be_sent_again() {
    for (what, steps, kind) in breaks() {
        let Some(kind) = kind else { continue };
        let (found, text) = refused(steps);
        assert!(found == kind && text.contains("error sending request"), "{what}: {found:?} {text}");
    }
}

#[test]
fn what_breaks_is_asked_for_again() {
    // With an entity tag the client asks for the rest, without one the object is read anew.
    for tag in [TAG, ""] {
        for (what, mut steps, _) in breaks() {
            for step in &mut steps {
                if let Step::Send(bytes) = step
                    && tag.is_empty()
                {
                    let text = String::from_utf8(bytes.clone()).map(|text| text.replace(TAG, ""));
                    *bytes = text.map_or(bytes.clone(), String::into_bytes);
                }
            }
            // The first answers of two connections break.
            let object = vec![Step::Object(if tag.is_empty() { "" } else { TAG }, body(BYTES))];
            let server = serve(vec![vec![steps], vec![vec![Step::Reset]], vec![object]]);
            let read = read_object(&server.url);
            let read = read.unwrap_or_else(|error| panic!("{what}, {tag:?}: {error}"));
            assert!(read.is_some_and(|bytes| bytes == body(BYTES)), "{what}, {tag:?}");
            assert_eq!(server.connections.load(Ordering::Relaxed), 3, "{what}");
        }
    }
}

#[test]
fn a_connection_that_is_reset_when_it_is_used_again_is_replaced() {
    let object = || vec![Step::Object(TAG, body(100))];
    let server = serve(vec![vec![object(), vec![Step::Reset]], vec![object()]]);
    let client = client();
    run(async {
        for _ in 0..2 {
            let (_, came, error) = read(&client, &get(&server.url)).await;
            assert!(came == body(100) && error.is_none(), "{error:?}");
        }
    });
    assert_eq!(server.connections.load(Ordering::Relaxed), 2);
}

#[test]
fn a_server_that_is_not_there_yet_is_asked_again() {
    let place = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = std::thread::spawn(move || {
        std::thread::sleep(READ_TIMEOUT);
        let (mut socket, _) = TcpListener::bind(place).unwrap().accept().unwrap();
        follow(&mut socket, vec![vec![Step::Object(TAG, body(100))]], &Mutex::default());
    });
    assert_eq!(read_object(&format!("http://{place}")).unwrap(), Some(body(100)));
    server.join().unwrap();
}

#[test]
fn an_error_of_a_body_tells_that_the_connection_broke() {
    let in_body = breaks().into_iter().filter(|(_, _, kind)| kind.is_none());
    for (what, steps) in in_body.map(|(what, steps, _)| (what, steps)).chain(breaks_of_chunks()) {
        let (_, came, error) = answered(steps);
        let (kind, text) = error.expect(what);
        assert!(came.len() <= 2000 && text.contains("connection"), "{what}: {text}");
        assert!(![HttpErrorKind::Unknown, HttpErrorKind::Decode].contains(&kind), "{what}: {kind:?}");
    }
}
