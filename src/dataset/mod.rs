//! Opens stores, groups and arrays through zarrs and says what each array is. Reads metadata only.

mod element;

use crate::error::{Context, Error, Result};

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs::array::{Array, ArrayShardedExt, CodecChain, DataType, FillValue};
use zarrs::filesystem::FilesystemStore;
use zarrs::group::Group;
use zarrs::metadata::ArrayMetadata;
use zarrs::metadata_ext::codec::sharding::ShardingIndexLocation;
use zarrs::node::{Node, NodeMetadata};
use zarrs::plugin::ExtensionName;
use zarrs::storage::ReadableListableStorageTraits;

pub use element::{ByteFormat, ElementType, StoredType};

type Store = dyn ReadableListableStorageTraits;

/// The arrays of one store that a reader reads, in the order of its outputs.
#[derive(Debug)]
pub struct Dataset {
    /// One per output.
    pub arrays: Vec<ArrayInfo>,
}

/// One array: everything that planning, reading and decoding need to know of it.
pub struct ArrayInfo {
    /// The store as the user named it.
    pub store: String,
    /// Path of the array inside the store without leading slash; empty when the store is the array.
    pub name: String,
    /// Folder that store keys are relative to.
    pub root: PathBuf,
    /// Extents.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub element: ElementType,
    /// The fill value's bytes in native order.
    pub fill_value: Vec<u8>,
    /// One DALI letter per dimension, or empty.
    pub layout: String,
    /// Shape of a chunk: one store key.
    pub chunk_shape: Vec<u64>,
    /// How chunks are cut into what is decoded at once.
    pub sharding: Option<Sharding>,
    /// How a read chunk (inner chunk if sharded, else chunk) is encoded.
    pub codec: ReadCodec,
    array: Array<Store>,
}

/// A sharded array's inner structure.
pub struct Sharding {
    /// Shape of an inner chunk.
    pub inner_shape: Vec<u64>,
    /// Inner chunks of a sharded chunk in each dimension.
    pub inner_grid: Vec<u64>,
    /// Whether the shard index is at the start of the chunk.
    pub index_at_start: bool,
    /// How the shard index is encoded.
    pub index_codecs: CodecChain,
    /// Size of the encoded shard index.
    pub index_bytes: u64,
}

/// The codec chain of a read chunk, bound to the shape and type that it decodes to.
pub struct ReadCodec {
    /// The chain.
    pub chain: Arc<CodecChain>,
    /// Decoded shape.
    pub shape: Vec<NonZeroU64>,
    /// Decoded data type.
    pub data_type: DataType,
    /// The array's fill value.
    pub fill_value: FillValue,
}

impl ReadCodec {
    /// Whether the encoded bytes are the elements themselves.
    pub fn is_plain(&self) -> bool {
        self.chain.array_to_array_codecs().is_empty()
            && self.chain.bytes_to_bytes_codecs().is_empty()
            && self.chain.array_to_bytes_codec().name_v3().as_deref() == Some("bytes")
    }
}

impl std::fmt::Debug for ArrayInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.context(), self.shape, self.element.name())
    }
}

impl ArrayInfo {
    /// The array as the place of an error.
    pub fn context(&self) -> Context {
        Context { store: self.store.clone(), array: self.name.clone(), ..Context::default() }
    }

    /// A chunk as the place of an error.
    pub fn chunk_context(&self, chunk: &[u64]) -> Context {
        Context { chunk: Some(chunk.to_vec()), key: Some(self.chunk_key(chunk)), ..self.context() }
    }

    /// The store key of a chunk.
    pub fn chunk_key(&self, chunk: &[u64]) -> String {
        self.array.chunk_key(chunk).as_str().to_string()
    }

    /// Shape of what is decoded at once.
    pub fn read_chunk_shape(&self) -> &[u64] {
        self.sharding.as_ref().map_or(&self.chunk_shape, |sharding| &sharding.inner_shape)
    }

    /// Size of a decoded read chunk.
    pub fn read_chunk_bytes(&self) -> u64 {
        self.read_chunk_shape().iter().product::<u64>() * self.element.size_bytes() as u64
    }

    /// The array for zarrs' own reading, the plain path of the tests.
    pub fn zarrs_array(&self) -> &Array<Store> {
        &self.array
    }
}

