//! The driver's release, which is asked for before anything else of it is called.

use crate::error::{Error, Result};

use std::fmt;

use cudarc::driver::sys;

/// A release of CUDA, as the driver counts: 12020 is 12.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaRelease(pub i32);

impl CudaRelease {
    /// The oldest one whose drivers are used: machine code made by any CUDA 12 runs on all of its drivers.
    pub const OLDEST: Self = Self(12_000);
    /// From this one on drivers accept what nvcc 13 makes.
    pub const CUDA_13: Self = Self(13_000);

    /// That of the driver.
    ///
    /// # Errors
    /// [`Error::NoGpu`] says that there is no driver, or which one is too old.
    pub fn of_driver() -> Result<Self> {
        // SAFETY: only asks the dynamic loader for libcuda.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoGpu { problem: "the driver's library libcuda.so.1 is not found".into() });
        }
        let mut release = 0;
        // SAFETY: every driver has this function, which needs no initialisation and writes to a live value.
        let asked = unsafe { sys::cuDriverGetVersion(&raw mut release) };
        asked.result().map_err(|source| Error::NoGpu {
            problem: format!("the driver does not tell its version ({source})"),
        })?;
        let release = Self(release);
        if release < Self::OLDEST {
            return Err(Error::NoGpu {
                problem: format!("the driver is for CUDA {release}, older than {}", Self::OLDEST),
            });
        }
        Ok(release)
    }
}

impl fmt::Display for CudaRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Whether the driver has all of these functions: those that came after [`CudaRelease::OLDEST`] are looked up before they are
/// called.
pub fn has(functions: &[&str]) -> bool {
    // SAFETY: the driver is loaded by now, as `CudaRelease::of_driver` saw; symbols are looked up and not called.
    let library = unsafe { sys::culib() };
    functions.iter().all(|name| {
        // SAFETY: as above.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_named_as_cuda_names_them() {
        assert_eq!(CudaRelease(12020).to_string(), "12.2");
        assert_eq!(CudaRelease(13000).to_string(), "13.0");
        assert_eq!(CudaRelease(12000), CudaRelease::OLDEST);
        assert!(CudaRelease(11080) < CudaRelease::OLDEST);
    }
}
