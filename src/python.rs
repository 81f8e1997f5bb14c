//! Stores for Python, which reads coordinates and copies stores through the same client as the reader. The package calls these functions by ctypes.
//!
//! # Contract
//! - An [`OpenStore`] takes requests of several threads at once. A thread that waits for an answer polls the requests of all stores that
//!   share its connections, so that no thread is left behind when none waits.
//! - A forked child has no use for a store that its parent opened: it shares the parent's sockets. It opens the store again and gives the
//!   old one to no function.
//! - Each [`Answer`] is given back to [`zarr_dali_free_answer`].
//! - No panic leaves a function: it becomes an answer.

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Obstacle, Result};
use crate::options::{argument, network_threads};
use crate::store::{self, Access, Extent, Head, Session, Sessions, StorageOptions, Store, Version};

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

/// A store that Python has opened.
pub struct OpenStore {
    /// As the user names it, without secrets.
    path: String,
    /// Without connections.
    opened: Arc<dyn Store>,
    session: Session,
    sessions: Arc<Sessions>,
}

/// What came of a call. The pointers are null where there is nothing.
#[repr(C)]
pub struct Answer {
    /// One of [`Outcome`].
    outcome: i32,
    /// JSON, or the text of an error.
    text: *mut c_char,
    /// The bytes of an object.
    bytes: *mut u8,
    /// How many there are.
    length: usize,
    /// The store that was opened, to be given to [`zarr_dali_close_store`].
    store: *const OpenStore,
}

/// What a call can come to.
#[derive(Clone, Copy)]
enum Outcome {
    Found = 0,
    /// The store says that there is no such object.
    Absent = 1,
    /// An argument that cannot be used.
    Argument = 2,
    /// Whatever else goes wrong.
    Failed = 3,
    /// Access is denied, which some stores answer for what is absent.
    Forbidden = 4,
}

impl Answer {
    fn new(outcome: Outcome, text: &str) -> Self {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default().into_raw();
        let (bytes, store) = (std::ptr::null_mut(), std::ptr::null());
        Self { outcome: outcome as i32, text, bytes, length: 0, store }
    }

    fn found(value: &Value) -> Self {
        Self::new(Outcome::Found, &value.to_string())
    }

    fn absent() -> Self {
        Self::new(Outcome::Absent, "")
    }

    fn object(head: &Head) -> Self {
        Self::found(&json!({"bytes": head.object_bytes, "version": version_text(&head.version)}))
    }

    fn with_bytes(self, bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { bytes: Box::into_raw(bytes.into_boxed_slice()).cast(), length, ..self }
    }
}

/// Runs a function of this file; what goes wrong becomes the answer.
fn answered(entry: &str, work: impl FnOnce() -> Result<Answer>) -> *mut Answer {
    let answer = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer,
        Err(payload) => Err(Error::panic(entry, &*payload)),
    };
    let answer = answer.unwrap_or_else(|error| {
        let outcome = match error.kind() {
            ErrorKind::Argument => Outcome::Argument,
            ErrorKind::Runtime => Outcome::Failed,
        };
        Answer::new(outcome, &error.to_string())
    });
    Box::into_raw(Box::new(answer))
}

/// What a version is called outside: a text that is the same for the same version only.
fn version_text(version: &Version) -> String {
    match version {
        Version::ETag(tag) => format!("etag {tag}"),
        Version::Modified { at_ns } => format!("modified {at_ns}"),
        Version::File(stamp) => format!("file {stamp:?}"),
        Version::Immutable => "immutable".into(),
        Version::NotSince { at_s } => format!("not since {at_s}"),
    }
}

/// The JSON object that a function is called with.
///
/// # Safety
/// `text` is null or points to a text that ends with a zero byte.
unsafe fn asked(text: *const c_char) -> Result<Value> {
    let text = match text.is_null() {
        true => c"",
        // SAFETY: the caller's duty.
        false => unsafe { CStr::from_ptr(text) },
    };
    // What the parser says could quote a secret.
    let asked = serde_json::from_str(&text.to_string_lossy()).ok().filter(Value::is_object);
    asked.ok_or_else(|| argument("path", "this or another argument cannot be written as JSON: it has a text that is no Unicode, such as a file's name with bytes that are no UTF-8, or a number that is not finite; rename the file, or give a finite number".into()))
}

