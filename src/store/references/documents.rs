//! JSON documents of references that are in use. Stores of one document share what was read of it: `info` opens a store several times for
//! each array, and a training and its validation read the same document.

use super::super::contract::Version;
use super::json::Table;

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::mem;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// By place and version.
type Tables = HashMap<(String, Version), Weak<Table>>;

static IN_USE: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

/// What a thread keeps.
#[derive(Default)]
struct Kept {
    keepers: usize,
    tables: Vec<Arc<Table>>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

fn in_use() -> MutexGuard<'static, Tables> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The document of that version at a place, if it is in use.
pub(super) fn find(place: &str, version: &Version) -> Option<Arc<Table>> {
    // Times alone do not tell two documents apart.
    in_use().get(&(place.to_string(), version.clone())).filter(|_| version.tells_bytes())?.upgrade()
}

/// Notes a document that was read.
pub(super) fn note(place: &str, version: &Version, table: Table) -> Arc<Table> {
    let table = Arc::new(table);
    let mut tables = in_use();
    tables.retain(|_, table| table.strong_count() > 0);
    tables.insert((place.to_string(), version.clone()), Arc::downgrade(&table));
    drop(tables);
    KEPT.with_borrow_mut(|kept| {
        if kept.keepers > 0 {
            kept.tables.push(table.clone());
        }
    });
    table
}

/// Keeps what its thread reads of documents while it is there.
#[derive(Debug)]
pub struct KeptDocuments {
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl KeptDocuments {
    /// Keeps what is read from now on.
    #[expect(clippy::new_without_default, reason = "it is made for what it does while it lives")]
    pub fn new() -> Self {
        KEPT.with_borrow_mut(|kept| kept.keepers += 1);
        Self { _thread: PhantomData }
    }
}

impl Drop for KeptDocuments {
    fn drop(&mut self) {
        let unused = KEPT.with_borrow_mut(|kept| {
            kept.keepers -= 1;
            if kept.keepers == 0 { mem::take(&mut kept.tables) } else { vec![] }
        });
        drop(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_shared_while_it_is_in_use() {
        let version = Version::ETag("1".into());
        let table = || Table::parse(br#"{"a": ["x"]}"#).unwrap();
        let read = note("shared", &version, table());
        assert!(Arc::ptr_eq(&find("shared", &version).unwrap(), &read));
        assert!(find("shared", &Version::ETag("2".into())).is_none() && find("other", &version).is_none());
        drop(read);
        assert!(find("shared", &version).is_none());
        let keeper = KeptDocuments::new();
        drop(note("shared", &version, table()));
        assert!(find("shared", &version).is_some());
        drop(keeper);
        assert!(find("shared", &version).is_none());
        let vague = Version::Modified { at_ns: 1 };
        let read = note("shared", &vague, table());
        assert!(find("shared", &vague).is_none());
        drop(read);
    }
}
