//! The central directory of a zip file.
//!
//! Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12 and 4.3.14 to 4.3.16, and 4.5.3 for files and entries of more than 4 GiB.

use super::super::contract::folders_below;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The end of a zip file that holds what says where the central directory is, with the longest comment behind it.
pub const TAIL_BYTES: u64 = END_BYTES + 65535 + LOCATOR_BYTES + END64_BYTES;
/// A local header without the name and the extra field that follow it.
pub const LOCAL_BYTES: u64 = 30;

/// The end record without a comment: the shortest zip file.
pub const END_BYTES: u64 = 22;
const LOCATOR_BYTES: u64 = 20;
const END64_BYTES: u64 = 56;
const CENTRAL_BYTES: usize = 46;

/// Where the central directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub range: Range<u64>,
    /// What was put in front of the zip file, in bytes: offsets do not count it.
    pub in_front: u64,
    /// Number of entries, and the values that it can take: without 64 bits only its last 16 are there.
    pub entries: (u64, u64),
}

/// The entries of a zip file by name.
#[derive(Debug, Default)]
pub struct Directory {
    entries: BTreeMap<String, Entry>,
}

/// A file in a zip file.
#[derive(Debug)]
pub struct Entry {
    /// From its local header to the next one, or to the central directory.
    pub room: Range<u64>,
    /// Its bytes.
    pub bytes: u64,
    /// Why it cannot be read as it lies there.
    pub obstacle: Option<&'static str>,
    /// Its name, as it is written in the file.
    name: Vec<u8>,
    /// Where its bytes begin, once the local header was read; it is never 0.
    start: AtomicU64,
}

impl Entry {
    /// Where its bytes begin, if that is known.
    pub fn start(&self) -> Option<u64> {
        Some(self.start.load(Ordering::Relaxed)).filter(|&start| start > 0)
    }

    /// Bytes of its local header up to the end of the name.
    pub fn header_bytes(&self) -> u64 {
        LOCAL_BYTES + self.name.len() as u64
    }

    /// Reads where its bytes begin in its local header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set_start(&self, header: &[u8]) -> Result<u64, &'static str> {
        let lengths = (u16_at(header, 26), u16_at(header, 28));
        let (Some(0x0403_4b50), (Some(name), Some(extra))) = (u32_at(header, 0), lengths) else {
            return Err("an entry has no local header");
        };
        let own_name = header.get(LOCAL_BYTES as usize..LOCAL_BYTES as usize + usize::from(name));
        if own_name != Some(&*self.name) {
            return Err("an entry has another name in its local header");
        }
        let start = self.room.start + LOCAL_BYTES + u64::from(name) + u64::from(extra);
        if start.checked_add(self.bytes).is_none_or(|end| end > self.room.end) {
            return Err("an entry reaches into the next one");
        }
        self.start.store(start, Ordering::Relaxed);
        Ok(start)
    }
}

/// Finds the central directory of a file of `file_bytes` bytes, of which `tail` are the last.
///
/// # Errors
/// What is wrong with it.
pub fn find(tail: &[u8], file_bytes: u64) -> Result<Place, &'static str> {
    let tail_start = file_bytes.checked_sub(tail.len() as u64).ok_or("it is longer than it says")?;
    // The last end record whose comment reaches to the end of the file.
    let last = tail.len().checked_sub(END_BYTES as usize).ok_or("it is too short for a zip file")?;
    let is_end = |&at: &usize| {
        u32_at(tail, at) == Some(0x0605_4b50)
            && u16_at(tail, at + 20)
                .is_some_and(|comment| at + END_BYTES as usize + usize::from(comment) == tail.len())
    };
    let at = (0..=last).rev().find(is_end).ok_or("it has no central directory")?;
    let end = tail_start + at as u64;
    let numbers = (u32_at(tail, at + 12), u32_at(tail, at + 16));
    let (Some(bytes), Some(offset)) = numbers else { return Err("its end record is cut short") };
    let (mut bytes, mut offset, mut directory_end) = (u64::from(bytes), u64::from(offset), end);
    let mut entries = (u16_at(tail, at + 10).map_or(0, u64::from), 1 << 16);
    if let Some(locator) = at.checked_sub(LOCATOR_BYTES as usize)
        && u32_at(tail, locator) == Some(0x0706_4b50)
        && let Some(record) = locator.checked_sub(END64_BYTES as usize)
        && u32_at(tail, record) == Some(0x0606_4b50)
    {
        let numbers = (u64_at(tail, record + 40), u64_at(tail, record + 48));
        let (Some(bytes64), Some(offset64)) = numbers else { return Err("its end record is cut short") };
        (bytes, offset, directory_end) = (bytes64, offset64, tail_start + record as u64);
        entries = (u64_at(tail, record + 32).unwrap_or(0), u64::MAX);
    }
    let start = directory_end.checked_sub(bytes).ok_or("its central directory is longer than the file")?;
    let in_front = start.checked_sub(offset).ok_or("its central directory is cut short")?;
    Ok(Place { range: start..directory_end, in_front, entries })
}

