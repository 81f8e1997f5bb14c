//! Profiles of the AWS command line tools: `~/.aws/credentials` and `~/.aws/config`, which `object_store` does not read.

use crate::error::Result;
use crate::options::argument;

use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What is taken from a profile: its name there and for `object_store`.
const CREDENTIALS: [(&str, &str); 3] = [
    ("aws_access_key_id", "access_key_id"),
    ("aws_secret_access_key", "secret_access_key"),
    ("aws_session_token", "session_token"),
];
/// What of a profile says that credentials come from elsewhere.
const ELSEWHERE: [&str; 5] =
    ["sso_session", "sso_start_url", "role_arn", "credential_process", "login_session"];

/// The options that a profile adds to `given`, which are options by `object_store`'s names. `profile` is the name that the user gave; without one
/// it is that of `AWS_PROFILE`, or `default`. What is in `given` counts more than the environment, which counts more than a profile that
/// was not given by name.
///
/// # Errors
/// A profile that was named and is not there, or whose credentials come from elsewhere.
pub fn options(
    profile: Option<&str>,
    given: &HashSet<String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>> {
    let named =
        profile.map(str::to_string).or_else(|| environment("AWS_PROFILE").filter(|name| !name.is_empty()));
    let name = named.as_deref().unwrap_or("default");
    let home = environment("HOME").map(PathBuf::from);
    let file = |variable: &str, usual: &str| {
        let path = environment(variable)
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join(".aws").join(usual)));
        path.map_or_else(|| Ok(String::new()), |path| text_of(&path))
    };
    let files = [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
    let (mut values, mut unreadable) = (BTreeMap::new(), None);
    for (file, is_config) in files.into_iter().zip([true, false]) {
        match file {
            Ok(text) => values.extend(section(&text, name, is_config)),
            Err(problem) => unreadable = Some(problem),
        }
    }
    let refused = |problem: String| Err(argument("storage_options", problem));
    let in_environment = |names: &[&str]| {
        profile.is_none() && names.iter().any(|name| environment(name).is_some_and(|value| !value.is_empty()))
    };
    let mut found = vec![];
    let has_credentials = ["access_key_id", "skip_signature"].iter().any(|name| given.contains(*name))
        || in_environment(&["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"]);
    if values.is_empty() && (profile.is_some() || named.is_some() && !has_credentials) {
        let problem = unreadable.unwrap_or("~/.aws/config and ~/.aws/credentials do not have it".into());
        return refused(format!("names the AWS profile \"{name}\", and {problem}"));
    }
    if !has_credentials {
        let elsewhere = ELSEWHERE.iter().find(|name| values.contains_key(**name));
        if let (Some(elsewhere), true, false) =
            (elsewhere, named.is_some(), values.contains_key(CREDENTIALS[0].0))
        {
            return refused(format!(
                "names the AWS profile \"{name}\", whose credentials come from its {elsewhere}, which is not read; export them with: aws configure export-credentials --profile {name} --format env"
            ));
        }
        found.extend(CREDENTIALS);
    }
    if !given.contains("region")
        && !given.contains("default_region")
        && !in_environment(&["AWS_REGION", "AWS_DEFAULT_REGION"])
    {
        found.push(("region", "region"));
    }
    let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    if !given.contains("endpoint") && !in_environment(&endpoints) {
        found.push(("endpoint_url", "endpoint"));
    }
    let value = |(theirs, ours): (&str, &str)| Some((ours.to_string(), values.remove(theirs)?));
    Ok(found.into_iter().filter_map(value).collect())
}

/// What is in a file; nothing if it is not there.
fn text_of(path: &Path) -> std::result::Result<String, String> {
    match std::fs::read_to_string(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        text => text.map_err(|error| format!("\"{}\" cannot be read ({error})", path.display())),
    }
}

