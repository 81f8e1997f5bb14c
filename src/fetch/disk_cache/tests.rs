//! Two instances on one folder: bytes are right or there are none, the bound holds at every moment, and what is used stays.

use super::cached::CachedEntry;
use super::entry::{ArrayKey, EntryKey, Header};
use super::folder::{CacheFolder, Room, counted};
use super::pending::PendingEntries;
use super::scan::InUse;
use super::writer::{WriteQueue, Writer};
use crate::error::Obstacle;
use crate::fetch::Blob;
use crate::fetch::request::{Parts, Received};
use crate::store::{Extent, Head, Version};

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

pub(super) fn array(name: &str) -> ArrayKey {
    ArrayKey::new("http://h/s", name, &Version::ETag("\"1\"".into())).unwrap()
}

pub(super) fn key(array: &ArrayKey, number: u64) -> EntryKey {
    array.entry(&format!("c/{number}"), &Extent::Whole, None).unwrap()
}

/// The bytes of a chunk, which differ from those of all others.
fn bytes(number: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 31 + number * 101) as u8).collect()
}

/// An answer with an object of that many bytes.
pub(super) fn answer(length: usize) -> Received {
    let (first, rest) = (length / 2, length - length / 2);
    let parts = Arc::new(Parts(vec![bytes(0, first).into(), bytes(1, rest).into()]));
    let head = Head { object_bytes: length as u64, version: Version::ETag("\"v\"".into()) };
    Received { range: 0..length as u64, head, parts, _memory: Box::new(()) }
}

/// Writes an entry as a writer does. Returns whether there was room.
fn write(folder: &CacheFolder, in_use: &InUse, key: &EntryKey, bytes: &[u8]) -> bool {
    let header = Header {
        checksum: crc32c::crc32c(bytes),
        object_bytes: bytes.len() as u64,
        version: Version::ETag("\"v\"".into()),
    };
    let header = header.encode(key, bytes.len() as u64).unwrap();
    let needed = counted((header.len() + bytes.len()) as u64);
    if folder.reserve(needed).unwrap() != Room::Reserved {
        return false;
    }
    let (name, rest) = key.path.split_once('/').unwrap();
    let (_, array) = in_use.arrays.iter().find(|(one, _)| one == name).unwrap();
    if !folder.write(array, rest, &[&header, bytes]).unwrap() {
        folder.release(needed);
    }
    true
}

/// What the entry of a key has, in pieces of `piece` bytes.
fn read(folder: &Arc<CacheFolder>, key: &EntryKey, piece: usize) -> Option<std::io::Result<Vec<u8>>> {
    let bytes = folder.file_bytes(key).unwrap()?.checked_sub(Header::BYTES as u64)?;
    let entry = CachedEntry::new(folder.clone(), key.clone(), 0..bytes, Arc::default());
    let mut into = vec![0; bytes as usize];
    if let Err(error) = entry.read_at(0, &mut []) {
        return Some(Err(error));
    }
    let mut offset = 0;
    for piece in into.chunks_mut(piece) {
        if let Err(error) = entry.read_at(offset, piece) {
            return Some(Err(error));
        }
        offset += piece.len() as u64;
    }
    Some(Ok(into))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.retain(|path| !path.ends_with("usage"));
    found
}

fn used(folder: &Path) -> u64 {
    files(folder).iter().map(|file| counted(file.metadata().unwrap().len())).sum()
}

fn noted(folder: &Path) -> u64 {
    let usage = fs::read(folder.join("zarr-dali-1/usage")).unwrap();
    u64::from_le_bytes(usage[8..16].try_into().unwrap())
}

const BOUND: u64 = 12 * 4096;

#[derive(Clone, Debug)]
enum Operation {
    /// An instance writes chunk `number` with `length` bytes, or reads it.
    Write(usize, u64, usize),
    Read(usize, u64, usize),
    /// An instance reserves and is killed before it writes.
    Killed(usize),
    /// An instance ends and begins anew with one array or the other.
    Restart(usize, bool),
    Evict(usize, u64),
    /// Somebody removes an entry.
    Remove(usize),
    Discard(usize, u64),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let one = prop_oneof![
        6 => (0usize..2, 0u64..12, 0usize..9000).prop_map(|(i, n, length)| Operation::Write(i, n, length)),
        6 => (0usize..2, 0u64..12, 1usize..5000).prop_map(|(i, n, piece)| Operation::Read(i, n, piece)),
        1 => (0usize..2).prop_map(Operation::Killed),
        2 => (0usize..2, any::<bool>()).prop_map(|(i, other)| Operation::Restart(i, other)),
        1 => (0usize..2, 0u64..30_000).prop_map(|(i, bytes)| Operation::Evict(i, bytes)),
        1 => (0usize..20).prop_map(Operation::Remove),
        1 => (0usize..2, 0u64..12).prop_map(|(i, n)| Operation::Discard(i, n)),
    ];
    prop::collection::vec(one, 0..60)
}

