//! Samples as windows over the leading dimensions of an array.

use super::axis::{Axis, Run};
use crate::error::{Error, Result};
use crate::options::argument;

/// The arguments that decide which windows there are, as the user gave them.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct WindowArguments<'a> {
    pub window: Option<&'a [i64]>,
    pub stride: Option<&'a [i64]>,
    pub dilation: Option<&'a [i64]>,
    pub offsets: Option<&'a [i64]>,
    /// Offsets of later dimensions, by dimension; what is said of the first one here does not count.
    pub along: &'a [Option<AxisOffsets>],
    pub roi_start: Option<&'a [i64]>,
    pub roi_end: Option<&'a [i64]>,
    pub exclude: &'a [i64],
    pub breaks: &'a [i64],
    /// The most windows that are listed where some are excluded; none: [`Windows::MOST_LISTED`].
    pub most_listed: Option<u64>,
}

/// Which indices of one dimension a sample has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AxisOffsets {
    /// Relative to the index that a window is named by.
    pub offsets: Vec<i64>,
    /// Indices that no window may reach over.
    pub breaks: Vec<i64>,
}

impl<'a> WindowArguments<'a> {
    /// The offsets along a dimension, if there are any.
    fn offsets(&self, d: usize) -> Option<&'a [i64]> {
        match d {
            0 => self.offsets,
            _ => self.along.get(d)?.as_ref().map(|along| &along.offsets[..]),
        }
    }

    /// The breaks of a dimension behind the first.
    fn breaks_along(&self, d: usize) -> &'a [i64] {
        self.along.get(d).and_then(Option::as_ref).map_or(&[], |along| &along.breaks)
    }

    /// How many leading dimensions the windows cover.
    pub fn covered(&self) -> usize {
        let named = self.along.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.window.map_or(1, <[i64]>::len).max(named)
    }
}

/// Why an array has no windows.
enum NoWindows {
    /// The arguments do not fit each other, or name what is not there.
    Refused(Error),
    /// No window fits into the region, or each is excluded.
    NoRoom(Error),
}

impl From<Error> for NoWindows {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// An arrangement of windows, numbered row by row.
///
/// The windows cover the leading dimensions; every later dimension belongs whole to each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    axes: Vec<Axis>,
    asked: usize,
    /// A sample is `array[i]`: the first dimension is left out of its shape.
    pub drops_first: bool,
}

impl Windows {
    /// The most windows along the first dimension if some are excluded: the others are listed, 8 bytes each.
    pub const MOST_LISTED: u64 = 1 << 27;
    /// Bytes that a listed window takes at most, while the list is made and told apart from others.
    pub const LISTED_BYTES: u64 = 64;

    /// Arranges windows over an array of the given shape.
    ///
    /// # Errors
    /// Arguments that do not fit the shape or each other, named.
    pub fn new(shape: &[u64], given: &WindowArguments<'_>) -> Result<Self> {
        Self::arrange(shape, given).map_err(|(NoWindows::Refused(error) | NoWindows::NoRoom(error))| error)
    }

    /// The same for one of several arrays: one that is too small for a window, or of which every window is excluded, has no
    /// windows, and the inner error says why.
    ///
    /// # Errors
    /// Arguments that do not fit each other, named.
    pub fn fitting(shape: &[u64], given: &WindowArguments<'_>) -> Result<std::result::Result<Self, Error>> {
        match Self::arrange(shape, given) {
            Ok(windows) => Ok(Ok(windows)),
            Err(NoWindows::NoRoom(error)) => Ok(Err(error)),
            Err(NoWindows::Refused(error)) => Err(error),
        }
    }

    /// Checks `roi_start`, `roi_end`, `exclude` and the breaks of all dimensions against a shape.
    ///
    /// # Errors
    /// Indices that lie outside of it.
    pub fn check_region(shape: &[u64], given: &WindowArguments<'_>) -> Result<()> {
        region(shape, given)?;
        let steps = shape.first().copied().unwrap_or(0);
        within("exclude", given.exclude, steps)?;
        within("breaks", given.breaks, steps)?;
        for (d, &extent) in shape.iter().enumerate().skip(1) {
            within(breaks_name(d), given.breaks_along(d), extent)?;
        }
        Ok(())
    }

