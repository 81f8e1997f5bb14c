//! Element types: what Zarr stores and DALI can carry.

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
}