impl Directory {
    /// Reads the entries of a central directory that is at `place`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(mut bytes: &[u8], place: &Place) -> Result<Self, &'static str> {
        let mut found: Vec<(u64, Vec<u8>, u64, Option<&'static str>)> = vec![];
        while !bytes.is_empty() {
            let (entry, rest) = central_entry(bytes)?;
            bytes = rest;
            let offset =
                entry.offset.checked_add(place.in_front).filter(|&offset| offset < place.range.start);
            let offset = offset.ok_or("an entry lies behind the central directory")?;
            found.push((offset, entry.name, entry.bytes, entry.obstacle));
        }
        let (entries, values) = place.entries;
        if found.len() as u64 % values != entries {
            return Err("its central directory has another number of entries than its end record says");
        }
        let mut starts: Vec<u64> = found.iter().map(|(offset, ..)| *offset).collect();
        starts.sort_unstable();
        // A name that comes twice is the last one, as for Python's zipfile.
        let entries = found.into_iter().map(|(offset, name, bytes, obstacle)| {
            let next = starts.partition_point(|&start| start <= offset);
            let end = starts.get(next).copied().unwrap_or(place.range.start);
            let text = String::from_utf8_lossy(&name).into_owned();
            (text, Entry { room: offset..end, bytes, obstacle, name, start: AtomicU64::new(0) })
        });
        Ok(Self { entries: entries.collect() })
    }

    /// The file of that name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Names of the folders directly below one, as [`folders_below`] has them.
    pub fn folders(&self, below: &str) -> Vec<String> {
        folders_below(&self.entries, below)
    }
}

struct Central {
    name: Vec<u8>,
    offset: u64,
    bytes: u64,
    obstacle: Option<&'static str>,
}

