//! The arithmetic of conversions on the host: the same as in `src/kernels/convert.cuh`, bit for bit, except that
//! sign and payload of NaNs may differ.

use super::step::{Code, Normalize, Rounds, Step};
use crate::dataset::{ElementType, StoredType, double_to_half, half_to_single, single_to_half};

/// A number while it is converted: a signed or unsigned 64-bit integer, a float32 or a float64.
pub trait Register: Copy + Default {
    /// Exact, or rounded to the nearest.
    fn from_i64(value: i64) -> Self;
    /// Exact, or rounded to the nearest.
    fn from_u64(value: u64) -> Self;
    /// Exact; never asked of integers.
    fn from_f32(value: f32) -> Self;
    /// Exact; never asked of anything but a float64.
    fn from_f64(value: f64) -> Self;
    /// The nearest integer, ties to even; the nearest there is if it is out of range, 0 for NaN.
    fn to_i64(self) -> i64;
    /// As [`Register::to_i64`].
    fn to_u64(self) -> u64;
    /// Rounded to the nearest, ties to even.
    fn to_f32(self) -> f32;
    /// Rounded to the nearest, ties to even.
    fn to_f64(self) -> f64;
    /// Rounded to the nearest float16, ties to even.
    fn to_half(self) -> u16;
    /// Not zero.
    fn is_true(self) -> bool;
    /// Takes a step with every value; integers never take any.
    fn apply(_: &Step, _: &mut [Self]) {}
    /// Normalizes each value by the numbers at its place; integers never are.
    fn normalize(_: &mut [Self], _: &[Normalize], _: Rounds) {}
}

