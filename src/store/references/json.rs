//! References in one JSON document, of version 0 or 1.
//!
//! Source: <https://fsspec.github.io/kerchunk/spec.html>, and fsspec's reader, which decides where the text leaves something open.

use super::table::{Packed, Packer, Reference, Span, Texts};
use crate::json;

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The references of a document by key.
#[derive(Debug, Default)]
pub struct Table {
    /// Sorted by key.
    entries: Vec<(Span, Packed)>,
    texts: Texts,
    /// What `{{NAME}}` stands for in names of objects.
    templates: Map<String, Value>,
}

/// The longest name of an object that templates may make, in bytes.
const MOST_NAME_BYTES: usize = 64 << 10;

impl Table {
    /// Reads a document.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(document: &[u8]) -> Result<Self, String> {
        let parsed = Self::parse_strict(document);
        let names_numbers = || document.windows(3).any(|text| text == b"NaN" || text == b"Inf");
        match parsed {
            Err(error) if names_numbers() => Self::parse_strict(&json::quoted(document)).map_err(|_| error),
            parsed => parsed,
        }
    }

    fn parse_strict(document: &[u8]) -> Result<Self, String> {
        let builder = RefCell::new(Builder::new());
        let mut text = serde_json::Deserializer::from_slice(document);
        let parsed = Top(&builder).deserialize(&mut text).and_then(|()| text.end());
        parsed.map_err(|error| error.to_string())?;
        builder.into_inner().finish()
    }

    /// What stands for the object of a key.
    ///
    /// # Errors
    /// Templates that are not there.
    pub fn get(&self, key: &str) -> Result<Option<Reference>, String> {
        let at = self.entries.partition_point(|(span, _)| self.texts.get(*span) < key.as_bytes());
        let Some((span, packed)) = self.entries.get(at) else { return Ok(None) };
        if self.texts.get(*span) != key.as_bytes() {
            return Ok(None);
        }
        match self.texts.unpack(*packed) {
            Some(Reference::Target { name, piece }) => {
                Ok(Some(Reference::Target { name: self.filled_in(&name)?, piece }))
            }
            other => Ok(other),
        }
    }

    /// Names of the folders directly below one, as `contract::folders_below` has them.
    pub fn folders(&self, below: &str) -> Vec<String> {
        let key = |at: usize| self.entries.get(at).map(|(span, _)| self.texts.get(*span));
        let first = |from: &[u8]| self.entries.partition_point(|(span, _)| self.texts.get(*span) < from);
        let (mut names, mut at) = (vec![], first(below.as_bytes()));
        while let Some(rest) = key(at).and_then(|key| key.strip_prefix(below.as_bytes())) {
            let Some(end) = rest.iter().position(|&byte| byte == b'/') else {
                at += 1;
                continue;
            };
            let name = String::from_utf8_lossy(&rest[..end]).into_owned();
            // '0' is what follows the slash.
            at = first(format!("{below}{name}0").as_bytes());
            if !name.is_empty() {
                names.push(name);
            }
        }
        names
    }

    /// Checks the names of all objects.
    ///
    /// # Errors
    /// What `check` says of one, and a key that refers to it.
    pub fn check(&self, check: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
        for (number, name) in self.texts.names() {
            let name = String::from_utf8_lossy(name);
            if let Err(problem) = self.filled_in(&name).and_then(|name| check(&name)) {
                let refers = |packed: &Packed| match packed {
                    Packed::Whole(name) | Packed::Piece { name, .. } => *name == number,
                    Packed::Missing | Packed::Inline(_) => false,
                };
                let entry = self.entries.iter().find(|(_, packed)| refers(packed));
                let key = entry.map_or(&[][..], |(span, _)| self.texts.get(*span));
                return Err(format!("at key \"{}\": {problem}", String::from_utf8_lossy(key)));
            }
        }
        Ok(())
    }

    /// A name in which templates are filled in.
    fn filled_in(&self, name: &str) -> Result<String, String> {
        if self.templates.is_empty() {
            return Ok(name.into());
        }
        let (mut filled, mut rest) = (String::new(), name);
        while let Some((before, behind)) = rest.split_once("{{") {
            let (template, behind) = behind.split_once("}}").ok_or("a template in a URL does not end")?;
            let value = self.templates.get(template.trim()).and_then(Value::as_str);
            let value = value.ok_or_else(|| {
                format!(
                    "a URL has the template \"{{{{{template}}}}}\", which is not among those of the document"
                )
            })?;
            filled.push_str(before);
            filled.push_str(value);
            rest = behind;
            if filled.len() > MOST_NAME_BYTES {
                return Err(format!("templates make a URL of more than {MOST_NAME_BYTES} bytes"));
            }
        }
        Ok(filled + rest)
    }
}

