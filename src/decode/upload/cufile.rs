//! The staging memory that cuFile reads to.

use crate::fetch::Encoded;

use std::io;

use cudarc::driver::{CudaEvent, result};

/// One thread's part of the memory that is registered with cuFile, in two halves. While one half is copied to the destination,
/// cuFile reads to the other.
pub struct GdsStaging {
    /// Address of the registered memory.
    base: u64,
    /// Offset of this part in the registered memory.
    start: u64,
    /// Bytes of one half.
    bytes: u64,
    turn: usize,
    /// For each half, the event of the copy out of it.
    copied: [Option<CudaEvent>; 2],
}

/// An aligned range of a file that cuFile reads at once, and where it goes in the staging memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which half the piece goes to.
    pub half: usize,
    /// Offset of the half in the registered memory.
    pub offset: u64,
    /// First byte in the file.
    pub start: u64,
    /// End in the file. It may be behind the end of the file.
    pub end: u64,
}

impl GdsStaging {
    /// Direct access needs offsets, sizes and addresses that are multiples of this many bytes.
    pub const ALIGNMENT: u64 = 4096;
    /// The most bytes of one half. With these a bare loop of equally many threads reads fastest (benches/NOTES.md).
    pub const MOST_BYTES: u64 = 4 << 20;

    /// The part of thread `number` in the registered memory at `base`. Each half of a part has `bytes` bytes.
    pub fn new(base: u64, number: u64, bytes: u64) -> Self {
        Self { base, start: 2 * number * bytes, bytes, turn: 0, copied: [None, None] }
    }

    /// Address of the registered memory.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The next piece of a range of a file that ends at `range_end`. The bytes before `done` were read already.
    pub fn next_piece(&mut self, done: u64, range_end: u64) -> Piece {
        let start = done - done % Self::ALIGNMENT;
        let end = range_end.next_multiple_of(Self::ALIGNMENT).min(start + self.bytes);
        let half = self.turn % 2;
        self.turn += 1;
        Piece { half, offset: self.start + half as u64 * self.bytes, start, end }
    }

    /// The event of the last copy out of a half. cuFile may read to the half once it has happened.
    pub fn copied(&mut self, half: usize) -> &mut Option<CudaEvent> {
        &mut self.copied[half]
    }
}

impl Piece {
    /// Where in the file the bytes end that are there after cuFile has read `read` bytes of the piece. `None` if the file is too
    /// short. `done` and `range_end` are the arguments of [`GdsStaging::next_piece`].
    pub fn end_of_read(&self, read: u64, done: u64, range_end: u64) -> Option<u64> {
        let until = range_end.min(self.start + read);
        let is_short = until <= done || (until < range_end && until < self.end);
        (!is_short).then_some(until)
    }
}

/// Compares the first bytes that cuFile read to `address` with what the system reads. On some file systems cuFile reads
/// something else.
///
/// # Errors
/// What the system or the driver says, or that the bytes differ.
pub fn verify(encoded: &Encoded, offset: u64, address: u64, bytes: usize) -> io::Result<()> {
    let mut theirs = vec![0; bytes.min(GdsStaging::ALIGNMENT as usize)];
    let mut ours = theirs.clone();
    encoded.blob().read_at(offset, &mut ours)?;
    // SAFETY: at least as many bytes were just read to that address.
    unsafe { result::memcpy_dtoh_sync(&mut theirs, address) }
        .map_err(|error| io::Error::other(format!("copying from the GPU failed ({error})")))?;
    match ours == theirs {
        true => Ok(()),
        false => Err(io::Error::other(
            "cuFile does not read what is there: it does not work with this file system; give io=\"posix\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALIGNMENT: u64 = GdsStaging::ALIGNMENT;

    #[test]
    fn threads_have_disjoint_halves() {
        let bytes = 2 * ALIGNMENT;
        let offsets: Vec<_> = (0..3)
            .flat_map(|number| {
                let mut staging = GdsStaging::new(1 << 30, number, bytes);
                [staging.next_piece(0, 1), staging.next_piece(0, 1)].map(|piece| piece.offset)
            })
            .collect();
        assert_eq!(offsets, (0..6).map(|half| half * bytes).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_ends_within_a_piece_is_an_error_unless_the_range_ends_before() {
        let mut staging = GdsStaging::new(0, 0, 4 * ALIGNMENT);
        let (done, end) = (10, 2 * ALIGNMENT + 5);
        let piece = staging.next_piece(done, end);
        assert_eq!((piece.start, piece.end), (0, 3 * ALIGNMENT));
        assert_eq!(piece.end_of_read(2 * ALIGNMENT + 5, done, end), Some(end));
        assert_eq!(piece.end_of_read(3 * ALIGNMENT, done, end), Some(end));
        assert_eq!(piece.end_of_read(2 * ALIGNMENT + 4, done, end), None);
        assert_eq!(piece.end_of_read(10, done, end), None);
        assert_eq!(piece.end_of_read(0, done, end), None);
    }

    proptest! {
        #[test]
        fn pieces_are_aligned_use_the_halves_in_turn_and_cover_the_range(
            start in 0u64..50_000,
            len in 1u64..200_000,
            pages in 1u64..8,
            behind in 0u64..10_000,
        ) {
            let (end, bytes) = (start + len, pages * ALIGNMENT);
            let file_bytes = end + behind;
            let mut staging = GdsStaging::new(0, 3, bytes);
            let (mut done, mut half) = (start, 0);
            while done < end {
                let piece = staging.next_piece(done, end);
                prop_assert!([piece.start, piece.end, piece.offset].iter().all(|n| n % ALIGNMENT == 0));
                prop_assert!(piece.start <= done && done < piece.end && piece.end - piece.start <= bytes);
                prop_assert_eq!((piece.half, piece.offset), (half, (6 + half as u64) * bytes));
                // cuFile reads up to the end of the file.
                let read = piece.end.min(file_bytes) - piece.start;
                let until = piece.end_of_read(read, done, end);
                prop_assert_eq!(until, Some(piece.end.min(end)));
                done = until.unwrap();
                half = 1 - half;
            }
            prop_assert_eq!(done, end);
        }
    }
}
