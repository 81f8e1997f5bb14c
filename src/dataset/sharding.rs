//! How sharded chunks are cut into inner chunks.

use crate::store::Extent;

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

    /// The sharded chunk of the inner chunk at `cell` of the whole array's grid of inner chunks. `cell` may have a last dimension for
    /// the parts of complex numbers, which the chunk grid has not.
    pub fn chunk_of(&self, cell: &[u64]) -> Vec<u64> {
        cell.iter().zip(&self.inner_grid).map(|(cell, n)| cell / n).collect()
    }

    /// The coordinates of that inner chunk in its sharded chunk, and its number in the shard index, row by row.
    pub fn inner_of(&self, cell: &[u64]) -> (Vec<u64>, u64) {
        let inner: Vec<u64> = cell.iter().zip(&self.inner_grid).map(|(cell, n)| cell % n).collect();
        let number = inner.iter().zip(&self.inner_grid).fold(0, |number, (i, n)| number * n + i);
        (inner, number)
    }

    /// What is asked for to read the index without knowing the length of the object.
    pub fn index_extent(&self) -> Extent {
        match self.index_at_start {
            true => Extent::Range(0..self.index_bytes),
            false => Extent::Suffix(self.index_bytes),
        }
    }

    /// The bytes of the index in an object of `object_bytes` bytes. `None`: the object is too small for an index.
    pub fn index_range(&self, object_bytes: u64) -> Option<Range<u64>> {
        let after = object_bytes.checked_sub(self.index_bytes)?;
        let start = if self.index_at_start { 0 } else { after };
        Some(start..start + self.index_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zarrs::metadata::v3::MetadataV3;

    proptest! {
        #[test]
        fn every_inner_chunk_has_a_number_of_its_own_in_its_shard(
            grid in prop::collection::vec(1u64..5, 1..4),
            shards in prop::collection::vec(1u64..4, 3),
            parts in any::<bool>(),
        ) {
            let sharding = Sharding {
                inner_shape: vec![1; grid.len()],
                inner_grid: grid.clone(),
                index_at_start: false,
                index_codecs: CodecChain::from_metadata(&[MetadataV3::new("bytes")]).unwrap(),
                index_bytes: 16,
            };
            let mut numbers = std::collections::HashMap::<Vec<u64>, Vec<u64>>::new();
            let extents: Vec<u64> = grid.iter().zip(&shards).map(|(n, shards)| n * shards).collect();
            let mut cell = vec![0; grid.len()];
            'cells: loop {
                let mut asked = cell.clone();
                asked.extend(parts.then_some(0));
                let (shard, (inner, number)) = (sharding.chunk_of(&asked), sharding.inner_of(&asked));
                for d in 0..grid.len() {
                    prop_assert_eq!(shard[d] * grid[d] + inner[d], cell[d]);
                }
                numbers.entry(shard).or_default().push(number);
                // The next cell, row by row.
                for d in (0..cell.len()).rev() {
                    cell[d] += 1;
                    if cell[d] < extents[d] {
                        continue 'cells;
                    }
                    cell[d] = 0;
                }
                break;
            }
            let all: Vec<u64> = (0..grid.iter().product()).collect();
            prop_assert_eq!(numbers.len() as u64, shards[..grid.len()].iter().product::<u64>());
            for mut found in numbers.into_values() {
                found.sort_unstable();
                prop_assert_eq!(&found, &all);
            }
        }
    }

    #[test]
    fn the_index_is_at_one_end_of_the_file() {
        let index_codecs = CodecChain::from_metadata(&[MetadataV3::new("bytes")]).unwrap();
        let (inner_shape, inner_grid) = (vec![1, 4], vec![2, 3]);
        let mut sharding =
            Sharding { inner_shape, inner_grid, index_at_start: true, index_codecs, index_bytes: 96 };
        assert_eq!(sharding.inner_chunks(), 6);
        assert_eq!(sharding.chunk_of(&[5, 7, 1]), [2, 2]);
        assert_eq!((sharding.index_range(100), sharding.index_extent()), (Some(0..96), Extent::Range(0..96)));
        sharding.index_at_start = false;
        assert_eq!(sharding.index_extent(), Extent::Suffix(96));
        assert_eq!(sharding.index_range(100), Some(4..100));
        assert_eq!((sharding.index_range(96), sharding.index_range(95)), (Some(0..96), None));
    }
}