/// A process as far as the cache sees it.
struct Instance {
    folder: Arc<CacheFolder>,
    array: ArrayKey,
    in_use: Option<InUse>,
}

impl Instance {
    fn start(parent: &Path, name: &str) -> Self {
        let folder = Arc::new(CacheFolder::open(parent.to_str().unwrap(), BOUND).unwrap());
        let array = array(name);
        let in_use = folder.join(std::slice::from_ref(&array.folder)).unwrap();
        Self { folder, array, in_use }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_sequence_of_operations_keeps_the_bound_and_the_bytes(operations in operations()) {
        let parent = tempfile::tempdir().unwrap();
        let mut instances = [Instance::start(parent.path(), "one"), Instance::start(parent.path(), "one")];
        let names = ["one", "other"];
        for operation in operations {
            match operation {
                Operation::Write(i, number, length) => {
                    let Instance { folder, array, in_use } = &instances[i];
                    if let Some(in_use) = in_use {
                        // A chunk has one length, as of one version of its array.
                        let length = (length + number as usize * 7) % 9000 / 3000 * 3000 + number as usize;
                        let key = key(array, number * 10_000 + length as u64);
                        write(folder, in_use, &key, &bytes(number, length));
                        let entry = key;
                        if let Some(found) = read(folder, &entry, 4096) {
                            prop_assert_eq!(found.unwrap(), bytes(number, length));
                        }
                    }
                }
                Operation::Read(i, number, piece) => {
                    let Instance { folder, array, .. } = &instances[i];
                    for length in [0, 3000, 6000].map(|length| length + number as usize) {
                        if let Some(found) = read(folder, &key(array, number * 10_000 + length as u64), piece) {
                            prop_assert_eq!(found.unwrap(), bytes(number, length));
                        }
                    }
                }
                Operation::Killed(i) => {
                    let _ = instances[i].folder.reserve(4096).unwrap();
                    instances[i] = Instance::start(parent.path(), "one");
                }
                Operation::Restart(i, other) => {
                    // The locks of the one before go first, as those of a process that ended.
                    instances[i].in_use = None;
                    let placeholder = tempfile::tempdir().unwrap();
                    instances[i] = Instance::start(placeholder.path(), "none");
                    instances[i] = Instance::start(parent.path(), names[usize::from(other)]);
                }
                Operation::Evict(i, bytes) => {
                    let Instance { folder, in_use, .. } = &instances[i];
                    if let Some(in_use) = in_use {
                        let mine = key(&instances[i].array, 3).path[..32].to_string();
                        let before = files(&parent.path().join("zarr-dali-1").join(&mine)).len();
                        folder.evict(bytes, &in_use.arrays).unwrap();
                        // What is in use stays.
                        prop_assert_eq!(files(&parent.path().join("zarr-dali-1").join(&mine)).len(), before);
                    }
                }
                Operation::Remove(number) => {
                    let files = files(parent.path());
                    if let Some(file) = files.get(number) {
                        fs::remove_file(file).unwrap();
                    }
                }
                Operation::Discard(i, number) => instances[i].folder.discard(&key(&instances[i].array, number)),
            }
            prop_assert!(used(parent.path()) <= noted(parent.path()), "{} of {}", used(parent.path()), noted(parent.path()));
            prop_assert!(noted(parent.path()) <= BOUND);
        }
        drop(instances);
        // A process that has the folder for itself measures it.
        let alone = Instance::start(parent.path(), "one");
        prop_assert!(alone.in_use.is_some());
        prop_assert_eq!(used(parent.path()), noted(parent.path()));
    }
}

#[test]
fn an_entry_that_is_cut_short_or_changed_anywhere_is_never_bytes() {
    let parent = tempfile::tempdir().unwrap();
    let Instance { folder, array, in_use } = Instance::start(parent.path(), "one");
    let (key, expected) = (key(&array, 1), bytes(1, 500));
    assert!(write(&folder, &in_use.unwrap(), &key, &expected));
    let path = folder.path().join(&key.path);
    let good = fs::read(&path).unwrap();
    assert_eq!(read(&folder, &key, 100).unwrap().unwrap(), expected);
    let refused = |what: &str| {
        for piece in [64, 1000] {
            if let Some(found) = read(&folder, &key, piece) {
                let error = found.expect_err(what);
                assert!(matches!(Obstacle::of(&error), Some(Obstacle::DiskCache { .. })), "{what}: {error}");
            }
        }
    };
    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(&path, &changed).unwrap();
        refused(&format!("byte {at}"));
        // An entry of no bytes is none either: its header says how many there are.
        fs::write(&path, &good[..at]).unwrap();
        refused(&format!("{at} bytes"));
    }
    fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    refused("a byte more");
    // The entry of another key.
    let other = super::tests::key(&array, 2);
    fs::create_dir_all(folder.path().join(&other.path).parent().unwrap()).unwrap();
    fs::write(folder.path().join(&other.path), &good).unwrap();
    assert!(read(&folder, &other, 1000).unwrap().is_err());
    // One that is cut short while it is open.
    fs::write(&path, &good).unwrap();
    let entry = CachedEntry::new(folder.clone(), key, 0..500, Arc::default());
    entry.read_at(0, &mut [0; 100]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1100).unwrap();
    assert!(entry.read_at(100, &mut [0; 400]).is_err());
    // Nothing of this is an error of the disk.
    assert!(!folder.is_off());
}

