//! The steps of a conversion, which the host and the kernel (`src/kernels/convert.cuh`) carry out alike.

use crate::dataset::{ElementType, double_to_half, half_to_single};

/// The most steps of a conversion, in the kernel too.
pub const MAX_STEPS: usize = 24;

/// Normalization: `(x - mean) / std`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    /// Subtracted first.
    pub mean: f64,
    /// Divided by then; neither 0 nor infinite, also as a float32.
    pub std: f64,
}

/// What a step does to a value. The numbers are those of `convert.cuh`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Multiplies by the operand.
    Multiply,
    /// Adds the operand.
    Add,
    /// Subtracts the operand.
    Subtract,
    /// Divides by the operand.
    Divide,
    /// Makes a value NaN that equals the operand.
    Mask,
    /// Rounds to the type of the step.
    Round,
    /// Rounds towards zero; NaN becomes 0.
    Truncate,
    /// Wraps whole numbers modulo the operand, a power of two: the least result is 0.
    WrapUnsigned,
    /// Wraps whole numbers modulo the operand, a power of two: the least result is minus half of the operand.
    WrapSigned,
    /// Makes 0 of 0 and 1 of everything else.
    IsTrue,
}

/// What the result of a step is rounded to; registers hold all of these types.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// As the register does.
    Register,
    /// To float32.
    Single,
    /// To float16.
    Half,
}

/// One step. Field for field the `Step` of `convert.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// What `code` says.
    pub operand: f64,
    /// What to do.
    pub code: Code,
    /// What the result is rounded to.
    pub rounds: Rounds,
    reserved: [u8; 6],
}

impl Rounds {
    fn to(element: ElementType) -> Self {
        match element {
            ElementType::Float16 => Self::Half,
            ElementType::Float32 => Self::Single,
            _ => Self::Register,
        }
    }

    fn round(self, value: f64) -> f64 {
        match self {
            Self::Register => value,
            Self::Single => f64::from(value as f32),
            Self::Half => f64::from(half_to_single(double_to_half(value))),
        }
    }
}

impl Step {
    /// An operation in a floating-point type: both its operand and its result are rounded to that.
    pub(super) fn arithmetic(code: Code, operand: f64, element: ElementType) -> Self {
        let rounds = Rounds::to(element);
        Self { operand: rounds.round(operand), code, rounds, reserved: [0; 6] }
    }

    pub(super) fn new(code: Code, operand: f64) -> Self {
        Self { operand, code, rounds: Rounds::Register, reserved: [0; 6] }
    }

    /// Whether a float32 register gives the same result.
    pub(super) fn fits_single(&self) -> bool {
        let computes =
            matches!(self.code, Code::Multiply | Code::Add | Code::Subtract | Code::Divide | Code::Round);
        !(computes && self.rounds == Rounds::Register) && f64::from(self.operand as f32) == self.operand
    }
}