    fn arrange(shape: &[u64], given: &WindowArguments<'_>) -> std::result::Result<Self, NoWindows> {
        if shape.is_empty() {
            let problem = "the array has no dimensions, so there is nothing to take samples along";
            return Err(argument("path", problem.into()).into());
        }
        let extents = extents(given)?;
        let asked = extents.len();
        if asked > shape.len() {
            let problem = format!("{extents:?} has {asked} extents, but the array has the shape {shape:?}");
            return Err(argument("window", problem).into());
        }
        let dilation = per_dimension("dilation", given.dilation, asked)?.unwrap_or_else(|| vec![1; asked]);
        for (d, &step) in dilation.iter().enumerate() {
            let Some(offsets) = given.offsets(d).filter(|_| step != 1) else { continue };
            let place = if d == 0 { "the first place".into() } else { format!("place {d}, counted from 0") };
            let problem = format!(
                "{dilation:?} and offsets={offsets:?} both say which steps a sample has; leave one out, or give 1 in {place}"
            );
            return Err(argument("dilation", problem).into());
        }
        let stride = per_dimension("stride", given.stride, asked)?;
        let region = region(shape, given)?;
        let mut axes = vec![];
        for d in 0..asked.max(region.len()) {
            let bounds = region.get(d).copied().unwrap_or((0, shape[d]));
            if d < asked {
                let step = stride.as_ref().map(|stride| stride[d]);
                axes.push(axis(d, shape, bounds, given, &extents, &dilation, step)?);
            } else {
                let whole = Run::whole(bounds.1 - bounds.0);
                axes.extend(Axis::new(vec![whole], 0, bounds, 1));
            }
        }
        // What is listed of all dimensions together is bounded.
        let mut most = given.most_listed.unwrap_or(u64::MAX).min(Self::MOST_LISTED);
        for (d, axis) in axes.iter_mut().enumerate().take(asked) {
            let (excluded, breaks) = match d {
                0 => (given.exclude, given.breaks),
                _ => (&[][..], given.breaks_along(d)),
            };
            if !excluded.is_empty() || !breaks.is_empty() {
                exclude(axis, d, shape[d], (excluded, breaks), &extents[d..], most)?;
                most = most.saturating_sub(axis.count());
            }
        }
        let is_single = given.window.is_none() && (0..asked).all(|d| given.offsets(d).is_none());
        let windows = Self { axes, asked, drops_first: is_single };
        let all = windows.axes.iter().try_fold(1u64, |all, axis| all.checked_mul(axis.count()));
        if all.is_none_or(|all| all > i64::MAX as u64) {
            let problem = format!(
                "{extents:?} has more places in the shape {shape:?} than can be counted; cover fewer dimensions"
            );
            return Err(argument("window", problem).into());
        }
        Ok(windows)
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.axes.iter().map(Axis::count).product()
    }

    /// Whether there is no sample; [`Windows::new`] does not let that happen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The leading dimensions that the windows cover, then the dimensions that are only cut to a region.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// How many leading dimensions the user's window covers.
    pub fn dimensions(&self) -> usize {
        self.asked
    }

    /// The number of a sample's window along each axis.
    pub fn places(&self, sample: u64) -> Vec<u64> {
        let mut places = vec![0; self.axes.len()];
        let mut rest = sample;
        for (place, axis) in places.iter_mut().zip(&self.axes).rev() {
            *place = rest % axis.count();
            rest /= axis.count();
        }
        places
    }

    /// The indices that name a sample, one for each dimension of the user's window.
    pub fn index(&self, sample: u64) -> Vec<i64> {
        let places = self.places(sample);
        (0..self.asked).map(|d| self.axes[d].index(places[d])).collect()
    }
}

impl Windows {
    /// The sample with these indices, of which there is one for each dimension of the user's window.
    ///
    /// # Errors
    /// The first dimension along which no window has the index.
    pub fn sample(&self, index: &[i64]) -> std::result::Result<u64, usize> {
        let mut sample = 0;
        for (d, axis) in self.axes.iter().enumerate() {
            let window = match index.get(d) {
                Some(&index) => axis.window(index).ok_or(d)?,
                None => 0,
            };
            sample = sample * axis.count() + window;
        }
        Ok(sample)
    }
}

/// The argument that has the offsets along a dimension.
fn offsets_name(d: usize) -> &'static str {
    if d == 0 { "offsets" } else { "dimension_offsets" }
}

