//! How much of an array its store holds, from the sizes of some chunks.

use crate::dataset::ArrayInfo;
use crate::store::Sessions;

/// Chunk files of an array whose sizes are asked for; of more a sample.
const MAX_SIZED_CHUNKS: u64 = 4096;

/// The same of a store in which each costs a request.
const MAX_SIZED_REMOTE_CHUNKS: u64 = 16;

/// The part of an array that is in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) chunks: u64,
    pub(super) present: u64,
    pub(super) bytes: u64,
    /// Whether `present` and `bytes` are estimated from a sample of the chunks.
    pub(super) sampled: bool,
}

impl std::iter::Sum for Stored {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |all, part| Self {
            chunks: all.chunks.saturating_add(part.chunks),
            present: all.present.saturating_add(part.present),
            bytes: all.bytes.saturating_add(part.bytes),
            sampled: all.sampled || part.sampled,
        })
    }
}

impl Stored {
    /// Asks for the sizes of an array's chunk files, or of some of them. The array is one of `parts` that are joined.
    pub(super) fn of(array: &ArrayInfo, parts: usize, sessions: &Sessions) -> Self {
        let rank = array.stored_dimensions();
        let extents = array.shape[..rank].iter().zip(&array.chunk_shape);
        let grid: Vec<u64> = extents.map(|(shape, chunk)| shape.div_ceil(*chunk)).collect();
        let chunks = grid.iter().fold(1u64, |all, &n| all.saturating_mul(n));
        let most = if array.objects.folder().is_some() { MAX_SIZED_CHUNKS } else { MAX_SIZED_REMOTE_CHUNKS };
        let most = (most / parts as u64).max(1);
        // What stands in the way of the store or a chunk is said when it is read.
        let session = sessions.with(&array.objects).ok();
        let (mut asked, mut present, mut bytes) = (0u64, 0u64, 0u64);
        for mut number in spread(chunks, most) {
            let mut cell = vec![0; rank];
            for d in (0..rank).rev() {
                cell[d] = number % grid[d];
                number /= grid[d];
            }
            asked += 1;
            let stored = session.as_ref().map(|session| array.stored_chunk_bytes(session, &cell));
            if let Some(Ok(Some(chunk_bytes))) = stored {
                present += 1;
                bytes += chunk_bytes;
            }
        }
        let scaled = |found: u64| match asked {
            0 => 0,
            asked => (u128::from(found) * u128::from(chunks) / u128::from(asked)) as u64,
        };
        Self { chunks, present: scaled(present), bytes: scaled(bytes), sampled: chunks > most }
    }
}

/// All numbers below `total`, or `most` of them: one from each of as many equal parts, at a place that no period of the
/// numbers falls in step with.
pub(super) fn spread(total: u64, most: u64) -> impl Iterator<Item = u64> {
    let picked = total.min(most);
    let start = move |part: u64| (u128::from(total) * u128::from(part) / u128::from(picked)) as u64;
    (0..picked).map(move |part| {
        let mixed = part.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        start(part) + (mixed ^ mixed >> 29) % (start(part + 1) - start(part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_all() {
        assert_eq!(spread(5, 64).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(spread(0, 64).count(), 0);
        for total in [65, 6400, 1 << 40, u64::MAX] {
            let numbers: Vec<u64> = spread(total, 64).collect();
            assert_eq!(numbers.len(), 64);
            assert!(numbers.is_sorted_by(|a, b| a < b) && numbers[63] < total);
            let period = total / 64;
            let steps: std::collections::HashSet<u64> = numbers.iter().map(|n| n % period).collect();
            assert!(total < 6400 || steps.len() > 32, "{total}");
        }
    }
}