impl Dataset {
    /// Opens the arrays named `names` in the store at `path`, or the array at `path` itself if there are none.
    ///
    /// # Errors
    /// Says what is at the path instead, which arrays there are, or what about an array cannot be read.
    pub fn open(path: &str, names: &[String]) -> Result<Self> {
        let root = Path::new(path);
        if !root.exists() {
            return Err(Error::StoreNotFound { path: path.into() });
        }
        if !root.is_dir() {
            return Err(Error::StoreIsFile { path: path.into() });
        }
        let metadata = |at: Context| {
            move |source: Box<dyn std::error::Error + Send + Sync>| Error::Metadata { at, source }
        };
        let at = Context { store: path.into(), ..Context::default() };
        let store = FilesystemStore::new(root).map_err(|e| metadata(at.clone())(e.into()))?;
        let store: Arc<Store> = Arc::new(store);

        let has = |file: &str| root.join(file).is_file();
        if !has("zarr.json") && !has(".zarray") && !has(".zgroup") {
            return Err(Error::NotZarr { path: path.into() });
        }
        let node = node_kind(&store, "/").map_err(metadata(at.clone()))?;
        if names.is_empty() {
            return match node {
                Some(NodeKind::Array) => Ok(Self { arrays: vec![ArrayInfo::open(path, root, &store, "")?] }),
                _ => Err(Error::GroupWithoutArrays { path: path.into(), present: present_arrays(&store) }),
            };
        }
        if node == Some(NodeKind::Array) {
            return Err(Error::ArrayIsNotGroup { path: path.into(), asked: names.to_vec() });
        }
        let arrays = names
            .iter()
            .map(|name| ArrayInfo::open(path, root, &store, name.trim_matches('/')))
            .collect::<Result<_>>()?;
        Ok(Self { arrays })
    }
}

#[derive(PartialEq, Eq)]
enum NodeKind {
    Array,
    Group,
}

/// What is at `path` of a store, or `None` if nothing is.
fn node_kind(
    store: &Arc<Store>,
    path: &str,
) -> std::result::Result<Option<NodeKind>, Box<dyn std::error::Error + Send + Sync>> {
    use zarrs::metadata::NodeMetadata::{Array, Group};
    use zarrs::storage::{ReadableStorageTraits, StoreKey};
    let prefix = path.trim_matches('/');
    let key = |file: &str| {
        StoreKey::new(if prefix.is_empty() { file.to_string() } else { format!("{prefix}/{file}") })
    };
    if let Some(bytes) = store.get(&key("zarr.json")?)? {
        return Ok(match serde_json::from_slice(&bytes)? {
            Array(_) => Some(NodeKind::Array),
            Group(_) => Some(NodeKind::Group),
        });
    }
    if store.size_key(&key(".zarray")?)?.is_some() {
        return Ok(Some(NodeKind::Array));
    }
    Ok(store.size_key(&key(".zgroup")?)?.map(|_| NodeKind::Group))
}

/// Every array below the root, for messages; empty where the store cannot be listed.
fn present_arrays(store: &Arc<Store>) -> Vec<String> {
    fn collect(nodes: &[Node], names: &mut Vec<String>) {
        for node in nodes {
            if matches!(node.metadata(), NodeMetadata::Array(_)) {
                names.push(node.path().as_str().trim_start_matches('/').to_string());
            }
            collect(node.children(), names);
        }
    }
    let mut names = vec![];
    if let Ok(nodes) =
        Group::open(store.clone(), "/").map_err(drop).and_then(|g| g.children(true).map_err(drop))
    {
        collect(&nodes, &mut names);
    }
    names.sort();
    names
}

impl ArrayInfo {
    fn open(path: &str, root: &Path, store: &Arc<Store>, name: &str) -> Result<Self> {
        let at = Context { store: path.into(), array: name.into(), ..Context::default() };
        let not_found = || Error::ArrayNotFound { at: at.clone(), present: present_arrays(store) };
        let unusable = |source| Error::Metadata { at: at.clone(), source };
        let node_path = format!("/{name}");
        match node_kind(store, &node_path) {
            Ok(Some(NodeKind::Array)) => {}
            Ok(_) => return Err(not_found()),
            Err(source) => return Err(unusable(source)),
        }
        let array = Array::open(store.clone(), &node_path).map_err(|e| unusable(e.into()))?;

        let data_type = array.data_type().clone();
        let element = ElementType::from_zarrs(&data_type).ok_or_else(|| Error::DataType {
            at: at.clone(),
            data_type: data_type.name_v3().map_or_else(|| format!("{data_type:?}"), |n| n.into_owned()),
        })?;
        let shape = array.shape().to_vec();
        let chunk_shape = regular_chunk_shape(&array, &at)?;
        let size = element.size_bytes() as u64;
        if chunk_shape.iter().try_fold(size, |bytes, &extent| bytes.checked_mul(extent)).is_none() {
            return Err(unusable(format!("its chunks {chunk_shape:?} are larger than memory can be").into()));
        }
        let codecs = array.codecs();
        let sharding = if array.is_exclusively_sharded() {
            Sharding::of(&codecs, &chunk_shape).map_err(unusable)?
        } else {
            None
        };
        let (sharding, chain) = match sharding {
            Some((sharding, inner)) => (Some(sharding), Arc::new(inner)),
            None => (None, codecs),
        };
        let read_shape = sharding.as_ref().map_or(&chunk_shape, |s| &s.inner_shape);
        let codec = ReadCodec {
            chain,
            shape: non_zero(read_shape),
            data_type,
            fill_value: array.fill_value().clone(),
        };
        Ok(Self {
            store: path.into(),
            name: name.into(),
            root: root.to_path_buf(),
            element,
            fill_value: array.fill_value().as_ne_bytes().to_vec(),
            layout: layout(&array),
            shape,
            chunk_shape,
            sharding,
            codec,
            array,
        })
    }
}

