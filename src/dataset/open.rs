//! Opens stores and arrays: from metadata on disk to what the other rooms need to know.

use super::chain::{Culprit, FixedScaleOffset, ReadCodec, drop_bitround, numpy_name};
use super::json;
use super::layout::{layout, names};
use super::{ArrayInfo, Declared, ElementType, Sharding, Source, Store, StoredType};
use crate::error::{Context, Error, Result};

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, from_value};
use zarrs::array::{
    AdditionalFieldUnsupportedError, Array, ArrayCreateError, ArrayMetadataV2, ArrayMetadataV3,
    ArrayShardedExt, DataType, FillValue,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::metadata::v2::DataTypeMetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::metadata::{ArrayMetadata, FillValueMetadata};
use zarrs::plugin::ExtensionName;
use zarrs::storage::{ReadableStorageTraits, StoreKey};

/// A store that was opened.
pub(super) struct OpenStore<'a> {
    path: &'a str,
    root: PathBuf,
    store: Arc<Store>,
}

#[derive(PartialEq, Eq)]
enum NodeKind {
    Array,
    Group,
}

impl<'a> OpenStore<'a> {
    pub fn new(path: &'a str) -> Result<Self> {
        let root = PathBuf::from(path);
        if !root.exists() {
            return Err(Error::StoreNotFound { path: path.into() });
        }
        if !root.is_dir() {
            return Err(Error::StoreIsFile { path: path.into() });
        }
        let has = |file: &str| root.join(file).is_file();
        if !has("zarr.json") && !has(".zarray") && !has(".zgroup") {
            return Err(Error::NotZarr { path: path.into() });
        }
        let at = Context { store: path.into(), ..Context::default() };
        let store = FilesystemStore::new(&root).map_err(|e| Error::Metadata { at, source: e.into() })?;
        Ok(Self { path, root, store: Arc::new(store) })
    }

    /// The arrays of those names, or the array that the store itself is if there are none.
    pub fn arrays(&self, names: &[String]) -> Result<Vec<ArrayInfo>> {
        let at = Context { store: self.path.into(), ..Context::default() };
        let node = self.node_kind("").map_err(|source| Error::Metadata { at, source })?;
        match (node, names) {
            (Some(NodeKind::Array), []) => Ok(vec![self.array("")?]),
            (Some(NodeKind::Array), names) => {
                Err(Error::ArrayIsNotGroup { path: self.path.into(), asked: names.to_vec() })
            }
            (_, []) => {
                Err(Error::GroupWithoutArrays { path: self.path.into(), present: self.present_arrays() })
            }
            (_, names) => names.iter().map(|name| self.array(name.trim_matches('/'))).collect(),
        }
    }

    /// Names of the arrays that are there, or one empty name if the store is an array itself.
    pub fn names(&self) -> Result<Vec<String>> {
        if matches!(self.node_kind(""), Ok(Some(NodeKind::Array))) {
            return Ok(vec![String::new()]);
        }
        match self.present_arrays() {
            names if names.is_empty() => {
                Err(Error::GroupWithoutArrays { path: self.path.into(), present: names })
            }
            names => Ok(names),
        }
    }

    /// What the metadata of an array declare.
    pub fn declared(&self, name: &str) -> Declared {
        self.metadata(name.trim_matches('/')).map_or_else(|_| Declared::default(), |m| Declared::new(&m))
    }

    fn get(&self, name: &str, file: &str) -> Result<Option<Value>, Source> {
        let key = if name.is_empty() { file.to_string() } else { format!("{name}/{file}") };
        let bytes = self.store.get(&StoreKey::new(key)?)?;
        Ok(bytes.map(|bytes| json::parse(&bytes)).transpose()?)
    }

    /// What is at `name`, or `None` if nothing is.
    fn node_kind(&self, name: &str) -> Result<Option<NodeKind>, Source> {
        use zarrs::metadata::NodeMetadata::{Array, Group};
        if let Some(metadata) = self.get(name, "zarr.json")? {
            return Ok(match from_value(metadata)? {
                Array(_) => Some(NodeKind::Array),
                Group(_) => Some(NodeKind::Group),
            });
        }
        let has = |file: &str| {
            let key = if name.is_empty() { file.to_string() } else { format!("{name}/{file}") };
            Ok::<_, Source>(self.store.size_key(&StoreKey::new(key)?)?.is_some())
        };
        Ok(match (has(".zarray")?, has(".zgroup")?) {
            (true, _) => Some(NodeKind::Array),
            (false, true) => Some(NodeKind::Group),
            (false, false) => None,
        })
    }

