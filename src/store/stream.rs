//! Copies past the caches, by stores that the processor calls non-temporal or streaming.

use tokio::io::ReadBuf;

/// As long as there is this much room, the bytes of a large body are streamed. What is smaller may still be in a cache when it is read.
const WORTH_BYTES: usize = 256 << 10;

/// Appends as much of `from` as there is room for, and returns how many bytes. Those of a large body go to memory at once, so that what was
/// there before is not read into the caches, nor anything else displaced from them.
pub(super) fn append(into: &mut ReadBuf<'_>, from: &[u8]) -> usize {
    append_from(into, from, WORTH_BYTES)
}

#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
fn append_from(into: &mut ReadBuf<'_>, from: &[u8], worth_bytes: usize) -> usize {
    let bytes = from.len().min(into.remaining());
    #[cfg(target_arch = "x86_64")]
    if into.remaining() >= worth_bytes {
        // SAFETY: nothing is read from this memory, and only initialized bytes are written.
        let room = unsafe { into.unfilled_mut() };
        let to = room.as_mut_ptr().cast::<u8>();
        // SAFETY: both have room for `bytes`, and nothing else refers to what is not filled.
        unsafe { x86_64::copy(to, from.as_ptr(), bytes) };
        // SAFETY: these have just been written.
        unsafe { into.assume_init(bytes) };
        into.advance(bytes);
        return bytes;
    }
    into.put_slice(&from[..bytes]);
    bytes
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::ptr::copy_nonoverlapping;

    /// Bytes that are written to memory together.
    const LINE: usize = 64;

    /// # Safety
    /// `bytes` bytes can be read from `from` and written to `to`, which do not overlap.
    pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
        let head = to.align_offset(LINE).min(bytes);
        let end = head + (bytes - head) / LINE * LINE;
        // SAFETY: `head <= end <= bytes`; `to` is aligned at `head`, and so at each line of it up to `end`.
        unsafe {
            copy_nonoverlapping(from, to, head);
            for line in (head..end).step_by(LINE) {
                let (to, from) = (to.add(line).cast::<__m128i>(), from.add(line).cast::<__m128i>());
                let values = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
                (0..).zip(values).for_each(|(i, value)| _mm_stream_si128(to.add(i), value));
            }
            copy_nonoverlapping(from.add(end), to.add(end), bytes - end);
            // Other cores and devices see these bytes before what is written next.
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_appended_as_they_are(
            before in 0usize..200, room in 0usize..1000, bytes in 0usize..1000, start in 0usize..70, worth in 0usize..1000,
        ) {
            let all: Vec<u8> = (0..2000u32).map(|i| (i * 7 + i / 256) as u8).collect();
            let from = &all[start..start + bytes];
            let mut memory = vec![std::mem::MaybeUninit::new(99); before + room + 100];
            let mut into = ReadBuf::uninit(&mut memory[..before + room]);
            into.put_slice(&all[..before]);
            let appended = append_from(&mut into, from, worth);
            prop_assert_eq!(appended, bytes.min(room));
            prop_assert_eq!(into.filled(), [&all[..before], &from[..appended]].concat());
            prop_assert_eq!(into.remaining(), room - appended);
            // SAFETY: all of it was initialized.
            let behind = memory[before + appended..].iter().map(|byte| unsafe { byte.assume_init() });
            prop_assert!(behind.into_iter().all(|byte| byte == 99));
        }
    }
}
