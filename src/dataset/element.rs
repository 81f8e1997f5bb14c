//! Element types: what Zarr stores and DALI can carry.

use std::sync::LazyLock;

use zarrs::plugin::ExtensionName;

/// A fixed-size numeric type that both Zarr and DALI have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ElementType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    Float32,
    Float64,
}

impl ElementType {
    /// Every type with its name in Zarr v3 metadata and its size in bytes.
    pub const ALL: [(Self, &'static str, usize); 12] = [
        (Self::Bool, "bool", 1),
        (Self::Int8, "int8", 1),
        (Self::Int16, "int16", 2),
        (Self::Int32, "int32", 4),
        (Self::Int64, "int64", 8),
        (Self::UInt8, "uint8", 1),
        (Self::UInt16, "uint16", 2),
        (Self::UInt32, "uint32", 4),
        (Self::UInt64, "uint64", 8),
        (Self::Float16, "float16", 2),
        (Self::Float32, "float32", 4),
        (Self::Float64, "float64", 8),
    ];

    /// The type of that name in Zarr v3 metadata.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(element, _, _)| *element)
    }

    /// The type that corresponds to one of zarrs' data types, whichever Zarr version it was read from.
    pub fn from_zarrs(data_type: &zarrs::array::DataType) -> Option<Self> {
        Self::from_name(&data_type.name_v3()?)
    }

    fn entry(self) -> (Self, &'static str, usize) {
        Self::ALL[self as usize]
    }

    /// The name in Zarr v3 metadata.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Size of one element.
    pub fn size_bytes(self) -> usize {
        self.entry().2
    }

    /// Whether it is one of the floating-point types.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    /// Whether it is one of the signed integers.
    pub fn is_signed_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64)
    }

    /// Whether it is one of the unsigned integers; bool is none.
    pub fn is_unsigned_integer(self) -> bool {
        matches!(self, Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64)
    }

    /// Whether a float32 holds every value of it exactly.
    pub fn fits_single(self) -> bool {
        self.size_bytes() <= 2 || self == Self::Float32
    }
}

/// How an element lies in a decoded chunk: as one of DALI's types, or as something narrower that is widened when
/// samples are assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredType {
    /// As it is handed out.
    Element(ElementType),
    /// The upper half of a float32; widened to float32.
    BFloat16,
    /// One byte per element with fewer values than bytes have; widened as the format says.
    Byte(ByteFormat),
}

/// Formats of one byte or less, each stored in a byte of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ByteFormat {
    Int2,
    Int4,
    UInt2,
    UInt4,
    Float4E2M1Fn,
    Float6E2M3Fn,
    Float6E3M2Fn,
    Float8E3M4,
    Float8E4M3,
    Float8E4M3B11Fnuz,
    Float8E4M3Fnuz,
    Float8E5M2,
    Float8E5M2Fnuz,
    Float8E8M0Fnu,
}

/// Which codes of a floating-point format are not numbers.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// None.
    Never,
    /// The largest exponent: infinities and NaNs.
    LargestExponent,
    /// What would be a negative zero is the only NaN.
    NegativeZero,
}

impl ByteFormat {
    /// Every format with its name in Zarr v3 metadata.
    pub const ALL: [(Self, &'static str); 14] = [
        (Self::Int2, "int2"),
        (Self::Int4, "int4"),
        (Self::UInt2, "uint2"),
        (Self::UInt4, "uint4"),
        (Self::Float4E2M1Fn, "float4_e2m1fn"),
        (Self::Float6E2M3Fn, "float6_e2m3fn"),
        (Self::Float6E3M2Fn, "float6_e3m2fn"),
        (Self::Float8E3M4, "float8_e3m4"),
        (Self::Float8E4M3, "float8_e4m3"),
        (Self::Float8E4M3B11Fnuz, "float8_e4m3b11fnuz"),
        (Self::Float8E4M3Fnuz, "float8_e4m3fnuz"),
        (Self::Float8E5M2, "float8_e5m2"),
        (Self::Float8E5M2Fnuz, "float8_e5m2fnuz"),
        (Self::Float8E8M0Fnu, "float8_e8m0fnu"),
    ];

    /// The name in Zarr v3 metadata.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The value of every byte, see [`ByteFormat::value`].
    pub fn table(self) -> &'static [f32; 256] {
        static TABLES: LazyLock<Vec<[f32; 256]>> = LazyLock::new(|| {
            let table = |(format, _): &(ByteFormat, _)| std::array::from_fn(|byte| format.value(byte as u8));
            ByteFormat::ALL.iter().map(table).collect()
        });
        &TABLES[self as usize]
    }