    /// Every array below the root, whether it can be read or not, sorted; none where the store cannot be listed.
    fn present_arrays(&self) -> Vec<String> {
        let mut names = vec![];
        let mut seen = HashSet::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let path = self.root.join(&folder);
            // A link to a folder above would be followed without end.
            let identity = path.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
            if !identity.is_ok_and(|identity| seen.insert(identity)) {
                continue;
            }
            for entry in path.read_dir().into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                match entry.path().is_dir().then(|| self.node_kind(&name)) {
                    None => {}
                    Some(Ok(Some(NodeKind::Array)) | Err(_)) => names.push(name),
                    Some(Ok(_)) => folders.push(name),
                }
            }
        }
        names.sort();
        names
    }

    fn array(&self, name: &str) -> Result<ArrayInfo> {
        let at = Context { store: self.path.into(), array: name.into(), ..Context::default() };
        let unusable = |source| Error::Metadata { at: at.clone(), source };
        match self.node_kind(name).map_err(unusable)? {
            Some(NodeKind::Array) => {}
            _ => return Err(Error::ArrayNotFound { at, present: self.present_arrays() }),
        }
        let mut metadata = self.metadata(name).map_err(unusable)?;
        let time = time_type(&metadata);
        let fill_is_cf = is_v2(&metadata) && metadata.get("fill_value").is_some_and(|fill| !fill.is_null());
        drop_bitround(&mut metadata);
        complete_v2(&mut metadata);

        let (declared, type_name) = data_type(&metadata).map_err(unusable)?;
        let declared = declared.and_then(|declared| Some((StoredType::from_zarrs(&declared)?, declared)));
        let Some(((logical, components), declared)) = declared else {
            return Err(Error::DataType { at, data_type: type_name });
        };
        let type_name = time.or_else(|| declared.name_v3().map(|name| name.into())).unwrap_or(type_name);
        let refused = |codec: Culprit| Error::Codec {
            at: at.clone(),
            codec: codec.name,
            parameters: codec.parameters.to_string(),
            problem: codec.problem,
        };
        let logical_fill = metadata.get("fill_value").cloned();
        let fixed_scale_offset =
            FixedScaleOffset::take(&mut metadata, Some(logical).filter(|_| components == 1))
                .map_err(refused)?;
        if let Some(delta) = Culprit::misordered_delta(&metadata) {
            return Err(refused(delta));
        }
        let array = self.zarrs_array(name, &metadata).map_err(|source| match Culprit::find(&metadata) {
            Some(culprit) => refused(culprit),
            None => unusable(source),
        })?;
        let stored_type = array.data_type().clone();
        let (stored, fill_value) = match fixed_scale_offset {
            None => (logical, array.fill_value().clone()),
            Some(filter) => {
                let fill = fill_value(&declared, logical_fill, &metadata).map_err(unusable)?;
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

        let dimension_names = names(&array);
        // From here on the parts of complex numbers are a last dimension.
        let mut shape = array.shape().to_vec();
        let mut chunk_shape = stored_chunk_shape;
        let mut sharding = sharding.map(|(sharding, _)| sharding);
        if components > 1 {
            chunk_strides.iter_mut().for_each(|stride| *stride *= components);
            chunk_strides.push(1);
            shape.push(components);
            chunk_shape.push(components);
            if let Some(sharding) = &mut sharding {
                sharding.inner_shape.push(components);
            }
        }
        Ok(ArrayInfo {
            store: self.path.into(),
            name: name.into(),
            root: self.root.clone(),
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

    /// The metadata of an array; attributes are part of them in both versions.
    fn metadata(&self, name: &str) -> Result<Value, Source> {
        if let Some(metadata) = self.get(name, "zarr.json")? {
            return Ok(metadata);
        }
        let mut metadata = self.get(name, ".zarray")?.ok_or("its metadata has gone")?;
        if let (Some(attributes), Some(metadata)) = (self.get(name, ".zattrs")?, metadata.as_object_mut()) {
            metadata.insert("attributes".into(), attributes);
        }
        Ok(metadata)
    }

    fn zarrs_array(&self, name: &str, metadata: &Value) -> Result<Array<Store>, Source> {
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
        Ok(Array::new_with_metadata(self.store.clone(), &format!("/{name}"), metadata)?)
    }
}

fn is_v2(metadata: &Value) -> bool {
    metadata.get("zarr_format").is_some_and(|version| version == 2)
}

/// Rewrites what zarrs does not read in v2 metadata: points in time and time spans as the integers that stand for
/// them, and complex numbers without a fill value.
fn complete_v2(metadata: &mut Value) {
    /// What NumPy calls "not a time".
    const NOT_A_TIME: i64 = i64::MIN;
    let Some(dtype) = metadata.get("dtype").and_then(Value::as_str).filter(|_| is_v2(metadata)) else {
        return;
    };
    let order = if dtype.starts_with('>') { '>' } else { '<' };
    let kind = dtype.trim_start_matches(['<', '>', '|', '=']);
    let fill = metadata.get("fill_value").unwrap_or(&Value::Null);
    if kind.starts_with("M8") || kind.starts_with("m8") {
        if fill.is_null() || fill == "NaT" {
            metadata["fill_value"] = NOT_A_TIME.into();
        }
        metadata["dtype"] = numpy_name(ElementType::Int64, order).into();
    } else if kind.starts_with('c') && fill.is_null() {
        metadata["fill_value"] = serde_json::json!([0, 0]);
    }
}

/// NumPy's name of a type of points in time or time spans; `None` for every other type.
fn time_type(metadata: &Value) -> Option<String> {
    let (kind, unit) = if is_v2(metadata) {
        let name = metadata.get("dtype")?.as_str()?.trim_start_matches(['<', '>', '|', '=']);
        let (kind, unit) = name.split_once('[').unwrap_or((name, "generic]"));
        (kind, unit.trim_end_matches(']').to_string())
    } else {
        let data_type = metadata.get("data_type")?;
        let configuration = data_type.get("configuration")?;
        let unit = configuration.get("unit")?.as_str()?;
        let steps = configuration.get("scale_factor").and_then(Value::as_u64).filter(|&steps| steps != 1);
        let steps = steps.map(|steps| steps.to_string()).unwrap_or_default();
        (data_type.get("name")?.as_str()?, format!("{steps}{unit}"))
    };
    match kind {
        "M8" | "numpy.datetime64" => Some(format!("datetime64[{unit}]")),
        "m8" | "numpy.timedelta64" => Some(format!("timedelta64[{unit}]")),
        _ => None,
    }
}

/// The data type that the metadata declare, if zarrs knows it, and its name there.
fn data_type(metadata: &Value) -> Result<(Option<DataType>, String), Source> {
    let key = if is_v2(metadata) { "dtype" } else { "data_type" };
    let value = metadata.get(key).ok_or_else(|| format!("it has no {key}"))?;
    let unknown = (None, value.to_string());
    Ok(if is_v2(metadata) {
        from_value(value.clone()).map_or(unknown, |metadata: DataTypeMetadataV2| {
            (DataType::from_metadata(&metadata).ok(), metadata.to_string())
        })
    } else {
        from_value(value.clone()).map_or(unknown, |metadata: MetadataV3| {
            (DataType::from_metadata(&metadata).ok(), metadata.name().to_string())
        })
    })
}

/// A fill value in the type that the metadata declared.
fn fill_value(declared: &DataType, fill: Option<Value>, metadata: &Value) -> Result<FillValue, Source> {
    let fill: FillValueMetadata = from_value(fill.unwrap_or_default())?;
    let made = if is_v2(metadata) { declared.fill_value_v2(&fill) } else { declared.fill_value_v3(&fill) };
    Ok(made?)
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
        .and_then(|shape| from_value::<Vec<NonZeroU64>>(shape.clone()).ok())
        .map(|shape| shape.iter().map(|n| n.get()).collect())
        .ok_or_else(refused)
}
