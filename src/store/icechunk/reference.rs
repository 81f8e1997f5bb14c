//! Which snapshot of a repository is read: how it is written behind a path or URL, and how it is found.
//!
//! Format 2 has all branches and tags in the file `repo`, format 1 a file for each.

use super::super::contract::{Store, read_whole};
use super::files::{self, MOST_FILE_BYTES};
use crate::error::{Obstacle, Result};
use crate::options::argument;

use std::io;

use icechunk_format::repo_info::RepoInfo;
use icechunk_format::{REPO_INFO_FILE_PATH, SnapshotId, V1_REFS_FILE_PATH};
use object_store::path::PathPart;
use serde_json::Value;

/// What stands between the path or URL of a repository, and what is read in it.
const IN_REPOSITORY: &str = "|icechunk:";

/// What the user calls a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// The last snapshot of a branch.
    Branch(String),
    Tag(String),
    Snapshot(SnapshotId),
}

/// The repository, and what is read in it, of `PLACE|icechunk:@REFERENCE/PATH`.
pub fn split(path: &str) -> Option<(&str, &str)> {
    path.rsplit_once(IN_REPOSITORY)
}

/// Reads `@branch.NAME/PATH`, `@tag.NAME/PATH`, `@SNAPSHOT/PATH` or `PATH`, which is of the branch `main`. `|zarr3:` may follow.
///
/// # Errors
/// Says what is none of these.
pub fn parse(inner: &str) -> Result<(Reference, String)> {
    let refused = |problem: String| argument("path", problem);
    let (inner, behind) = inner.split_once('|').unwrap_or((inner, "zarr3:"));
    let Some(below) = behind.strip_prefix("zarr3:") else {
        return Err(refused(format!(
            "\"|{behind}\" cannot follow \"{IN_REPOSITORY}\": arrays in an Icechunk repository have format 3 of Zarr; leave it out"
        )));
    };
    let (reference, within) = match inner.trim_start_matches('/').strip_prefix('@') {
        None => (Reference::Branch("main".into()), inner),
        Some(inner) => {
            let (version, within) = inner.split_once('/').unwrap_or((inner, ""));
            let name = |name: &str| decoded(name).filter(|name| !name.is_empty());
            let reference = if let Some(branch) = version.strip_prefix("branch.") {
                name(branch).map(Reference::Branch)
            } else if let Some(tag) = version.strip_prefix("tag.") {
                name(tag).map(Reference::Tag)
            } else {
                SnapshotId::try_from(version).ok().map(Reference::Snapshot)
            };
            let problem = || {
                format!(
                    "\"@{version}\" is no snapshot of an Icechunk repository; give @branch.NAME, @tag.NAME or @SNAPSHOT with the 20 letters and digits of one"
                )
            };
            (reference.ok_or_else(|| refused(problem()))?, within)
        }
    };
    let parts =
        [within, below].map(|part| part.trim_matches('/')).into_iter().filter(|part| !part.is_empty());
    Ok((reference, parts.collect::<Vec<_>>().join("/")))
}

/// A path as the user gave it with the snapshot that it means.
pub fn pinned(path: &str, snapshot: &str) -> String {
    let (place, inner) = split(path).unwrap_or((path, ""));
    let within = parse(inner).map(|(_, within)| within).unwrap_or_default();
    let slash = if within.is_empty() { "" } else { "/" };
    format!("{}{IN_REPOSITORY}@{snapshot}{slash}{within}", place.trim_end_matches('/'))
}

/// A name in which `%2F` stands for a slash and so on. `None` if it is no text then.
pub fn decoded(name: &str) -> Option<String> {
    let mut bytes = vec![];
    let mut rest = name.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped = behind.first_chunk().and_then(|digits: &[u8; 2]| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok().filter(|_| *first == b'%')
        });
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8(bytes).ok()
}

