//! NVIDIA's cuFile (GPUDirect Storage): reads files to GPU memory, directly where driver and file system can, through its
//! own host memory elsewhere ("compatibility mode").
//!
//! cudarc's wrapper is not used: it looks for `libcufile.so` only, which wheels do not have, and makes an enum of any number
//! that cuFile returns.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::{Library, Symbol};
use once_cell::sync::OnceCell;

/// cuFile, opened once for the process and never closed, because others in it may use it too.
pub struct Driver {
    functions: Functions,
    /// Devices of file systems on which it was seen to read what is there.
    verified: Mutex<HashSet<u64>>,
}

struct Functions {
    register: unsafe extern "C" fn(*mut *mut c_void, *mut Description) -> Status,
    deregister: unsafe extern "C" fn(*mut c_void),
    register_memory: unsafe extern "C" fn(*const c_void, usize, c_int) -> Status,
    deregister_memory: unsafe extern "C" fn(*const c_void) -> Status,
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, libc::off_t, libc::off_t) -> isize,
}

/// `CUfileError_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    error: c_int,
    cuda: c_int,
}

/// `CUfileDescr_t`.
#[repr(C)]
struct Description {
    kind: c_int,
    file: FileOrHandle,
    operations: *const c_void,
}

#[repr(C)]
union FileOrHandle {
    descriptor: c_int,
    _handle: *mut c_void,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const DESCRIPTOR: c_int = 1;
/// cuFile's numbers begin here, CUDA's and the system's are below.
const FIRST_ERROR: c_int = 5000;

impl Driver {
    /// Where the kernel module shows itself with which cuFile reads directly.
    const DIRECT: &str = "/proc/driver/nvidia-fs";

    /// Whether cuFile can read without a detour through the host on this machine.
    pub fn reads_directly() -> bool {
        Path::new(Self::DIRECT).exists()
    }

    /// Opens cuFile.
    ///
    /// # Errors
    /// Why it cannot be used, in words.
    pub fn open() -> Result<Arc<Self>, String> {
        static DRIVER: OnceCell<Arc<Driver>> = OnceCell::new();
        DRIVER.get_or_try_init(|| Self::load().map(Arc::new)).cloned()
    }

    fn load() -> Result<Self, String> {
        let kernel = std::fs::read_to_string("/proc/version").unwrap_or_default().to_lowercase();
        if kernel.contains("microsoft") {
            // It would end the process there.
            return Err("cuFile does not work under WSL".into());
        }
        // Wheels have no other name; the second is a toolkit's.
        let names = ["libcufile.so.0", "libcufile.so"];
        let mut problem = String::new();
        for name in names {
            // SAFETY: cuFile's library does nothing when it is loaded that anything here depends on.
            match unsafe { Library::new(name) } {
                // SAFETY: the library has cuFile's name, so its functions have the types of cufile.h.
                Ok(library) => return unsafe { Self::start(library) },
                Err(error) => problem = error.to_string(),
            }
        }
        Err(format!("the library {} cannot be loaded ({problem}); install nvidia-cufile", names[0]))
    }

    /// # Safety
    /// The library is cuFile.
    unsafe fn start(library: Library) -> Result<Self, String> {
        // Never unloaded: it has threads of its own.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the caller's duty.
        let functions = unsafe {
            let open: Symbol<unsafe extern "C" fn() -> Status> = find(library, b"cuFileDriverOpen")?;
            let status = open();
            status.check("cuFile's driver cannot be opened")?;
            Functions {
                register: *find(library, b"cuFileHandleRegister")?,
                deregister: *find(library, b"cuFileHandleDeregister")?,
                register_memory: *find(library, b"cuFileBufRegister")?,
                deregister_memory: *find(library, b"cuFileBufDeregister")?,
                read: *find(library, b"cuFileRead")?,
            }
        };
        Ok(Self { functions, verified: Mutex::default() })
    }