/// The values of a profile in a file of either kind. In `config` the names of sections begin with `profile`, but for the default one.
fn section(text: &str, profile: &str, is_config: bool) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let mut is_inside = false;
    for line in text.lines() {
        if let Some(section) = line.trim().strip_prefix('[').and_then(|line| line.split(']').next()) {
            let section = section.trim();
            let name =
                section.strip_prefix("profile").filter(|name| name.starts_with([' ', '\t'])).map(str::trim);
            is_inside = match name {
                Some(name) if is_config => name.trim_matches('"') == profile,
                _ => section == profile && (!is_config || profile == "default"),
            };
            continue;
        }
        // Lines that are indented belong to the value above them, such as `s3 =`.
        if !is_inside || line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some((name, value)) = line.split_once('=') {
            // A comment behind a value begins with a space.
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default();
            values.insert(name.trim().to_ascii_lowercase(), value.trim().to_string());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n\n[profile dev] # ours\nregion=us-east-2\nendpoint_url = http://h:9\ns3 =\n  region = no\n\
                          [profile sso]\nsso_session = s\n[dev2]\nregion = no\n[sso-session dev]\nregion = no\n";
    const SECRETS: &str = "# comment\n[default]\naws_access_key_id = A\naws_secret_access_key = s=/+ # s\n[dev]\naws_access_key_id=D\naws_secret_access_key=d\n\
                           aws_session_token = t\n";

    fn found(profile: Option<&str>, given: &[&str], environment: &[(&str, &str)]) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        std::fs::write(folder.path().join(".aws/config"), CONFIG).unwrap();
        std::fs::write(folder.path().join("elsewhere"), SECRETS).unwrap();
        let of = |name: &str| match name {
            "HOME" => folder.path().to_str().map(str::to_string),
            "AWS_SHARED_CREDENTIALS_FILE" => Some(folder.path().join("elsewhere").to_str()?.into()),
            _ => environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()),
        };
        let options = options(profile, &given.iter().map(|name| name.to_string()).collect(), of)?;
        Ok(options.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_profile_gives_what_neither_options_nor_environment_do() {
        let default = "access_key_id=A secret_access_key=s=/+ region=eu-west-1";
        let dev = "access_key_id=D secret_access_key=d session_token=t region=us-east-2 endpoint=http://h:9";
        let keys = ("AWS_ACCESS_KEY_ID", "E");
        for (profile, given, environment, expected) in [
            (None, vec![], vec![], default),
            (Some("dev"), vec![], vec![], dev),
            (None, vec![], vec![("AWS_PROFILE", "dev")], dev),
            (Some("default"), vec![], vec![("AWS_PROFILE", "dev")], default),
            (None, vec!["access_key_id"], vec![], "region=eu-west-1"),
            (None, vec!["skip_signature", "region"], vec![], ""),
            (None, vec![], vec![keys, ("AWS_REGION", "r")], ""),
            // A profile that is given by name counts more than the environment.
            (Some("dev"), vec!["endpoint"], vec![keys, ("AWS_REGION", "r")], &dev[..dev.len() - 20]),
            (Some("sso"), vec!["access_key_id"], vec![], ""),
            // It is not needed.
            (None, vec!["skip_signature"], vec![("AWS_PROFILE", "nothing")], ""),
        ] {
            let found = found(profile, &given, &environment).unwrap();
            assert_eq!(found, expected.trim(), "{profile:?} {given:?} {environment:?}");
        }
    }

    #[test]
    fn a_profile_that_cannot_be_used_is_refused_by_name() {
        for (profile, words) in [
            ("nothing", "\"nothing\", and ~/.aws/config"),
            ("dev2", "\"dev2\", and ~/.aws/config"),
            ("sso", "its sso_session, which"),
        ] {
            let error = found(Some(profile), &[], &[]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(found(None, &[], &[("AWS_PROFILE", profile)]).is_err());
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_where_its_profile_is_needed() {
        // A folder.
        let unreadable = ("AWS_CONFIG_FILE", "/");
        let error = found(Some("sso"), &[], &[unreadable]).unwrap_err().to_string();
        assert!(error.contains("\"sso\", and \"/\" cannot be read"), "{error}");
        assert_eq!(found(None, &["skip_signature"], &[unreadable]).unwrap(), "");
    }
}