/// Extents of chunks, which zarrs has checked to be at least 1.
fn non_zero(shape: &[u64]) -> Vec<NonZeroU64> {
    shape.iter().map(|&n| NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN)).collect()
}

fn regular_chunk_shape(array: &Array<Store>, at: &Context) -> Result<Vec<u64>> {
    let grid = match array.metadata() {
        ArrayMetadata::V2(v2) => return Ok(v2.chunks.iter().map(|n| n.get()).collect()),
        ArrayMetadata::V3(v3) => &v3.chunk_grid,
    };
    let refused = || Error::ChunkGrid { at: at.clone(), grid: grid.name().to_string() };
    if grid.name() != "regular" {
        return Err(refused());
    }
    let configuration = grid.configuration().ok_or_else(refused)?;
    configuration
        .get("chunk_shape")
        .and_then(|shape| serde_json::from_value::<Vec<NonZeroU64>>(shape.clone()).ok())
        .map(|shape| shape.iter().map(|n| n.get()).collect())
        .ok_or_else(refused)
}

impl Sharding {
    /// Takes `sharding_indexed` apart into its index and the chain of its inner chunks. `None` where the inner
    /// chunks are shards again or where the size of the index depends on its contents: such chunks are read and
    /// decoded whole.
    fn of(
        codecs: &CodecChain,
        chunk_shape: &[u64],
    ) -> std::result::Result<Option<(Self, CodecChain)>, Box<dyn std::error::Error + Send + Sync>> {
        use zarrs::array::ArrayToBytesCodecTraits;
        use zarrs::array::{BytesRepresentation, CodecMetadataOptions, data_type};

        let metadata = codecs
            .array_to_bytes_codec()
            .configuration_v3(&CodecMetadataOptions::default())
            .ok_or("the sharding codec has no configuration")?;
        let ShardingCodecConfiguration::V1(configuration) =
            serde_json::from_value(serde_json::to_value(metadata)?)?
        else {
            return Err("this version of the sharding codec is not supported".into());
        };
        let inner = CodecChain::from_metadata(&configuration.codecs)?;
        if inner.array_to_bytes_codec().name_v3().as_deref() == Some("sharding_indexed") {
            return Ok(None);
        }
        let inner_shape: Vec<u64> = configuration.chunk_shape.iter().map(|n| n.get()).collect();
        let divides = inner_shape.len() == chunk_shape.len()
            && chunk_shape.iter().zip(&inner_shape).all(|(chunk, inner)| chunk % inner == 0);
        if !divides {
            return Err(format!("inner chunks {inner_shape:?} do not divide chunks {chunk_shape:?}").into());
        }
        let inner_grid: Vec<u64> = chunk_shape.iter().zip(&inner_shape).map(|(c, i)| c / i).collect();
        let index_codecs = CodecChain::from_metadata(&configuration.index_codecs)?;
        let mut index_shape = non_zero(&inner_grid);
        index_shape.extend(NonZeroU64::new(2));
        let representation = index_codecs.encoded_representation(
            &index_shape,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
        )?;
        let BytesRepresentation::FixedSize(index_bytes) = representation else { return Ok(None) };
        let sharding = Self {
            inner_shape,
            inner_grid,
            index_at_start: configuration.index_location == ShardingIndexLocation::Start,
            index_codecs,
            index_bytes,
        };
        Ok(Some((sharding, inner)))
    }
}

/// DALI's layout from the dimensions' names: single letters and a few known names, else empty.
fn layout(array: &Array<Store>) -> String {
    let names: Option<Vec<String>> = match array.dimension_names() {
        Some(names) => names.iter().cloned().collect(),
        // xarray's convention for Zarr v2.
        None => array
            .attributes()
            .get("_ARRAY_DIMENSIONS")
            .and_then(|names| serde_json::from_value(names.clone()).ok()),
    };
    let Some(names) = names.filter(|names| names.len() == array.dimensionality()) else {
        return String::new();
    };
    let letters: Option<String> = names.iter().map(|name| layout_letter(name)).collect();
    match letters {
        Some(letters) if (1..letters.len()).all(|i| !letters[..i].contains(&letters[i..=i])) => letters,
        _ => String::new(),
    }
}

fn layout_letter(name: &str) -> Option<char> {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "time" => Some('T'),
        "level" | "z" | "depth" => Some('D'),
        "latitude" | "lat" | "y" => Some('H'),
        "longitude" | "lon" | "x" => Some('W'),
        "channel" | "c" | "variable" => Some('C'),
        _ => {
            let mut letters = name.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) if letter.is_ascii_alphabetic() => Some(letter.to_ascii_uppercase()),
                _ => None,
            }
        }
    }
}