/// Extents of a sample along the dimensions that the user's window covers.
fn extents(given: &WindowArguments<'_>) -> Result<Vec<u64>> {
    let window = match given.window {
        Some([]) => {
            let problem = "is empty; give the extents of a sample, or leave it out for single steps";
            return Err(argument("window", problem.into()));
        }
        Some(window) => Some(positive("window", window)?),
        None => None,
    };
    let covered = given.covered();
    let mut extents = window.clone().unwrap_or_else(|| vec![1; covered]);
    for d in 0..covered {
        let Some(offsets) = given.offsets(d) else { continue };
        if offsets.is_empty() {
            let problem = "is empty; give the steps of a sample, or leave it out for single steps";
            return Err(argument(offsets_name(d), problem.into()));
        }
        let (place, count) =
            (if d == 0 { "the first dimension".into() } else { format!("dimension {d}") }, offsets.len());
        match extents.get_mut(d) {
            None => {
                let problem = format!(
                    "{offsets:?} are steps of {place}, counted from 0, and window={:?} covers {} dimension(s); leave window out, or give {covered} extents",
                    given.window.unwrap_or_default(),
                    extents.len()
                );
                return Err(argument(offsets_name(d), problem));
            }
            Some(&mut extent) if window.is_some() && extent != count as u64 => {
                let problem = format!(
                    "{offsets:?} are {count} steps, but window={:?} asks for {extent} in {place}; leave window out, or give {count} there",
                    given.window.unwrap_or_default(),
                );
                return Err(argument(offsets_name(d), problem));
            }
            Some(extent) => *extent = count as u64,
        }
    }
    Ok(extents)
}

/// The windows along dimension `d` of an array, inside of `bounds`. Without a `stride` the starts of neighbouring
/// windows are a step apart in the first dimension and in those with offsets, and as far as a window reaches in the others.
fn axis(
    d: usize,
    shape: &[u64],
    bounds: (u64, u64),
    given: &WindowArguments<'_>,
    extents: &[u64],
    dilation: &[u64],
    stride: Option<u64>,
) -> std::result::Result<Axis, NoWindows> {
    let offsets = given.offsets(d);
    let (runs, anchor) = match offsets {
        Some(offsets) => runs_of(offsets_name(d), offsets)?,
        None => (vec![Run { step: dilation[d], ..Run::whole(extents[d]) }], 0),
    };
    let spanned = runs.iter().map(|run| {
        let tail = (run.count - 1).checked_mul(run.step)?;
        run.start.checked_add(tail)?.checked_add(1)
    });
    let span = spanned.collect::<Option<Vec<u64>>>().and_then(|spans| spans.into_iter().max());
    let default = if d == 0 || offsets.is_some() { Some(1) } else { span };
    let step = stride.or(default).unwrap_or(1);
    span.and_then(|_| Axis::new(runs, anchor, bounds, step)).ok_or_else(|| {
        let values = offsets.map_or_else(|| format!("{extents:?}"), |offsets| format!("{offsets:?}"));
        let values = match dilation[d] {
            1 => values,
            _ => format!("{values} with dilation={dilation:?}"),
        };
        let place = match bounds == (0, shape[d]) {
            true => format!("the array's shape {shape:?}"),
            false => format!("the region {}..{} of roi_start and roi_end", bounds.0, bounds.1),
        };
        let asked = span.map_or_else(|| "too many".into(), |span| span.to_string());
        let problem = format!(
            "{values} does not fit into {place}: {asked} steps are asked for in dimension {d}, which has {}",
            bounds.1 - bounds.0
        );
        NoWindows::NoRoom(argument(if offsets.is_some() { offsets_name(d) } else { "window" }, problem))
    })
}

