//! Memory whose size a store, an argument or a checkpoint decides: an error where an allocation would end the process.

use std::fmt;

/// Memory that the system does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How many bytes were asked for.
    pub bytes: u64,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of memory cannot be had", self.bytes)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        refused.to_string()
    }
}

/// So many zeros.
///
/// # Errors
/// Sizes for which there is no memory.
pub fn zeroed(bytes: u64) -> Result<Vec<u8>, Refused> {
    let mut buffer = vec![];
    reserve(&mut buffer, bytes)?;
    buffer.resize(bytes as usize, 0);
    Ok(buffer)
}

/// Makes a buffer at least that long; what it holds stays, what is added is zero.
///
/// # Errors
/// Sizes for which there is no memory.
pub fn grow(buffer: &mut Vec<u8>, bytes: u64) -> Result<(), Refused> {
    let missing = bytes.saturating_sub(buffer.len() as u64);
    if missing > 0 {
        let missing = usize::try_from(missing).map_err(|_| Refused { bytes })?;
        buffer.try_reserve(missing).map_err(|_| Refused { bytes })?;
        buffer.resize(buffer.len() + missing, 0);
    }
    Ok(())
}

/// Gives an empty list room for exactly `entries` entries.
///
/// # Errors
/// Sizes for which there is no memory.
pub fn reserve<T>(list: &mut Vec<T>, entries: u64) -> Result<(), Refused> {
    let refused = Refused { bytes: entries.saturating_mul(size_of::<T>() as u64) };
    let entries = usize::try_from(entries).map_err(|_| refused)?;
    list.try_reserve_exact(entries).map_err(|_| refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_an_error() {
        for bytes in [1 << 62, u64::MAX] {
            assert_eq!(zeroed(bytes), Err(Refused { bytes }));
            assert_eq!(grow(&mut vec![1, 2], bytes), Err(Refused { bytes }));
        }
        assert_eq!(reserve(&mut Vec::<u64>::new(), u64::MAX), Err(Refused { bytes: u64::MAX }));
    }

    #[test]
    fn a_buffer_grows_and_never_shrinks() {
        assert_eq!(zeroed(3), Ok(vec![0; 3]));
        let mut buffer = vec![1, 2];
        for (bytes, expected) in [(4, vec![1, 2, 0, 0]), (1, vec![1, 2, 0, 0])] {
            assert_eq!(grow(&mut buffer, bytes), Ok(()));
            assert_eq!(buffer, expected);
        }
    }
}
