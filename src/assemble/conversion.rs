//! What happens to the elements of an array between a decoded chunk and an output, decided once.
//!
//! ```text
//! stored -> widened -> fixedscaleoffset -> mask, scale, offset (CF) -> (x - mean) / std -> output type
//! ```
//!
//! Mean and standard deviation are those of the array, or of each channel ([`Channels`]).
//!
//! The result is a type to load, a register to compute in, a list of steps and a type to store, which the host
//! ([`super::host`]) and the kernel (`src/kernels/convert.cuh`) carry out alike.

use super::arithmetic::{load, store};
use super::channels::Channels;
use super::step::{Code, MAX_STEPS, Normalize, Step};
use crate::dataset::{Cf, ElementType, FixedScaleOffset, StoredType};

/// How values are normalized.
#[derive(Clone, Debug, PartialEq)]
pub enum Normalization {
    /// All alike.
    Array(Normalize),
    /// Each by its channel.
    Channels(Channels),
}

impl From<Normalize> for Normalization {
    fn from(normalize: Normalize) -> Self {
        Self::Array(normalize)
    }
}

/// What values are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Nothing: elements are copied.
    None,
    /// int64, without steps.
    Signed,
    /// uint64, without steps.
    Unsigned,
    /// float32.
    Single,
    /// float64.
    Double,
}

/// The conversion of an array's elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversion {
    loads: StoredType,
    register: Register,
    steps: Vec<Step>,
    /// What follows the steps, where channels are normalized each by its own numbers.
    channels: Option<Channels>,
    output: ElementType,
    /// The conversion of the fill value, if its type is not the stored one: `fixedscaleoffset` does not scale fill values.
    of_fill: Option<Box<Self>>,
}

impl Conversion {
    /// Decides on the conversion of elements that are stored as `stored`, which `filter` decodes. `dtype` is the type
    /// that the output shall have.
    ///
    /// # Errors
    /// What cannot be combined or used, as the end of a sentence.
    pub fn new(
        stored: StoredType,
        filter: Option<FixedScaleOffset>,
        cf: Option<&Cf>,
        normalize: Option<Normalization>,
        dtype: Option<ElementType>,
    ) -> Result<Self, String> {
        let (mut loads, mut steps, mut value) = (stored, vec![], stored.widened());
        if let Some(filter) = filter {
            decode_filter(filter, &mut steps);
            value = filter.dtype;
        }
        if let Some(cf) = cf {
            if cf.reads_as != value {
                if filter.is_some() {
                    return Err("its attribute \"_Unsigned\" cannot be combined with its fixedscaleoffset codec; leave out mask_and_scale".into());
                }
                loads = StoredType::Element(cf.reads_as);
            }
            decode_cf(cf, &mut steps);
            value = cf.output();
        }
        if normalize.is_some() {
            value = if value.fits_single() { ElementType::Float32 } else { ElementType::Float64 };
        }
        let channels = match normalize.clone() {
            None => None,
            Some(Normalization::Array(Normalize { mean, std })) => {
                let wanted = [(Code::Subtract, mean, 0.0), (Code::Divide, std, 1.0)];
                let useful = wanted.iter().filter(|(_, operand, nothing)| operand != nothing);
                steps.extend(useful.map(|&(code, operand, _)| Step::arithmetic(code, operand, value)));
                None
            }
            Some(Normalization::Channels(channels)) => Some(channels.computed_in(value)),
        };
        if steps.len() > MAX_STEPS {
            return Err("its attribute \"missing_value\" has more values than are supported; leave out mask_and_scale".into());
        }
        let output = dtype.unwrap_or(value);
        let computed = channels.as_ref().map(|channels| channels.step(Code::Subtract, 0.0));
        let all: Vec<Step> = steps.iter().copied().chain(computed).collect();
        let register = register(loads, &all, output);
        let of_fill = match filter {
            Some(filter) => {
                let logical = StoredType::Element(filter.dtype);
                Some(Box::new(Self::new(logical, None, cf, normalize, dtype)?))
            }
            None => None,
        };
        if register == Register::Single {
            // A masked value that is no float32 equals no element; rounded to float32 it might.
            steps.retain(|step| step.code != Code::Mask || step.fits_single());
        }
        Ok(Self { loads, register, steps, channels, output, of_fill })
    }

    /// The type of the output's elements.
    pub fn output(&self) -> ElementType {
        self.output
    }

    /// Whether elements are only copied, their bytes swapped at most.
    pub fn is_copy(&self) -> bool {
        self.register == Register::None
    }

    /// Size of a stored element.
    pub fn stored_bytes(&self) -> usize {
        self.loads.size_bytes()
    }

    /// The type that elements are loaded as.
    pub fn loads(&self) -> StoredType {
        self.loads
    }

    /// The register that values are computed in.
    pub fn register(&self) -> Register {
        self.register
    }

    /// What is done with each value; at most [`MAX_STEPS`].
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What follows the steps: the channels that are normalized each by its own numbers.
    pub fn channels(&self) -> Option<&Channels> {
        self.channels.as_ref()
    }