#[test]
fn what_is_used_least_recently_makes_room_and_what_is_in_use_does_not() {
    let parent = tempfile::tempdir().unwrap();
    let old = |name: &str, age: u64| {
        let instance = Instance::start(parent.path(), name);
        (0..4).for_each(|number| {
            let key = key(&instance.array, number);
            assert!(write(&instance.folder, instance.in_use.as_ref().unwrap(), &key, &bytes(number, 2000)));
        });
        let folder = File::open(instance.folder.path().join(&instance.array.folder)).unwrap();
        folder.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
        instance
    };
    drop((old("oldest", 300), old("older", 200)));
    let busy = old("busy", 400);
    let count = |name: &str| files(&busy.folder.path().join(array(name).folder)).len();
    let now = Instance::start(parent.path(), "now");
    let in_use = now.in_use.as_ref().unwrap();
    assert!(!write(&now.folder, in_use, &key(&now.array, 0), &bytes(0, 2000)), "it is full");
    assert!(now.folder.evict(1, &in_use.arrays).unwrap() >= 4096);
    assert!(count("oldest") < 4);
    assert_eq!((count("older"), count("busy")), (4, 4));
    assert!(write(&now.folder, in_use, &key(&now.array, 0), &bytes(0, 2000)));
    assert!(now.folder.evict(u64::MAX, &in_use.arrays).unwrap() >= 4 * 4096);
    assert_eq!((count("oldest"), count("older"), count("busy"), count("now")), (0, 0, 4, 1));
    drop((busy, now));
    // A smaller bound: who comes first makes the folder fit it.
    let less = CacheFolder::open(parent.path().to_str().unwrap(), 2 * 4096).unwrap();
    assert!(less.join(&[]).unwrap().is_some());
    assert!(used(parent.path()) <= 2 * 4096);
}

#[test]
fn a_folder_that_is_not_counted_yet_is_not_written_to() {
    let parent = tempfile::tempdir().unwrap();
    let first = Instance::start(parent.path(), "one");
    // Somebody removes the file while another process is at work.
    fs::remove_file(first.folder.path().join("usage")).unwrap();
    assert!(first.folder.reserve(4096).is_err());
    let second = Instance::start(parent.path(), "one");
    assert!(second.in_use.is_none());
    assert_eq!(second.folder.reserve(4096).unwrap(), Room::Busy);
    drop(first);
    assert!(second.folder.join(&[]).unwrap().is_some());
    assert_eq!(second.folder.reserve(4096).unwrap(), Room::Reserved);
}

