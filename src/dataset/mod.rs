//! Opens stores, groups and arrays through zarrs and says what each array is. Reads metadata only.

mod cf;
mod chain;
mod codecs;
mod declared;
mod element;
mod fields;
mod fixed_scale_offset;
mod float16;
mod follow;
mod join;
mod json;
mod layout;
mod open;
mod paths;
mod stored;

use crate::error::{Context, Error, Result};
use crate::store::{Access, Session, Store, Version};

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use zarrs::array::{Array, CodecChain};

pub use cf::Cf;
pub use chain::ReadCodec;
pub use declared::Declared;
pub use element::{ByteFormat, ElementType, StoredType};
pub use fixed_scale_offset::FixedScaleOffset;
pub(crate) use float16::{double_to_half, half_to_single, single_to_half};
pub use join::{Joined, VALUE_ATTRIBUTES};
pub(crate) use layout::stacked as stacked_layout;

/// zarrs reads no files here: metadata are given to it, and chunks are read by others.
type NoStore = ();
type Source = Box<dyn std::error::Error + Send + Sync>;

/// The arrays that a reader reads, in the order that they were asked for.
#[derive(Debug)]
pub struct Dataset {
    /// One per name.
    pub arrays: Vec<Joined>,
}

/// One array of one store: everything that planning, reading and decoding need to know of it.
///
/// Complex numbers are two elements, the real and the imaginary part, in a last dimension of their own: shapes and
/// strides have it, [`ReadCodec`] and [`Sharding::inner_grid`] have not.
pub struct ArrayInfo {
    /// The store as the user named it.
    pub store: String,
    /// Path of the array inside the store without leading slash; empty when the store is the array.
    pub name: String,
    /// Where the objects of the store are.
    pub objects: Arc<dyn Store>,
    /// Extents.
    pub shape: Vec<u64>,
    /// Name of the data type, the same in both Zarr versions: as in v3 metadata, `datetime64[ns]` for points in time.
    pub data_type: String,
    /// Type of the elements that are handed out if nothing else is asked for.
    pub element: ElementType,
    /// The type that the metadata declare; of complex numbers, that of their parts.
    pub logical: StoredType,
    /// How elements lie in a decoded read chunk. Differs from `logical` only by `fixed_scale_offset`.
    pub stored: StoredType,
    /// How stored elements become logical ones.
    pub fixed_scale_offset: Option<FixedScaleOffset>,
    /// Elements of one value: 2 for complex numbers, else 1.
    pub components: u64,
    /// The bytes of the fill value, in the logical type and native order, `components` elements.
    pub fill_value: Vec<u8>,
    /// Whether the fill value is also what CF calls `_FillValue`: that of a Zarr v2 array, unless it has none.
    pub fill_is_cf: bool,
    /// One DALI letter per dimension, or empty.
    pub layout: String,
    /// One per dimension of the store, or none.
    pub dimension_names: Vec<String>,
    /// Shape of a chunk: one store key.
    pub chunk_shape: Vec<u64>,
    /// Elements between neighbours along each dimension in a decoded read chunk; row-major unless the chain
    /// transposes.
    pub chunk_strides: Vec<u64>,
    /// How chunks are cut into what is decoded at once.
    pub sharding: Option<Sharding>,
    /// How a read chunk (inner chunk if sharded, else chunk) is encoded.
    pub codec: ReadCodec,
    metadata_file: MetadataFile,
    array: Array<NoStore>,
}

/// The largest metadata file that is read, in bytes: that of an array has some kilobytes, consolidated metadata of many arrays
/// some megabytes.
const MOST_METADATA_BYTES: u64 = 64 << 20;

/// The file that metadata were read from, and its version.
#[derive(Clone)]
struct MetadataFile {
    key: String,
    /// That of the file when it last had these bytes.
    version: Arc<Mutex<Version>>,
    /// Of its bytes.
    digest: u64,
}

