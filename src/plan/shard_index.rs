//! The index of a sharded chunk: where its inner chunks lie in the file.

use std::ops::Range;

/// Byte ranges of the inner chunks of one sharded chunk, checked against the size of its file.
///
/// Source: Zarr v3 specification, `sharding_indexed` codec, "Binary shard format".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIndex {
    entries: Vec<u64>,
}

impl ShardIndex {
    /// Offset and size of an inner chunk that is not there.
    pub const MISSING: u64 = u64::MAX;

    /// Reads the decoded index: an offset and a size for each inner chunk, row by row.
    ///
    /// # Errors
    /// The number of the first inner chunk that does not lie within the `file_bytes` of the file, and why.
    pub fn new(entries: Vec<u64>, inner_chunks: u64, file_bytes: u64) -> Result<Self, String> {
        if Some(entries.len() as u64) != inner_chunks.checked_mul(2) {
            return Err(format!("has {} numbers for {inner_chunks} inner chunks", entries.len()));
        }
        for (number, &[offset, size]) in entries.as_chunks::<2>().0.iter().enumerate() {
            let is_missing = (offset, size) == (Self::MISSING, Self::MISSING);
            if !is_missing && offset.checked_add(size).is_none_or(|end| end > file_bytes) {
                return Err(format!(
                    "places inner chunk number {number} at {size} bytes from byte {offset}, past the {file_bytes} bytes of the file"
                ));
            }
        }
        Ok(Self { entries })
    }

    /// Bytes of an inner chunk, or `None` if it is missing or was never written.
    pub fn range(&self, inner_chunk: u64) -> Option<Range<u64>> {
        let &[offset, size] = self.entries.as_chunks::<2>().0.get(usize::try_from(inner_chunk).ok()?)?;
        // Only the entry of a missing inner chunk overflows.
        offset.checked_add(size).map(|end| offset..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_within_the_file() {
        let missing = ShardIndex::MISSING;
        let index = ShardIndex::new(vec![0, 10, missing, missing, 10, 6], 3, 16).unwrap();
        assert_eq!([index.range(0), index.range(1), index.range(2)], [Some(0..10), None, Some(10..16)]);
        assert_eq!(index.range(3), None);
        assert!(ShardIndex::new(vec![0, 17], 1, 16).unwrap_err().contains("past the 16 bytes"));
        assert!(ShardIndex::new(vec![missing, 1], 1, 16).is_err());
        assert!(ShardIndex::new(vec![u64::MAX - 1, 8], 1, 16).is_err());
        assert!(ShardIndex::new(vec![0, 1, 2], 1, 16).is_err());
    }
}