fn access(asked: &Value) -> Result<Access> {
    let options = asked["storage_options"].as_str().unwrap_or_default();
    let follow_links = asked["follow_links"] != false;
    Ok(Access { follow_links, storage_options: StorageOptions::parse(options)? })
}

/// Names the stores that paths mean, as a reader would: `{"path": [...], "storage_options": "{...}"}`, with patterns in place of what they
/// match.
///
/// # Safety
/// `arguments` is null or points to a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_expand(arguments: *const c_char) -> *mut Answer {
    answered("zarr_dali_expand", || {
        // SAFETY: the caller's duty.
        let asked = unsafe { asked(arguments) }?;
        let paths = asked["path"].as_array().into_iter().flatten();
        let paths: Vec<String> = paths.filter_map(|path| path.as_str().map(str::to_string)).collect();
        Ok(Answer::found(&json!({"path": Dataset::stores(&paths, &access(&asked)?)?})))
    })
}

/// Opens a store: `{"path": ..., "storage_options": "{...}", "follow_links": true, "soon": false}`. No request is sent yet. With `soon`
/// requests that fail are repeated for seconds only, as while a reader opens a store. The answer says whether the store is a folder of this
/// machine and whether it can be listed.
///
/// # Safety
/// `arguments` is null or points to a text that ends with a zero byte. `beside` is null, or a store that is open and whose connections are
/// to be shared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_open_store(
    arguments: *const c_char,
    beside: *const OpenStore,
) -> *mut Answer {
    answered("zarr_dali_open_store", || {
        // SAFETY: the caller's duty.
        let (asked, beside) = unsafe { (asked(arguments)?, beside.as_ref()) };
        let path = asked["path"].as_str().unwrap_or_default();
        let opened = store::open(path, &access(&asked)?)?;
        let path = store::without_secrets(path);
        let retry_timeout =
            if asked["soon"] == true { Session::WHILE_OPENING } else { Session::WHILE_READING };
        let sessions =
            beside.map_or_else(|| Arc::new(Sessions::new(retry_timeout)), |store| store.sessions.clone());
        let session =
            sessions.with(&opened).map_err(|source| Error::Unreadable { path: path.clone(), source })?;
        let about = json!({"folder": opened.folder().is_some(), "lists": opened.lists()});
        let store = Box::into_raw(Box::new(OpenStore { path, opened, session, sessions }));
        Ok(Answer { store, ..Answer::found(&about) })
    })
}

/// Asks a store for one of
/// - `{"get": KEY}`, with `"range": [START, END]` or `"suffix": BYTES` for a part: bytes, and as `head`. A range that ends past the object ends
///   with it.
/// - `{"head": KEY}`: `{"bytes": ..., "version": ...}` of an object.
/// - `{"list": KEY}`: `{"names": [...]}`, the folders below a key.
///
/// # Safety
/// `store` is open. `request` is null or points to a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_ask_store(store: *const OpenStore, request: *const c_char) -> *mut Answer {
    answered("zarr_dali_ask_store", || {
        // SAFETY: the caller's duty.
        let (store, request) = unsafe { (&*store, asked(request)?) };
        let (key, answer) = if let Some(key) = request["get"].as_str() {
            (key, store.get(key, &request))
        } else if let Some(key) = request["head"].as_str() {
            (key, store.head(key))
        } else {
            let key = request["list"].as_str().unwrap_or_default();
            let names =
                store.session.list(key).map(|listing| Answer::found(&json!({"names": listing.names})));
            (key, names)
        };
        Ok(answer.unwrap_or_else(|error| store.failed(key, error)))
    })
}

