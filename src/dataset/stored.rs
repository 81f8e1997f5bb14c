//! Which of zarrs' data types can be read, and how their elements lie in a decoded chunk.

use super::element::{ByteFormat, ElementType, StoredType};
use super::float16::half_to_single;

use zarrs::array::DataType;
use zarrs::plugin::ExtensionName;

impl StoredType {
    /// How the elements of a data type are stored, and how many of them make one of its values: complex numbers have
    /// two, the real and the imaginary part. Points in time and time spans are the integers that stand for them. `None`
    /// for types that no output can hold.
    pub fn from_zarrs(data_type: &DataType) -> Option<(Self, u64)> {
        let name = data_type.name_v3()?;
        match &*name {
            "complex64" => Some((Self::Element(ElementType::Float32), 2)),
            "complex128" => Some((Self::Element(ElementType::Float64), 2)),
            "numpy.datetime64" | "numpy.timedelta64" => Some((Self::Element(ElementType::Int64), 1)),
            name => match name.strip_prefix("complex_") {
                Some(part) => Self::from_name(part).map(|stored| (stored, 2)),
                None => Self::from_name(name).map(|stored| (stored, 1)),
            },
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let element = || ElementType::from_name(name).map(Self::Element);
        let byte = || ByteFormat::ALL.iter().find(|(_, known)| *known == name).map(|(f, _)| Self::Byte(*f));
        if name == "bfloat16" { Some(Self::BFloat16) } else { element().or_else(byte) }
    }

    /// Size of one stored element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Element(element) => element.size_bytes(),
            Self::BFloat16 => 2,
            Self::Byte(_) => 1,
        }
    }

    /// The name in Zarr v3 metadata; of complex numbers, times and time spans that of their parts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Element(element) => element.name(),
            Self::BFloat16 => "bfloat16",
            Self::Byte(format) => format.name(),
        }
    }

    /// The number that an element in native byte order stands for, as near as a float64 comes.
    ///
    /// # Panics
    /// If there are fewer bytes than an element has.
    pub fn number(self, bytes: &[u8]) -> f64 {
        use ElementType::*;
        let mut widest = [0; 8];
        // Native order is little-endian on every machine that CUDA runs on.
        widest[..self.size_bytes()].copy_from_slice(&bytes[..self.size_bytes()]);
        let bits = u64::from_le_bytes(widest);
        match self {
            Self::Element(Bool) => (bits != 0).into(),
            Self::Element(Int8) => (bits as i8).into(),
            Self::Element(Int16) => (bits as i16).into(),
            Self::Element(Int32) => (bits as i32).into(),
            Self::Element(Int64) => bits as i64 as f64,
            Self::Element(UInt8 | UInt16 | UInt32 | UInt64) => bits as f64,
            Self::Element(Float16) => half_to_single(bits as u16).into(),
            Self::Element(Float32) => f32::from_bits(bits as u32).into(),
            Self::Element(Float64) => f64::from_bits(bits),
            Self::BFloat16 => f32::from_bits((bits as u32) << 16).into(),
            Self::Byte(format) => format.value(bits as u8).into(),
        }
    }

    /// The type that elements are handed out as when nothing else is asked for.
    pub fn widened(self) -> ElementType {
        use ByteFormat::*;
        match self {
            Self::Element(element) => element,
            Self::BFloat16 => ElementType::Float32,
            Self::Byte(Int2 | Int4) => ElementType::Int8,
            Self::Byte(UInt2 | UInt4) => ElementType::UInt8,
            Self::Byte(Float8E8M0Fnu) => ElementType::Float32,
            Self::Byte(_) => ElementType::Float16,
        }
    }
}
