//! Opens stores and arrays: from metadata on disk to what the other rooms need to know.

use super::array::ArrayInfo;
use super::chain::ReadCodec;
use super::codec_defaults;
use super::codecs::{self, Culprit, drop_bitround};
use super::declared::Declared;
use super::element::StoredType;
use super::fields;
use super::fixed_scale_offset::FixedScaleOffset;
use super::layout::{NoStore, layout, names};
use super::metadata::{self, complete_v2, is_v2, regular_chunk_shape};
use super::metadata_file::{MOST_METADATA_BYTES, MetadataFile};
use super::ome;
use super::sharding::Sharding;
use crate::error::{Context, Error, Obstacle, Result, Source, log_once};
use crate::json;
use crate::store::{self, Access, FileBytes, Session, Sessions, Store, Version};

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use serde_json::{Value, from_value};
use zarrs::array::{
    AdditionalFieldUnsupportedError, Array, ArrayCreateError, ArrayMetadataV2, ArrayMetadataV3,
    ArrayShardedExt,
};
use zarrs::metadata::ArrayMetadata;
use zarrs::plugin::ExtensionName;

/// A store that was opened.
pub(super) struct OpenStore {
    /// As the user named it, with the snapshot that is read if there are several.
    path: String,
    store: Arc<dyn Store>,
    /// Asks for metadata.
    session: Session,
    /// The first metadata file that could not be read for lack of permission. Without the permission to list, some stores answer so for files
    /// that are absent.
    denied: RefCell<Option<Error>>,
    /// The metadata of many nodes in one file, of stores where each file costs a request. In a folder the files of the nodes
    /// themselves are read, which are never behind them.
    consolidated: Option<Consolidated>,
    /// The attributes of groups that were looked at, by metadata file.
    attributes: RefCell<HashMap<String, Value>>,
    /// Metadata files that were read or are absent, by key, of stores where each costs a request.
    read: RefCell<HashMap<String, FileBytes>>,
}

/// Consolidated metadata.
struct Consolidated {
    /// The metadata files that it stands for, by key.
    files: BTreeMap<String, Value>,
    /// The version of the file that it is in.
    version: Version,
}

/// What is at a place in the hierarchy.
enum Node {
    /// An array: its metadata, of which the attributes are a part in both versions, and the file that they were read from.
    Array(Value, MetadataFile),
    Group,
}

impl Consolidated {
    /// Names of the arrays, sorted.
    fn arrays(&self) -> Vec<String> {
        let array = |(key, metadata): (&String, &Value)| {
            let (name, file) = key.rsplit_once('/').unwrap_or(("", key));
            let is_array = file == ".zarray" || (file == "zarr.json" && metadata["node_type"] == "array");
            (is_array && !name.is_empty()).then(|| name.to_string())
        };
        self.files.iter().filter_map(array).collect()
    }
}

impl OpenStore {
    pub fn new(path: &str, access: &Access, sessions: &Sessions) -> Result<Self> {
        let store = store::open(path, access)?;
        let path = store::without_secrets(path);
        let unreadable = |source| Error::Unreadable { path: path.clone(), source };
        let session = sessions.with(&store).map_err(unreadable)?;
        let mut store = Self {
            path: path.clone(),
            store,
            session,
            denied: RefCell::default(),
            consolidated: None,
            attributes: RefCell::default(),
            read: RefCell::default(),
        };
        if store.store.folder().is_none() {
            store.consolidated = store.read_consolidated()?;
        }
        if let Some(snapshot) = store.store.snapshot() {
            store.path = store::pinned(&path, &snapshot);
        }
        for file in ["zarr.json", ".zarray", ".zgroup"] {
            if store.has("", file)? {
                return Ok(store);
            }
        }
        Err(store.denied.take().unwrap_or_else(|| Error::NotZarr { path }))
    }

