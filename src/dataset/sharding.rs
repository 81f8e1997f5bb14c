//! How sharded chunks are cut into inner chunks.

use std::ops::Range;

use zarrs::array::CodecChain;

/// A sharded array's inner structure.
pub struct Sharding {
    /// Shape of an inner chunk.
    pub inner_shape: Vec<u64>,
    /// Inner chunks of a sharded chunk in each stored dimension.
    pub inner_grid: Vec<u64>,
    /// Whether the shard index is at the start of the chunk.
    pub index_at_start: bool,
    /// How the shard index is encoded.
    pub index_codecs: CodecChain,
    /// Size of the encoded shard index.
    pub index_bytes: u64,
}

impl Sharding {
    /// Inner chunks of a sharded chunk.
    pub fn inner_chunks(&self) -> u64 {
        self.inner_grid.iter().product()
    }

    /// The sharded chunk of an inner chunk at `cell` of the whole array's grid of inner chunks. Of the stored dimensions, so
    /// that the one of complex numbers' parts falls away.
    pub fn chunk_of(&self, cell: &[u64]) -> Vec<u64> {
        cell.iter().zip(&self.inner_grid).map(|(cell, n)| cell / n).collect()
    }

    /// Where the index is in a file of so many bytes, unless it is too small for one.
    pub fn index_range(&self, file_bytes: u64) -> Option<Range<u64>> {
        let after = file_bytes.checked_sub(self.index_bytes)?;
        let start = if self.index_at_start { 0 } else { after };
        Some(start..start + self.index_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use zarrs::metadata::v3::MetadataV3;

    #[test]
    fn the_index_is_at_one_end_of_the_file() {
        let index_codecs = CodecChain::from_metadata(&[MetadataV3::new("bytes")]).unwrap();
        let (inner_shape, inner_grid) = (vec![1, 4], vec![2, 3]);
        let mut sharding =
            Sharding { inner_shape, inner_grid, index_at_start: true, index_codecs, index_bytes: 96 };
        assert_eq!(sharding.inner_chunks(), 6);
        assert_eq!(sharding.chunk_of(&[5, 7, 1]), [2, 2]);
        assert_eq!(sharding.index_range(100), Some(0..96));
        sharding.index_at_start = false;
        assert_eq!(sharding.index_range(100), Some(4..100));
        assert_eq!((sharding.index_range(96), sharding.index_range(95)), (Some(0..96), None));
    }
}