/// Finds the snapshot that a reference means now.
///
/// # Errors
/// What the store says, or that there is no such branch or tag, or no repository.
pub async fn resolve(store: &dyn Store, reference: &Reference) -> io::Result<SnapshotId> {
    let (kind, name) = match reference {
        Reference::Snapshot(snapshot) => return Ok(snapshot.clone()),
        Reference::Branch(name) => ("branch", name),
        Reference::Tag(name) => ("tag", name),
    };
    let (info, denied) = match files::repo_info(store).await {
        // A repository of format 1 in a bucket that may not be listed.
        Err(error) if Obstacle::is_forbidden(&error) => (None, Some(error)),
        info => (info?, None),
    };
    if let Some(info) = info {
        let named = names_and_snapshots(&info, kind)?;
        if let Some((_, snapshot)) = named.iter().find(|(found, _)| found == name) {
            return Ok(snapshot.clone());
        }
        return Err(unknown(kind, name, &named.into_iter().map(|(name, _)| name).collect::<Vec<_>>()));
    }
    // Clients differ in whether they escape unusual characters.
    let escaped = PathPart::from(name.as_str());
    let mut names = vec![name.as_str()];
    names.extend(Some(escaped.as_ref()).filter(|escaped| *escaped != name));
    for name in names {
        let key = format!("{V1_REFS_FILE_PATH}/{kind}.{name}/ref.json");
        let Some((bytes, _)) = read_whole(store, &key, MOST_FILE_BYTES).await? else { continue };
        if kind == "tag" {
            // Without the permission to list, this is the answer for what is absent.
            let deleted = read_whole(store, &format!("{key}.deleted"), MOST_FILE_BYTES).await;
            if deleted
                .or_else(|error| if Obstacle::is_forbidden(&error) { Ok(None) } else { Err(error) })?
                .is_some()
            {
                continue;
            }
        }
        let snapshot = serde_json::from_slice::<Value>(&bytes).ok().and_then(|json| {
            let snapshot = json.get("snapshot").and_then(Value::as_str)?;
            SnapshotId::try_from(snapshot).ok()
        });
        return snapshot.ok_or_else(|| files::damaged(&key, "it names no snapshot"));
    }
    if let Some(denied) = denied {
        return Err(denied);
    }
    let listed = store.list(V1_REFS_FILE_PATH).await.map(|listing| listing.names);
    let names: Vec<String> =
        listed.as_deref().unwrap_or_default().iter().filter_map(|found| named(found, kind)).collect();
    if names.is_empty()
        && read_whole(store, &format!("{V1_REFS_FILE_PATH}/branch.main/ref.json"), MOST_FILE_BYTES)
            .await?
            .is_none()
    {
        return Err(files::refused(
            format!(
                "there is neither \"{REPO_INFO_FILE_PATH}\" nor \"{V1_REFS_FILE_PATH}/branch.main/ref.json\""
            ),
            "give the path or URL of an Icechunk repository before \"|icechunk:\"",
        ));
    }
    Err(unknown(kind, name, &names))
}

/// The name of the branch or tag that a folder is for.
fn named(folder: &str, kind: &str) -> Option<String> {
    decoded(folder.strip_prefix(kind)?.strip_prefix('.')?)
}

fn names_and_snapshots(info: &RepoInfo, kind: &str) -> io::Result<Vec<(String, SnapshotId)>> {
    files::guarded(REPO_INFO_FILE_PATH, || {
        let owned = |(name, snapshot): (&str, SnapshotId)| (name.to_string(), snapshot);
        Ok(if kind == "branch" {
            info.branches()?.map(owned).collect()
        } else {
            info.tags()?.map(owned).collect()
        })
    })
}

fn unknown(kind: &'static str, name: &str, names: &[String]) -> io::Error {
    const SHOWN: usize = 20;
    let plural = if kind == "branch" { "branches" } else { "tags" };
    let mut there = match names {
        [] => String::new(),
        names => {
            let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
            format!("; its {plural} are {}", shown.join(", "))
        }
    };
    if names.len() > SHOWN {
        there += &format!(" and {} more", names.len() - SHOWN);
    }
    files::refused(
        format!("it has no {kind} \"{name}\"{there}"),
        "name one that it has: @branch.NAME, @tag.NAME, or @SNAPSHOT",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: &str = "6NC92Z0CQSZSQ523A3JG";

    #[test]
    fn references_are_read_as_url_pipelines_write_them() {
        let branch = |name: &str| Reference::Branch(name.into());
        let snapshot = || Reference::Snapshot(SnapshotId::try_from(SNAPSHOT).unwrap());
        for (inner, reference, within) in [
            ("", branch("main"), ""),
            ("/", branch("main"), ""),
            ("group/a/", branch("main"), "group/a"),
            ("@branch.dev", branch("dev"), ""),
            ("@branch.dev/", branch("dev"), ""),
            ("/@branch.dev/g", branch("dev"), "g"),
            ("@branch.a%2Fb%/g", branch("a/b%"), "g"),
            ("@tag.v1.2/g/a", Reference::Tag("v1.2".into()), "g/a"),
            (&format!("@{SNAPSHOT}/g"), snapshot(), "g"),
            (&format!("@{SNAPSHOT}|zarr3:"), snapshot(), ""),
            ("g/|zarr3:a/", branch("main"), "g/a"),
        ] {
            assert_eq!(parse(inner).unwrap(), (reference, within.into()), "{inner}");
        }
        for (inner, text) in [
            ("@dev", "\"@dev\" is no snapshot"),
            ("@", "\"@\" is no snapshot"),
            ("@branch./g", "\"@branch.\" is no snapshot"),
            ("@branch.%FF", "is no snapshot"),
            ("g|zarr2:", "format 3 of Zarr"),
            ("g|zip:x", "cannot follow"),
        ] {
            let error = parse(inner).unwrap_err().to_string();
            assert!(error.contains(text), "{inner}: {error}");
        }
    }

    #[test]
    fn a_path_names_the_snapshot_that_is_read() {
        assert_eq!(split("s3://b/r|icechunk:@tag.v1/g"), Some(("s3://b/r", "@tag.v1/g")));
        assert_eq!(split("s3://b/r"), None);
        for (path, expected) in [
            ("s3://b/r|icechunk:@tag.v1/g/|zarr3:", "s3://b/r|icechunk:@X/g"),
            ("/data/r/|icechunk:", "/data/r|icechunk:@X"),
            ("/data/r/", "/data/r|icechunk:@X"),
        ] {
            assert_eq!(pinned(path, "X"), expected);
        }
    }
}
