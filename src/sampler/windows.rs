//! Samples as windows over the leading dimensions of an array.

use crate::error::Result;
use crate::options::argument;

/// A regular arrangement of windows, numbered row by row.
///
/// The windows cover the first `window.len()` dimensions; every later dimension belongs whole to each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Extents of a window in elements.
    pub window: Vec<u64>,
    /// Steps between the starts of neighbouring windows.
    pub stride: Vec<u64>,
    /// How many windows there are along each dimension.
    pub counts: Vec<u64>,
    /// A sample is `array[i]`: the first dimension is left out of its shape.
    pub drops_first: bool,
}

impl Windows {
    /// Arranges windows over an array of the given shape.
    ///
    /// # Errors
    /// Arguments that do not fit the shape, named.
    pub fn new(shape: &[u64], window: Option<&[i64]>, stride: Option<&[i64]>) -> Result<Self> {
        if shape.is_empty() {
            let problem = "the array has no dimensions, so there is nothing to take samples along";
            return Err(argument("path", problem.into()));
        }
        let drops_first = window.is_none();
        let window = match window {
            None => vec![1],
            Some([]) => {
                let problem = "is empty; give the extents of a sample, or leave it out for single steps";
                return Err(argument("window", problem.into()));
            }
            Some(window) if window.len() > shape.len() => {
                let problem =
                    format!("{window:?} has {} extents, but the array has the shape {shape:?}", window.len());
                return Err(argument("window", problem));
            }
            Some(window) => positive("window", window)?,
        };
        if let Some(d) = (0..window.len()).find(|&d| window[d] > shape[d]) {
            let problem = format!(
                "{window:?} does not fit into the array's shape {shape:?}: {} steps are asked for in dimension {d}, which has {}",
                window[d], shape[d]
            );
            return Err(argument("window", problem));
        }
        let stride = match stride {
            None => std::iter::once(1).chain(window[1..].iter().copied()).collect(),
            Some(stride) if stride.len() != window.len() => {
                let problem = format!(
                    "{stride:?} has {} steps for a window of {} dimension(s); give one for each",
                    stride.len(),
                    window.len()
                );
                return Err(argument("stride", problem));
            }
            Some(stride) => positive("stride", stride)?,
        };
        let counts: Vec<u64> = (0..window.len()).map(|d| (shape[d] - window[d]) / stride[d] + 1).collect();
        if counts.iter().try_fold(1u64, |all, &n| all.checked_mul(n)).is_none_or(|all| all > i64::MAX as u64)
        {
            let problem = format!(
                "{window:?} has more places in the shape {shape:?} than can be counted; cover fewer dimensions"
            );
            return Err(argument("window", problem));
        }
        Ok(Self { window, stride, counts, drops_first })
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.counts.iter().product()
    }

    /// Whether there is no sample; [`Windows::new`] does not let that happen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many leading dimensions the windows cover.
    pub fn dimensions(&self) -> usize {
        self.window.len()
    }

    /// Where the window of a sample starts in an array with `rank` dimensions, and its extents there.
    pub fn region(&self, sample: u64, shape: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let mut start = vec![0; shape.len()];
        let mut extent = shape.to_vec();
        let mut rest = sample;
        for d in (0..self.dimensions()).rev() {
            start[d] = rest % self.counts[d] * self.stride[d];
            extent[d] = self.window[d];
            rest /= self.counts[d];
        }
        (start, extent)
    }

    /// Shape of one sample of an array of the given shape.
    pub fn sample_shape(&self, shape: &[u64]) -> Vec<u64> {
        let window = if self.drops_first { &[] } else { self.window.as_slice() };
        window.iter().chain(&shape[self.dimensions()..]).copied().collect()
    }
}

fn positive(name: &'static str, values: &[i64]) -> Result<Vec<u64>> {
    values
        .iter()
        .map(|&value| {
            u64::try_from(value).ok().filter(|&value| value > 0).ok_or_else(|| {
                argument(name, format!("{values:?} holds {value}; every entry has to be 1 or more"))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_one_step_unless_a_window_is_given() {
        let windows = Windows::new(&[10, 4, 5], None, None).unwrap();
        assert_eq!(windows.len(), 10);
        assert_eq!(windows.sample_shape(&[10, 4, 5]), [4, 5]);
        assert_eq!(windows.region(7, &[10, 4, 5]), (vec![7, 0, 0], vec![1, 4, 5]));
    }

    #[test]
    fn windows_are_numbered_row_by_row() {
        let windows = Windows::new(&[10, 4, 5], Some(&[3, 2]), None).unwrap();
        assert_eq!(windows.counts, [8, 2]);
        assert_eq!(windows.sample_shape(&[10, 4, 5]), [3, 2, 5]);
        assert_eq!(windows.region(3, &[10, 4, 5]), (vec![1, 2, 0], vec![3, 2, 5]));
        let windows = Windows::new(&[10, 4], Some(&[3, 2]), Some(&[4, 1])).unwrap();
        assert_eq!(windows.counts, [2, 3]);
        assert_eq!(windows.region(5, &[10, 4]), (vec![4, 2], vec![3, 2]));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        type Case<'a> = (&'a [u64], Option<&'a [i64]>, Option<&'a [i64]>, &'a str);
        let cases: [Case; 8] = [
            (&[], None, None, "no dimensions"),
            (&[10], Some(&[]), None, "window"),
            (&[10], Some(&[0]), None, "window"),
            (&[10], Some(&[-3]), None, "window"),
            (&[10], Some(&[11]), None, "does not fit"),
            (&[10], Some(&[2, 2]), None, "extents"),
            (&[10, 4], Some(&[2, 2]), Some(&[1]), "stride"),
            (&[10, 4], None, Some(&[0]), "stride"),
        ];
        for (shape, window, stride, expected) in cases {
            let error = Windows::new(shape, window, stride).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Windows::new(&[0, 4], None, None).unwrap_err().to_string().contains("does not fit"));
    }
}