/// Leaves out the windows that touch excluded indices of dimension `d`, which has `steps` steps, or reach over its breaks. They are
/// listed one by one, at most `most` of them.
fn exclude(
    axis: &mut Axis,
    d: usize,
    steps: u64,
    (excluded, breaks): (&[i64], &[i64]),
    extents: &[u64],
    most: u64,
) -> std::result::Result<(), NoWindows> {
    let indices = within("exclude", excluded, steps)?;
    let breaks = within(breaks_name(d), breaks, steps)?;
    let name = if indices.is_empty() { breaks_name(d) } else { "exclude" };
    if axis.count() > most {
        let problem = format!(
            "{} windows are too many to be looked at one by one, {most} are not; give a larger stride, a smaller region or a larger host_memory_budget",
            axis.count(),
        );
        return Err(argument(name, problem).into());
    }
    axis.exclude(&indices, &breaks);
    if axis.count() == 0 {
        let also = if breaks.is_empty() || indices.is_empty() { "" } else { ", with those of breaks," };
        let problem = format!(
            "its {} {}{also} touch every window of {extents:?} steps, so that no sample is left; leave some out, or give a smaller window",
            if indices.is_empty() { breaks.len() } else { indices.len() },
            if indices.is_empty() && d > 0 { "breaks" } else { "indices" },
        );
        return Err(NoWindows::NoRoom(argument(name, problem)));
    }
    Ok(())
}

/// A list with one positive entry for each dimension of the window.
fn per_dimension(name: &'static str, given: Option<&[i64]>, asked: usize) -> Result<Option<Vec<u64>>> {
    match given {
        None => Ok(None),
        Some(list) if list.len() != asked => {
            let problem = format!(
                "{list:?} has {} steps for a window of {asked} dimension(s); give one for each",
                list.len()
            );
            Err(argument(name, problem))
        }
        Some(list) => positive(name, list).map(Some),
    }
}

/// The region of each leading dimension that has one: start and end.
fn region(shape: &[u64], given: &WindowArguments<'_>) -> Result<Vec<(u64, u64)>> {
    let check = |name, given: Option<&[i64]>| match given {
        Some(list) if list.len() > shape.len() => {
            let problem =
                format!("{list:?} has {} entries, but the array has the shape {shape:?}", list.len());
            Err(argument(name, problem))
        }
        Some(list) => list
            .iter()
            .zip(shape)
            .map(|(&at, &extent)| {
                u64::try_from(at).ok().filter(|&at| at <= extent).ok_or_else(|| {
                    let problem = format!(
                        "{list:?} holds {at}, which lies outside 0..={extent} of the array's shape {shape:?}"
                    );
                    argument(name, problem)
                })
            })
            .collect::<Result<Vec<u64>>>(),
        None => Ok(vec![]),
    };
    let (starts, ends) = (check("roi_start", given.roi_start)?, check("roi_end", given.roi_end)?);
    let bounds = |d: usize| {
        let (start, end) = (starts.get(d).copied().unwrap_or(0), ends.get(d).copied().unwrap_or(shape[d]));
        if start < end {
            return Ok((start, end));
        }
        let problem = format!("{start} in dimension {d} is not below the end of the region, roi_end={end}");
        Err(argument("roi_start", problem))
    };
    (0..starts.len().max(ends.len())).map(bounds).collect()
}

/// Offsets as runs that count from the least of them, and what leads from there to offset 0.
fn runs_of(name: &'static str, offsets: &[i64]) -> Result<(Vec<Run>, i64)> {
    let least = offsets.iter().copied().min().unwrap_or(0);
    let anchor = least.checked_neg();
    let relative: Option<Vec<u64>> =
        offsets.iter().map(|&offset| u64::try_from(offset.checked_sub(least)?).ok()).collect();
    let (Some(relative), Some(anchor)) = (relative, anchor) else {
        return Err(argument(name, format!("{offsets:?} lie further apart than can be counted")));
    };
    let mut runs: Vec<Run> = vec![];
    for (place, &at) in relative.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.count == 1 && at > run.start => (run.step, run.count) = (at - run.start, 2),
            Some(run) if run.count > 1 && at == run.last() + run.step => run.count += 1,
            _ => runs.push(Run { start: at, step: 1, count: 1, place: place as u64 }),
        }
    }
    Ok((runs, anchor))
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

/// The argument that the breaks of a dimension are in.
fn breaks_name(d: usize) -> &'static str {
    if d == 0 { "breaks" } else { "dimension_offsets" }
}

fn within(name: &'static str, indices: &[i64], extent: u64) -> Result<Vec<u64>> {
    indices
        .iter()
        .map(|&index| {
            u64::try_from(index).ok().filter(|&index| index < extent).ok_or_else(|| {
                argument(
                    name,
                    format!("holds {index}, which is no index of the dimension with {extent} steps"),
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