/// The first entry of a central directory, and what follows it.
fn central_entry(bytes: &[u8]) -> Result<(Central, &[u8]), &'static str> {
    const CUT: &str = "its central directory is cut short";
    if u32_at(bytes, 0) != Some(0x0201_4b50) {
        return Err("its central directory is damaged");
    }
    let u16_of = |at| u16_at(bytes, at).map(usize::from).ok_or(CUT);
    let u32_of = |at| u32_at(bytes, at).map(u64::from).ok_or(CUT);
    let (flags, method) = (u16_of(8)?, u16_of(10)?);
    let (mut encoded, mut decoded, mut offset) = (u32_of(20)?, u32_of(24)?, u32_of(42)?);
    let (name_bytes, extra_bytes, comment_bytes) = (u16_of(28)?, u16_of(30)?, u16_of(32)?);
    let name_end = CENTRAL_BYTES + name_bytes;
    let name = bytes.get(CENTRAL_BYTES..name_end).ok_or(CUT)?;
    let mut extra = bytes.get(name_end..name_end + extra_bytes).ok_or(CUT)?;
    let rest = bytes.get(name_end + extra_bytes + comment_bytes..).ok_or(CUT)?;
    while let (Some(kind), Some(length)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let field = extra.get(4..4 + usize::from(length)).ok_or(CUT)?;
        extra = &extra[4 + usize::from(length)..];
        if kind != 1 {
            continue;
        }
        // Only what did not fit in 32 bits is there, in this order.
        let mut at = 0;
        for number in [&mut decoded, &mut encoded, &mut offset] {
            if *number == u64::from(u32::MAX) {
                *number = u64_at(field, at).ok_or(CUT)?;
                at += 8;
            }
        }
    }
    let obstacle = match (flags & 1, method) {
        (1, _) => Some("an entry is encrypted"),
        (_, 0) if encoded != decoded => Some("its entry in the central directory is damaged"),
        (_, 0) => None,
        (_, 8) => Some("an entry is deflated"),
        _ => Some("an entry is compressed"),
    };
    Ok((Central { name: name.to_vec(), offset, bytes: encoded, obstacle }, rest))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// How a zip file for a test is made.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Made {
        /// Of a comment behind the end.
        pub comment_bytes: u16,
        /// In front of the zip file.
        pub in_front: usize,
        /// Whether offsets and lengths are written with 64 bits.
        pub wide: bool,
        /// Of the extra field of each local header.
        pub extra_bytes: u16,
    }

    /// A zip file whose entries have a name, a method and bytes.
    pub fn zip(entries: &[(&str, u16, &[u8])], made: Made) -> Vec<u8> {
        let Made { comment_bytes, in_front, wide, extra_bytes } = made;
        let (mut file, mut central) = (vec![7; in_front], vec![]);
        for (name, method, bytes) in entries {
            let offset = (file.len() - in_front) as u64;
            file.extend(b"PK\x03\x04\x14\0\0\0");
            file.extend(method.to_le_bytes());
            file.extend([0; 8]);
            (0..2).for_each(|_| file.extend((bytes.len() as u32).to_le_bytes()));
            file.extend((name.len() as u16).to_le_bytes());
            file.extend(extra_bytes.to_le_bytes());
            file.extend(name.as_bytes());
            file.extend(vec![0; extra_bytes.into()]);
            file.extend(*bytes);
            central.extend(b"PK\x01\x02\x14\0\x14\0\0\0");
            central.extend(method.to_le_bytes());
            central.extend([0; 8]);
            let narrow = |number: u64| if wide { u32::MAX } else { number as u32 };
            (0..2).for_each(|_| central.extend(narrow(bytes.len() as u64).to_le_bytes()));
            central.extend((name.len() as u16).to_le_bytes());
            central.extend(if wide { 28u16 } else { 0 }.to_le_bytes());
            central.extend([0; 10]);
            central.extend(narrow(offset).to_le_bytes());
            central.extend(name.as_bytes());
            if wide {
                central.extend([1, 0, 24, 0]);
                [bytes.len() as u64, bytes.len() as u64, offset]
                    .iter()
                    .for_each(|n| central.extend(n.to_le_bytes()));
            }
        }
        let offset = (file.len() - in_front) as u64;
        let central_bytes = central.len() as u64;
        file.extend(central);
        if wide {
            let end64 = file.len() as u64;
            file.extend(b"PK\x06\x06");
            file.extend([0; 28]);
            file.extend((entries.len() as u64).to_le_bytes());
            [central_bytes, offset].iter().for_each(|n| file.extend(n.to_le_bytes()));
            file.extend(b"PK\x06\x07\0\0\0\0");
            file.extend(end64.to_le_bytes());
            file.extend([1, 0, 0, 0]);
        }
        file.extend(b"PK\x05\x06");
        file.extend([0; 6]);
        file.extend((entries.len() as u16).to_le_bytes());
        let narrow = |number: u64| if wide { u32::MAX } else { number as u32 };
        [central_bytes, offset].iter().for_each(|&n| file.extend(narrow(n).to_le_bytes()));
        file.extend(comment_bytes.to_le_bytes());
        file.extend(vec![b'c'; comment_bytes.into()]);
        file
    }

    fn opened(file: &[u8]) -> Result<Directory, &'static str> {
        let tail = &file[file.len().saturating_sub(TAIL_BYTES as usize)..];
        let place = find(tail, file.len() as u64)?;
        Directory::new(&file[place.range.start as usize..place.range.end as usize], &place)
    }

    /// The bytes of an entry.
    fn bytes<'a>(file: &'a [u8], entry: &Entry) -> Result<&'a [u8], &'static str> {
        let room = &file[entry.room.start as usize..entry.room.end as usize];
        let start = entry.set_start(room)? as usize;
        Ok(&file[start..start + entry.bytes as usize])
    }

    #[test]
    fn an_entry_whose_header_is_of_another_one_is_refused() {
        let mut file = zip(&[("c/0", 0, &[1; 30]), ("c/1", 0, &[2; 30])], Made::default());
        let name = file.windows(3).position(|name| name == b"c/1").unwrap();
        file[name + 2] = b'0';
        let directory = opened(&file).unwrap();
        assert!(bytes(&file, directory.entry("c/0").unwrap()).is_ok());
        assert!(bytes(&file, directory.entry("c/1").unwrap()).unwrap_err().contains("another name"));
    }

    #[test]
    fn a_directory_that_lacks_entries_is_refused() {
        for wide in [false, true] {
            let mut file = zip(&[("c/0", 0, &[1; 30])], Made { wide, ..Made::default() });
            let record: &[u8] = if wide { b"PK\x06\x06" } else { b"PK\x05\x06" };
            let at = file.windows(4).position(|signature| signature == record).unwrap();
            file[at + if wide { 32 } else { 10 }] = 2;
            assert!(opened(&file).unwrap_err().contains("number of entries"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn entries_are_found_where_they_are(
            entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
            comment_bytes in 0u16..100,
            in_front in 0usize..50,
            wide in any::<bool>(),
            extra_bytes in 0u16..40,
        ) {
            let names: Vec<String> = (0..entries.len()).map(|i| format!("a/c/{i}")).collect();
            let listed: Vec<(&str, u16, &[u8])> = names.iter().zip(&entries).map(|(name, bytes)| (name.as_str(), 0, bytes.as_slice())).collect();
            let file = zip(&listed, Made { comment_bytes, in_front, wide, extra_bytes });
            let directory = opened(&file).unwrap();
            for (name, expected) in names.iter().zip(&entries) {
                let entry = directory.entry(name).unwrap();
                prop_assert_eq!(entry.obstacle, None);
                prop_assert_eq!(bytes(&file, entry).unwrap(), expected.as_slice());
            }
            prop_assert!(directory.entry("a/c").is_none());
        }

        #[test]
        fn a_damaged_file_is_an_error_or_other_entries_and_never_a_panic(
            at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>(), wide in any::<bool>(), cuts in any::<bool>(),
        ) {
            let mut file = zip(&[("x", 0, &[1; 30]), ("y/z", 0, &[2; 40])], Made { wide, ..Made::default() });
            let at = at.index(file.len());
            file[at] = with;
            if cuts {
                file.truncate(cut.index(file.len()));
            }
            if let Ok(directory) = opened(&file) {
                for name in ["x", "y/z"] {
                    if let Some(entry) = directory.entry(name) {
                        // Bytes outside of the file are never looked at.
                        let _ = bytes(&file, entry);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_stored_is_said_and_the_last_of_a_name_counts() {
        let file =
            zip(&[("x", 8, b"12"), ("y", 93, b"34"), ("z", 0, b"old"), ("z", 0, b"new")], Made::default());
        let directory = opened(&file).unwrap();
        assert_eq!(directory.entry("x").unwrap().obstacle, Some("an entry is deflated"));
        assert_eq!(directory.entry("y").unwrap().obstacle, Some("an entry is compressed"));
        assert_eq!(bytes(&file, directory.entry("z").unwrap()).unwrap(), b"new");
        for (file, problem) in
            [(vec![], "too short"), (vec![0; 100], "no central directory"), (b"PK".repeat(20), "no central")]
        {
            assert!(opened(&file).unwrap_err().contains(problem));
        }
    }

    #[test]
    fn folders_are_named_once() {
        let file = zip(
            &[
                ("/e/f", 0, b""),
                ("a//c", 0, b""),
                ("a/b/c", 0, b""),
                ("a/b/d", 0, b""),
                ("a/x", 0, b""),
                ("a/y/z", 0, b""),
                ("ab/c", 0, b""),
            ],
            Made::default(),
        );
        let directory = opened(&file).unwrap();
        assert_eq!(directory.folders(""), ["a", "ab"]);
        assert_eq!(directory.folders("a/"), ["b", "y"]);
    }
}