    /// Makes a file known to cuFile.
    ///
    /// # Errors
    /// Why it cannot be read with it, in words.
    pub fn file(self: &Arc<Self>, file: &File) -> Result<Handle, String> {
        let device = file.metadata().map_err(|error| error.to_string())?.dev();
        let mut handle = std::ptr::null_mut();
        let mut description = Description {
            kind: DESCRIPTOR,
            file: FileOrHandle { descriptor: file.as_raw_fd() },
            operations: std::ptr::null(),
        };
        // SAFETY: both pointers are to live values; the file stays open longer than the handle (duty of its owner).
        unsafe { (self.functions.register)(&raw mut handle, &raw mut description) }
            .check("cuFile cannot read this file; its file system or mount options may not be supported")?;
        Ok(Handle { driver: self.clone(), handle, device })
    }

    /// Makes device memory known to cuFile, which else copies through memory of its own.
    ///
    /// # Errors
    /// What cuFile says.
    ///
    /// # Safety
    /// The memory outlives what is returned.
    pub unsafe fn memory(self: &Arc<Self>, address: u64, bytes: u64) -> Result<Memory, String> {
        // SAFETY: the caller's duty.
        unsafe { (self.functions.register_memory)(address as *const c_void, bytes as usize, 0) }
            .check("cuFile cannot register GPU memory")?;
        Ok(Memory { driver: self.clone(), address })
    }
}

/// # Safety
/// The function has this type.
unsafe fn find<'a, T>(library: &'a Library, name: &[u8]) -> Result<Symbol<'a, T>, String> {
    // SAFETY: the caller's duty.
    unsafe { library.get(name) }.map_err(|error| format!("libcufile lacks a function ({error})"))
}

impl Status {
    fn check(self, what: &str) -> Result<(), String> {
        match self.error {
            0 => Ok(()),
            error => Err(format!("{what} (cuFile error {error}, CUDA error {})", self.cuda)),
        }
    }
}

/// A file that cuFile knows.
pub struct Handle {
    driver: Arc<Driver>,
    handle: *mut c_void,
    device: u64,
}

// SAFETY: cuFile's functions may be called from any thread, with the same handle too.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Reads up to `bytes` bytes from `offset` of the file to `address + at`; fewer at the file's end.
    ///
    /// # Errors
    /// What cuFile or the system says.
    ///
    /// # Safety
    /// The device memory is there and nothing else uses it.
    pub unsafe fn read(&self, address: u64, at: u64, bytes: u64, offset: u64) -> io::Result<u64> {
        let (size, offset, at) = (bytes as usize, offset as libc::off_t, at as libc::off_t);
        // SAFETY: the caller's duty.
        let read =
            unsafe { (self.driver.functions.read)(self.handle, address as *mut c_void, size, offset, at) };
        if let Ok(read) = u64::try_from(read) {
            return Ok(read);
        }
        // Both ways occur: the number itself, or -1 and the number in errno.
        let system = io::Error::last_os_error();
        let error = match read {
            -1 => system.raw_os_error().unwrap_or(0),
            other => -other as c_int,
        };
        Err(match error >= FIRST_ERROR {
            true => io::Error::other(format!("cuFile error {error}")),
            false => io::Error::from_raw_os_error(error),
        })
    }

    /// Whether cuFile was seen to read what is there, on this file system.
    pub fn is_verified(&self) -> bool {
        self.verified().contains(&self.device)
    }

    /// It was.
    pub fn set_verified(&self) {
        self.verified().insert(self.device);
    }

    fn verified(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.driver.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: registered once, by `Driver::file`.
        unsafe { (self.driver.functions.deregister)(self.handle) };
    }
}

/// Device memory that cuFile knows.
pub struct Memory {
    driver: Arc<Driver>,
    address: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: registered once, by `Driver::memory`. If that fails there is nothing to be done.
        let _ = unsafe { (self.driver.functions.deregister_memory)(self.address as *const c_void) };
    }
}