    /// The value that a byte stands for; bits above the bits of the format are ignored.
    ///
    /// Source: the names are those of ml_dtypes, as in zarr-extensions.
    pub fn value(self, byte: u8) -> f32 {
        use Special::{LargestExponent, NegativeZero, Never};
        match self {
            Self::Int2 => f32::from((byte << 6) as i8 >> 6),
            Self::Int4 => f32::from((byte << 4) as i8 >> 4),
            Self::UInt2 => f32::from(byte & 3),
            Self::UInt4 => f32::from(byte & 15),
            Self::Float4E2M1Fn => decode(byte, 2, 1, 1, Never),
            Self::Float6E2M3Fn => decode(byte, 2, 3, 1, Never),
            Self::Float6E3M2Fn => decode(byte, 3, 2, 3, Never),
            Self::Float8E3M4 => decode(byte, 3, 4, 3, LargestExponent),
            Self::Float8E4M3 => decode(byte, 4, 3, 7, LargestExponent),
            Self::Float8E4M3B11Fnuz => decode(byte, 4, 3, 11, NegativeZero),
            Self::Float8E4M3Fnuz => decode(byte, 4, 3, 8, NegativeZero),
            Self::Float8E5M2 => decode(byte, 5, 2, 15, LargestExponent),
            Self::Float8E5M2Fnuz => decode(byte, 5, 2, 16, NegativeZero),
            // A power of two without sign, 2^-127 to 2^127.
            Self::Float8E8M0Fnu => match byte {
                0 => f32::from_bits(1 << 22),
                255 => f32::NAN,
                exponent => f32::from_bits(u32::from(exponent) << 23),
            },
        }
    }
}

/// The value of a number with a sign bit, bits of an exponent and of a mantissa, and subnormal numbers.
fn decode(byte: u8, exponent_bits: u32, mantissa_bits: u32, bias: u32, special: Special) -> f32 {
    let magnitude = u32::from(byte) & ((1 << (exponent_bits + mantissa_bits)) - 1);
    let negative = byte >> (exponent_bits + mantissa_bits) & 1 == 1;
    let infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    let value = match special {
        Special::LargestExponent if magnitude == infinity => f32::INFINITY,
        Special::LargestExponent if magnitude > infinity => f32::NAN,
        Special::NegativeZero if negative && magnitude == 0 => return f32::NAN,
        // Moved into place the exponent is too small by 127 - bias, for subnormal numbers too.
        _ => f32::from_bits(magnitude << (23 - mantissa_bits)) * f32::from_bits((127 + 127 - bias) << 23),
    };
    if negative { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (element, name, size) in ElementType::ALL {
            assert_eq!((element.name(), element.size_bytes()), (name, size));
            assert_eq!(ElementType::from_name(name), Some(element));
        }
        assert_eq!(ElementType::from_name("complex64"), None);
    }

    #[test]
    fn the_byte_formats_are_in_the_order_of_the_enum() {
        for (format, name) in ByteFormat::ALL {
            assert_eq!(format.name(), name);
        }
    }

    #[test]
    fn landmarks_of_the_byte_formats() {
        use ByteFormat::*;
        let cases: [(ByteFormat, u8, f32); 22] = [
            (Int2, 0b10, -2.0),
            (Int4, 0xF8, -8.0),
            (Int4, 0x07, 7.0),
            (UInt2, 0xFF, 3.0),
            (UInt4, 0xFF, 15.0),
            (Float4E2M1Fn, 0x7, 6.0),
            (Float4E2M1Fn, 0x1, 0.5),
            (Float6E2M3Fn, 0x1F, 7.5),
            (Float6E3M2Fn, 0x3F, -28.0),
            (Float6E3M2Fn, 0x01, 0.0625),
            (Float8E3M4, 0x6F, 15.5),
            (Float8E4M3, 0x77, 240.0),
            (Float8E4M3, 0x78, f32::INFINITY),
            (Float8E4M3, 0x01, 2f32.powi(-9)),
            (Float8E4M3B11Fnuz, 0x7F, 30.0),
            (Float8E4M3Fnuz, 0x7F, 240.0),
            (Float8E5M2, 0x7B, 57344.0),
            (Float8E5M2, 0xFC, f32::NEG_INFINITY),
            (Float8E5M2Fnuz, 0x7F, 57344.0),
            (Float8E5M2Fnuz, 0x01, 2f32.powi(-17)),
            (Float8E8M0Fnu, 0, 2f32.powi(-127)),
            (Float8E8M0Fnu, 127, 1.0),
        ];
        for (format, byte, value) in cases {
            assert_eq!(format.value(byte), value, "{format:?} {byte:#x}");
        }
        for (format, byte) in [(Float8E4M3, 0x79), (Float8E4M3Fnuz, 0x80), (Float8E8M0Fnu, 255)] {
            assert!(format.value(byte).is_nan(), "{format:?} {byte:#x}");
        }
    }
}
