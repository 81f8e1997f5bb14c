//! The files of a repository, from bytes to what `icechunk-format` makes of them. A file begins with a header that says what it is; the rest is
//! a flatbuffer, usually within zstd.

use super::super::contract::{Extent, Store};
use crate::error::{Error, Obstacle};
use crate::memory;

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

use icechunk_format::format_constants::{
    CompressionAlgorithmBin, FileTypeBin, ICECHUNK_FILE_HEADER_LEN, SpecVersionBin, parse_file_header,
};
use icechunk_format::manifest::Manifest;
use icechunk_format::repo_info::RepoInfo;
use icechunk_format::snapshot::{ManifestFileInfo, Snapshot};
use icechunk_format::{
    IcechunkFormatError, IcechunkFormatErrorKind, MANIFESTS_FILE_PATH, ManifestId, REPO_INFO_FILE_PATH,
    SNAPSHOTS_FILE_PATH, SnapshotId,
};

/// The largest file of a repository that is read, apart from chunks, in bytes; with zstd and without. A manifest of this size names some
/// millions of chunks.
pub const MOST_FILE_BYTES: u64 = 512 << 20;

/// What was damaged is no use.
const COPY_AGAIN: &str =
    "the file is damaged or cut short, copy it again, or go back to a snapshot that can be read";

/// The error of something in a repository that cannot be read.
pub fn refused(problem: impl Into<String>, remedy: &'static str) -> io::Error {
    Obstacle::Icechunk { problem: problem.into(), remedy }.into()
}

/// The error of a file that cannot be what it should.
pub fn damaged(key: &str, problem: &str) -> io::Error {
    refused(format!("\"{key}\": {problem}"), COPY_AGAIN)
}

/// What `read` makes of a file. A damaged one may make it panic.
///
/// # Errors
/// Names the file.
pub fn guarded<T>(key: &str, read: impl FnOnce() -> Result<T, IcechunkFormatError>) -> io::Result<T> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| said(key, error.kind())),
        Err(payload) => Err(damaged(key, &Error::panic("reading it", &*payload).to_string())),
    }
}

fn said(key: &str, error: &IcechunkFormatErrorKind) -> io::Error {
    match error {
        IcechunkFormatErrorKind::InvalidSpecVersion { found, .. } => refused(
            format!("\"{key}\" has version {found} of Icechunk's format, and versions 1 and 2 are read"),
            "update zarr-dali, or write the repository with an older version of Icechunk",
        ),
        IcechunkFormatErrorKind::InvalidFlatBuffer(error) => damaged(key, &error.to_string()),
        error => damaged(key, &error.to_string()),
    }
}

/// The branches and tags of a repository of format 2. `None` if there is no file for them.
///
/// # Errors
/// What the store says, or what is wrong with the file.
pub async fn repo_info(store: &dyn Store) -> io::Result<Option<RepoInfo>> {
    let Some((_, bytes)) =
        contents(store, REPO_INFO_FILE_PATH, FileTypeBin::RepoInfo, MOST_FILE_BYTES).await?
    else {
        return Ok(None);
    };
    guarded(REPO_INFO_FILE_PATH, || RepoInfo::from_buffer(bytes)).map(Some)
}

/// A snapshot.
///
/// # Errors
/// What the store says, or what is wrong with the file; that it is absent.
pub async fn snapshot(store: &dyn Store, id: &SnapshotId) -> io::Result<Snapshot> {
    let key = format!("{SNAPSHOTS_FILE_PATH}/{id}");
    let Some((version, bytes)) = contents(store, &key, FileTypeBin::Snapshot, MOST_FILE_BYTES).await? else {
        return Err(refused(
            format!("it has no snapshot {id}"),
            "name one that it has, or a branch or tag: @SNAPSHOT, @branch.NAME or @tag.NAME; expired snapshots are deleted",
        ));
    };
    let snapshot = guarded(&key, || Snapshot::from_buffer(version, bytes))?;
    match snapshot.id() == *id {
        true => Ok(snapshot),
        false => Err(damaged(&key, &format!("it is snapshot {}", snapshot.id()))),
    }
}

