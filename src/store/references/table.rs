//! What stands for the objects of a store of references, packed: a document can have millions of references to a few objects.

use std::collections::HashMap;
use std::ops::Range;

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use bytes::Bytes;

/// What stands for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Its bytes.
    Inline(Bytes),
    /// An object that lies elsewhere, or a piece of it.
    Target {
        /// URL or path.
        name: String,
        /// `None` for the whole object.
        piece: Option<Range<u64>>,
    },
}

/// A reference, of which the texts are elsewhere.
#[derive(Clone, Copy, Debug)]
pub enum Packed {
    /// There is none.
    Missing,
    Inline(Span),
    /// Number of the object's name.
    Whole(u32),
    Piece {
        name: u32,
        start: u64,
        bytes: u64,
    },
}

/// Where a text is among all texts.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    start: u32,
    bytes: u32,
}

/// The texts of references: keys, names of objects, bytes.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Bytes,
    names: Vec<Span>,
}

impl Texts {
    /// The text at a place.
    pub fn get(&self, span: Span) -> &[u8] {
        &self.bytes[range(span)]
    }

    /// A reference as a whole. The name of its object is as it was written.
    pub fn unpack(&self, packed: Packed) -> Option<Reference> {
        let target = |name: u32, piece| {
            let name = String::from_utf8_lossy(self.get(self.names[name as usize])).into_owned();
            Some(Reference::Target { name, piece })
        };
        match packed {
            Packed::Missing => None,
            Packed::Inline(span) => Some(Reference::Inline(self.bytes.slice(range(span)))),
            Packed::Whole(name) => target(name, None),
            Packed::Piece { name, start, bytes } => target(name, Some(start..start.saturating_add(bytes))),
        }
    }

    /// The names of all objects, each with its number.
    pub fn names(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(self.names.iter().map(|&span| self.get(span)))
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + size_of_val(&*self.names)) as u64
    }
}

fn range(span: Span) -> Range<usize> {
    span.start as usize..span.start as usize + span.bytes as usize
}

/// Packs references.
pub struct Packer {
    bytes: Vec<u8>,
    most_bytes: u64,
    names: Vec<Span>,
    /// Of names that were seen.
    numbers: HashMap<Box<str>, u32>,
}

impl Packer {
    /// Texts of at most that many bytes together.
    pub fn new(most_bytes: u64) -> Self {
        Self { bytes: vec![], most_bytes, names: vec![], numbers: HashMap::new() }
    }

    /// Adds a text.
    ///
    /// # Errors
    /// More texts than there may be.
    pub fn text(&mut self, text: &[u8]) -> Result<Span, String> {
        let start = self.bytes.len();
        let end = start as u64 + text.len() as u64;
        let (Ok(start), true) = (u32::try_from(start), end <= self.most_bytes.min(u32::MAX.into())) else {
            return Err(format!("its texts have more than {} bytes", self.most_bytes));
        };
        self.bytes.try_reserve(text.len()).map_err(|error| error.to_string())?;
        self.bytes.extend_from_slice(text);
        Ok(Span { start, bytes: text.len() as u32 })
    }

    /// Adds bytes as they are written: as text, or behind `base64:`.
    ///
    /// # Errors
    /// What is no base64; more texts than there may be.
    pub fn inline(&mut self, text: &[u8]) -> Result<Packed, String> {
        const LENIENT: GeneralPurposeConfig =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        const BASE64: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
        let span = match text.strip_prefix(b"base64:") {
            Some(encoded) => {
                let decoded = BASE64.decode(encoded).map_err(|error| format!("is no base64 ({error})"))?;
                self.text(&decoded)?
            }
            None => self.text(text)?,
        };
        Ok(Packed::Inline(span))
    }

    /// Adds a reference to an object.
    ///
    /// # Errors
    /// More texts than there may be.
    pub fn whole(&mut self, name: &str) -> Result<Packed, String> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(Packed::Whole(number));
        }
        let span = self.text(name.as_bytes())?;
        let number = self.names.len() as u32;
        self.names.push(span);
        self.numbers.insert(name.into(), number);
        Ok(Packed::Whole(number))
    }

    /// Adds a reference to a piece of an object.
    ///
    /// # Errors
    /// Pieces that no object can have; more texts than there may be.
    pub fn piece(&mut self, name: &str, start: u64, bytes: u64) -> Result<Packed, String> {
        if start.checked_add(bytes).is_none() {
            return Err(format!("has offset {start} and length {bytes}, which no object has"));
        }
        match self.whole(name)? {
            Packed::Whole(name) => Ok(Packed::Piece { name, start, bytes }),
            other => Ok(other),
        }
    }

    /// The texts, when all are there.
    pub fn finish(mut self) -> Texts {
        self.bytes.shrink_to_fit();
        self.names.shrink_to_fit();
        Texts { bytes: self.bytes.into(), names: self.names }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let target = |name: &str, piece| Reference::Target { name: name.into(), piece };
        let inline = |bytes: &'static [u8]| Reference::Inline(Bytes::from_static(bytes));
        let mut packer = Packer::new(100);
        let packed = [
            (packer.whole("a"), Some(target("a", None))),
            (packer.piece("b", 3, 4), Some(target("b", Some(3..7)))),
            (packer.inline(b"text"), Some(inline(b"text"))),
            (packer.piece("a", 0, 0), Some(target("a", Some(0..0)))),
            (packer.inline(b"base64:AAH/"), Some(inline(b"\0\x01\xff"))),
            (packer.inline(b"base64:AAE"), Some(inline(b"\0\x01"))),
            (packer.inline(b""), Some(inline(b""))),
            (Ok(Packed::Missing), None),
        ];
        assert!(packer.inline(b"base64:A!").unwrap_err().contains("base64"));
        assert!(packer.piece("a", u64::MAX, 1).unwrap_err().contains("offset"));
        assert!(packer.text(&[0; 100]).unwrap_err().contains("more than 100 bytes"));
        let texts = packer.finish();
        assert_eq!(texts.names().count(), 2);
        for (packed, expected) in packed {
            assert_eq!(texts.unpack(packed.unwrap()), expected);
        }
    }
}