impl MetadataFile {
    fn new(key: String, version: Version, bytes: &[u8]) -> Self {
        Self { key, version: Arc::new(Mutex::new(version)), digest: digest(bytes) }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// A sharded array's inner structure.
pub struct Sharding {
    /// Shape of an inner chunk.
    pub inner_shape: Vec<u64>,
    /// Inner chunks of a sharded chunk in each stored dimension.
    pub inner_grid: Vec<u64>,
    /// Whether the shard index is at the start of the chunk.
    pub index_at_start: bool,
    /// How the shard index is encoded.
    pub index_codecs: CodecChain,
    /// Size of the encoded shard index.
    pub index_bytes: u64,
}

impl Sharding {
    /// Inner chunks of a sharded chunk.
    pub fn inner_chunks(&self) -> u64 {
        self.inner_grid.iter().product()
    }

    /// The sharded chunk of an inner chunk at `cell` of the whole array's grid of inner chunks. Of the stored dimensions, so
    /// that the one of complex numbers' parts falls away.
    pub fn chunk_of(&self, cell: &[u64]) -> Vec<u64> {
        cell.iter().zip(&self.inner_grid).map(|(cell, n)| cell / n).collect()
    }

    /// Where the index is in a file of so many bytes, unless it is too small for one.
    pub fn index_range(&self, file_bytes: u64) -> Option<Range<u64>> {
        let after = file_bytes.checked_sub(self.index_bytes)?;
        let start = if self.index_at_start { 0 } else { after };
        Some(start..start + self.index_bytes)
    }
}

impl std::fmt::Debug for ArrayInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.context(), self.shape, self.data_type)
    }
}

impl ArrayInfo {
    /// The array as the place of an error.
    pub fn context(&self) -> Context {
        Context { store: self.store.clone(), array: self.name.clone(), ..Context::default() }
    }

    /// A chunk as the place of an error. `cell` may have the dimension of complex numbers' parts or not.
    pub fn chunk_context(&self, cell: &[u64]) -> Context {
        let chunk = &cell[..self.array.dimensionality()];
        Context { chunk: Some(chunk.to_vec()), key: Some(self.chunk_key(chunk)), ..self.context() }
    }

    /// Bytes of the object that a chunk is. `None` if it is missing.
    ///
    /// # Errors
    /// What the store says.
    pub fn stored_chunk_bytes(&self, session: &Session, chunk: &[u64]) -> Result<Option<u64>> {
        let found = session.head(&self.chunk_key(chunk));
        let failed = |source| Error::Io { at: self.chunk_context(chunk), source };
        Ok(found.map_err(failed)?.map(|head| head.object_bytes))
    }

    /// The store key of a chunk.
    pub fn chunk_key(&self, chunk: &[u64]) -> String {
        self.array.chunk_key(chunk).as_str().to_string()
    }

    /// Checks that the array is still the one that was opened, so that a chunk that is not there may be believed to be missing.
    ///
    /// # Errors
    /// Says that its metadata are gone or others.
    pub fn check_present(&self) -> Result<()> {
        let MetadataFile { key, version, digest: known } = &self.metadata_file;
        let at = || Context { key: Some(key.clone()), ..self.context() };
        let failed = |source| Error::Io { at: at(), source };
        let version = || version.lock().unwrap_or_else(PoisonError::into_inner);
        let session = Session::new(&self.objects).map_err(failed)?;
        let problem = match session.head(key).map_err(failed)? {
            Some(found) if found.version == *version() => return Ok(()),
            // Written again with the same bytes, or copied back.
            Some(_) => match session.read_whole(key, MOST_METADATA_BYTES).map_err(failed)? {
                Some((bytes, found)) if digest(&bytes) == *known => {
                    *version() = found;
                    return Ok(());
                }
                Some(_) => {
                    "its metadata changed while it was read, so that chunks that are not there may be elsewhere; \
                            build the pipeline again"
                }
                None => Self::GONE,
            },
            None => Self::GONE,
        };
        Err(Error::StoreChanged { at: at(), problem })
    }

