//! The argument `dimension_offsets`: which indices a sample has along dimensions by name.

use crate::dataset::Joined;
use crate::error::{Error, Result};
use crate::options::argument;
use crate::sampler::AxisOffsets;

use serde_json::{Map, Value, from_str, from_value};

fn refused(problem: String) -> Error {
    argument("dimension_offsets", problem)
}

/// What the argument says of each dimension of the array that samples are counted in, as far as the last that it names.
///
/// # Errors
/// Text of another form, dimensions that the array has not, and a dimension that is named twice.
pub(super) fn dimension_offsets(text: &str, reference: &Joined) -> Result<Vec<Option<AxisOffsets>>> {
    if text.is_empty() {
        return Ok(vec![]);
    }
    let names = &reference.first().dimension_names;
    parse(text, names, reference.shape.len())
        .map_err(|problem| refused(format!("{problem}, {}", reference.context())))
}

/// The same for an array of `count` dimensions with these names, or why not.
fn parse(
    text: &str,
    names: &[String],
    count: usize,
) -> std::result::Result<Vec<Option<AxisOffsets>>, String> {
    let given: Map<String, Value> = from_str(text).map_err(|error| {
        format!("it is no JSON object ({error}); give one such as {{\"lead_time\": [0, 1, 4]}}")
    })?;
    let mut along: Vec<Option<AxisOffsets>> = vec![];
    for (name, value) in given {
        let place = names.iter().position(|known| *known == name);
        let place = place.or_else(|| name.parse::<usize>().ok().filter(|&place| place < count));
        let Some(place) = place else {
            return Err(format!(
                "there is no dimension \"{name}\"; give one of the names {names:?} or a number below {count}"
            ));
        };
        if along.len() <= place {
            along.resize(place + 1, None);
        }
        if along[place].is_some() {
            return Err(format!(
                "dimension {place} is named twice, the second time as \"{name}\"; leave one out"
            ));
        }
        along[place] = Some(offsets_of(&name, value)?);
    }
    Ok(along)
}

/// The offsets that a list is, or those of an object, with its breaks.
fn offsets_of(name: &str, value: Value) -> std::result::Result<AxisOffsets, String> {
    let remedy = "give a list of steps, or an object with the lists \"offsets\" and \"breaks\"";
    let list = |value: Value| {
        let shown = value.to_string();
        from_value::<Vec<i64>>(value).map_err(|_| format!("of \"{name}\" it has {shown}; {remedy}"))
    };
    let mut found = AxisOffsets::default();
    match value {
        Value::Object(parts) => {
            for (part, value) in parts {
                match part.as_str() {
                    "offsets" => found.offsets = list(value)?,
                    "breaks" => found.breaks = list(value)?,
                    _ => return Err(format!("of \"{name}\" it has \"{part}\"; {remedy}")),
                }
            }
        }
        value => found.offsets = list(value)?,
    }
    match found.offsets.is_empty() {
        true => Err(format!("of \"{name}\" it has no step; give some, or leave the name out")),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_named_or_numbered() {
        let names: Vec<String> = ["init", "lead", "x"].map(Into::into).into();
        let of = |offsets: &[i64], breaks: &[i64]| {
            Some(AxisOffsets { offsets: offsets.into(), breaks: breaks.into() })
        };
        for (text, expected) in [
            (r#"{"lead": [0, 4]}"#, vec![None, of(&[0, 4], &[])]),
            (r#"{"2": [-1], "init": [0]}"#, vec![of(&[0], &[]), None, of(&[-1], &[])]),
            (r#"{"lead": {"offsets": [0, 4], "breaks": [7]}}"#, vec![None, of(&[0, 4], &[7])]),
            ("{}", vec![]),
        ] {
            assert_eq!(parse(text, &names, 3).unwrap(), expected, "{text}");
        }
        for (text, problem) in [
            ("[1]", "no JSON object"),
            (
                r#"{"level": [0]}"#,
                "no dimension \"level\"; give one of the names [\"init\", \"lead\", \"x\"]",
            ),
            (r#"{"3": [0]}"#, "a number below 3"),
            (r#"{"lead": [0], "1": [0]}"#, "named twice"),
            (r#"{"lead": []}"#, "no step"),
            (r#"{"lead": {"breaks": [1]}}"#, "no step"),
            (r#"{"lead": 0.5}"#, "it has 0.5; give a list"),
            (r#"{"lead": {"stride": [1]}}"#, "it has \"stride\""),
        ] {
            let found = parse(text, &names, 3).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
