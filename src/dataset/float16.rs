//! Float16 from and to wider floats: rounded once, to the nearest, ties to even; payloads of NaNs are cut or kept.
//!
//! The `half` crate is not used for it: it makes signalling NaNs quiet, and rounds float64s that are just above the middle of
//! two float16s as if they were the middle.

/// The value of a float16, NaN payloads kept.
pub fn half_to_single(half: u16) -> f32 {
    let (sign, magnitude) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7FFF));
    if magnitude >= 0x7C00 {
        return f32::from_bits(sign | 0x7F80_0000 | (magnitude & 0x3FF) << 13);
    }
    // Moved into place the exponent is too small by 127 - 15, for numbers below the normal ones too.
    let value = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | value.to_bits())
}

/// The nearest float16, ties to even.
pub fn single_to_half(single: f32) -> u16 {
    let sign = (single.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = single.to_bits() & 0x7FFF_FFFF;
    let half = if magnitude > 0x7F80_0000 {
        match 0x7C00 | magnitude >> 13 & 0x3FF {
            0x7C00 => 0x7C01,
            nan => nan,
        }
    } else if magnitude >= 0x477F_F000 {
        0x7C00
    } else if magnitude < 0x3880_0000 {
        // The sum has its last bit where a float16 of this size has it.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        (magnitude - (112 << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13
    };
    sign | half as u16
}

/// The nearest float16, ties to even, rounded once.
pub fn double_to_half(value: f64) -> u16 {
    let mut single = value as f32;
    let back = f64::from(single);
    if back != value && !value.is_nan() {
        // Rounded to odd instead, after which a second rounding is as good as a single one.
        let truncated = single.to_bits() - u32::from(back.abs() > value.abs());
        single = f32::from_bits(truncated | 1);
    }
    single_to_half(single)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The float16s that are numbers, in order, as (value, code).
    fn halves() -> Vec<(f64, u16)> {
        let mut all: Vec<_> = (0..=u16::MAX).map(|code| (f64::from(half_to_single(code)), code)).collect();
        all.retain(|(value, code)| value.is_finite() && *code != 0x8000);
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }

    /// Rounding by looking for the nearest number.
    fn nearest(halves: &[(f64, u16)], value: f64) -> u16 {
        if value.abs() >= 65520.0 {
            return if value < 0.0 { 0xFC00 } else { 0x7C00 };
        }
        let above = halves.partition_point(|half| half.0 < value).min(halves.len() - 1);
        let below = above.saturating_sub(1);
        let (low, high) = (halves[below], halves[above]);
        let code = match (value - low.0).total_cmp(&(high.0 - value)) {
            std::cmp::Ordering::Less => low.1,
            std::cmp::Ordering::Greater => high.1,
            std::cmp::Ordering::Equal if low.1 % 2 == 0 => low.1,
            std::cmp::Ordering::Equal => high.1,
        };
        if code == 0 && value.is_sign_negative() { 0x8000 } else { code }
    }

    #[test]
    fn every_float16_comes_back() {
        for code in 0..=u16::MAX {
            let single = half_to_single(code);
            assert_eq!(single_to_half(single), code);
            if !single.is_nan() {
                assert_eq!(double_to_half(single.into()), code);
            }
        }
        assert_eq!(half_to_single(0x3555), 0.333_251_95);
        assert_eq!(half_to_single(0x0001), 2f32.powi(-24));
        assert!(half_to_single(double_to_half(f64::NAN)).is_nan());
    }

    #[test]
    fn halfway_cases_round_to_even_and_neighbours_do_not() {
        let halves = halves();
        for pair in halves.windows(2) {
            let middle = (pair[0].0 + pair[1].0) / 2.0;
            for value in [middle, middle.next_up(), middle.next_down()] {
                assert_eq!(double_to_half(value), nearest(&halves, value), "{value:e}");
                if f64::from(value as f32) == value {
                    assert_eq!(single_to_half(value as f32), nearest(&halves, value), "{value:e}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn rounding_to_float16_is_to_the_nearest(bits: u64, exponent in 990u64..1045) {
            let value = f64::from_bits(bits & !(0x7FF << 52) | exponent << 52);
            prop_assert_eq!(double_to_half(value), nearest(&halves(), value));
            let single = value as f32;
            prop_assert_eq!(single_to_half(single), nearest(&halves(), single.into()));
        }
    }

    #[test]
    fn a_double_next_to_a_tie_of_halves_is_rounded_once() {
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-23) + 2f64.powi(-40);
        assert_eq!([double_to_half(above), double_to_half(-above)], [0x3C01, 0xBC01]);
        assert_eq!(double_to_half(1.0 + 2f64.powi(-11)), 0x3C00);
    }
}
