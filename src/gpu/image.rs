//! The compiled kernels inside this library, and which of them a GPU and its driver take.

use super::driver::CudaRelease;
use crate::error::{Error, Result};

use std::env;

/// The environment variable that, set to 12, has the kernels for drivers of CUDA 12 loaded by later drivers too, which take both.
/// For tests and measurements.
const VARIABLE: &str = "ZARR_DALI_KERNELS";

/// For drivers of CUDA 13 and later: machine code for every architecture, and PTX for later ones.
static FATBIN: &[u8] = include_bytes!(env!("ZARR_DALI_FATBIN"));

/// For drivers of CUDA 12.
static CUDA12: Cuda12 = include!(env!("ZARR_DALI_CUDA12"));

/// Images of the kernels made by CUDA 12.
struct Cuda12 {
    /// Machine code for an architecture each (90 is compute capability 9.0), oldest first.
    images: &'static [(u32, &'static [u8])],
    /// Of the newest architecture, with a zero byte behind it.
    ptx: &'static [u8],
}

/// The image to load, in memory that is aligned as the driver may want it.
///
/// # Errors
/// [`Error::NoGpu`] where the GPU is older than all that the kernels were compiled for.
pub fn of(release: CudaRelease, compute_capability: (u32, u32)) -> Result<Vec<u64>> {
    let older = env::var_os(VARIABLE).is_some_and(|value| value == "12");
    let image = match release >= CudaRelease::CUDA_13 && !older {
        true => FATBIN,
        false => CUDA12.of(compute_capability)?,
    };
    Ok(aligned(image))
}

impl Cuda12 {
    /// Machine code runs on GPUs of the same major compute capability and of an equal or later minor one, PTX on later GPUs.
    fn of(&self, (major, minor): (u32, u32)) -> Result<&'static [u8]> {
        let fits = |&&(number, _): &&(u32, &[u8])| number / 10 == major && number % 10 <= minor;
        let newest = self.images.last().map_or(0, |&(number, _)| number);
        match self.images.iter().rev().find(fits) {
            Some(&(_, image)) => Ok(image),
            None if major * 10 + minor > newest => Ok(self.ptx),
            None => Err(Error::NoGpu {
                problem: format!("the GPU has compute capability {major}.{minor}, older than 7.0 (Volta)"),
            }),
        }
    }
}

/// The bytes at an address that is a multiple of 8; what is behind them is zero.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len() / 8 + 1];
    for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..part.len()].copy_from_slice(part);
        *word = u64::from_ne_bytes(whole);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    static KNOWN: Cuda12 =
        Cuda12 { images: &[(70, b"70"), (80, b"80"), (86, b"86"), (90, b"90")], ptx: b"ptx" };

    #[test]
    fn an_image_fits_its_architecture_and_later_minor_ones() {
        let of = |major, minor| KNOWN.of((major, minor)).ok();
        assert_eq!(of(7, 0), Some(&b"70"[..]));
        assert_eq!(of(7, 5), Some(&b"70"[..]));
        assert_eq!(of(8, 0), Some(&b"80"[..]));
        assert_eq!(of(8, 9), Some(&b"86"[..]));
        assert_eq!(of(9, 0), Some(&b"90"[..]));
        assert_eq!(of(10, 0), Some(&b"ptx"[..]));
        assert_eq!(of(12, 1), Some(&b"ptx"[..]));
        assert_eq!(of(6, 1), None);
    }

    #[test]
    fn images_are_what_cuda_12_loads() {
        assert_eq!(CUDA12.images.iter().map(|one| one.0).collect::<Vec<_>>(), [70, 75, 80, 86, 89, 90]);
        for (_, image) in CUDA12.images {
            // An ELF file of CUDA (machine 190).
            assert_eq!((&image[..4], &image[18..20]), (&b"\x7fELF"[..], &[190, 0][..]));
        }
        let ptx = std::str::from_utf8(CUDA12.ptx).expect("PTX is text");
        assert!(ptx.ends_with('\0') && ptx.contains(".version 8.2") && ptx.contains(".target sm_90"));
    }

    #[test]
    fn bytes_are_copied_whole() {
        let words = aligned(b"123456789");
        assert_eq!(
            words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>(),
            b"123456789\0\0\0\0\0\0\0"
        );
    }
}