/// What was read of a document so far.
struct Builder {
    packer: Packer,
    entries: Vec<(Span, Packed)>,
    templates: Map<String, Value>,
    /// A number is what documents of version 1 and later have.
    version: Option<Value>,
    has_refs: bool,
}

impl Builder {
    fn new() -> Self {
        let (packer, entries) = (Packer::new(u32::MAX.into()), vec![]);
        Self { packer, entries, templates: Map::new(), version: None, has_refs: false }
    }

    fn finish(self) -> Result<Table, String> {
        match (&self.version, self.has_refs) {
            (None, false) => {}
            (Some(version), true) if *version == 1 => {}
            (Some(version), true) => {
                return Err(format!("they are of version {version}, and only 0 and 1 are known"));
            }
            (None, true) => return Err("they have \"refs\" and no \"version\": 1".into()),
            (Some(_), false) => return Err("they have a \"version\" and no \"refs\"".into()),
        }
        if let Some((name, _)) = self.templates.iter().find(|(_, value)| !is_plain(value)) {
            return Err(format!(
                "the template \"{name}\" is no plain text: write the references without templates that need other templates or arguments"
            ));
        }
        if self.entries.is_empty() || (self.version.is_none() && !self.templates.is_empty()) {
            return Err("there are none in it".into());
        }
        let (texts, mut entries) = (self.packer.finish(), self.entries);
        // Of a key that comes twice the last one counts, as in Python.
        entries.sort_by(|(one, _), (other, _)| texts.get(*one).cmp(texts.get(*other)));
        entries.reverse();
        entries.dedup_by(|(one, _), (other, _)| texts.get(*one) == texts.get(*other));
        entries.reverse();
        entries.shrink_to_fit();
        Ok(Table { entries, texts, templates: self.templates })
    }
}

fn is_plain(template: &Value) -> bool {
    template.as_str().is_some_and(|text| !text.contains("{{"))
}

/// The whole document.
struct Top<'a>(&'a RefCell<Builder>);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<(), D::Error> {
        document.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of references")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "version" => self.0.borrow_mut().version = Some(map.next_value()?),
                "refs" => {
                    self.0.borrow_mut().has_refs = true;
                    map.next_value_seed(Refs(self.0))?;
                }
                "templates" => {
                    let templates = map.next_value::<Option<Map<String, Value>>>()?;
                    self.0.borrow_mut().templates = templates.unwrap_or_default();
                }
                "gen" => {
                    if map.next_value::<Option<Vec<IgnoredAny>>>()?.is_some_and(|rules| !rules.is_empty()) {
                        return Err(M::Error::custom(
                            "it has rules (\"gen\") that make references, which are not read: write the references themselves",
                        ));
                    }
                }
                _ => map.next_value_seed(Entry { builder: self.0, key: &key })?,
            }
        }
        Ok(())
    }
}

/// The references of a document of version 1.
struct Refs<'a>(&'a RefCell<Builder>);

impl<'de> DeserializeSeed<'de> for Refs<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, refs: D) -> Result<(), D::Error> {
        refs.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Refs<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of references under \"refs\"")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Entry { builder: self.0, key: &key })?;
        }
        Ok(())
    }
}

/// What stands for the object of a key.
struct Entry<'a> {
    builder: &'a RefCell<Builder>,
    key: &'a str,
}

