use super::super::contract::read_whole;
use super::super::memory::MemoryStore;
use super::manifests::Table;
use super::*;

use std::sync::Mutex;

use futures::executor::block_on;
use futures::future::join_all;
use icechunk_format::format_constants::{ICECHUNK_IMPL_NAME_LEN, SpecVersionBin};
use icechunk_format::manifest::{ChunkInfo, ChunkPayload, ChunkRef, Manifest, ManifestExtents, ManifestRef};
use icechunk_format::repo_info::{RepoInfo, UpdateInfo, UpdateType};
use icechunk_format::snapshot::{
    ArrayShape, ManifestFileInfo, NodeData, NodeSnapshot, Snapshot, SnapshotInfo,
};
use icechunk_format::{ChunkId, ChunkIndices, ManifestId, NodeId, SnapshotId};
use proptest::prelude::*;

const GROUP: &[u8] = br#"{"zarr_format": 3, "node_type": "group"}"#;
const ARRAY: &[u8] = br#"{"zarr_format": 3, "node_type": "array"}"#;
const OBJECT: &[u8] = b"in front|chunk of the repository|behind";

/// A store that notes the keys that are asked for, and answers when it is asked again.
#[derive(Debug)]
struct Noted {
    store: MemoryStore,
    keys: Mutex<Vec<String>>,
}

impl Noted {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.keys.lock().unwrap())
    }
}

impl Store for Noted {
    fn get<'a>(
        &'a self,
        key: &'a str,
        extent: Extent,
        expected: Option<&'a Version>,
    ) -> BoxFuture<'a, io::Result<Option<Body>>> {
        self.keys.lock().unwrap().push(key.into());
        async move {
            let mut asked = false;
            future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut asked, true) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
            self.store.get(key, extent, expected).await
        }
        .boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Option<Head>>> {
        self.store.head(key)
    }

    fn list<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<Listing>> {
        self.store.list(key)
    }
}

/// A file of a repository.
fn file(version: u8, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut file = ICECHUNK_FORMAT_MAGIC_BYTES.to_vec();
    file.extend(format!("{:<ICECHUNK_IMPL_NAME_LEN$}", "test").bytes());
    file.extend([version, kind, 1]);
    file.extend(zstd::encode_all(bytes, 3).unwrap());
    file
}

/// A repository in memory, and what is in it.
struct Made {
    store: Arc<Noted>,
    version: SpecVersionBin,
    snapshot: SnapshotId,
    manifests: Vec<ManifestId>,
    chunk: ChunkId,
}

impl Made {
    /// Groups `/` and `/g`, and the array `/g/a` of 2 x 4 chunks in two manifests. Chunk (0, 0) is inline, (0, 1) and (1, 3) are in the repository.
    fn new(version: SpecVersionBin) -> Self {
        let store = MemoryStore::default();
        let (node, chunk) = (NodeId::random(), ChunkId::random());
        store.put(&format!("chunks/{chunk}"), OBJECT);
        let native = |offset, length| ChunkPayload::Ref(ChunkRef { id: chunk.clone(), offset, length });
        let inline = ChunkPayload::Inline(Bytes::from_static(b"inline"));
        let mut made = Self {
            store: Arc::new(Noted { store, keys: Mutex::default() }),
            version,
            snapshot: SnapshotId::random(),
            manifests: vec![],
            chunk: chunk.clone(),
        };
        let (first, first_info) = made.manifest(&node, vec![([0, 0], inline), ([0, 1], native(9, 23))]);
        let (second, second_info) = made.manifest(&node, vec![([1, 3], native(0, 9))]);
        let extents = |from, to| ManifestExtents::new(from, to);
        let array = NodeData::Array {
            shape: ArrayShape::new([(20, 2), (40, 4)]).unwrap(),
            dimension_names: None,
            manifests: vec![
                ManifestRef { object_id: first, extents: extents(&[0, 0], &[1, 4]) },
                ManifestRef { object_id: second, extents: extents(&[1, 0], &[2, 4]) },
            ],
        };
        let nodes = [
            ("/", NodeId::random(), GROUP, NodeData::Group),
            ("/g", NodeId::random(), GROUP, NodeData::Group),
            ("/g/a", node, ARRAY, array),
            ("/g2", NodeId::random(), GROUP, NodeData::Group),
        ];
        made.commit(&nodes, vec![first_info, second_info]);
        made
    }

