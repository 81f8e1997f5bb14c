//! Which byte ranges of an object are asked for together, and which in parts.

use std::ops::Range;

/// Ranges that one request is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Which of the ranges.
    pub numbers: Vec<usize>,
    /// From the start of the first to the end of the last.
    pub range: Range<u64>,
}

/// Joins ranges between which there are at most `most_gap_bytes`, as long as they have at most `most_bytes` together. The result is in the
/// order of its starts; a range that is longer than `most_bytes` is alone.
pub fn join(ranges: &[Range<u64>], most_gap_bytes: u64, most_bytes: u64) -> Vec<Joined> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&number| (ranges[number].start, ranges[number].end));
    let mut all: Vec<Joined> = vec![];
    for number in order {
        let range = &ranges[number];
        if let Some(last) = all.last_mut() {
            let end = last.range.end.max(range.end);
            let is_near = range.start <= last.range.end.saturating_add(most_gap_bytes);
            if is_near && end - last.range.start <= most_bytes {
                last.numbers.push(number);
                last.range.end = end;
                continue;
            }
        }
        all.push(Joined { numbers: vec![number], range: range.clone() });
    }
    all
}

/// How many bytes of each range are in none of the ranges before it. The ranges are in the order of their starts.
pub fn own_bytes<'a>(ranges: impl IntoIterator<Item = &'a Range<u64>>) -> impl Iterator<Item = u64> {
    let mut end = 0;
    ranges.into_iter().map(move |range| {
        let bytes = range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
        bytes
    })
}

/// Cuts a range into parts of about the same length, of which none has more than `part_bytes`.
pub fn split(range: Range<u64>, part_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let bytes = range.end.saturating_sub(range.start);
    let count = bytes.div_ceil(part_bytes.max(1));
    let cut = move |part: u64| {
        range.start + (u128::from(bytes) * u128::from(part) / u128::from(count.max(1))) as u64
    };
    (0..count).map(move |part| cut(part)..cut(part + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joined_ranges_hold_each_range_once_and_keep_the_bounds(
            ranges in prop::collection::vec((0u64..2000, 0u64..100), 0..40),
            gap in 0u64..50,
            most in 1u64..400,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, bytes)| start..start + bytes).collect();
            let joined = join(&ranges, gap, most);
            let mut numbers: Vec<usize> = joined.iter().flat_map(|one| one.numbers.clone()).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..ranges.len()).collect::<Vec<_>>());
            for Joined { numbers, range } in &joined {
                prop_assert_eq!(range.start, numbers.iter().map(|&n| ranges[n].start).min().unwrap());
                prop_assert_eq!(range.end, numbers.iter().map(|&n| ranges[n].end).max().unwrap());
                prop_assert!(numbers.len() == 1 || range.end - range.start <= most);
                // No byte is farther from those that are wanted than the gap.
                let mut end = range.start;
                for &number in numbers {
                    prop_assert!(ranges[number].start <= end + gap);
                    end = end.max(ranges[number].end);
                }
                let in_one = |byte: &u64| numbers.iter().any(|&number| ranges[number].contains(byte));
                let useful: u64 = own_bytes(numbers.iter().map(|&number| &ranges[number])).sum();
                prop_assert_eq!(useful, range.clone().filter(in_one).count() as u64);
            }
            // What could have been joined is.
            for pair in joined.windows(2) {
                let next = &ranges[pair[1].numbers[0]];
                let is_near = next.start <= pair[0].range.end + gap;
                prop_assert!(!is_near || pair[0].range.end.max(next.end) - pair[0].range.start > most);
            }
        }

        #[test]
        fn parts_are_the_range_and_of_about_the_same_length(
            start in 0u64..1 << 50, bytes in 0u64..1 << 40, part in 1u64 << 30..1 << 34,
        ) {
            let parts: Vec<_> = split(start..start + bytes, part).collect();
            prop_assert_eq!(parts.len() as u64, bytes.div_ceil(part));
            let mut end = start;
            for one in &parts {
                prop_assert_eq!(one.start, end);
                prop_assert!(one.end - one.start <= part && (parts.len() == 1 || one.end - one.start >= part / 2));
                end = one.end;
            }
            prop_assert!(parts.is_empty() || end == start + bytes);
        }
    }
}
