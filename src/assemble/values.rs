//! From arguments and metadata to conversions.

use super::Conversion;
use super::conversion::Normalization;
use super::normalize::{self, Given, Places};
use super::step::Normalize;
use crate::dataset::{ArrayInfo, Cf, Dataset, ElementType, Joined};
use crate::error::{Error, Result};
use crate::options::{Arguments, argument};

/// What happens to the elements of each part of each array, as the arguments ask for it.
///
/// # Errors
/// Arguments that cannot be used, attributes that cannot be applied, and parts of one array that do not come out as the
/// same type.
pub fn conversions(
    dataset: &Dataset,
    arguments: &Arguments,
    places: &Places<'_>,
) -> Result<Vec<Vec<Conversion>>> {
    let values = Values::check(arguments, dataset.arrays.len())?;
    let normalize = values.normalize(dataset, arguments, places)?;
    let of = |part: &ArrayInfo, normalize: Option<Normalization>| {
        let refused = |problem| argument("mask_and_scale", format!("{}: {problem}", part.context()));
        let cf = match values.mask_and_scale {
            true => Cf::of(part).map_err(refused)?,
            false => None,
        };
        if normalize.is_some() && part.components > 1 {
            let problem = "complex numbers cannot be normalized; give this array a reader of its own";
            let name = if arguments.normalize.is_empty() { "mean" } else { "normalize" };
            return Err(argument(name, format!("{}: {problem}", part.context())));
        }
        Conversion::new(part.stored, part.fixed_scale_offset, cf.as_ref(), normalize, values.dtype)
            .map_err(refused)
    };
    let joined = |(array, normalize): (&Joined, &Option<Normalization>)| {
        let conversions: Vec<_> =
            array.parts.iter().map(|part| of(part, normalize.clone())).collect::<Result<_>>()?;
        let differs = (1..conversions.len()).find(|&n| conversions[n].output() != conversions[0].output());
        match differs {
            None => Ok(conversions),
            Some(number) => Err(Error::Unlike {
                at: array.context(),
                difference: format!(
                    "its element type after mask_and_scale is {}, but {} in {}",
                    conversions[0].output().name(),
                    conversions[number].output().name(),
                    array.parts[number].context()
                ),
                remedy: "only one of them has a fill value that CF knows: give `dtype`, or leave out mask_and_scale",
            }),
        }
    };
    dataset.arrays.iter().zip(&normalize).map(joined).collect()
}

/// What the arguments say about the values of the outputs.
#[derive(Clone, Debug, PartialEq)]
struct Values {
    /// Decode by the CF attributes. Default: no.
    mask_and_scale: bool,
    /// The outputs' type. Default: what the values have.
    dtype: Option<ElementType>,
    /// One per array. Default: none.
    normalize: Vec<Option<Normalize>>,
}

impl Values {
    /// Checks the arguments of a reader of `arrays` arrays.
    ///
    /// # Errors
    /// [`Error::Argument`] names the first one that cannot be used.
    fn check(arguments: &Arguments, arrays: usize) -> Result<Self> {
        let dtype = match arguments.dtype.as_deref() {
            None => None,
            // DALI's names for two of the types are those of C.
            Some("float") => Some(ElementType::Float32),
            Some("double") => Some(ElementType::Float64),
            Some(name) => Some(ElementType::from_name(name).ok_or_else(|| {
                argument("dtype", format!("\"{name}\" is no type of numbers; give bool, (u)int8 to (u)int64, or float16 to float64"))
            })?),
        };
        let list = |name: &'static str, values: &[f64], nothing: f64| {
            if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
                return Err(argument(name, format!("{bad} is not finite; give numbers that are")));
            }
            match values {
                [] => Ok(vec![nothing; arrays]),
                [one] => Ok(vec![*one; arrays]),
                several if several.len() == arrays => Ok(several.to_vec()),
                several => Err(argument(
                    name,
                    format!(
                        "it has {} values for {arrays} array(s); give one, or one for each array",
                        several.len()
                    ),
                )),
            }
        };
        let mean = list("mean", &arguments.mean, 0.0)?;
        let std = list("std", &arguments.std, 1.0)?;
        if std.contains(&0.0) {
            return Err(argument("std", "values cannot be divided by 0; give another number".into()));
        }
        let given = !arguments.mean.is_empty() || !arguments.std.is_empty();
        if given && !arguments.normalize.is_empty() {
            let problem = "it says what `mean` and `std` say, too; give one of them";
            return Err(argument("normalize", problem.into()));
        }
        let normalize = mean.into_iter().zip(std).map(|(mean, std)| given.then_some(Normalize { mean, std }));
        Ok(Self { mask_and_scale: arguments.mask_and_scale, dtype, normalize: normalize.collect() })
    }

    /// What the values of each array are normalized by.
    ///
    /// # Errors
    /// `normalize`, if it cannot be used.
    fn normalize(
        &self,
        dataset: &Dataset,
        arguments: &Arguments,
        places: &Places<'_>,
    ) -> Result<Vec<Option<Normalization>>> {
        if arguments.normalize.is_empty() {
            return Ok(self.normalize.iter().map(|normalize| normalize.map(Into::into)).collect());
        }
        let given = normalize::parse(&arguments.normalize, &dataset.arrays)?;
        let resolve = |(number, given): (usize, Option<Given>)| {
            let Some(given) = given else { return Ok(None) };
            given.check_scale(&dataset.arrays[number], self.mask_and_scale)?;
            given.resolve(&dataset.arrays[number], number, places).map(Some)
        };
        given.into_iter().enumerate().map(resolve).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_one_for_all_arrays_or_one_for_each() {
        let arguments = Arguments {
            mean: vec![3.0],
            std: vec![1.0, 2.0],
            dtype: Some("float".into()),
            ..Arguments::new("x")
        };
        let values = Values::check(&arguments, 2).unwrap();
        assert_eq!(values.dtype, Some(ElementType::Float32));
        assert_eq!(
            values.normalize,
            [Some(Normalize { mean: 3.0, std: 1.0 }), Some(Normalize { mean: 3.0, std: 2.0 })]
        );
        assert_eq!(Values::check(&Arguments::new("x"), 2).unwrap().normalize, [None, None]);
        let bad: [(&str, Arguments); 4] = [
            ("`std`", arguments),
            ("`std`", Arguments { std: vec![0.0], ..Arguments::new("x") }),
            ("`mean`", Arguments { mean: vec![f64::NAN], ..Arguments::new("x") }),
            ("`dtype`", Arguments { dtype: Some("string".into()), ..Arguments::new("x") }),
        ];
        for (name, arguments) in bad {
            let error = Values::check(&arguments, 3).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
