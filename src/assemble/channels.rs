//! Channels that are normalized each by its own mean and standard deviation.

use super::arithmetic::Register;
use super::step::{Code, Normalize, Rounds, Step};
use crate::dataset::ElementType;
use crate::plan::{ChannelPlace, CopyBox, Dims};

use std::sync::Arc;

/// The channels of an array: its indices along one dimension, and where they lie in the output.
///
/// Element `i` of the output has index `(i / unit % all - first) / inner % count` along that dimension, with `count` indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    place: ChannelPlace,
    /// Neighbouring units of one index.
    inner: u64,
    /// One for each index, in the order of the output.
    numbers: Arc<[Normalize]>,
    rounds: Rounds,
}

impl Channels {
    /// Channels by the indices along a dimension, of which each is `inner` neighbouring units of `place`.
    pub fn new(place: ChannelPlace, inner: u64, numbers: Vec<Normalize>) -> Self {
        Self { place, inner, numbers: numbers.into(), rounds: Rounds::Register }
    }

    /// The same channels, with numbers as a floating-point type has them.
    pub(super) fn computed_in(self, element: ElementType) -> Self {
        let rounded = |code, operand| Step::arithmetic(code, operand, element);
        let round = |&Normalize { mean, std }: &Normalize| Normalize {
            mean: rounded(Code::Subtract, mean).operand,
            std: rounded(Code::Divide, std).operand,
        };
        let numbers = self.numbers.iter().map(round).collect();
        Self { numbers, rounds: rounded(Code::Subtract, 0.0).rounds, ..self }
    }

    /// How many channels have numbers.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The numbers, one pair for each channel.
    pub fn numbers(&self) -> &[Normalize] {
        &self.numbers
    }

    /// What results are rounded to.
    pub(super) fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// Neighbouring elements of one index.
    fn below(&self) -> u64 {
        self.place.elements * self.inner
    }

    /// Number of an element among those of the array that follow one another: from its first channel on.
    fn within(&self, place: u64) -> u64 {
        let ChannelPlace { first, all, elements } = self.place;
        place % (elements * all) - first * elements
    }

    /// The index of an element of the output.
    fn channel(&self, place: u64) -> usize {
        (self.within(place) / self.below() % self.numbers.len() as u64) as usize
    }

    /// Normalizes neighbouring elements of the output, the first of them number `place`.
    pub(super) fn normalize<R: Register>(&self, values: &mut [R], place: u64) {
        let (mut done, len) = (0, values.len());
        while done < len {
            let place = place + done as u64;
            let channel = self.channel(place);
            if self.below() == 1 {
                // Channels side by side: as many as follow, each with one element.
                let row = (len - done).min(self.numbers.len() - channel);
                R::normalize(&mut values[done..done + row], &self.numbers[channel..], self.rounds);
                done += row;
                continue;
            }
            let run = self.below() - self.within(place) % self.below();
            let run = usize::try_from(run).unwrap_or(usize::MAX).min(len - done);
            let Normalize { mean, std } = self.numbers[channel];
            R::apply(&self.step(Code::Subtract, mean), &mut values[done..done + run]);
            R::apply(&self.step(Code::Divide, std), &mut values[done..done + run]);
            done += run;
        }
    }

    /// A step with numbers that are rounded already.
    pub(super) fn step(&self, code: Code, operand: f64) -> Step {
        let mut step = Step::new(code, operand);
        step.rounds = self.rounds;
        step
    }

    /// The same box with the channels as a dimension of its own, the number of that dimension, and the first element's
    /// channel. The number is `None` where all elements belong to one channel.
    pub(super) fn apart(&self, piece: &CopyBox) -> (CopyBox, Option<usize>, u32) {
        let mut split =
            CopyBox { extents: Dims::new(), from_strides: Dims::new(), to_strides: Dims::new(), ..*piece };
        let mut dimension = None;
        let (below, count) = (self.below(), self.numbers.len() as u64);
        for d in 0..piece.extents.len() {
            let (mut extent, from, to) = (piece.extents[d], piece.from_strides[d], piece.to_strides[d]);
            let mut push = |extent: u64, times: u64| {
                split.extents.push(extent);
                split.from_strides.push(from * times);
                split.to_strides.push(to * times);
            };
            // Dimensions are joined only where the inner one is whole, so that all of these divide.
            let inner = if to < below { (below / to).min(extent) } else { 1 };
            let follows = to <= below && extent > inner;
            if follows {
                extent /= inner;
                if extent > count {
                    push(extent / count, inner * count);
                    extent = count;
                }
                push(extent, inner);
                dimension = Some(split.extents.len() - 1);
                if inner > 1 {
                    split.extents.push(inner);
                    split.from_strides.push(from);
                    split.to_strides.push(to);
                }
            } else {
                push(extent, 1);
            }
        }
        (split, dimension, self.channel(piece.to) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_box_with_channels_apart_is_the_same_box(
            dims in prop::collection::vec((1u64..4, 0u64..3, 0u64..2), 1..5),
            (along, offset) in (0usize..4, 0u64..3),
        ) {
            // A box inside of a dense output, in front of which others like it lie.
            let along = along.min(dims.len() - 1);
            let strides = |slack: &dyn Fn(usize) -> u64| {
                let mut strides = vec![1; dims.len()];
                for d in (1..dims.len()).rev() {
                    strides[d - 1] = strides[d] * (dims[d].0 + slack(d));
                }
                strides
            };
            let (from_strides, to_strides) = (strides(&|d| dims[d].1), strides(&|d| dims[d].2));
            let all = dims[along].0 + dims[along].2;
            let whole = to_strides[0] * (dims[0].0 + dims[0].2);
            let numbers = (0..all).map(|c| Normalize { mean: c as f64, std: 1.0 }).collect();
            let place = ChannelPlace { first: 0, all, elements: to_strides[along] };
            let channels = Channels::new(place, 1, numbers);
            let piece = CopyBox {
                from: 5,
                to: offset * whole + if dims[along].2 > 0 { to_strides[along] } else { 0 },
                extents: dims.iter().map(|d| d.0).collect(),
                from_strides: from_strides.into(),
                to_strides: to_strides.into(),
            }
            .collapsed();
            let (split, dimension, first) = channels.apart(&piece);
            prop_assert_eq!(split.to_strides.last(), Some(&1));
            prop_assert_eq!(split.elements().collect::<Vec<_>>(), piece.elements().collect::<Vec<_>>());
            let extents: Vec<u64> = split.extents.to_vec();
            for (i, (_, to)) in split.elements().enumerate() {
                let index = dimension.map_or(0, |dimension| {
                    i as u64 / extents[dimension + 1..].iter().product::<u64>() % extents[dimension]
                });
                prop_assert_eq!(channels.channel(to) as u64, u64::from(first) + index);
            }
        }
    }
}
