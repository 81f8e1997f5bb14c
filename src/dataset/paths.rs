//! The stores that a reader's `path` means: a list, in which patterns stand for every folder that they match.

use crate::error::{Error, Result};
use crate::options::argument;
use crate::store::{self, Access, Extent, Session, Sessions};

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use glob::{Pattern, PatternError};

/// The stores, each as the user would name it: literal paths as given, matches of a pattern in natural order.
///
/// A path that exists is never a pattern. In a pattern `*`, `?` and `[...]` stand for characters of one path component; in a URL `?` does not,
/// which begins a query there.
///
/// # Errors
/// An empty list, a pattern without matches, a store that comes twice.
pub fn expand(paths: &[String], access: &Access, sessions: &Sessions) -> Result<Vec<String>> {
    let mut stores = vec![];
    for path in paths {
        check_local(path)?;
        if store::is_url(path) {
            let mut matches = match is_url_pattern(path) && !is_store(path, access, sessions) {
                true => url_matches(path, access, sessions)?,
                false => vec![path.clone()],
            };
            matches.sort_by(|a, b| natural(a, b));
            stores.append(&mut matches);
            continue;
        }
        if !is_pattern(path) || Path::new(path).exists() {
            stores.push(path.clone());
            continue;
        }
        let (mut matches, unlisted) = matches(path);
        if matches.is_empty() {
            if let Some((folder, source)) = unlisted {
                return Err(Error::Unreadable { path: folder, source });
            }
            let problem = format!("no folder matches \"{path}\"; correct the pattern, or list the stores");
            return Err(argument("path", problem));
        }
        matches.sort_by(|a, b| natural(a, b));
        stores.append(&mut matches);
    }
    if stores.is_empty() {
        return Err(argument("path", "is an empty list; give one store or more".into()));
    }
    // A path that does not exist is reported when it is opened.
    let real: Vec<PathBuf> =
        stores.iter().map(|store| std::fs::canonicalize(store).unwrap_or_else(|_| store.into())).collect();
    let mut order: Vec<usize> = (0..stores.len()).collect();
    order.sort_by_key(|&i| &real[i]);
    if let Some(twice) = order.windows(2).find(|pair| real[pair[0]] == real[pair[1]]) {
        let problem = format!(
            "\"{}\" and \"{}\" are the same store; name each store once",
            stores[twice[0]], stores[twice[1]]
        );
        return Err(argument("path", problem));
    }
    Ok(stores)
}