/// A manifest, which a snapshot names.
///
/// # Errors
/// What the store says, or what is wrong with the file; that it is absent.
pub async fn manifest(store: &dyn Store, info: &ManifestFileInfo) -> io::Result<Manifest> {
    let (id, key) = (&info.id, manifest_key(&info.id));
    let contents =
        contents(store, &key, FileTypeBin::Manifest, info.size_bytes).await.map_err(Obstacle::of_present)?;
    let (_, bytes) = contents.ok_or_else(|| absent(&key))?;
    let manifest = guarded(&key, || Manifest::from_buffer(bytes))?;
    match manifest.id() == *id {
        true => Ok(manifest),
        false => Err(damaged(&key, &format!("it is manifest {}", manifest.id()))),
    }
}

/// The key of a manifest.
pub fn manifest_key(id: &ManifestId) -> String {
    format!("{MANIFESTS_FILE_PATH}/{id}")
}

/// The error of an object that the snapshot names and that is not there.
pub fn absent(key: &str) -> io::Error {
    refused(
        format!("the snapshot names \"{key}\", which is not there"),
        "copy the repository whole, or read a newer snapshot if this one has expired",
    )
}

/// The format's version and the bytes behind the header of a file of at most `most_bytes` bytes, without zstd. `None` if there is no file.
async fn contents(
    store: &dyn Store,
    key: &str,
    kind: FileTypeBin,
    most_bytes: u64,
) -> io::Result<Option<(SpecVersionBin, Vec<u8>)>> {
    let Some(body) = store.get(key, Extent::Whole, None).await? else { return Ok(None) };
    let bytes = body.head.object_bytes;
    if bytes > MOST_FILE_BYTES {
        return Err(too_large(key, MOST_FILE_BYTES));
    }
    if bytes > most_bytes {
        return Err(damaged(key, &format!("it has {bytes} bytes, and the snapshot says {most_bytes}")));
    }
    let mut encoded = vec![];
    memory::reserve(&mut encoded, bytes).map_err(io::Error::other)?;
    body.read_to(&mut encoded).await?;
    let header = guarded(key, || parse_file_header(&encoded))?;
    if header.file_type != kind {
        return Err(damaged(key, &format!("it is a {:?}, not a {kind:?}", header.file_type)));
    }
    let decoded = decoded(key, &encoded[ICECHUNK_FILE_HEADER_LEN..], header.compression, MOST_FILE_BYTES)?;
    Ok(Some((header.spec_version, decoded)))
}

/// What a file has behind its header, which is at most `most_bytes` long.
fn decoded(
    key: &str,
    encoded: &[u8],
    compression: CompressionAlgorithmBin,
    most_bytes: u64,
) -> io::Result<Vec<u8>> {
    let mut decoded = vec![];
    let mut reader: Box<dyn Read> = match compression {
        CompressionAlgorithmBin::None => Box::new(encoded),
        CompressionAlgorithmBin::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(encoded)?),
    };
    loop {
        const STEP_BYTES: u64 = 1 << 20;
        let begin = decoded.len() as u64;
        // Twice as much each time, so that bytes are copied once on the average.
        memory::reserve(&mut decoded, begin.max(STEP_BYTES)).map_err(io::Error::other)?;
        let room = (decoded.capacity() as u64 - begin).min(most_bytes + 1 - begin);
        let read = reader.by_ref().take(room).read_to_end(&mut decoded);
        let read = read.map_err(|error| damaged(key, &error.to_string()))?;
        if decoded.len() as u64 > most_bytes {
            return Err(too_large(key, most_bytes));
        }
        if (read as u64) < room {
            return Ok(decoded);
        }
    }
}

fn too_large(key: &str, most_bytes: u64) -> io::Error {
    refused(
        format!("\"{key}\" has more than {most_bytes} bytes"),
        "if it is a manifest, write it again in several (Icechunk's ManifestSplittingConfig)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_does_not_fill_the_memory() {
        let zeros = vec![0; 5 << 20];
        let encoded = zstd::encode_all(&zeros[..], 3).unwrap();
        let decode = |bytes: &[u8], compression, most| decoded("repo", bytes, compression, most);
        assert_eq!(decode(&encoded, CompressionAlgorithmBin::Zstd, 5 << 20).unwrap(), zeros);
        for most in [0, 1, (1 << 20) - 1, 1 << 20, (5 << 20) - 1] {
            for (bytes, compression) in
                [(&encoded, CompressionAlgorithmBin::Zstd), (&zeros, CompressionAlgorithmBin::None)]
            {
                let refused = decode(bytes, compression, most).unwrap_err().to_string();
                assert!(refused.contains(&format!("more than {most} bytes")), "{refused}");
            }
        }
    }
}