    /// The consolidated metadata of the root: in its `zarr.json` (format 3), or in `.zmetadata` (format 2).
    fn read_consolidated(&self) -> Result<Option<Consolidated>> {
        let root = self.get("", "zarr.json")?;
        // A snapshot has the files of all nodes at hand.
        if self.store.snapshot().is_some() {
            return Ok(None);
        }
        if let Some((root, file)) = root {
            let nodes = root.pointer("/consolidated_metadata/metadata").and_then(Value::as_object);
            return Ok(nodes.map(|nodes| {
                let mut files: BTreeMap<_, _> =
                    nodes.iter().map(|(name, node)| (key(name, "zarr.json"), node.clone())).collect();
                files.insert("zarr.json".into(), root.clone());
                Consolidated { files, version: file.source }
            }));
        }
        let Some((root, file)) = self.get("", ".zmetadata")? else { return Ok(None) };
        let files = root.get("metadata").and_then(Value::as_object);
        let copied = |files: &serde_json::Map<String, Value>| {
            files.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Ok(files.map(|files| Consolidated { files: copied(files), version: file.source }))
    }

    /// The arrays of those names, or the array that the store itself is if there are none.
    pub fn arrays(&self, names: &[String]) -> Result<Vec<ArrayInfo>> {
        match (self.node("")?, names) {
            (Some(Node::Array(metadata, file)), []) => Ok(vec![self.array("", metadata, file)?]),
            (Some(Node::Array(..)), names) => {
                Err(Error::ArrayIsNotGroup { path: self.path.clone(), asked: names.to_vec() })
            }
            (node, []) => {
                let denied = self.denied.take().filter(|_| node.is_none());
                Err(denied.unwrap_or_else(|| Error::GroupWithoutArrays {
                    path: self.path.clone(),
                    present: self.present_arrays(),
                }))
            }
            (_, names) => {
                let names: Vec<&str> = names.iter().map(|name| array_name(name)).collect::<Result<_>>()?;
                self.read_together(&names);
                names.into_iter().map(|name| self.named_array(name)).collect()
            }
        }
    }

    /// Names of the arrays that are there, or one empty name if the store is an array itself.
    pub fn names(&self) -> Result<Vec<String>> {
        let node = self.node("");
        if matches!(node, Ok(Some(Node::Array(..)))) {
            return Ok(vec![String::new()]);
        }
        let unreadable = |source| Error::Unreadable { path: self.path.clone(), source };
        if self.consolidated.is_none() {
            self.session.list("").map_err(unreadable)?;
        }
        match self.present_arrays() {
            names if names.is_empty() => {
                node?;
                Err(Error::GroupWithoutArrays { path: self.path.clone(), present: names })
            }
            // Arrays can be read where it is only not known what the group is.
            names => Ok(names),
        }
    }

    /// What the metadata of an array declare.
    pub fn declared(&self, name: &str) -> Declared {
        match self.node(name.trim_matches('/')) {
            Ok(Some(Node::Array(metadata, _))) => Declared::new(&metadata),
            _ => Declared::default(),
        }
    }

    fn unreadable(&self, key: &str) -> impl FnOnce(io::Error) -> Error {
        let path = format!("{}/{key}", self.path.trim_end_matches('/'));
        move |source| Error::Unreadable { path, source }
    }

    fn has(&self, name: &str, file: &str) -> Result<bool> {
        let key = key(name, file);
        if self.consolidated.as_ref().is_some_and(|consolidated| consolidated.files.contains_key(&key)) {
            return Ok(true);
        }
        if self.store.folder().is_none() {
            // A server may refuse to tell the length of what it lets read.
            return Ok(self.get(name, file)?.is_some());
        }
        Ok(self.session.head(&key).map_err(self.unreadable(&key))?.is_some())
    }

    /// What a metadata file says, and the file that it was read from.
    fn get(&self, name: &str, file: &str) -> Result<Option<(Value, MetadataFile)>> {
        let key = key(name, file);
        if let Some(consolidated) = &self.consolidated
            && let Some(value) = consolidated.files.get(&key)
        {
            let file = MetadataFile::consolidated(key, consolidated.version.clone());
            return Ok(Some((value.clone(), file)));
        }
        let found = match self.read(name, file) {
            // It may be absent in a store that may not be listed. Other refusals, such as of a signature, are of all there is.
            Err(error) if Obstacle::is_forbidden(&error) => {
                self.denied.borrow_mut().get_or_insert_with(|| self.unreadable(&key)(error));
                None
            }
            found => found.map_err(self.unreadable(&key))?,
        };
        let Some((bytes, version)) = found else { return Ok(None) };
        let value = json::parse(&bytes).map_err(|error| {
            match self.store.costs_requests() && is_web_page(&bytes) {
                true => self.unreadable(&key)(web_page()),
                false => self.unusable(name, &key, format!("it is no JSON ({error})").into()),
            }
        })?;
        Ok(Some((value, MetadataFile::new(key, version, &bytes))))
    }

    /// The files of a node in format 2; the last one is of the root.
    const OF_VERSION_2: [&str; 4] = [".zarray", ".zgroup", ".zattrs", ".zmetadata"];

    /// Requests the metadata files of several nodes together, in stores where each file costs a request: one round trip for nodes of format 3, two for
    /// nodes of format 2. [`OpenStore::get`] says what is wrong with a file when that file is needed.
    fn read_together(&self, names: &[&str]) {
        if !self.store.costs_requests() || names.len() < 2 {
            return;
        }
        let is_absent = |name: &str| matches!(self.read.borrow().get(&key(name, "zarr.json")), Some(None));
        let is_known = |key: &String| {
            let consolidated = self.consolidated.as_ref();
            self.read.borrow().contains_key(key) || consolidated.is_some_and(|it| it.files.contains_key(key))
        };
        for files in [&["zarr.json"][..], &Self::OF_VERSION_2[..3]] {
            let asked = names.iter().filter(|name| files.len() == 1 || is_absent(name));
            let keys = asked.flat_map(|name| files.iter().map(|file| key(name, file)));
            let keys: Vec<String> = keys.filter(|key| !is_known(key)).collect();
            let _ = self.request(keys);
        }
    }

    /// Requests metadata files together and keeps those that were read or are absent. Returns the first one.
    fn request(&self, keys: Vec<String>) -> io::Result<FileBytes> {
        let found = self.session.read_each(&keys, MOST_METADATA_BYTES);
        let (mut read, mut first) = (self.read.borrow_mut(), None);
        for (key, found) in keys.into_iter().zip(found) {
            if let Ok(bytes) = &found {
                read.insert(key, bytes.clone());
            }
            first.get_or_insert(found);
        }
        first.unwrap_or(Ok(None))
    }

    /// Reads a metadata file. In stores where each file costs a request, each file is requested once, and the files that a node has in format 2 are
    /// requested together, in one round trip.
    fn read(&self, name: &str, file: &str) -> io::Result<FileBytes> {
        let asked = key(name, file);
        if !self.store.costs_requests() {
            return self.session.read_whole(&asked, MOST_METADATA_BYTES);
        }
        if let Some(found) = self.read.borrow().get(&asked) {
            return Ok(found.clone());
        }
        let mut keys = vec![asked.clone()];
        if Self::OF_VERSION_2.contains(&file) {
            let all = if name.is_empty() { &Self::OF_VERSION_2[..] } else { &Self::OF_VERSION_2[..3] };
            keys.extend(all.iter().map(|file| key(name, file)).filter(|key| *key != asked));
        }
        self.request(keys)
    }

    fn unusable(&self, name: &str, key: &str, source: Source) -> Error {
        let key = Some(key.to_string());
        Error::Metadata {
            at: Context { store: self.path.clone(), array: name.into(), key, ..Context::default() },
            source: match source.to_string() {
                text if text.contains("untagged enum") => fields::readable(text).into(),
                _ => source,
            },
        }
    }

    /// What is at `name`, or `None` if nothing is.
    fn node(&self, name: &str) -> Result<Option<Node>> {
        if let Some((metadata, file)) = self.get(name, "zarr.json")? {
            if let Some(problem) = fields::node_problem(&metadata) {
                return Err(self.unusable(name, &file.key, problem.into()));
            }
            let is_array = metadata["node_type"] == "array";
            return Ok(Some(if is_array { Node::Array(metadata, file) } else { Node::Group }));
        }
        let Some((mut metadata, file)) = self.get(name, ".zarray")? else {
            return Ok(self.has(name, ".zgroup")?.then_some(Node::Group));
        };
        if !is_v2(&metadata) {
            let problem = fields::problem(&metadata, true).unwrap_or_default();
            return Err(self.unusable(name, &file.key, problem.into()));
        }
        if let (Some((attributes, _)), Some(metadata)) =
            (self.get(name, ".zattrs")?, metadata.as_object_mut())
        {
            metadata.insert("attributes".into(), attributes);
        }
        Ok(Some(Node::Array(metadata, file)))
    }

    /// Every array below the root, whether it can be read or not, sorted; none where the store cannot be listed. What cannot
    /// be looked at is taken for an array, so that it is said why.
    fn present_arrays(&self) -> Vec<String> {
        if let Some(consolidated) = &self.consolidated {
            return consolidated.arrays();
        }
        let mut names = vec![];
        let mut seen = HashSet::new();
        let mut groups = vec![String::new()];
        while let Some(group) = groups.pop() {
            let Ok(listing) = self.session.list(&group) else {
                names.extend(Some(group).filter(|group| !group.is_empty()));
                continue;
            };
            // A link to a folder above would be followed without end.
            if listing.identity.is_some_and(|identity| !seen.insert(identity)) {
                continue;
            }
            for below in listing.names {
                let name = key(&group, &below);
                match self.node(&name) {
                    Ok(Some(Node::Array(..))) | Err(_) => names.push(name),
                    Ok(_) => groups.push(name),
                }
            }
        }
        names.sort();
        names
    }

    fn named_array(&self, name: &str) -> Result<ArrayInfo> {
        match self.node(name)? {
            Some(Node::Array(metadata, file)) => self.array(name, metadata, file),
            _ => {
                let at = Context { store: self.path.clone(), array: name.into(), ..Context::default() };
                let denied = self.denied.take();
                Err(denied.unwrap_or_else(|| Error::ArrayNotFound { at, present: self.present_arrays() }))
            }
        }
    }

    fn array(&self, name: &str, mut metadata: Value, file: MetadataFile) -> Result<ArrayInfo> {
        let at = Context { store: self.path.clone(), array: name.into(), ..Context::default() };
        let version_2 = is_v2(&metadata);
        let problem = fields::problem(&metadata, version_2);
        // What is wrong with a field says more than zarrs does.
        let unusable = |source| {
            self.unusable(name, &file.key, problem.as_deref().map_or(source, |problem| problem.into()))
        };
        let time = metadata::time_type(&metadata);
        let fill_is_cf = is_v2(&metadata) && metadata.get("fill_value").is_some_and(|fill| !fill.is_null());
        drop_bitround(&mut metadata);
        complete_v2(&mut metadata);

        let (declared, type_name) = metadata::data_type(&metadata).map_err(unusable)?;
        let declared = declared.and_then(|declared| Some((StoredType::from_zarrs(&declared)?, declared)));
        let Some(((logical, components), declared)) = declared else {
            return Err(Error::DataType { at, data_type: type_name });
        };
        codec_defaults::complete(&mut metadata, logical.size_bytes() as u64 * components);
        let type_name = time.or_else(|| declared.name_v3().map(|name| name.into())).unwrap_or(type_name);
        let logical_fill = metadata.get("fill_value").cloned();
        let element = Some(logical).filter(|_| components == 1);
        let (fixed_scale_offset, array) = self.checked_array(&at, &mut metadata, element, unusable)?;
        let stored_type = array.data_type().clone();
        let (stored, fill_value) = match fixed_scale_offset {
            None => (logical, array.fill_value().clone()),
            Some(filter) => {
                let fill = metadata::fill_value(&declared, logical_fill, &metadata).map_err(unusable)?;
                (StoredType::Element(filter.astype), fill)
            }
        };

        let stored_chunk_shape = regular_chunk_shape(&array, &at)?;
        let size = stored.size_bytes() as u64 * components;
        if stored_chunk_shape.iter().try_fold(size, |bytes, &extent| bytes.checked_mul(extent)).is_none() {
            let problem = format!("its chunks {stored_chunk_shape:?} are larger than memory can be");
            return Err(unusable(problem.into()));
        }
        let codecs = array.codecs();
        let sharding = match array.is_exclusively_sharded() {
            true => Sharding::of(&codecs, &stored_chunk_shape).map_err(unusable)?,
            false => None,
        };
        let (chain, read_shape) = match &sharding {
            Some((sharding, inner)) => (inner, &sharding.inner_shape),
            None => (&*codecs, &stored_chunk_shape),
        };
        let (codec, mut chunk_strides) =
            ReadCodec::new(chain, read_shape, stored_type, array.fill_value().clone()).map_err(unusable)?;

        let mut dimension_names = names(&array);
        if dimension_names.is_empty() {
            dimension_names = self.axes_of_image(name, array.dimensionality(), version_2);
        }
        let mut shape = array.shape().to_vec();
        let mut chunk_shape = stored_chunk_shape;
        let mut sharding = sharding.map(|(sharding, _)| sharding);
        if components > 1 {
            // From here on the parts of complex numbers are a last dimension.
            chunk_strides.iter_mut().for_each(|stride| *stride *= components);
            chunk_strides.push(1);
            let inner_shape = sharding.as_mut().map(|sharding| &mut sharding.inner_shape);
            [&mut shape, &mut chunk_shape]
                .into_iter()
                .chain(inner_shape)
                .for_each(|shape| shape.push(components));
        }
        Ok(ArrayInfo {
            store: self.path.clone(),
            name: name.into(),
            objects: self.store.clone(),
            metadata_file: file,
            data_type: type_name,
            element: logical.widened(),
            logical,
            stored,
            fixed_scale_offset,
            components,
            fill_value: fill_value.as_ne_bytes().to_vec(),
            fill_is_cf,
            layout: layout(&dimension_names, components),
            dimension_names,
            shape,
            chunk_shape,
            chunk_strides,
            sharding,
            codec,
            array,
        })
    }

    /// The names that the OME-Zarr image around an array gives to its dimensions; none without an image.
    fn axes_of_image(&self, name: &str, dimensions: usize, version_2: bool) -> Vec<String> {
        let mut group = name;
        while !group.is_empty() {
            group = group.rsplit_once('/').map_or("", |(above, _)| above);
            let path = name[group.len()..].trim_start_matches('/');
            let Some(axes) = ome::axes(&self.attributes_of(group, version_2), path) else { continue };
            if axes.len() == dimensions && axes.iter().collect::<HashSet<_>>().len() == dimensions {
                return axes;
            }
            log_once(&format!(
                "{}/{name}: the metadata of its OME-Zarr image name the axes {axes:?}, which are no names of its \
                 {dimensions} dimensions; it is read without names",
                self.path.trim_end_matches('/')
            ));
            break;
        }
        vec![]
    }

    /// The attributes of a group; null if they cannot be read, which is no reason to refuse an array in it.
    fn attributes_of(&self, group: &str, version_2: bool) -> Value {
        let file = if version_2 { ".zattrs" } else { "zarr.json" };
        let mut known = self.attributes.borrow_mut();
        let read = || {
            let denied = self.denied.take();
            let found = self.get(group, file).ok().flatten().map(|(value, _)| value);
            self.denied.replace(denied);
            match version_2 {
                true => found.unwrap_or_default(),
                false => found.and_then(|value| value.get("attributes").cloned()).unwrap_or_default(),
            }
        };
        known.entry(key(group, file)).or_insert_with(read).clone()
    }

    /// zarrs' array of metadata whose codecs were looked at, and the filter among them that is not zarrs'. `element`: the type of the elements,
    /// if they are one number each.
    fn checked_array(
        &self,
        at: &Context,
        metadata: &mut Value,
        element: Option<StoredType>,
        unusable: impl FnOnce(Source) -> Error,
    ) -> Result<(Option<FixedScaleOffset>, Array<NoStore>)> {
        let version_2 = is_v2(metadata);
        let refused = |codec: Culprit| Error::Codec {
            at: at.clone(),
            codec: codec.name,
            parameters: codec.parameters.to_string(),
            problem: codec.problem,
            known: codecs::known(version_2),
        };
        let fixed_scale_offset = FixedScaleOffset::take(metadata, element).map_err(refused)?;
        if let Some(delta) = Culprit::misordered_delta(metadata) {
            return Err(refused(delta));
        }
        if let Some(misplaced) = Culprit::misplaced(metadata) {
            return Err(refused(misplaced));
        }
        let array =
            self.zarrs_array(&at.array, metadata).map_err(|source| match Culprit::find(metadata) {
                Some(culprit) => refused(culprit),
                None => unusable(source),
            })?;
        Ok((fixed_scale_offset, array))
    }

    fn zarrs_array(&self, name: &str, metadata: &Value) -> Result<Array<NoStore>, Source> {
        let metadata = match is_v2(metadata) {
            true => ArrayMetadata::V2(from_value::<ArrayMetadataV2>(metadata.clone())?),
            false => {
                let metadata = from_value::<ArrayMetadataV3>(metadata.clone())?;
                let mut fields = metadata.additional_fields.iter();
                if let Some((name, field)) = fields.find(|(_, field)| field.must_understand()) {
                    let error = AdditionalFieldUnsupportedError::new(name.clone(), field.as_value().clone());
                    return Err(ArrayCreateError::from(error).into());
                }
                ArrayMetadata::V3(metadata)
            }
        };
        Ok(Array::new_with_metadata(Arc::new(()), &format!("/{name}"), metadata)?)
    }
}

/// Whether a server sent a page for a browser in place of a file.
fn is_web_page(bytes: &[u8]) -> bool {
    let start = String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).trim_start().to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

fn web_page() -> io::Error {
    let problem = "the server sent a web page in place of it".into();
    let remedy = "check the URL, and whether the server, or the network, asks for a login first";
    Obstacle::Request { problem, remedy }.into()
}

/// The name of an array, which is a path from the group.
fn array_name(given: &str) -> Result<&str> {
    let name = given.trim_matches('/');
    let is_name = name.is_empty() || name.split('/').all(|node| !matches!(node, "" | "." | ".."));
    is_name.then_some(name).ok_or_else(|| Error::Argument {
        name: "arrays",
        problem: format!(
            "\"{given}\" names no array; give paths from the group, such as \"a\" or \"group/a\""
        ),
    })
}

/// The key of a file in a folder, or of a folder in another one.
fn key(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_string() } else { format!("{folder}/{file}") }
}

#[cfg(test)]
mod tests;