impl OpenStore {
    fn get(&self, key: &str, request: &Value) -> io::Result<Answer> {
        let bound = |at: usize| request["range"][at].as_u64().unwrap_or_default();
        let extent = match request["suffix"].as_u64() {
            Some(bytes) => Extent::Suffix(bytes),
            None if request["range"].is_array() => Extent::Range(bound(0)..bound(1)),
            None => Extent::Whole,
        };
        let mut found = self.session.read_part(key, extent);
        if let Err(error) = &found
            && let Some(&Obstacle::OutOfRange { object_bytes, .. }) = Obstacle::of(error)
            && bound(0) < object_bytes
            && object_bytes < bound(1)
        {
            found = self.session.read_part(key, Extent::Range(bound(0)..object_bytes));
        }
        Ok(found?.map_or_else(Answer::absent, |(bytes, head)| Answer::object(&head).with_bytes(bytes)))
    }

    fn head(&self, key: &str) -> io::Result<Answer> {
        let found = match self.session.head(key) {
            // A server may refuse to tell the length of what it lets read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied || is_refused_method(&error) => {
                self.session.read_part(key, Extent::Prefix(1))?.map(|(_, head)| head)
            }
            found => found?,
        };
        Ok(found.as_ref().map_or_else(Answer::absent, Answer::object))
    }

    fn failed(&self, key: &str, source: io::Error) -> Answer {
        let outcome = match Obstacle::of(&source) {
            Some(Obstacle::Forbidden { .. }) => Outcome::Forbidden,
            _ => Outcome::Failed,
        };
        let path = format!("{}/{key}", self.path.trim_end_matches('/'));
        Answer::new(outcome, &Error::Unreadable { path, source }.to_string())
    }
}

fn is_refused_method(error: &io::Error) -> bool {
    error.to_string().contains("405 Method Not Allowed")
}

/// Reads whole objects of a store and drops their bytes, over connections of its own: `{"keys": [...], "requests": 64, "seconds": 0.5}`. The
/// answer is `{"gb_per_s": ..., "requests_per_s": ..., "busy": ..., "threads": ..., "ms_to_first_byte": ...}`, as of [`store::Bare`].
///
/// # Safety
/// `store` is open. `request` is null or points to a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_read_bare(store: *const OpenStore, request: *const c_char) -> *mut Answer {
    answered("zarr_dali_read_bare", || {
        // SAFETY: the caller's duty.
        let (store, request) = unsafe { (&*store, asked(request)?) };
        let keys = request["keys"].as_array().into_iter().flatten();
        let keys: Vec<String> = keys.filter_map(|key| key.as_str().map(str::to_string)).collect();
        let how = store::How {
            requests: request["requests"].as_u64().unwrap_or(1).clamp(1, 4096) as usize,
            threads: network_threads(),
            time: Duration::from_secs_f64(request["seconds"].as_f64().unwrap_or(0.5).clamp(0.01, 60.0)),
        };
        let read = store::read_bare(&store.opened, &keys, how);
        Ok(read.map_or_else(
            |error| store.failed("", error),
            |found| {
                Answer::found(&json!({
                    "gb_per_s": found.bytes as f64 / 1e9 / found.seconds,
                    "requests_per_s": found.requests as f64 / found.seconds,
                    "busy": found.busy,
                    "threads": how.threads.min(how.requests),
                    "ms_to_first_byte": found.ms_to_first_byte,
                }))
            },
        ))
    })
}

/// Closes a store. Its connections are closed with the last store that shares them.
///
/// # Safety
/// `store` is open and no other thread asks it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_close_store(store: *const OpenStore) {
    // SAFETY: the caller's duty; the pointer comes from `Box::into_raw`.
    let store = unsafe { Box::from_raw(store.cast_mut()) };
    // Nobody can be told of a panic.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(store)));
}