macro_rules! integer_register {
    ($type:ty) => {
        impl Register for $type {
            fn from_i64(value: i64) -> Self {
                value as Self
            }
            fn from_u64(value: u64) -> Self {
                value as Self
            }
            fn from_f32(value: f32) -> Self {
                value as Self
            }
            fn from_f64(value: f64) -> Self {
                value as Self
            }
            fn to_i64(self) -> i64 {
                self.try_into().unwrap_or(i64::MAX)
            }
            fn to_u64(self) -> u64 {
                self.try_into().unwrap_or(0)
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn to_half(self) -> u16 {
                // Integers that a float32 cannot hold are beyond the largest float16.
                single_to_half(self as f32)
            }
            fn is_true(self) -> bool {
                self != 0
            }
        }
    };
}

integer_register!(i64);
integer_register!(u64);

macro_rules! float_register {
    ($type:ty, $to_half:path) => {
        impl Register for $type {
            fn from_i64(value: i64) -> Self {
                value as Self
            }
            fn from_u64(value: u64) -> Self {
                value as Self
            }
            fn from_f32(value: f32) -> Self {
                value.into()
            }
            fn from_f64(value: f64) -> Self {
                value as Self
            }
            fn to_i64(self) -> i64 {
                self.round_ties_even() as i64
            }
            fn to_u64(self) -> u64 {
                self.round_ties_even() as u64
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn to_f64(self) -> f64 {
                self.into()
            }
            fn to_half(self) -> u16 {
                $to_half(self)
            }
            fn is_true(self) -> bool {
                self != 0.0
            }
            fn apply(step: &Step, values: &mut [Self]) {
                let operand = step.operand as Self;
                match step.code {
                    Code::Multiply => each_rounded(step.rounds, values, |x| x * operand),
                    Code::Add => each_rounded(step.rounds, values, |x| x + operand),
                    Code::Subtract => each_rounded(step.rounds, values, |x| x - operand),
                    Code::Divide => each_rounded(step.rounds, values, |x| x / operand),
                    Code::Mask => each(values, |x| if x == operand { Self::NAN } else { x }),
                    Code::Round => each_rounded(step.rounds, values, |x| x),
                    Code::Truncate => each(values, |x| if x.is_nan() { 0.0 } else { x.trunc() }),
                    Code::WrapUnsigned => each(values, |x| x - operand * (x / operand).floor()),
                    Code::WrapSigned => each(values, |x| x - operand * (x / operand + 0.5).floor()),
                    Code::IsTrue => each(values, |x| if x != 0.0 { 1.0 } else { 0.0 }),
                }
            }
            fn normalize(values: &mut [Self], numbers: &[Normalize], rounds: Rounds) {
                let pairs = values.iter_mut().zip(numbers);
                match rounds {
                    // There is no type of 16 bits that values are normalized in.
                    Rounds::Register | Rounds::Half => pairs.for_each(|(value, numbers)| {
                        *value = (*value - numbers.mean as Self) / numbers.std as Self;
                    }),
                    Rounds::Single => pairs.for_each(|(value, numbers)| {
                        let difference = (*value - numbers.mean as Self).to_f32();
                        let difference = Self::from_f32(difference);
                        *value = Self::from_f32((difference / numbers.std as Self).to_f32());
                    }),
                }
            }
        }
    };
}

float_register!(f32, single_to_half);
float_register!(f64, double_to_half);

fn each<R: Register>(values: &mut [R], function: impl Fn(R) -> R) {
    values.iter_mut().for_each(|value| *value = function(*value));
}

fn each_rounded<R: Register>(rounds: Rounds, values: &mut [R], function: impl Fn(R) -> R) {
    match rounds {
        Rounds::Register => each(values, function),
        Rounds::Single => each(values, |x| R::from_f32(function(x).to_f32())),
        Rounds::Half => each(values, |x| R::from_f32(half_to_single(function(x).to_half()))),
    }
}

/// Loads elements that are `step_bytes` apart.
///
/// # Panics
/// If `source` ends before the last one.
pub fn load<R: Register>(stored: StoredType, source: &[u8], step_bytes: usize, into: &mut [R]) {
    use ElementType::*;
    match stored {
        StoredType::Element(Bool) => gather(source, step_bytes, into, |[b]| R::from_u64((b != 0).into())),
        StoredType::Element(Int8) => {
            gather(source, step_bytes, into, |b| R::from_i64(i8::from_ne_bytes(b).into()))
        }
        StoredType::Element(Int16) => {
            gather(source, step_bytes, into, |b| R::from_i64(i16::from_ne_bytes(b).into()))
        }
        StoredType::Element(Int32) => {
            gather(source, step_bytes, into, |b| R::from_i64(i32::from_ne_bytes(b).into()))
        }
        StoredType::Element(Int64) => {
            gather(source, step_bytes, into, |b| R::from_i64(i64::from_ne_bytes(b)))
        }
        StoredType::Element(UInt8) => gather(source, step_bytes, into, |[b]| R::from_u64(b.into())),
        StoredType::Element(UInt16) => {
            gather(source, step_bytes, into, |b| R::from_u64(u16::from_ne_bytes(b).into()))
        }
        StoredType::Element(UInt32) => {
            gather(source, step_bytes, into, |b| R::from_u64(u32::from_ne_bytes(b).into()))
        }
        StoredType::Element(UInt64) => {
            gather(source, step_bytes, into, |b| R::from_u64(u64::from_ne_bytes(b)))
        }
        StoredType::Element(Float16) => {
            gather(source, step_bytes, into, |b| R::from_f32(half_to_single(u16::from_ne_bytes(b))))
        }
        StoredType::Element(Float32) => {
            gather(source, step_bytes, into, |b| R::from_f32(f32::from_ne_bytes(b)))
        }
        StoredType::Element(Float64) => {
            gather(source, step_bytes, into, |b| R::from_f64(f64::from_ne_bytes(b)))
        }
        StoredType::BFloat16 => gather(source, step_bytes, into, |b| {
            R::from_f32(f32::from_bits(u32::from(u16::from_ne_bytes(b)) << 16))
        }),
        StoredType::Byte(format) => {
            let table = format.table();
            gather(source, step_bytes, into, |[b]| R::from_f32(table[usize::from(b)]))
        }
    }
}

fn gather<const N: usize, R: Register>(
    source: &[u8],
    step_bytes: usize,
    into: &mut [R],
    function: impl Fn([u8; N]) -> R,
) {
    let element = |bytes: &[u8]| std::array::from_fn(|i| bytes[i]);
    if step_bytes == N {
        let elements = source[..N * into.len()].chunks_exact(N);
        into.iter_mut().zip(elements).for_each(|(value, bytes)| *value = function(element(bytes)));
        return;
    }
    for (i, value) in into.iter_mut().enumerate() {
        *value = function(element(&source[i * step_bytes..][..N]));
    }
}

/// Stores values as elements of an output, one behind the other.
pub fn store<R: Register>(output: ElementType, values: &[R], into: &mut [u8]) {
    use ElementType::*;
    match output {
        Bool => scatter(values, into, |x| [x.is_true().into()]),
        Int8 => {
            scatter(values, into, |x| (x.to_i64().clamp(i8::MIN.into(), i8::MAX.into()) as i8).to_ne_bytes())
        }
        Int16 => scatter(values, into, |x| {
            (x.to_i64().clamp(i16::MIN.into(), i16::MAX.into()) as i16).to_ne_bytes()
        }),
        Int32 => scatter(values, into, |x| {
            (x.to_i64().clamp(i32::MIN.into(), i32::MAX.into()) as i32).to_ne_bytes()
        }),
        Int64 => scatter(values, into, |x| x.to_i64().to_ne_bytes()),
        UInt8 => scatter(values, into, |x| [x.to_u64().min(u8::MAX.into()) as u8]),
        UInt16 => scatter(values, into, |x| (x.to_u64().min(u16::MAX.into()) as u16).to_ne_bytes()),
        UInt32 => scatter(values, into, |x| (x.to_u64().min(u32::MAX.into()) as u32).to_ne_bytes()),
        UInt64 => scatter(values, into, |x| x.to_u64().to_ne_bytes()),
        Float16 => scatter(values, into, |x| x.to_half().to_ne_bytes()),
        Float32 => scatter(values, into, |x| x.to_f32().to_ne_bytes()),
        Float64 => scatter(values, into, |x| x.to_f64().to_ne_bytes()),
    }
}

fn scatter<const N: usize, R: Register>(values: &[R], into: &mut [u8], function: impl Fn(R) -> [u8; N]) {
    for (&value, place) in values.iter().zip(into.chunks_exact_mut(N)) {
        place.copy_from_slice(&function(value));
    }
}
