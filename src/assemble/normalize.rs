//! The argument `normalize`: means and standard deviations of arrays and of their channels.

use super::channels::Channels;
use super::conversion::Normalization;
use super::step::Normalize;
use crate::dataset::Joined;
use crate::error::Result;
use crate::json;
use crate::options::argument;
use crate::plan::{ArrayGeometry, ChannelPlace, OutputGeometry};
use crate::sampler::Windows;

use serde_json::{Map, Value};

/// What the user gave for an array.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Given {
    /// Name of the dimension that lists run along.
    dimension: Option<String>,
    mean: Numbers,
    std: Numbers,
    /// Whether the numbers are of what CF attributes make of the values, where that is told.
    mask_and_scale: Option<bool>,
}

#[derive(Clone, Debug, PartialEq)]
enum Numbers {
    One(f64),
    Each(Vec<f64>),
}

/// Where the samples of an array lie.
pub struct Places<'a> {
    /// The windows that are samples.
    pub windows: &'a Windows,
    /// Where the windows lie in each array.
    pub geometry: &'a [ArrayGeometry],
    /// Where each array lies in its output.
    pub placing: &'a [OutputGeometry],
    /// Whether stores are read separately, of which the windows and places are those of the first.
    pub is_separate: bool,
}

fn refused(problem: String) -> crate::error::Error {
    argument("normalize", problem)
}

/// What the argument says about each of `arrays`.
///
/// # Errors
/// Text that is no JSON of that form, numbers that cannot be used, and names that are none of the arrays'.
pub(super) fn parse(text: &str, arrays: &[Joined]) -> Result<Vec<Option<Given>>> {
    let value = json::parse(text.as_bytes()).map_err(|error| {
        refused(format!(
            "it is no JSON ({error}); give an object such as {{\"t\": {{\"mean\": 280, \"std\": 20}}}}"
        ))
    })?;
    let names: Vec<String> = arrays.iter().map(name).collect();
    match value {
        Value::Object(entries) => by_name(&entries, &names),
        Value::Array(entries) if entries.len() == names.len() => {
            names.iter().zip(&entries).map(|(name, entry)| given(name, entry)).collect()
        }
        Value::Array(entries) => Err(refused(format!(
            "the list has {} entries for {} array(s); give one for each, null for those that stay as they are",
            entries.len(),
            names.len()
        ))),
        other => Err(refused(format!("{other} is no object; give one with an entry for each array"))),
    }
}

/// What an array is called in the argument.
fn name(array: &Joined) -> String {
    let first = array.first();
    match first.name.is_empty() {
        true => first.store.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_string(),
        false => first.name.clone(),
    }
}

fn by_name(entries: &Map<String, Value>, names: &[String]) -> Result<Vec<Option<Given>>> {
    let find = |name: &String| entries.iter().find(|(key, _)| key.trim_matches('/') == *name);
    let known = |key: &String| names.iter().any(|name| name == key.trim_matches('/'));
    let (lacks, unknown) =
        (names.iter().find(|name| find(name).is_none()), entries.keys().find(|key| !known(key)));
    // A misspelt name would leave its array as it is.
    if let (Some(lacks), Some(unknown)) = (lacks, unknown) {
        return Err(refused(format!(
            "it names \"{unknown}\", which is none of the arrays, and not \"{lacks}\", which is; correct the name, or give \"{lacks}\": null to leave that array as it is"
        )));
    }
    names.iter().map(|name| find(name).map_or(Ok(None), |(_, entry)| given(name, entry))).collect()
}

fn given(name: &str, entry: &Value) -> Result<Option<Given>> {
    let entry = match entry {
        Value::Null => return Ok(None),
        Value::Object(entry) => entry,
        other => {
            let form = "an object with \"mean\" and \"std\"";
            return Err(refused(format!("of \"{name}\" it has {other}; give {form}, or null")));
        }
    };
    let dimension = match entry.get("dim") {
        None | Some(Value::Null) => None,
        Some(Value::String(dimension)) => Some(dimension.clone()),
        Some(other) => return Err(refused(format!("of \"{name}\" it has \"dim\": {other}; give a name"))),
    };
    let mean = numbers(name, entry, "mean", f32::is_finite)?;
    let std = numbers(name, entry, "std", |number| number.is_finite() && number != 0.0)?;
    if let (Numbers::Each(means), Numbers::Each(stds)) = (&mean, &std)
        && means.len() != stds.len()
    {
        return Err(refused(format!(
            "of \"{name}\" it has {} means and {} standard deviations; give as many of both",
            means.len(),
            stds.len()
        )));
    }
    if let (Some(dimension), Numbers::One(_), Numbers::One(_)) = (&dimension, &mean, &std) {
        return Err(refused(format!(
            "of \"{name}\" it has \"dim\": \"{dimension}\" with one mean and one standard deviation; give lists, or leave \"dim\" out"
        )));
    }
    let mask_and_scale = match entry.get("mask_and_scale") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(value)) => Some(*value),
        Some(other) => {
            return Err(refused(format!(
                "of \"{name}\" it has \"mask_and_scale\": {other}; give true or false, or leave it out"
            )));
        }
    };
    Ok(Some(Given { dimension, mean, std, mask_and_scale }))
}