    /// The conversion of the array's fill value.
    pub fn of_fill(&self) -> &Self {
        self.of_fill.as_deref().unwrap_or(self)
    }

    /// The output element of a missing chunk. `logical` is the array's fill value, one element in native byte order.
    /// `None` if it differs between channels.
    pub fn fill(&self, logical: &[u8]) -> Option<Vec<u8>> {
        let mut element = vec![0; self.output.size_bytes()];
        self.channels.is_none().then(|| {
            self.of_fill().convert(logical, logical.len(), &mut element, 0);
            element
        })
    }

    /// Converts a row: elements that are `step_bytes` apart in `from`, as many as `to` has room for. `place` is the number
    /// of the row's first element in the output, from which channels follow.
    ///
    /// # Panics
    /// If `from` ends before the last one.
    pub fn convert(&self, from: &[u8], step_bytes: usize, to: &mut [u8], place: u64) {
        match self.register {
            Register::None => copy(self.stored_bytes(), from, step_bytes, to),
            Register::Signed => self.convert_in::<i64>(from, step_bytes, to, place),
            Register::Unsigned => self.convert_in::<u64>(from, step_bytes, to, place),
            Register::Single => self.convert_in::<f32>(from, step_bytes, to, place),
            Register::Double => self.convert_in::<f64>(from, step_bytes, to, place),
        }
    }

    fn convert_in<R: super::arithmetic::Register>(
        &self,
        from: &[u8],
        step_bytes: usize,
        to: &mut [u8],
        place: u64,
    ) {
        /// Enough to make each pass over the values worth its start, and little enough for the L1 cache.
        const BLOCK: usize = 512;
        let mut values = [R::default(); BLOCK];
        let size = self.output.size_bytes();
        for (block, to) in to.chunks_mut(BLOCK * size).enumerate() {
            let values = &mut values[..to.len() / size];
            load(self.loads, &from[block * BLOCK * step_bytes..], step_bytes, values);
            self.steps.iter().for_each(|step| R::apply(step, values));
            if let Some(channels) = &self.channels {
                channels.normalize(values, place + (block * BLOCK) as u64);
            }
            store(self.output, values, to);
        }
    }
}

fn copy(size: usize, from: &[u8], step_bytes: usize, to: &mut [u8]) {
    if step_bytes == size {
        to.copy_from_slice(&from[..to.len()]);
        return;
    }
    for (i, place) in to.chunks_exact_mut(size).enumerate() {
        place.copy_from_slice(&from[i * step_bytes..][..size]);
    }
}

/// `(stored / scale + offset).astype(dtype)`, in float64 unless the stored type is a narrower float. Integers wrap, as
/// they do in NumPy on x86: rounding alone can make a stored 0 of an unsigned type a -1.
fn decode_filter(filter: FixedScaleOffset, steps: &mut Vec<Step>) {
    let computes_in = if filter.astype.is_float() { filter.astype } else { ElementType::Float64 };
    let scale = Step::arithmetic(Code::Divide, filter.scale, computes_in);
    steps.extend([scale, Step::arithmetic(Code::Add, filter.offset, computes_in)]);
    let range = 2f64.powi(8 * filter.dtype.size_bytes() as i32);
    match filter.dtype {
        ElementType::Bool => steps.push(Step::new(Code::IsTrue, 0.0)),
        dtype if dtype.is_float() => {
            if dtype.size_bytes() < computes_in.size_bytes() {
                steps.push(Step::arithmetic(Code::Round, 0.0, dtype));
            }
        }
        dtype => {
            let wrap = if dtype.is_signed_integer() { Code::WrapSigned } else { Code::WrapUnsigned };
            steps.extend([Step::new(Code::Truncate, 0.0), Step::new(wrap, range)]);
        }
    }
}

fn decode_cf(cf: &Cf, steps: &mut Vec<Step>) {
    steps.extend(cf.masks.iter().map(|&mask| Step::new(Code::Mask, mask)));
    let factors = [(Code::Multiply, cf.scale_factor), (Code::Add, cf.add_offset)];
    for (code, operand) in factors {
        steps.extend(operand.map(|operand| Step::arithmetic(code, operand, cf.computes_in)));
    }
    if cf.is_bool {
        steps.push(Step::new(Code::IsTrue, 0.0));
    }
}

/// The narrowest register that holds everything.
fn register(loads: StoredType, steps: &[Step], output: ElementType) -> Register {
    let widened = loads.widened();
    if steps.is_empty() {
        let integers = !widened.is_float() && (!output.is_float() || widened.size_bytes() == 8);
        match loads {
            StoredType::Element(element) if element == output => return Register::None,
            StoredType::Element(element) if integers && element.is_signed_integer() => {
                return Register::Signed;
            }
            StoredType::Element(_) if integers => return Register::Unsigned,
            _ => {}
        }
    }
    let single = |step: &Step| step.code == Code::Mask || step.fits_single();
    match widened.fits_single() && steps.iter().all(single) {
        true => Register::Single,
        false => Register::Double,
    }
}
