//! JSON as Python writes it: with `NaN`, `Infinity` and `-Infinity`, which attributes often hold.

use serde_json::{Value, from_slice};

/// Parses JSON in which numbers that JSON does not have become their names, `"NaN"` and so on.
///
/// # Errors
/// What serde says of the text as it stands.
pub fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    from_slice(text).or_else(|error| from_slice(&quoted(text)).map_err(|_| error))
}

/// The text with quotes around the names of such numbers, where they stand outside of strings.
pub fn quoted(text: &[u8]) -> Vec<u8> {
    const NAMES: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
    let mut result = Vec::with_capacity(text.len() + 64);
    let (mut rest, mut in_string) = (text, false);
    while let Some(&byte) = rest.first() {
        let name = NAMES.iter().find(|name| !in_string && rest.starts_with(name.as_bytes()));
        let taken = match name {
            Some(name) => {
                result.extend_from_slice(format!("\"{name}\"").as_bytes());
                name.len()
            }
            None => {
                let escaped = in_string && byte == b'\\';
                in_string ^= byte == b'"';
                let taken = if escaped { 2.min(rest.len()) } else { 1 };
                result.extend_from_slice(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_json_does_not_have_become_their_names() {
        let text = br#"{"a": NaN, "b NaN": [1, -Infinity, "\"NaN", "\\"], "c": Infinity}"#;
        let expected = json!({"a": "NaN", "b NaN": [1, "-Infinity", "\"NaN", "\\"], "c": "Infinity"});
        assert_eq!(parse(text).unwrap(), expected);
        let error = parse(br#"{"a": NaN, "b": Nothing}"#).unwrap_err();
        assert!(error.to_string().contains("column 7"), "{error}");
        assert!(parse(br#"{"a": "\"#).is_err());
    }
}