impl Entry<'_> {
    fn add<E: Error>(self, pack: impl FnOnce(&mut Packer) -> Result<Packed, String>) -> Result<(), E> {
        let builder = &mut *self.builder.borrow_mut();
        let key = self.key;
        let packed = pack(&mut builder.packer)
            .map_err(|problem| E::custom(format_args!("key \"{key}\" {problem}")))?;
        let span = builder.packer.text(key.as_bytes()).map_err(E::custom)?;
        builder.entries.try_reserve(1).map_err(E::custom)?;
        builder.entries.push((span, packed));
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, entry: D) -> Result<(), D::Error> {
        entry.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text, an object, [url] or [url, offset, length] for key \"{}\"", self.key)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.add(|packer| packer.inline(text.as_bytes()))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut object = Map::new();
        while let Some((name, value)) = map.next_entry()? {
            object.insert(name, value);
        }
        self.add(|packer| packer.inline(Value::Object(object).to_string().as_bytes()))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        let mut parts = vec![];
        while let Some(part) = list.next_element::<Part>()? {
            parts.push(part);
            if parts.len() > 3 {
                break;
            }
        }
        match &parts[..] {
            [Part::Text(name)] => self.add(|packer| packer.whole(name)),
            [Part::Text(name), Part::Number(start), Part::Number(bytes)] => {
                self.add(|packer| packer.piece(name, *start, *bytes))
            }
            _ => {
                let key = self.key;
                Err(S::Error::custom(format_args!(
                    "key \"{key}\" has a list that is not [url] or [url, offset, length], with a text and two whole numbers"
                )))
            }
        }
    }
}

/// A part of a reference to an object.
enum Part {
    Text(String),
    Number(u64),
    Other,
}

