//! Arrangements of windows, against the plain enumeration of everything that could be a start.

use super::*;
use proptest::prelude::*;

fn windows(shape: &[u64], window: Option<&[i64]>, stride: Option<&[i64]>) -> Windows {
    Windows::new(shape, &WindowArguments { window, stride, ..WindowArguments::default() }).unwrap()
}

/// The indices of a sample along one axis, in the order of their places.
fn indices(axis: &Axis, window: u64) -> Vec<u64> {
    let mut all: Vec<(u64, u64)> = axis
        .runs(window)
        .flat_map(|run| (0..run.count).map(move |i| (run.place + i, run.start + i * run.step)))
        .collect();
    all.sort_unstable();
    all.into_iter().map(|(_, index)| index).collect()
}

#[test]
fn a_sample_is_one_step_unless_a_window_is_given() {
    let windows = windows(&[10, 4, 5], None, None);
    assert_eq!((windows.len(), windows.dimensions(), windows.drops_first), (10, 1, true));
    assert_eq!(indices(&windows.axes[0], 7), [7]);
}

#[test]
fn windows_are_numbered_row_by_row() {
    let all = windows(&[10, 4, 5], Some(&[3, 2]), None);
    assert_eq!((all.axes[0].count(), all.axes[1].count()), (8, 2));
    assert_eq!(all.index(3), [1, 2]);
    let all = windows(&[10, 4], Some(&[3, 2]), Some(&[4, 1]));
    assert_eq!((all.axes[0].count(), all.axes[1].count()), (2, 3));
    assert_eq!(all.index(5), [4, 2]);
}

#[test]
fn a_region_behind_the_window_is_one_window() {
    let given = WindowArguments {
        window: Some(&[2]),
        roi_start: Some(&[3, 1]),
        roi_end: Some(&[9]),
        ..WindowArguments::default()
    };
    let windows = Windows::new(&[10, 4, 5], &given).unwrap();
    assert_eq!((windows.len(), windows.axes.len(), windows.dimensions()), (5, 2, 1));
    assert_eq!(indices(&windows.axes[1], 0), [1, 2, 3]);
    assert_eq!(windows.index(4), [7]);
}

#[test]
fn offsets_of_a_later_dimension_are_an_axis_of_their_own() {
    let offsets = |offsets: &[i64], breaks: &[i64]| {
        Some(AxisOffsets { offsets: offsets.into(), breaks: breaks.into() })
    };
    let along = [None, offsets(&[1, -1, 4], &[])];
    let all = Windows::new(&[3, 9, 2], &WindowArguments { along: &along, ..Default::default() }).unwrap();
    assert_eq!((all.len(), all.dimensions(), all.drops_first), (3 * 4, 2, false));
    assert_eq!((all.axes[0].extent(), all.index(5)), (1, vec![1, 2]));
    assert_eq!(indices(&all.axes[1], 1), [3, 1, 6]);
    assert_eq!(all.sample(&[1, 2]), Ok(5));
    let along = [None, offsets(&[0, 2], &[4])];
    let all = Windows::new(&[3, 9], &WindowArguments { along: &along, ..Default::default() }).unwrap();
    assert_eq!((0..all.axes[1].count()).map(|w| all.axes[1].start(w)).collect::<Vec<_>>(), [0, 1, 4, 5, 6]);
}

#[test]
fn evenly_spaced_offsets_are_one_run() {
    let run = |start, step, count, place| Run { start, step, count, place };
    for (offsets, runs, anchor) in [
        (&[-4, -2, 0, 2][..], vec![run(0, 2, 4, 0)], 4),
        (&[0, 1, 2, 6, 10], vec![run(0, 1, 3, 0), run(6, 4, 2, 3)], 0),
        (&[3, 1], vec![run(2, 1, 1, 0), run(0, 1, 1, 1)], -1),
        (&[5, 5], vec![run(0, 1, 1, 0), run(0, 1, 1, 1)], -5),
    ] {
        assert_eq!(runs_of("offsets", offsets).unwrap(), (runs, anchor), "{offsets:?}");
    }
}