/// The numbers of an entry; `usable` says which of them are, rounded to the narrowest type that is computed in.
fn numbers(
    name: &str,
    entry: &Map<String, Value>,
    key: &str,
    usable: impl Fn(f32) -> bool,
) -> Result<Numbers> {
    let remedy = match key {
        "std" => "give finite float32 numbers that are not 0, and 1 where nothing varies",
        _ => "give finite float32 numbers",
    };
    let number = |value: &Value, place: String| {
        let number = value.as_f64().filter(|&number| usable(number as f32));
        number.ok_or_else(|| refused(format!("of \"{name}\" its \"{key}\" is {value}{place}; {remedy}")))
    };
    match entry.get(key) {
        None => Err(refused(format!("of \"{name}\" it has no \"{key}\"; give both \"mean\" and \"std\""))),
        Some(Value::Array(list)) => {
            let place = |index: usize| format!(" at index {index}");
            let list = list.iter().enumerate().map(|(index, value)| number(value, place(index)));
            Ok(Numbers::Each(list.collect::<Result<_>>()?))
        }
        Some(value) => Ok(Numbers::One(number(value, String::new())?)),
    }
}

impl Numbers {
    fn at(&self, index: u64) -> f64 {
        match self {
            Self::One(number) => *number,
            Self::Each(list) => list[index as usize],
        }
    }
}

impl Given {
    /// Checks that the numbers are of values as the reader gives them.
    ///
    /// # Errors
    /// They are of packed values and the reader unpacks them, or the other way round.
    pub(super) fn check_scale(&self, array: &Joined, mask_and_scale: bool) -> Result<()> {
        match self.mask_and_scale {
            Some(true) if !mask_and_scale => Err(refused(format!(
                "its numbers of \"{}\" are of values that CF attributes unpack, and this reader gives them as they are stored; give mask_and_scale=True, or take statistics with mask_and_scale=False (--raw)",
                name(array)
            ))),
            Some(false) if mask_and_scale => Err(refused(format!(
                "its numbers of \"{}\" are of values as they are stored, and this reader unpacks them by CF attributes; leave mask_and_scale out, or take statistics without mask_and_scale=False (--raw)",
                name(array)
            ))),
            _ => Ok(()),
        }
    }

    /// The normalization of array number `number`, with the channels of a sample in their order.
    ///
    /// # Errors
    /// Dimensions that the array does not have or that samples are taken along, and lists of another length.
    pub(super) fn resolve(
        &self,
        array: &Joined,
        number: usize,
        places: &Places<'_>,
    ) -> Result<Normalization> {
        let count = match (&self.mean, &self.std) {
            (&Numbers::One(mean), &Numbers::One(std)) => return Ok(Normalize { mean, std }.into()),
            (Numbers::Each(list), _) | (_, Numbers::Each(list)) => list.len() as u64,
        };
        let (geometry, windows) = (&places.geometry[number], places.windows);
        let at = array.context();
        let dimension = self.dimension(array, geometry, windows)?;
        let called = called(array, dimension);
        let differ = |axis: usize| windows.axes()[axis].count() > 1 || (axis == 0 && places.is_separate);
        if geometry.axes[dimension].is_some_and(differ) {
            return Err(refused(format!(
                "{at}: samples are windows along {called}, so that channels would differ between them; give \"dim\" with another dimension"
            )));
        }
        if count != array.shape[dimension] {
            return Err(refused(format!(
                "{at}: it has lists of {count} numbers, but {called} has {} indices in the store; give a number for each of them, also of those that are not read",
                array.shape[dimension]
            )));
        }
        let runs = geometry.runs(windows, &windows.places(0)).swap_remove(dimension);
        let indices = runs.iter().flat_map(|run| (0..run.count).map(|i| run.start + i * run.step));
        let numbers = indices.map(|i| Normalize { mean: self.mean.at(i), std: self.std.at(i) });
        let placing = &places.placing[number];
        let below = placing.strides[dimension];
        let all = geometry.sample_extents(windows)[dimension];
        let (place, inner) = match placing.channels {
            Some(place) if (place.elements..place.elements * place.all).contains(&below) => {
                (place, below / place.elements)
            }
            // In front of the channels or behind them, or there is one only.
            _ => (ChannelPlace { first: 0, all, elements: below }, 1),
        };
        Ok(Normalization::Channels(Channels::new(place, inner, numbers.collect())))
    }

    /// The dimension that lists run along.
    fn dimension(&self, array: &Joined, geometry: &ArrayGeometry, windows: &Windows) -> Result<usize> {
        let at = array.context();
        let Some(asked) = &self.dimension else {
            let behind = |&d: &usize| geometry.axes[d].is_none_or(|axis| axis >= windows.dimensions());
            return (0..geometry.axes.len()).find(behind).ok_or_else(|| {
                refused(format!(
                    "{at} has no dimension behind those of the window, which lists could run along; give \"dim\", or one number"
                ))
            });
        };
        let names = &array.first().dimension_names;
        names.iter().position(|name| name == asked).ok_or_else(|| {
            let problem = match names.is_empty() {
                true => format!("{at} has no names of dimensions, so that \"{asked}\" is none; leave \"dim\" out to have lists run along the first dimension behind those of the window"),
                false => format!("{at} has no dimension \"{asked}\", only \"{}\"", names.join("\", \"")),
            };
            refused(problem)
        })
    }
}

/// A dimension in words.
fn called(array: &Joined, dimension: usize) -> String {
    match array.first().dimension_names.get(dimension) {
        Some(name) => format!("its dimension \"{name}\""),
        None => format!("its dimension {dimension}"),
    }
}
