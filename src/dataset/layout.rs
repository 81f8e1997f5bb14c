//! DALI layouts from the names of dimensions.

use zarrs::array::Array;

/// zarrs reads no files here: metadata are given to it, and the reader reads the chunks.
pub(super) type NoStore = ();

/// The names of an array's dimensions; none unless each has one.
pub(super) fn names(array: &Array<NoStore>) -> Vec<String> {
    let names: Option<Vec<String>> = match array.dimension_names() {
        Some(names) => names.iter().cloned().collect(),
        // xarray's convention for Zarr v2.
        None => array
            .attributes()
            .get("_ARRAY_DIMENSIONS")
            .and_then(|names| serde_json::from_value(names.clone()).ok()),
    };
    names.filter(|names| names.len() == array.dimensionality()).unwrap_or_default()
}

/// DALI's layout from the dimensions' names: single letters and a few known names, else empty. Complex numbers have a
/// further dimension, for which there is no letter.
pub(super) fn layout(names: &[String], components: u64) -> String {
    if components > 1 {
        return String::new();
    }
    let letters: Option<String> = names.iter().map(|name| letter(name)).collect();
    match letters {
        Some(letters) if (1..letters.len()).all(|i| !letters[..i].contains(&letters[i..=i])) => letters,
        _ => String::new(),
    }
}

/// The layout of a sample with a new axis of channels at `axis`; empty where it clashes.
pub(crate) fn stacked(layout: &str, axis: usize) -> String {
    match (layout.get(..axis), layout.get(axis..)) {
        (Some(front), Some(back)) if !layout.is_empty() && !layout.contains('C') => format!("{front}C{back}"),
        _ => String::new(),
    }
}

fn letter(name: &str) -> Option<char> {
    let lower = name.to_ascii_lowercase();
    match lower.as_str() {
        "time" => Some('T'),
        "level" | "z" | "depth" => Some('D'),
        "latitude" | "lat" | "y" => Some('H'),
        "longitude" | "lon" | "x" => Some('W'),
        "channel" | "c" | "variable" => Some('C'),
        _ => {
            let mut letters = name.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) if letter.is_ascii_alphabetic() => Some(letter.to_ascii_uppercase()),
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stacked;

    #[test]
    fn channels_come_where_there_are_none() {
        assert_eq!([stacked("THW", 1), stacked("HW", 0), stacked("HW", 2)], ["TCHW", "CHW", "HWC"]);
        assert_eq!([stacked("", 0), stacked("TCHW", 1)], ["", ""]);
    }
}