#[test]
fn files_of_writers_that_were_killed_are_removed_by_who_is_alone() {
    let parent = tempfile::tempdir().unwrap();
    let instance = Instance::start(parent.path(), "one");
    let key = key(&instance.array, 1);
    assert!(write(&instance.folder, instance.in_use.as_ref().unwrap(), &key, &bytes(1, 9)));
    let left = instance.folder.path().join(&key.path).with_file_name("incomplete-1-2-3");
    fs::write(&left, [0; 5000]).unwrap();
    drop(Instance::start(parent.path(), "one"));
    assert!(left.exists(), "it may be written to");
    drop(instance);
    drop(Instance::start(parent.path(), "one"));
    assert!(!left.exists());
    assert_eq!(noted(parent.path()), 4096);
    // So are the folders of an array that has no entries.
    fs::remove_file(parent.path().join("zarr-dali-1").join(&key.path)).unwrap();
    drop(Instance::start(parent.path(), "other"));
    assert!(!parent.path().join("zarr-dali-1").join(array("one").folder).exists());
}

/// Waits until `done`.
pub(super) fn wait_until(done: impl Fn() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_writer_writes_parts_of_answers_drops_what_has_no_room_and_ends_with_its_folder() {
    let parent = tempfile::tempdir().unwrap();
    let open = || Arc::new(CacheFolder::open(parent.path().to_str().unwrap(), 3 * 4096).unwrap());
    let (folder, array) = (open(), array("one"));
    let new_queue = || Arc::new(WriteQueue::new(10_000, Arc::new(PendingEntries::default())));
    let queue = new_queue();
    let push = |queue: &WriteQueue, numbers: std::ops::Range<u64>| {
        queue.push(&answer(1500), numbers.map(|n| (key(&array, n), 10 * n..10 * n + 1000)).collect())
    };
    // What waits is bounded, apart from a single one.
    assert!((0..6).all(|_| push(&queue, 0..2)) && !push(&queue, 0..2));
    let start = |folder: &Arc<CacheFolder>, queue: &Arc<WriteQueue>| {
        let (queue, folder, counters) = (queue.clone(), folder.clone(), Arc::default());
        let writer = Writer { queue, folder, arrays: vec![array.folder.clone()], counters };
        let counters = writer.counters.clone();
        (std::thread::spawn(move || writer.run()), counters)
    };
    let (thread, counters) = start(&folder, &queue);
    let all = [bytes(0, 750), bytes(1, 750)].concat();
    wait_until(|| folder.file_bytes(&key(&array, 1)).unwrap().is_some());
    for n in 0..2 {
        assert_eq!(read(&folder, &key(&array, n), 300).unwrap().unwrap(), all[10 * n as usize..][..1000]);
    }
    wait_until(|| push(&queue, 2..5));
    wait_until(|| counters.disk_cache_dropped.get() >= 2);
    assert_eq!(counters.disk_cache_bytes_written.get(), 3000);
    assert!(!push(&queue, 5..6), "there was no room a moment ago");
    queue.close();
    thread.join().unwrap();
    assert_eq!((used(parent.path()), noted(parent.path())), (3 * 4096, 3 * 4096));

    // A folder that is removed turns the cache off.
    let (folder, queue) = (open(), new_queue());
    let (thread, _) = start(&folder, &queue);
    wait_until(|| folder.path().join(&array.folder).exists() && folder.reserve(0).unwrap() == Room::Reserved);
    std::thread::sleep(Duration::from_millis(50));
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(push(&queue, 7..8));
    wait_until(|| folder.is_off());
    queue.close();
    thread.join().unwrap();
    assert!(!folder.path().exists());
}

#[test]
fn a_file_system_without_files_that_have_no_name_gets_them_under_another_one() {
    let parent = tempfile::tempdir().unwrap();
    let Instance { folder, array, in_use } = Instance::start(parent.path(), "one");
    folder.give_names_first();
    let key = key(&array, 1);
    assert!(write(&folder, in_use.as_ref().unwrap(), &key, &bytes(1, 5000)));
    assert!(write(&folder, in_use.as_ref().unwrap(), &key, &bytes(1, 5000)));
    assert_eq!(read(&folder, &key, 5000).unwrap().unwrap(), bytes(1, 5000));
    assert_eq!(files(parent.path()).len(), 1);
    assert!(used(parent.path()) <= noted(parent.path()));
    CacheFolder::check(parent.path().to_str().unwrap(), BOUND).unwrap();
    assert_eq!(files(parent.path()).len(), 1);
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    File::create(&file).unwrap().write_all_at(b"x", 0).unwrap();
    assert!(CacheFolder::check(file.to_str().unwrap(), BOUND).is_err());
    assert!(CacheFolder::check("/proc/nothing", BOUND).is_err());
    let new = parent.path().join("new/folder");
    CacheFolder::check(new.to_str().unwrap(), BOUND).unwrap();
    assert!(files(&new).is_empty());
}