impl<'de> serde::Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(part: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(part)? {
            Value::String(text) => Self::Text(text),
            Value::Number(number) => number.as_u64().map_or(Self::Other, Self::Number),
            _ => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn target(name: &str, piece: Option<std::ops::Range<u64>>) -> Reference {
        Reference::Target { name: name.into(), piece }
    }

    fn inline(text: &'static str) -> Reference {
        Reference::Inline(Bytes::from_static(text.as_bytes()))
    }

    const REFS: &str = r#"{
        ".zgroup": "{\"zarr_format\": 2}",
        "a/.zattrs": {"x": [NaN, 1]},
        "a/0.0": ["s3://b/x", 10, 20],
        "a/0.1": ["s3://b/x"],
        "a/1.0": "base64:AAEC",
        "b/c/.zarray": {"shape": []},
        "b/c/0/1": ["{{u}}/{{ f }}.nc", 0, 9007199254740993],
        "a/0.0": ["s3://b/y", 1, 2]
    }"#;

    #[test]
    fn both_versions_are_read() {
        let version_1 = format!(
            r#"{{"refs": {REFS}, "version": 1, "gen": [], "templates": {{"u": "https://h", "f": "g"}}}}"#
        );
        for (document, name) in [(REFS, "{{u}}/{{ f }}.nc"), (&*version_1, "https://h/g.nc")] {
            let table = Table::parse(document.as_bytes()).unwrap();
            let get = |key: &str| table.get(key).unwrap();
            assert_eq!(get(".zgroup"), Some(inline("{\"zarr_format\": 2}")));
            assert_eq!(get("a/.zattrs"), Some(inline("{\"x\":[\"NaN\",1]}")));
            // The last of two.
            assert_eq!(get("a/0.0"), Some(target("s3://b/y", Some(1..3))));
            assert_eq!(get("a/0.1"), Some(target("s3://b/x", None)));
            assert_eq!(get("a/1.0"), Some(inline("\0\x01\x02")));
            assert_eq!(get("b/c/0/1"), Some(target(name, Some(0..9007199254740993))));
            for absent in ["", "a", "a/", "a/0", "zarr.json", "z"] {
                assert_eq!(get(absent), None, "{absent}");
            }
            assert_eq!(table.folders(""), ["a", "b"]);
            assert_eq!(table.folders("b/"), ["c"]);
            assert_eq!(table.folders("b/c/"), ["0"]);
            assert!(table.folders("x/").is_empty());
        }
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_key() {
        let big = "x".repeat(MOST_NAME_BYTES);
        for (document, problems) in [
            ("", &["EOF"][..]),
            ("[]", &["object of references"]),
            ("{}", &["none in it"]),
            (r#"{"a/0": ["x", 1, 2"#, &["EOF"]),
            (r#"{"a/0": ["x", 1, 2]} more"#, &["trailing"]),
            (r#"{"a/0": ["x", 1]}"#, &["a/0", "[url, offset, length]"]),
            (r#"{"a/0": ["x", -1, 2]}"#, &["a/0", "whole numbers"]),
            (r#"{"a/0": ["x", 1.5, 2]}"#, &["a/0"]),
            (r#"{"a/0": ["x", "1", 2]}"#, &["a/0"]),
            (r#"{"a/0": ["x", 1, 2, 3]}"#, &["a/0"]),
            (r#"{"a/0": [null, 1, 2]}"#, &["a/0"]),
            (r#"{"a/0": []}"#, &["a/0"]),
            (r#"{"a/0": 7}"#, &["a/0", "integer `7`"]),
            (r#"{"a/0": null}"#, &["a/0"]),
            (r#"{"a/0": ["x", 1, 18446744073709551615]}"#, &["a/0", "no object has"]),
            (r#"{"a/0": ["x", 1, 18446744073709551616]}"#, &["a/0"]),
            (r#"{"a/0": "base64:A*"}"#, &["a/0", "base64"]),
            (r#"{"version": 2, "refs": {"a/0": ["x"]}}"#, &["version 2"]),
            (r#"{"version": 1, "a/0": ["x"]}"#, &["no \"refs\""]),
            (r#"{"refs": {"a/0": ["x"]}}"#, &["no \"version\""]),
            (r#"{"version": 1, "refs": [1]}"#, &["\"refs\""]),
            (r#"{"version": 1, "refs": {"a/0": ["x"]}, "gen": [{"key": "k"}]}"#, &["\"gen\""]),
            (
                r#"{"version": 1, "refs": {"a/0": ["x"]}, "templates": {"u": "{{u}}"}}"#,
                &["\"u\"", "plain text"],
            ),
            (r#"{"version": 1, "refs": {"a/0": ["x"]}, "templates": {"u": 1}}"#, &["\"u\""]),
            (r#"{"version": 1, "refs": {"a/0": ["{{v}}/x"]}, "templates": {"u": "1"}}"#, &["a/0", "{{v}}"]),
            (
                r#"{"version": 1, "refs": {"a/0": ["{{u/x"]}, "templates": {"u": "1"}}"#,
                &["a/0", "does not end"],
            ),
            (
                &format!(
                    r#"{{"version": 1, "refs": {{"a/0": ["{{{{u}}}}/x{{{{u}}}}"]}}, "templates": {{"u": "{big}"}}}}"#
                ),
                &["a/0", "more than 65536 bytes"],
            ),
        ] {
            let error = Table::parse(document.as_bytes())
                .and_then(|table| table.check(|_| Ok(())))
                .expect_err(document);
            assert!(problems.iter().all(|problem| error.contains(problem)), "{document}: {error}");
        }
        let table = Table::parse(br#"{"a/0": ["x", 1, 2], "b/0": ["y"]}"#).unwrap();
        let refuse = |name: &str| if name == "y" { Err("no".to_string()) } else { Ok(()) };
        assert_eq!(table.check(refuse), Err("at key \"b/0\": no".into()));
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(Table::parse(deep.as_bytes()).unwrap_err().contains("recursion"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_damaged_document_is_an_error_or_another_one_and_never_a_panic(
            at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
        ) {
            let mut document = REFS.as_bytes().to_vec();
            let at = at.index(document.len());
            document[at] = with;
            if cuts {
                document.truncate(cut.index(document.len()));
            }
            if let Ok(table) = Table::parse(&document) {
                let _ = (table.get("a/0.0"), table.folders(""), table.check(|_| Ok(())));
            }
        }
    }
}
