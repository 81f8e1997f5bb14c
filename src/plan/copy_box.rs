//! A box of elements to be copied from a decoded read chunk into an output.

use smallvec::SmallVec;

/// A number for each dimension. Up to four dimensions need no allocation: each chunk has several of these lists, and one
/// thread would allocate them and another one free them.
pub type Dims = SmallVec<[u64; 4]>;

/// A box in a source and in a destination, both addressed in elements from their first.
///
/// Always has at least one dimension, extents of at least 1, and a last dimension that is contiguous in the
/// destination. In the source it is not, where the chunk is stored transposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyBox {
    /// First element in the source.
    pub from: u64,
    /// First element in the destination.
    pub to: u64,
    /// Extents.
    pub extents: Dims,
    /// Elements between neighbours in the source.
    pub from_strides: Dims,
    /// Elements between neighbours in the destination.
    pub to_strides: Dims,
}

impl CopyBox {
    /// The same copy with as few dimensions as possible: extents of 1 are dropped and neighbouring dimensions
    /// joined where they are contiguous on both sides.
    pub fn collapsed(self) -> Self {
        let none = Dims::new;
        let mut result = Self { extents: none(), from_strides: none(), to_strides: none(), ..self };
        for d in 0..self.extents.len() {
            let (extent, from, to) = (self.extents[d], self.from_strides[d], self.to_strides[d]);
            if extent == 1 {
                continue;
            }
            match result.extents.last_mut() {
                Some(outer)
                    if result.from_strides.last() == Some(&(extent * from))
                        && result.to_strides.last() == Some(&(extent * to)) =>
                {
                    *outer *= extent;
                    result.from_strides.pop();
                    result.to_strides.pop();
                }
                _ => result.extents.push(extent),
            }
            result.from_strides.push(from);
            result.to_strides.push(to);
        }
        if result.to_strides.last() != Some(&1) {
            // A single element per row, or a box of one element.
            result.extents.push(1);
            result.from_strides.push(1);
            result.to_strides.push(1);
        }
        result
    }

    /// How many elements the box holds.
    pub fn len(&self) -> u64 {
        self.extents.iter().product()
    }

    /// Never: a box holds at least one element.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The rows of the box: (source, destination) of their first elements, each [`CopyBox::row_len`] elements
    /// long, contiguous in the destination and [`CopyBox::row_step`] apart in the source.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let outer = &self.extents[..self.extents.len() - 1];
        (0..outer.iter().product::<u64>()).map(move |row| {
            let (mut rest, mut from, mut to) = (row, self.from, self.to);
            for d in (0..outer.len()).rev() {
                let index = rest % outer[d];
                rest /= outer[d];
                from += index * self.from_strides[d];
                to += index * self.to_strides[d];
            }
            (from, to)
        })
    }

    /// Elements of a row.
    pub fn row_len(&self) -> u64 {
        self.extents[self.extents.len() - 1]
    }

    /// Elements between neighbours of a row in the source.
    pub fn row_step(&self) -> u64 {
        self.from_strides[self.from_strides.len() - 1]
    }

    /// Every (source, destination) pair of elements.
    pub fn elements(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let step = self.row_step();
        self.rows().flat_map(move |(from, to)| (0..self.row_len()).map(move |i| (from + i * step, to + i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn new(extents: &[u64], from_strides: &[u64], to_strides: &[u64]) -> CopyBox {
        CopyBox {
            from: 5,
            to: 7,
            extents: extents.into(),
            from_strides: from_strides.into(),
            to_strides: to_strides.into(),
        }
    }

    #[test]
    fn contiguous_dimensions_are_joined() {
        assert_eq!(new(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]).collapsed(), new(&[24], &[1], &[1]));
        assert_eq!(new(&[2, 3, 4], &[24, 4, 1], &[12, 4, 1]).collapsed(), new(&[2, 12], &[24, 1], &[12, 1]));
        assert_eq!(new(&[1, 1], &[9, 3], &[5, 2]).collapsed(), new(&[1], &[1], &[1]));
        assert_eq!(new(&[3, 1], &[9, 3], &[5, 2]).collapsed(), new(&[3, 1], &[9, 1], &[5, 1]));
        // Transposed: the last dimension is far apart in the source, and nothing can be joined.
        assert_eq!(new(&[3, 4], &[1, 3], &[4, 1]).collapsed(), new(&[3, 4], &[1, 3], &[4, 1]));
        assert_eq!(new(&[3, 1], &[1, 3], &[1, 1]).collapsed(), new(&[3], &[1], &[1]));
    }

    proptest! {
        #[test]
        fn collapsing_keeps_every_pair(
            (dims, axes) in prop::collection::vec((1u64..4, 0u64..3, 0u64..3), 1..5).prop_flat_map(|dims| {
                let axes: Vec<usize> = (0..dims.len()).collect();
                (Just(dims), prop_oneof![Just(axes.clone()), Just(axes).prop_shuffle()])
            })
        ) {
            // Strides of a dense array inside a possibly larger one, as plans have them: the destination row by row,
            // the source with its dimensions in any order.
            let rank = dims.len();
            let extents: Vec<u64> = dims.iter().map(|d| d.0).collect();
            let strides = |axes: &[usize], slack: &dyn Fn(usize) -> u64| {
                let mut strides = vec![1; rank];
                for i in (1..rank).rev() {
                    strides[axes[i - 1]] = strides[axes[i]] * (extents[axes[i]] + slack(axes[i]));
                }
                strides
            };
            let rows: Vec<usize> = (0..rank).collect();
            let whole = new(&extents, &strides(&axes, &|d| dims[d].1), &strides(&rows, &|d| dims[d].2));
            let mut plain = vec![];
            for i in 0..extents.iter().product::<u64>() {
                let (mut rest, mut from, mut to) = (i, whole.from, whole.to);
                for d in (0..rank).rev() {
                    from += rest % extents[d] * whole.from_strides[d];
                    to += rest % extents[d] * whole.to_strides[d];
                    rest /= extents[d];
                }
                plain.push((from, to));
            }
            let collapsed = whole.collapsed();
            prop_assert_eq!(collapsed.to_strides.last(), Some(&1));
            prop_assert_eq!(collapsed.elements().collect::<Vec<_>>(), plain);
        }
    }
}
