//! One array of one store, as its metadata say.

use super::chain::ReadCodec;
use super::element::{ElementType, StoredType};
use super::fixed_scale_offset::FixedScaleOffset;
use super::layout::NoStore;
use super::metadata_file::{MOST_METADATA_BYTES, MetadataFile, digest};
use super::sharding::Sharding;
use crate::error::{Context, Error, Result};
use crate::store::{Session, Store, Version};

use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value};
use zarrs::array::Array;

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
    pub(super) metadata_file: MetadataFile,
    pub(super) array: Array<NoStore>,
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

    /// The version that the array's metadata had when it was opened: that of its own file, or of consolidated metadata.
    pub fn metadata_version(&self) -> &Version {
        &self.metadata_file.source
    }

    /// Whether consolidated metadata said what the array is, so that no request for its own was needed.
    pub fn is_consolidated(&self) -> bool {
        self.metadata_file.digest.is_none()
    }

    /// Checks that the array is still the one that was opened, so that a chunk that is not there may be believed to be missing.
    ///
    /// # Errors
    /// Says that its metadata are gone or others.
    pub fn check_present(&self) -> Result<()> {
        let MetadataFile { key, version, digest: known, .. } = &self.metadata_file;
        let at = || Context { key: Some(key.clone()), ..self.context() };
        let failed = |source| Error::Io { at: at(), source };
        let version = || version.lock().unwrap_or_else(PoisonError::into_inner);
        let session = Session::new(&self.objects, Session::WHILE_READING).map_err(failed)?;
        // In other stores it costs a request to ask for the version, and no more to ask for the bytes.
        if self.objects.folder().is_some()
            && session.head(key).map_err(failed)?.is_some_and(|head| head.version == *version())
        {
            return Ok(());
        }
        let problem = match session.read_whole(key, MOST_METADATA_BYTES).map_err(failed)? {
            // Written again with the same bytes, or copied back.
            Some((bytes, found)) if known.is_none_or(|known| digest(&bytes) == known) => {
                *version() = found;
                return Ok(());
            }
            Some(_) => {
                "its metadata changed while it was read, so that chunks that are not there may be elsewhere; \
                        build the pipeline again"
            }
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::store::Access;

    use serde_json::json;

    /// An array of that type and shape, in chunks of at most 2 x 3 x 3 x ..., whose metadata have further fields.
    pub fn array(data_type: &str, shape: &[u64], more: Value) -> (ArrayInfo, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let chunk_shape: Vec<u64> =
            shape.iter().enumerate().map(|(d, &n)| n.min(if d == 0 { 2 } else { 3 })).collect();
        let mut metadata = json!({
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": data_type, "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        });
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::fs::write(folder.path().join("zarr.json"), metadata.to_string()).unwrap();
        let path = folder.path().to_str().unwrap().to_string();
        let mut dataset = Dataset::open(&[path], &[], &Access::to_folders(true)).unwrap();
        (dataset.arrays.remove(0).parts.remove(0), folder)
    }

    #[test]
    fn errors_name_the_chunk_and_its_key() {
        let (array, _folder) = array("complex64", &[6, 5], json!({"fill_value": [1.0, 2.0]}));
        let expected = Context {
            store: array.store.clone(),
            chunk: Some(vec![2, 1]),
            key: Some("c/2/1".into()),
            ..Context::default()
        };
        // With the dimension of the parts of complex numbers, and without.
        assert_eq!(array.chunk_context(&[2, 1, 0]), expected);
        assert_eq!(array.chunk_context(&[2, 1]), expected);
    }

    #[test]
    fn the_fill_value_fills_whole_elements() {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        for (fill, element) in [([1.0, 2.0], None), ([1.0, 1.0], Some(bytes(&[1.0])))] {
            let (array, _folder) = array("complex64", &[6, 5], json!({"fill_value": fill}));
            assert_eq!(array.fill_element(), element.as_deref());
            assert_eq!((array.read_chunk_shape(), array.read_chunk_bytes()), (&[2, 3, 2][..], 48));
            let mut decoded = vec![0xA5; 48];
            array.fill(&mut decoded);
            assert_eq!(decoded, bytes(&fill.repeat(6)));
        }
    }

    #[test]
    fn an_array_is_present_until_its_metadata_are_gone_or_others() {
        let (array, folder) = array("int8", &[6], json!({}));
        let path = folder.path().join("zarr.json");
        let refused = || array.check_present().unwrap_err().to_string();
        array.check_present().unwrap();
        let metadata = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(refused().contains("not there any more"), "{}", refused());
        // Written again with the same bytes.
        std::fs::write(&path, &metadata).unwrap();
        array.check_present().unwrap();
        std::fs::write(&path, [&metadata[..], b" "].concat()).unwrap();
        assert!(refused().contains("its metadata changed"), "{}", refused());
    }
}
