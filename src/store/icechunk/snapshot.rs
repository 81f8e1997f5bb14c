//! A snapshot that was opened: its groups and arrays, and which manifests say where an array's chunks are.

use super::super::contract::Store;
use super::files::{self, damaged, guarded};
use super::reference::{Reference, resolve};

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use icechunk_format::manifest::ManifestRef;
use icechunk_format::snapshot::{ManifestFileInfo, NodeData, NodeSnapshot, Snapshot};
use icechunk_format::{ManifestId, NodeId, Path, SNAPSHOTS_FILE_PATH, SnapshotId};

/// A snapshot of a repository.
pub struct Opened {
    pub id: SnapshotId,
    snapshot: Snapshot,
    /// Paths of all groups and arrays, with a leading slash, sorted.
    paths: Vec<String>,
    /// The arrays that chunks were asked for of, by path.
    arrays: Mutex<HashMap<String, Arc<Manifested>>>,
}

/// The manifests of an array.
pub struct Manifested {
    pub node: NodeId,
    manifests: Vec<ManifestRef>,
}

impl Manifested {
    /// The manifests that may name a chunk.
    pub fn covering(&self, coordinates: &[u32]) -> impl Iterator<Item = &ManifestId> {
        let covering = self.manifests.iter().filter(|manifest| manifest.extents.contains(coordinates));
        covering.map(|manifest| &manifest.object_id)
    }
}

impl Opened {
    /// Finds the snapshot that a reference means, and reads it.
    ///
    /// # Errors
    /// What the store says, or what is wrong with the repository.
    pub async fn new(store: &dyn Store, reference: &Reference) -> io::Result<Self> {
        let id = resolve(store, reference).await?;
        let snapshot = files::snapshot(store, &id).await?;
        let key = format!("{SNAPSHOTS_FILE_PATH}/{id}");
        let paths = guarded(&key, || {
            snapshot.iter().map(|node| Ok(node?.path.to_string())).collect::<Result<Vec<_>, _>>()
        })?;
        // Nodes are looked up by bisection, which would miss some.
        if paths.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(damaged(&key, "its groups and arrays are not in order"));
        }
        Ok(Self { id, snapshot, paths, arrays: Mutex::default() })
    }

    /// The metadata file of a group or array, as Zarr wrote it. `None` if there is none at this path.
    ///
    /// # Errors
    /// A damaged snapshot.
    pub fn metadata(&self, path: &str) -> io::Result<Option<Bytes>> {
        Ok(self.node(path)?.map(|node| node.user_data.clone()))
    }

    /// The manifests of the array at a path. `None` if there is no array.
    ///
    /// # Errors
    /// A damaged snapshot.
    pub fn array(&self, path: &str) -> io::Result<Option<Arc<Manifested>>> {
        let mut arrays = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(array) = arrays.get(path) {
            return Ok(Some(array.clone()));
        }
        let Some(node) = self.node(path)? else { return Ok(None) };
        let NodeData::Array { manifests, .. } = &node.node_data else { return Ok(None) };
        let array = Arc::new(Manifested { node: node.id.clone(), manifests: manifests.clone() });
        arrays.insert(path.into(), array.clone());
        Ok(Some(array))
    }

    /// What the snapshot says of a manifest.
    ///
    /// # Errors
    /// A damaged snapshot.
    pub fn manifest(&self, id: &ManifestId) -> io::Result<ManifestFileInfo> {
        let info = guarded(&self.key(), || self.snapshot.manifest_info(id))?;
        info.ok_or_else(|| damaged(&self.key(), &format!("it says nothing of manifest {id}")))
    }

    /// Names directly below a path.
    pub fn below(&self, path: &str) -> Vec<String> {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let begin = self.paths.partition_point(|path| *path < prefix);
        let below = self.paths[begin..].iter().map_while(|path| path.strip_prefix(&prefix));
        let names = below.filter_map(|rest| rest.split('/').next()).filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.map(String::from).collect();
        names.dedup();
        names
    }

    fn node(&self, path: &str) -> io::Result<Option<Arc<NodeSnapshot>>> {
        if self.paths.binary_search_by(|found| found.as_str().cmp(path)).is_err() {
            return Ok(None);
        }
        guarded(&self.key(), || self.snapshot.get_node(&Path::from_trusted(path))).map(Some)
    }

    fn key(&self) -> String {
        format!("{SNAPSHOTS_FILE_PATH}/{}", self.id)
    }
}

/// The path of the array and the chunk that a key names: `PATH/c/0/1`, or `PATH/c` of an array without dimensions.
pub fn chunk_of(key: &str) -> Option<(&str, Vec<u32>)> {
    let mut coordinates = vec![];
    let mut rest = key;
    loop {
        let (before, last) = rest.rsplit_once('/').unwrap_or(("", rest));
        if last == "c" {
            coordinates.reverse();
            return Some((before, coordinates));
        }
        if before.is_empty() || !last.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        coordinates.push(last.parse().ok()?);
        rest = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_chunks_have_a_path_and_coordinates() {
        for (key, expected) in [
            ("c/0/1", Some(("", vec![0, 1]))),
            ("a/b/c/12", Some(("a/b", vec![12]))),
            ("a/c", Some(("a", vec![]))),
            ("c", Some(("", vec![]))),
            ("c/0/c/1", Some(("c/0", vec![1]))),
            ("c/c/0", Some(("c", vec![0]))),
            ("a/0/1", None),
            ("a/c.0.1", None),
            ("0/1", None),
            ("a/c/-1", None),
            ("a/c/4294967296", None),
            ("a/.zarray", None),
            ("", None),
        ] {
            assert_eq!(chunk_of(key), expected, "{key}");
        }
    }
}