    const GONE: &str = "the store went away while it was read: this metadata file is not there any more; mount or restore it, \
                        and build the pipeline again";

    /// Shape of what is decoded at once.
    pub fn read_chunk_shape(&self) -> &[u64] {
        self.sharding.as_ref().map_or(&self.chunk_shape, |sharding| &sharding.inner_shape)
    }

    /// Size of a decoded read chunk.
    pub fn read_chunk_bytes(&self) -> u64 {
        self.read_chunk_shape().iter().product::<u64>() * self.stored.size_bytes() as u64
    }

    /// How many dimensions the array has in its store.
    pub fn stored_dimensions(&self) -> usize {
        self.array.dimensionality()
    }

    /// The fill value of every element. `None` where the parts of complex numbers differ in it.
    pub fn fill_element(&self) -> Option<&[u8]> {
        let mut parts = self.fill_value.chunks_exact(self.logical.size_bytes());
        let first = parts.next()?;
        parts.all(|part| part == first).then_some(first)
    }

    /// Makes `decoded` a read chunk that holds nothing but the fill value, for where it is no single element.
    pub fn fill(&self, decoded: &mut [u8]) {
        let mut filled = self.fill_value.len().min(decoded.len());
        decoded[..filled].copy_from_slice(&self.fill_value[..filled]);
        while filled > 0 && filled < decoded.len() {
            let more = filled.min(decoded.len() - filled);
            decoded.copy_within(..more, filled);
            filled += more;
        }
    }

    /// The array's attributes.
    pub fn attributes(&self) -> &Map<String, Value> {
        self.array.attributes()
    }
}

impl Dataset {
    /// Opens the arrays named `names` in the stores that `paths` mean, or the arrays that the stores themselves are
    /// if there are no names. Several stores are joined along the first dimension.
    ///
    /// # Errors
    /// Says what is at a path instead, which arrays there are, what about an array cannot be read, or which stores do
    /// not fit together.
    pub fn open(paths: &[String], names: &[String], access: &Access) -> Result<Self> {
        let stores = paths::expand(paths)?;
        let mut axes = None;
        let mut parts: Vec<Vec<ArrayInfo>> = vec![];
        for store in &stores {
            let arrays = open::OpenStore::new(store, access)?.arrays(names)?;
            if axes.is_none() {
                axes = Some(follow::follow(&arrays)?);
            }
            parts.resize_with(arrays.len(), Vec::new);
            parts.iter_mut().zip(arrays).for_each(|(parts, array)| parts.push(array));
        }
        let joined = parts.into_iter().zip(axes.unwrap_or_default());
        Ok(Self { arrays: joined.map(|(parts, axes)| Joined::new(parts, axes)).collect::<Result<_>>()? })
    }

    /// Names of all arrays in the first of the stores that `paths` mean, sorted; one empty name if it is an array itself.
    ///
    /// # Errors
    /// Says what is at a path instead, or that there is no array.
    pub fn names(paths: &[String], access: &Access) -> Result<Vec<String>> {
        let stores = paths::expand(paths)?;
        let names = stores.iter().map(|store| open::OpenStore::new(store, access)?.names());
        Ok(names.collect::<Result<Vec<_>>>()?.swap_remove(0))
    }

    /// What the metadata of an array declare, in the first of the stores that `paths` mean. Whatever they leave open or
    /// nobody can read is empty.
    ///
    /// # Errors
    /// Paths at which there is no store.
    pub fn declared(paths: &[String], name: &str, access: &Access) -> Result<Declared> {
        let stores = paths::expand(paths)?;
        Ok(open::OpenStore::new(&stores[0], access)?.declared(name))
    }

    /// One part of an array.
    pub fn part(&self, array: usize, part: usize) -> &ArrayInfo {
        &self.arrays[array].parts[part]
    }
}

/// Extents of chunks, which zarrs has checked to be at least 1.
fn non_zero(shape: &[u64]) -> Vec<NonZeroU64> {
    shape.iter().map(|&n| NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN)).collect()
}
