//! Places in a store.

use std::fmt;
use std::ops::Range;

/// The place in a store that an error speaks of, as exactly as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The store as the user named it.
    pub store: String,
    /// Path of the array inside the store; empty when the store is the array.
    pub array: String,
    /// Coordinates in the array's chunk grid.
    pub chunk: Option<Vec<u64>>,
    /// Coordinates of the inner chunk inside its sharded chunk.
    pub inner_chunk: Option<Vec<u64>>,
    /// The store key of the chunk, which is also its file below the store's folder.
    pub key: Option<String>,
    /// Bytes of the file, end excluded.
    pub byte_range: Option<Range<u64>>,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inner) = &self.inner_chunk {
            write!(f, "inner chunk {inner:?} of ")?;
        }
        if let Some(chunk) = &self.chunk {
            write!(f, "chunk {chunk:?}, ")?;
        }
        if self.array.is_empty() {
            write!(f, "array \"{}\"", self.store)?;
        } else {
            write!(f, "array \"{}\" of \"{}\"", self.array, self.store)?;
        }
        if let Some(key) = &self.key {
            write!(f, ", file \"{}/{key}\"", self.store.trim_end_matches('/'))?;
        }
        if let Some(range) = &self.byte_range {
            write!(f, ", bytes {}..{}", range.start, range.end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_from_the_inside_out() {
        let at = Context {
            store: "era5.zarr".into(),
            array: "t2m".into(),
            chunk: Some(vec![0, 2]),
            inner_chunk: Some(vec![3, 1]),
            key: Some("t2m/c/0/2".into()),
            byte_range: Some(8192..12288),
        };
        assert_eq!(
            at.to_string(),
            "inner chunk [3, 1] of chunk [0, 2], array \"t2m\" of \"era5.zarr\", \
             file \"era5.zarr/t2m/c/0/2\", bytes 8192..12288"
        );
    }
}