/// Says of URLs that they are none of ours, or not written as URLs are.
fn check_local(path: &str) -> Result<()> {
    let url = path.trim();
    if url != path && store::is_url(url) && !Path::new(path).exists() {
        let shown = store::without_secrets(url);
        return Err(argument("path", format!("\"{shown}\" has blanks around it; give the URL without")));
    }
    let Some((scheme, rest)) = path.split_once("://") else {
        let url = path.replacen(":/", "://", 1);
        if store::is_url(&url) && !Path::new(path).exists() {
            let shown = store::without_secrets(&url);
            let problem = format!("is a URL with one slash behind its scheme; give \"{shown}\"");
            return Err(argument("path", problem));
        }
        return Ok(());
    };
    // Chains such as `zip::s3://` have several.
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.:".contains(c));
    if !is_scheme || store::is_url(path) || Path::new(path).exists() {
        return Ok(());
    }
    let path = store::without_secrets(path);
    Err(argument(
        "path",
        match scheme {
            "file" => format!("\"{path}\" is a URL; give the path alone, \"{rest}\""),
            _ => format!(
                "\"{path}\" is a URL of a kind that is not read; give s3://, gs://, az://, abfs(s):// or http(s)://, or copy the store to a local disk"
            ),
        },
    ))
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// A folder that cannot be listed, and why.
type Unlisted = (String, std::io::Error);

/// The folders that a pattern matches, in no order; and one that could not be looked into.
fn matches(pattern: &str) -> (Vec<String>, Option<Unlisted>) {
    let (root, rest) = match pattern.strip_prefix('/') {
        Some(rest) => ("/", rest),
        None => ("", pattern),
    };
    let (mut found, mut unlisted) = (vec![root.to_string()], None);
    for component in rest.split('/').filter(|component| !component.is_empty()) {
        let folders = std::mem::take(&mut found);
        for folder in folders {
            match entries(&folder, component) {
                Ok(names) => found.extend(names),
                Err(error) => unlisted = Some((folder, error)),
            }
        }
    }
    (found, unlisted)
}

/// The folders in `folder` whose names match one component of a pattern.
///
/// # Errors
/// Why the folder cannot be listed.
fn entries(folder: &str, component: &str) -> std::io::Result<Vec<String>> {
    let below = |name: &str| match folder {
        "" => name.to_string(),
        _ => format!("{}/{name}", folder.trim_end_matches('/')),
    };
    if !is_pattern(component) {
        return Ok(Some(below(component)).filter(|path| Path::new(path).is_dir()).into_iter().collect());
    }
    let pattern = compiled(component).map_err(std::io::Error::other)?;
    let listed = std::fs::read_dir(if folder.is_empty() { "." } else { folder })?;
    let names = listed
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        // As in a shell, hidden folders have to be asked for.
        .filter(|name| !name.starts_with('.') || component.starts_with('.'))
        .filter(|name| pattern.matches(name))
        .map(|name| below(&name))
        .filter(|path| Path::new(path).is_dir());
    Ok(names.collect())
}

/// Of the components of a URL without a query, the first that is a pattern. The brackets of an IPv6 address are none.
fn first_pattern(components: &[&str]) -> Option<usize> {
    // Behind the scheme and nothing.
    const HOST: usize = 2;
    let is_pattern = |(at, component): &(usize, &&str)| {
        is_component_pattern(component) && !(*at == HOST && is_ipv6(component))
    };
    components.iter().enumerate().find(is_pattern).map(|(at, _)| at)
}

fn is_url_pattern(url: &str) -> bool {
    !url.contains('?') && first_pattern(&url.split('/').collect::<Vec<_>>()).is_some()
}

/// `?` begins a query.
fn is_component_pattern(component: &str) -> bool {
    component.contains(['*', '['])
}

fn is_ipv6(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.split_once(']'));
    address.is_some_and(|(address, _)| address.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Whether a URL in which there is a bracket is that of a store. One with `*` is never taken for it.
fn is_store(url: &str, access: &Access, sessions: &Sessions) -> bool {
    let has = |session: &Session| {
        ["zarr.json", ".zgroup", ".zarray"]
            .iter()
            .any(|file| matches!(session.read_part(file, Extent::Prefix(1)), Ok(Some(_))))
    };
    let session = |url| sessions.with(&store::open(url, access).ok()?).ok();
    !url.contains('*') && session(url).as_ref().is_some_and(has)
}

/// The stores that a pattern in a URL matches, in no order.
fn url_matches(url: &str, access: &Access, sessions: &Sessions) -> Result<Vec<String>> {
    let (shown, components) = (store::without_secrets(url), url.split('/').collect::<Vec<_>>());
    // Scheme, nothing, and the bucket or host.
    const ROOT: usize = 3;
    let Some(first) = first_pattern(&components).filter(|&first| first >= ROOT) else {
        let problem = format!("\"{shown}\" has a pattern for its bucket or host; list the stores");
        return Err(argument("path", problem));
    };
    let base = components[..first].join("/");
    let opened = store::open(&base, access)?;
    let refused = |why: String| {
        let remedy = "give a list of the stores, or credentials that may list it";
        let listed = store::without_secrets(&base);
        argument(
            "path",
            format!("\"{shown}\" is a pattern, and \"{listed}\" cannot be listed: {why}; {remedy}"),
        )
    };
    if !opened.lists() {
        return Err(refused("web servers have no listings".into()));
    }
    let session = sessions.with(&opened).map_err(|error| refused(error.to_string()))?;
    let found = keys_matching(&session, &components[first..]).map_err(|error| refused(error.to_string()))?;
    if found.is_empty() {
        let problem = format!("no folder matches \"{shown}\"; correct the pattern, or list the stores");
        return Err(argument("path", problem));
    }
    Ok(found.iter().map(|key| format!("{base}/{key}")).collect())
}

/// The folders of a store that match a pattern with one component for each level.
///
/// # Errors
/// Why a folder cannot be listed.
fn keys_matching(session: &Session, components: &[&str]) -> std::io::Result<Vec<String>> {
    let mut found = vec![String::new()];
    for component in components.iter().filter(|component| !component.is_empty()) {
        let pattern = compiled(component).map_err(std::io::Error::other)?;
        let fits = |name: &String| match is_component_pattern(component) {
            true => (!name.starts_with('.') || component.starts_with('.')) && pattern.matches(name),
            false => name == component,
        };
        let listings = session.list_each(&found);
        let mut below = vec![];
        for (key, listing) in found.iter().zip(listings) {
            let names = listing?.names.into_iter().filter(fits);
            below.extend(names.map(|name| if key.is_empty() { name } else { format!("{key}/{name}") }));
        }
        found = below;
    }
    Ok(found)
}

/// A pattern for one component of a path. `**` means no more than `*` there, and a bracket that is not closed is a bracket.
fn compiled(component: &str) -> std::result::Result<Pattern, PatternError> {
    let mut text = component.to_string();
    while text.contains("**") {
        text = text.replace("**", "*");
    }
    Pattern::new(&text).or_else(|unclosed| {
        let head: String = text.chars().take(unclosed.pos).collect();
        Pattern::new(&format!("{head}{}", text[head.len()..].replace('[', "[[]")))
    })
}

/// Compares texts as people do: numbers in them by their value, so that `part-2` comes before `part-10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(&x), Some(&y)) = (left.first(), right.first()) {
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (digits(&mut left), digits(&mut right));
            match m.len().cmp(&n.len()).then_with(|| m.cmp(n)) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        } else if x == y {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return x.cmp(&y);
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the number that a text begins with, without leading zeros.
fn digits<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    *text = rest;
    &number[number.iter().position(|&c| c != b'0').unwrap_or(end)..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, Store};
    use std::sync::Arc;
    use std::time::Duration;

    fn expand(paths: &[String]) -> Result<Vec<String>> {
        super::expand(paths, &Access::to_folders(true), &Sessions::new(Duration::ZERO))
    }

    #[test]
    fn names_are_sorted_as_people_do() {
        let mut names = ["p-10", "p-2", "p-1b", "p-1a", "p", "p-02", "q1", "p-010x", "p-9"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["p", "p-1a", "p-1b", "p-02", "p-2", "p-9", "p-10", "p-010x", "q1"]);
    }

    #[test]
    fn patterns_fit_as_in_a_shell() {
        let cases = [
            ("*.zarr", "a.zarr", true),
            ("*.zarr", "a.zarr.bak", false),
            ("20??", "2019", true),
            ("20??", "201", false),
            ("[0-9]x", "7x", true),
            ("[!0-9]x", "7x", false),
            ("[!0-9]x", "ax", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("[!a", "[!a", true),
            ("[]", "[]", true),
            ("[!]", "[!]", true),
            ("[a]*[b[c", "axx[b[c", true),
            ("[[]a[", "[a[", true),
            ("a**", "abc", true),
            ("a***c", "abc", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZcd", false),
            ("*[ab]?*", "xxxbcc", true),
            ("*[ab]?", "xxxbcc", false),
            ("**", "", true),
            ("a*", "", false),
            ("", "", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(compiled(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn no_pattern_takes_for_ever() {
        let name = "a".repeat(255);
        assert!(!compiled(&format!("{}b", "*a".repeat(100))).unwrap().matches(&name));
        assert!(!compiled(&"*[".repeat(1 << 16)).unwrap().matches(&name));
    }

    #[test]
    fn urls_are_taken_as_they_are_or_refused() {
        let urls = ["s3://bucket/era5.zarr", "gs://b/x", "https://host/a/era5.zarr?q=*"].map(String::from);
        assert_eq!(expand(&urls).unwrap(), urls);
        for (url, words) in [
            ("https://b/*/a.zarr", "web servers have no listings; give a list of the stores"),
            ("s3://b*/a.zarr", "list the stores"),
            ("zip::s3://b/z.zip", "URL"),
            ("file:///data/era5.zarr", "URL"),
            ("ftp://h/x", "URL"),
            ("hdfs://h/x", "URL"),
        ] {
            let error = expand(&["x".into(), url.into()]).unwrap_err().to_string();
            assert!(error.contains(url) && error.contains(words), "{error}");
        }
        assert_eq!(expand(&["a://b".into()]).map_err(|_| ()), Err(()));
        assert!(expand(&["://b".into(), "9:/b".into(), "a b://c".into()]).is_ok());
    }

    #[test]
    fn patterns_are_looked_up_in_listings() {
        let memory = MemoryStore::default();
        for key in
            ["y10/a.zarr/zarr.json", "y9/a.zarr/c/0", "y9/b.zarr/c/0", ".y/a.zarr/x", "z/a.zarr/x", "y1"]
        {
            memory.put(key, b"x".to_vec());
        }
        let store: Arc<dyn Store> = Arc::new(memory);
        let session = Session::new(&store, Duration::ZERO).unwrap();
        for (components, expected) in [
            (&["y*", "a.zarr"][..], &["y10/a.zarr", "y9/a.zarr"][..]),
            (&["[!z]*", "", "*"], &["y10/a.zarr", "y9/a.zarr", "y9/b.zarr"]),
            (&[".*", "a.zarr"], &[".y/a.zarr"]),
            (&["y[0-9]", "[ab].zarr"], &["y9/a.zarr", "y9/b.zarr"]),
            (&["y*", "c.zarr"], &[]),
        ] {
            assert_eq!(keys_matching(&session, components).unwrap(), expected, "{components:?}");
        }
    }

    #[test]
    fn patterns_become_folders() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        for name in ["y10/a.zarr", "y9/a.zarr", "y9/.b.zarr", "z[1]"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("y9/c.zarr"), "a file").unwrap();
        let expand_in = |paths: &[&str]| {
            expand(&paths.iter().map(|path| format!("{root}/{path}")).collect::<Vec<_>>())
                .map(|found| found.iter().map(|path| path[root.len() + 1..].to_string()).collect::<Vec<_>>())
        };
        assert_eq!(expand_in(&["y*/*.zarr"]).unwrap(), ["y9/a.zarr", "y10/a.zarr"]);
        assert_eq!(expand_in(&["y10/a.zarr", "y?/*"]).unwrap(), ["y10/a.zarr", "y9/a.zarr"]);
        assert_eq!(expand_in(&["z[1]", "nowhere"]).unwrap(), ["z[1]", "nowhere"]);
        assert!(expand_in(&["x*"]).unwrap_err().to_string().contains("x*"));
        assert!(expand_in(&["y9/a.zarr", "y*/a.zarr"]).unwrap_err().to_string().contains("same store"));
        assert!(expand(&[]).unwrap_err().to_string().contains("empty"));
    }
}