proptest! {
    /// Against the plain enumeration of everything that could be a start.
    #[test]
    fn windows_along_an_axis_are_those_of_an_enumeration(
        extent in 1i64..30, roi in (0i64..30, 1i64..31), stride in 1i64..5,
        window in 1i64..6, dilation in 1i64..4,
        offsets in prop::option::of(prop::collection::vec(-8i64..9, 1..5)),
        exclude in prop::collection::vec(0i64..30, 0..4),
        breaks in prop::collection::vec(0i64..30, 0..3),
    ) {
        let roi = (roi.0.min(extent - 1), roi.1.min(extent));
        prop_assume!(roi.0 < roi.1);
        let exclude: Vec<i64> = exclude.into_iter().filter(|&index| index < extent).collect();
        let breaks: Vec<i64> = breaks.into_iter().filter(|&index| index < extent).collect();
        let steps: Vec<i64> =
            offsets.clone().unwrap_or_else(|| (0..window).map(|i| i * dilation).collect());
        let (window, dilation, bounds) = ([window], [dilation], ([roi.0], [roi.1]));
        let given = WindowArguments {
            window: offsets.is_none().then_some(&window),
            dilation: offsets.is_none().then_some(&dilation),
            stride: Some(&[stride]),
            offsets: offsets.as_deref(),
            along: &[],
            roi_start: Some(&bounds.0),
            roi_end: Some(&bounds.1),
            exclude: &exclude,
            breaks: &breaks,
            most_listed: None,
        };
        let inside = |t: i64| steps.iter().all(|o| (roi.0..roi.1).contains(&(t + o)));
        let first = (-40..70).find(|&t| inside(t));
        let expected: Vec<i64> = first.map_or(vec![], |first| {
            (0..70)
                .map(|i| first + i * stride)
                .take_while(|&t| inside(t))
                .filter(|t| steps.iter().all(|o| !exclude.contains(&(t + o))))
                .filter(|t| {
                    breaks.iter().all(|&at| {
                        let before = steps.iter().filter(|&o| t + o < at).count();
                        before == 0 || before == steps.len()
                    })
                })
                .collect()
        });
        match Windows::new(&[extent as u64], &given) {
            Err(_) => prop_assert!(expected.is_empty()),
            Ok(windows) => {
                let names: Vec<i64> = (0..windows.len()).map(|s| windows.index(s)[0]).collect();
                prop_assert_eq!(&names, &expected);
                for index in -50..80 {
                    let number = expected.iter().position(|&name| name == index);
                    prop_assert_eq!(windows.sample(&[index]).ok(), number.map(|number| number as u64));
                }
                for (sample, t) in expected.iter().enumerate() {
                    let touched: Vec<i64> =
                        indices(&windows.axes[0], sample as u64).iter().map(|&i| i as i64).collect();
                    prop_assert_eq!(touched, steps.iter().map(|o| t + o).collect::<Vec<_>>());
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let none = WindowArguments::default;
    let cases: Vec<(&[u64], WindowArguments<'_>, &[&str])> = vec![
        (&[], none(), &["no dimensions"]),
        (&[10], WindowArguments { window: Some(&[]), ..none() }, &["`window`"]),
        (&[10], WindowArguments { window: Some(&[0]), ..none() }, &["`window`"]),
        (&[10], WindowArguments { window: Some(&[-3]), ..none() }, &["`window`"]),
        (&[10], WindowArguments { window: Some(&[11]), ..none() }, &["does not fit"]),
        (&[10], WindowArguments { window: Some(&[2, 2]), ..none() }, &["extents"]),
        (&[10, 4], WindowArguments { window: Some(&[2, 2]), stride: Some(&[1]), ..none() }, &["`stride`"]),
        (&[10, 4], WindowArguments { stride: Some(&[0]), ..none() }, &["`stride`"]),
        (&[0, 4], none(), &["does not fit"]),
        (&[10], WindowArguments { window: Some(&[3]), dilation: Some(&[5]), ..none() }, &["11 steps"]),
        (&[10], WindowArguments { window: Some(&[4]), dilation: Some(&[i64::MAX]), ..none() }, &["too many"]),
        (&[10], WindowArguments { offsets: Some(&[]), ..none() }, &["`offsets`"]),
        (&[10], WindowArguments { offsets: Some(&[0, 10]), ..none() }, &["`offsets`", "11 steps"]),
        (&[10], WindowArguments { offsets: Some(&[i64::MIN, i64::MAX]), ..none() }, &["`offsets`"]),
        (
            &[10],
            WindowArguments { offsets: Some(&[0, 1]), window: Some(&[3]), ..none() },
            &["`offsets`", "window"],
        ),
        (
            &[10],
            WindowArguments { offsets: Some(&[0, 1]), dilation: Some(&[2]), ..none() },
            &["`dilation`", "offsets"],
        ),
        (&[10], WindowArguments { roi_start: Some(&[-1]), ..none() }, &["`roi_start`", "-1"]),
        (&[10], WindowArguments { roi_end: Some(&[11]), ..none() }, &["`roi_end`", "11"]),
        (
            &[10],
            WindowArguments { roi_start: Some(&[5]), roi_end: Some(&[5]), ..none() },
            &["`roi_start`", "roi_end"],
        ),
        (&[10], WindowArguments { roi_end: Some(&[5, 5]), ..none() }, &["`roi_end`"]),
        (
            &[10],
            WindowArguments { window: Some(&[4]), roi_end: Some(&[3]), ..none() },
            &["`window`", "roi_end"],
        ),
        (&[10], WindowArguments { exclude: &[10], ..none() }, &["`exclude`", "10"]),
        (&[3], WindowArguments { exclude: &[0, 1, 2], ..none() }, &["`exclude`", "no sample"]),
        (&[10], WindowArguments { breaks: &[-1], ..none() }, &["`breaks`", "-1"]),
        (
            &[3],
            WindowArguments { window: Some(&[2]), breaks: &[1, 2], ..none() },
            &["`breaks`", "its 2 indices", "no sample"],
        ),
        (
            &[3],
            WindowArguments { window: Some(&[2]), breaks: &[1], exclude: &[2], ..none() },
            &["`exclude`", "with those of breaks", "no sample"],
        ),
    ];
    for (shape, given, expected) in cases {
        let error = Windows::new(shape, &given).unwrap_err().to_string();
        assert!(expected.iter().all(|text| error.contains(text)), "{error}: {expected:?}");
    }
}