/// Frees what a function of this file returned.
///
/// # Safety
/// `answer` was returned and was not given back before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zarr_dali_free_answer(answer: *mut Answer) {
    // SAFETY: the caller's duty; text and bytes come from `into_raw`.
    unsafe {
        let answer = Box::from_raw(answer);
        drop(CString::from_raw(answer.text));
        if !answer.bytes.is_null() {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(answer.bytes, answer.length)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// What an answer has: outcome, text, bytes and store. Gives it back.
    fn take(answer: *mut Answer) -> (i32, String, Vec<u8>, *const OpenStore) {
        // SAFETY: answers of this file, each given back once.
        unsafe {
            let Answer { outcome, text, bytes, length, store } = &*answer;
            let text = CStr::from_ptr(*text).to_str().unwrap().to_string();
            let read = (!bytes.is_null()).then(|| std::slice::from_raw_parts(*bytes, *length).to_vec());
            let taken = (*outcome, text, read.unwrap_or_default(), *store);
            zarr_dali_free_answer(answer);
            taken
        }
    }

    fn open(arguments: &Value, beside: *const OpenStore) -> (i32, String, Vec<u8>, *const OpenStore) {
        let arguments = CString::new(arguments.to_string()).unwrap();
        // SAFETY: the text is alive, and `beside` null or open.
        take(unsafe { zarr_dali_open_store(arguments.as_ptr(), beside) })
    }

    #[test]
    fn a_store_is_opened_asked_and_closed() {
        let memory = MemoryStore::default();
        memory.put("a/c/0", b"0123456789".to_vec());
        MemoryStore::publish("python", Arc::new(memory));
        let (outcome, about, _, first) = open(&json!({"path": "memory://python"}), std::ptr::null());
        assert_eq!((outcome, about.as_str()), (Outcome::Found as i32, r#"{"folder":false,"lists":true}"#));
        let (.., store) = open(&json!({"path": "memory://python", "soon": true}), first);
        let ask = |request: Value| {
            let request = CString::new(request.to_string()).unwrap();
            // SAFETY: the store is open, and the text alive.
            let (outcome, text, bytes, _) = take(unsafe { zarr_dali_ask_store(store, request.as_ptr()) });
            (outcome, text, String::from_utf8(bytes).unwrap())
        };
        let (found, absent) = (Outcome::Found as i32, Outcome::Absent as i32);
        let head = r#"{"bytes":10,"version":"etag 1"}"#;
        for (part, bytes) in [
            (json!({"get": "a/c/0"}), "0123456789"),
            (json!({"get": "a/c/0", "range": [2, 4]}), "23"),
            (json!({"get": "a/c/0", "range": [8, 14]}), "89"),
            (json!({"get": "a/c/0", "suffix": 3}), "789"),
            (json!({"head": "a/c/0"}), ""),
        ] {
            assert_eq!(ask(part), (found, head.into(), bytes.into()));
        }
        assert_eq!(ask(json!({"list": "a"})).1, r#"{"names":["c"]}"#);
        assert_eq!(ask(json!({"get": "b"})).0, absent);
        assert_eq!(ask(json!({"head": "b"})).0, absent);
        let (outcome, text, _) = ask(json!({"get": "a/c/0", "range": [10, 14]}));
        assert_eq!(outcome, Outcome::Failed as i32);
        assert!(text.contains("memory://python/a/c/0") && text.contains("10..14"), "{text}");
        // SAFETY: both are open.
        unsafe {
            zarr_dali_close_store(store);
            zarr_dali_close_store(first);
        }
    }

    #[test]
    fn what_cannot_be_opened_is_an_answer() {
        for (arguments, text) in [
            (json!({"path": "/nowhere"}), "does not exist"),
            (json!({"path": "s3://bucket", "storage_options": "s3cr3t"}), "storage_options"),
            (json!([]), "JSON"),
        ] {
            let (outcome, problem, _, store) = open(&arguments, std::ptr::null());
            assert!(outcome == Outcome::Argument as i32 && store.is_null());
            assert!(problem.contains(text) && !problem.contains("s3cr3t"), "{problem}");
        }
        let answer = take(answered("here", || panic!("what happened")));
        assert!(answer.0 == Outcome::Failed as i32 && answer.1.contains("what happened"), "{answer:?}");
    }
}
