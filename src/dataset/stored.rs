//! Which of zarrs' data types can be read, and how their elements lie in a decoded chunk.

use super::element::{ByteFormat, ElementType, StoredType};

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
        use ByteFormat::*;
        let format = match name {
            "bfloat16" => return Some(Self::BFloat16),
            "int2" => Int2,
            "int4" => Int4,
            "uint2" => UInt2,
            "uint4" => UInt4,
            "float4_e2m1fn" => Float4E2M1Fn,
            "float6_e2m3fn" => Float6E2M3Fn,
            "float6_e3m2fn" => Float6E3M2Fn,
            "float8_e3m4" => Float8E3M4,
            "float8_e4m3" => Float8E4M3,
            "float8_e4m3b11fnuz" => Float8E4M3B11Fnuz,
            "float8_e4m3fnuz" => Float8E4M3Fnuz,
            "float8_e5m2" => Float8E5M2,
            "float8_e5m2fnuz" => Float8E5M2Fnuz,
            "float8_e8m0fnu" => Float8E8M0Fnu,
            other => return ElementType::from_name(other).map(Self::Element),
        };
        Some(Self::Byte(format))
    }

    /// Size of one stored element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::Element(element) => element.size_bytes(),
            Self::BFloat16 => 2,
            Self::Byte(_) => 1,
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