    fn manifest(
        &mut self,
        node: &NodeId,
        chunks: Vec<([u32; 2], ChunkPayload)>,
    ) -> (ManifestId, ManifestFileInfo) {
        let id = ManifestId::random();
        let chunks = chunks.into_iter().map(|(coordinates, payload)| ChunkInfo {
            node: node.clone(),
            coord: ChunkIndices(coordinates.to_vec()),
            payload,
        });
        let manifest = Manifest::from_sorted_vec(&id, chunks.collect(), None).unwrap().unwrap();
        let file = file(self.version as u8, 2, manifest.bytes());
        let info = ManifestFileInfo::new(&manifest, file.len() as u64);
        self.store.store.put(&manifest_key(&id), file);
        self.manifests.push(id.clone());
        (id, info)
    }

    /// Writes a snapshot, to which branch and tag point.
    fn commit(
        &mut self,
        nodes: &[(&str, NodeId, &'static [u8], NodeData)],
        manifests: Vec<ManifestFileInfo>,
    ) {
        self.snapshot = SnapshotId::random();
        let nodes = nodes.iter().map(|(path, id, metadata, data)| {
            Ok(NodeSnapshot {
                id: id.clone(),
                path: icechunk_format::Path::new(path).unwrap(),
                user_data: Bytes::from_static(metadata),
                node_data: data.clone(),
            })
        });
        let id = Some(self.snapshot.clone());
        let snapshot =
            Snapshot::from_iter(id, None, self.version, "m", None, manifests, None, nodes).unwrap();
        self.put(&format!("snapshots/{}", self.snapshot), file(self.version as u8, 1, snapshot.bytes()));
        if self.version == SpecVersionBin::V1 {
            let json = format!("{{\"snapshot\": \"{}\"}}", self.snapshot);
            self.put("refs/branch.main/ref.json", json.clone().into_bytes());
            self.put("refs/branch.a%7Cb/ref.json", json.clone().into_bytes());
            self.put("refs/tag.gone/ref.json", json.clone().into_bytes());
            self.put("refs/tag.gone/ref.json.deleted", vec![]);
            self.put("refs/tag.v1/ref.json", json.into_bytes());
            return;
        }
        let flushed_at = snapshot.flushed_at().unwrap();
        let info = RepoInfo::new(
            self.version,
            [("v1", self.snapshot.clone())],
            [("a|b", self.snapshot.clone()), ("main", self.snapshot.clone())],
            ["gone"],
            [SnapshotInfo::from_snapshot_file(&snapshot).unwrap()],
            &Default::default(),
            UpdateInfo {
                update_type: UpdateType::RepoInitializedUpdate,
                update_time: flushed_at,
                previous_updates: vec![],
            },
            None,
            10,
            None,
            None,
            None::<std::iter::Empty<u16>>,
            None::<std::iter::Empty<u16>>,
            &icechunk_format::repo_info::RepoStatus {
                availability: icechunk_format::repo_info::RepoAvailability::Online,
                set_at: flushed_at,
                limited_availability_reason: None,
            },
        );
        self.put("repo", file(2, 6, info.unwrap().bytes()));
    }

    fn put(&self, key: &str, bytes: Vec<u8>) {
        self.store.store.put(key, bytes);
    }

    fn open(&self, inner: &str) -> IcechunkStore {
        open(self.store.clone(), inner)
    }
}

fn open(store: Arc<dyn Store>, inner: &str) -> IcechunkStore {
    let origin = Origin::Url("s3://bucket/repo".into());
    IcechunkStore::new(store, inner, Access::to_folders(true), origin).unwrap()
}

const VERSIONS: [SpecVersionBin; 2] = [SpecVersionBin::V1, SpecVersionBin::V2];

/// The bytes of a part of an object, where they are in it, and its length.
type Answer = Option<(Vec<u8>, std::ops::Range<u64>, u64)>;

fn get(store: &dyn Store, key: &str, extent: Extent) -> io::Result<Answer> {
    block_on(async {
        let Some(body) = store.get(key, extent, None).await? else { return Ok(None) };
        let range = body.range.clone();
        let mut bytes = vec![];
        let head = body.read_to(&mut bytes).await?;
        Ok(Some((bytes, range, head.object_bytes)))
    })
}

fn whole(store: &dyn Store, key: &str) -> io::Result<Option<Vec<u8>>> {
    Ok(block_on(read_whole(store, key, 100))?.map(|(bytes, _)| bytes))
}

fn refusal(found: io::Result<impl fmt::Debug>) -> String {
    let error = found.unwrap_err();
    assert!(matches!(Obstacle::of(&error), Some(Obstacle::Icechunk { .. })), "{error}");
    error.to_string()
}

#[test]
fn objects_of_a_snapshot_are_read_in_whole_and_in_part() {
    for version in VERSIONS {
        let made = Made::new(version);
        let by_id = format!("@{}", made.snapshot);
        for (inner, prefix) in [
            ("", "g/"),
            ("@branch.main/g", ""),
            ("@branch.a%7Cb/g/", ""),
            ("@tag.v1", "g/"),
            (by_id.as_str(), "g/"),
        ] {
            let store = made.open(inner);
            assert_eq!(store.snapshot(), None);
            let read = |key: &str| whole(&store, &format!("{prefix}{key}")).unwrap();
            assert_eq!(read("zarr.json").unwrap(), GROUP, "{inner} {version:?}");
            assert_eq!(read("a/zarr.json").unwrap(), ARRAY);
            assert_eq!(read("a/c/0/0").unwrap(), b"inline");
            assert_eq!(read("a/c/0/1").unwrap(), b"chunk of the repository");
            assert_eq!(read("a/c/1/3").unwrap(), b"in front|");
            // Chunks without entry, outside of the array, and of what is no array.
            for key in ["a/c/0/2", "a/c/1/0", "a/c/2/0", "c/0/0", "b/c/0/0", "b/zarr.json", ".zgroup"] {
                assert_eq!(read(key), None, "{key}");
            }
            assert_eq!(store.snapshot(), Some(made.snapshot.to_string()));
        }
        let store = made.open("");
        assert_eq!(block_on(store.list("")).unwrap().names, ["g", "g2"]);
        assert_eq!(block_on(store.list("g")).unwrap().names, ["a"]);
        assert_eq!(block_on(made.open("g").list("")).unwrap().names, ["a"]);
        assert!(block_on(store.list("g2")).unwrap().names.is_empty());
        for (extent, range) in [
            (Extent::Range(6..16), 6..16),
            (Extent::Prefix(5), 0..5),
            (Extent::Suffix(10), 13..23),
            (Extent::Range(23..23), 23..23),
        ] {
            let (bytes, found, object_bytes) = get(&store, "g/a/c/0/1", extent).unwrap().unwrap();
            assert_eq!((&found, object_bytes), (&range, 23));
            assert_eq!(bytes, OBJECT[9 + range.start as usize..9 + range.end as usize]);
        }
        assert!(get(&store, "g/a/c/0/1", Extent::Range(0..24)).unwrap_err().to_string().contains("end past"));
        let head = |key| block_on(store.head(key)).unwrap().unwrap();
        assert_eq!(head("g/a/c/0/1"), Head { object_bytes: 23, version: Version::Immutable });
        assert_eq!(head("zarr.json").version, Version::ETag(made.snapshot.to_string().into()));
        // The manifests do not tell what such a key would stand for.
        assert!(refusal(whole(&store, "g/a/0.1")).contains("chunk key encoding"));
        assert!(refusal(whole(&store, "g/a/c/0")).contains("dimensions"));
    }
}

#[test]
fn a_snapshot_stays_the_one_that_was_opened() {
    for version in VERSIONS {
        let mut made = Made::new(version);
        let store = made.open("@branch.main");
        assert_eq!(whole(&store, "zarr.json").unwrap().unwrap(), GROUP);
        let first = made.snapshot.to_string();
        made.commit(&[("/", NodeId::random(), ARRAY, NodeData::Group)], vec![]);
        assert_eq!(whole(&store, "zarr.json").unwrap().unwrap(), GROUP);
        assert_eq!(whole(&store, "g/a/c/0/0").unwrap().unwrap(), b"inline");
        assert_eq!(store.snapshot(), Some(first));
        assert_eq!(whole(&made.open(""), "zarr.json").unwrap().unwrap(), ARRAY);
    }
}

#[test]
fn a_manifest_is_read_once_and_only_if_it_covers_the_chunk() {
    let made = Made::new(SpecVersionBin::V2);
    let store = made.open("g/a");
    whole(&store, "zarr.json").unwrap();
    assert_eq!(made.store.take(), ["repo", &format!("snapshots/{}", made.snapshot)]);
    let keys: Vec<String> = (0..20).map(|number| format!("c/0/{}", number % 2)).collect();
    let found = block_on(join_all(keys.iter().map(|key| read_whole(&store, key, 100))));
    assert!(found.into_iter().all(|found| found.unwrap().is_some()));
    let chunk = format!("chunks/{}", made.chunk);
    let mut asked = made.store.take();
    asked.retain(|key| *key != chunk);
    assert_eq!(asked, [manifest_key(&made.manifests[0])]);
    whole(&store, "c/0/2").unwrap();
    assert!(made.store.take().is_empty());
    whole(&store, "c/1/0").unwrap();
    assert_eq!(made.store.take(), [manifest_key(&made.manifests[1])]);
}

#[test]
fn what_a_snapshot_names_is_there_or_an_error() {
    for version in VERSIONS {
        let made = Made::new(version);
        let store = made.open("g/a");
        made.store.store.remove(&format!("chunks/{}", made.chunk));
        assert_eq!(whole(&store, "c/0/0").unwrap().unwrap(), b"inline");
        assert!(refusal(whole(&store, "c/0/1")).contains("names \"chunks/"));
        made.store.store.remove(&manifest_key(&made.manifests[1]));
        assert!(refusal(whole(&store, "c/1/0")).contains("names \"manifests/"));
        // Found before it was removed.
        assert_eq!(whole(&store, "c/0/2").unwrap(), None);
        made.store.store.remove(&format!("snapshots/{}", made.snapshot));
        let gone = refusal(whole(&made.open("g/a"), "zarr.json"));
        assert!(gone.contains(&format!("has no snapshot {}", made.snapshot)), "{gone}");
    }
}

#[test]
fn what_is_no_branch_or_repository_is_refused_with_the_remedy() {
    for version in VERSIONS {
        let made = Made::new(version);
        let absent = SnapshotId::random();
        for (inner, text) in [
            ("@branch.dev", "no branch \"dev\"; its branches are \"a|b\", \"main\""),
            ("@tag.v2", "no tag \"v2\"; its tags are "),
            ("@tag.gone", "no tag \"gone\"; its tags are "),
            (&format!("@{absent}"), &format!("no snapshot {absent}")),
        ] {
            let refused = refusal(whole(&made.open(inner), "zarr.json"));
            assert!(refused.contains(text) && refused.contains("@branch.NAME"), "{refused}");
        }
    }
    let store = open(Arc::new(MemoryStore::default()), "");
    assert!(refusal(whole(&store, "zarr.json")).contains("there is neither \"repo\" nor"));
}

#[test]
fn files_that_are_damaged_or_of_another_kind_are_errors() {
    let made = Made::new(SpecVersionBin::V2);
    let keys = [manifest_key(&made.manifests[0]), format!("snapshots/{}", made.snapshot), "repo".to_string()];
    let read = || whole(&made.open("g/a"), "c/0/0");
    let original = |key: &str| whole_file(&made, key);
    for key in &keys {
        let bytes = original(key);
        let other = original(if key == "repo" { &keys[0] } else { "repo" });
        let mut newer = bytes.clone();
        newer[36] = 3;
        let mut damaged_more = vec![
            (bytes[..bytes.len() - 3].to_vec(), ""),
            (bytes[..30].to_vec(), "header"),
            (vec![], "header"),
            (b"something else that is no such file at all".to_vec(), "magic"),
            (newer, "version 3"),
        ];
        if !key.starts_with("manifests") {
            damaged_more.push((other, "not a"));
        }
        for (file, text) in damaged_more {
            made.put(key, file);
            let refused = refusal(read());
            assert!(refused.contains(key.as_str()) && refused.contains(text), "{text}: {refused}");
        }
        made.put(key, bytes);
        assert_eq!(read().unwrap().unwrap(), b"inline");
    }
    // Another manifest, and another snapshot, in their place.
    made.put(&keys[0], original(&manifest_key(&made.manifests[1])));
    assert!(refusal(read()).contains(&format!("it is manifest {}", made.manifests[1])));
    let other = Made::new(SpecVersionBin::V2);
    made.put(&keys[1], whole_file(&other, &format!("snapshots/{}", other.snapshot)));
    assert!(refusal(read()).contains("it is snapshot"));
}

fn whole_file(made: &Made, key: &str) -> Vec<u8> {
    get(&made.store.store, key, Extent::Whole).unwrap().unwrap().0
}

#[test]
fn tables_have_the_chunks_of_the_manifest_in_order() {
    let node = NodeId::random();
    let chunk = |coordinates: &[u32], payload| ChunkInfo {
        node: node.clone(),
        coord: ChunkIndices(coordinates.to_vec()),
        payload,
    };
    let inline = || ChunkPayload::Inline(Bytes::from_static(b"x"));
    let far = ChunkPayload::Ref(ChunkRef { id: ChunkId::random(), offset: u64::MAX, length: 1 });
    let table = |chunks: Vec<ChunkInfo>, expected| {
        let manifest = Manifest::from_sorted_vec(&ManifestId::random(), chunks, None).unwrap().unwrap();
        Table::new(manifest, expected)
    };
    let numbers: Vec<ChunkInfo> = (0..100).map(|number| chunk(&[number * 2], inline())).collect();
    let made = table(numbers, 100).unwrap();
    for number in 0..201 {
        let found = made.chunk(&node, &[number]).unwrap();
        assert_eq!(found.is_some(), number % 2 == 0 && number < 200, "{number}");
    }
    assert!(made.chunk(&node, &[0, 0]).is_err() && made.chunk(&NodeId::random(), &[0]).is_err());
    let scalar = table(vec![chunk(&[], inline())], 1).unwrap();
    assert!(scalar.chunk(&node, &[]).unwrap().is_some());
    for (chunks, expected, text) in [
        (vec![chunk(&[0], inline())], 2, "names 1 chunks, and the snapshot says 2"),
        (vec![chunk(&[1], inline()), chunk(&[0], inline())], 2, "not in order"),
        (vec![chunk(&[0], inline()), chunk(&[0], inline())], 2, "not in order"),
        (vec![chunk(&[0], inline()), chunk(&[0, 1], inline())], 2, "not in order"),
        (vec![chunk(&[0], far)], 1, "ends behind"),
    ] {
        let refused = refusal(table(chunks, expected));
        assert!(refused.contains(text), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_is_an_error_or_another_answer_and_never_a_panic(
        which in 0usize..3, at in any::<prop::sample::Index>(), with in any::<u8>(), inner in any::<bool>(),
    ) {
        let made = Made::new(SpecVersionBin::V2);
        let keys = [manifest_key(&made.manifests[0]), format!("snapshots/{}", made.snapshot), "repo".to_string()];
        let bytes = whole_file(&made, &keys[which]);
        // Bytes of the file, or what zstd encodes.
        let damaged = if inner {
            let mut decoded = zstd::decode_all(&bytes[39..]).unwrap();
            let at = at.index(decoded.len());
            decoded[at] = with;
            file(2, [2, 1, 6][which], &decoded)
        } else {
            let mut bytes = bytes;
            let at = at.index(bytes.len());
            bytes[at] = with;
            bytes
        };
        made.put(&keys[which], damaged);
        let store = made.open("g/a");
        for key in ["zarr.json", "c/0/0", "c/0/1", "c/1/0"] {
            let _ = get(&store, key, Extent::Whole);
        }
        let _ = block_on(store.list(""));
    }
}

#[test]
fn a_chunk_in_a_table_takes_little_memory() {
    // What `Table::MOST_BYTES` is reckoned with.
    assert_eq!(size_of::<Chunk>(), 40);
}
