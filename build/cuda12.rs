//! Compiles the kernels for drivers of CUDA 12, which do not accept what nvcc 13 makes.
//!
//! By NVRTC, because there is no wheel with nvcc 12: machine code of any CUDA 12 runs on every driver of CUDA 12, and NVRTC
//! 12.2 makes PTX that drivers from 12.2 on accept. It has no headers of the C++ standard library; the folder `nvrtc` beside
//! the kernels has what they use.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use libloading::Library;

/// Volta to Hopper. Later GPUs compile the PTX, which is of Hopper.
const ARCHITECTURES: [u32; 6] = [70, 75, 80, 86, 89, 90];

type Program = *mut c_void;
type Make = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// Compiles `unit`, which includes all kernels, and writes a Rust file with the images to be included by the crate.
///
/// # Errors
/// NVRTC cannot be loaded, or says that the kernels are wrong.
pub fn compile(
    nvrtc: &Path,
    unit: &str,
    kernels: &str,
    options: &[&str],
    output: &Path,
) -> Result<PathBuf, String> {
    // SAFETY: NVIDIA's library; its initialisation has no conditions.
    let library = unsafe { Library::new(nvrtc) };
    let library = library.map_err(|error| format!("cannot load {}: {error}", nvrtc.display()))?;
    let targets: Vec<String> = ARCHITECTURES
        .iter()
        .map(|number| format!("sm_{number}"))
        .chain([format!("compute_{}", ARCHITECTURES[ARCHITECTURES.len() - 1])])
        .collect();
    let next = AtomicUsize::new(0);
    let worker = || -> Result<(), String> {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let image = compile_for(&library, unit, kernels, options, target)?;
            let file = output.join(format!("{target}.cuda12"));
            fs::write(&file, image).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(())
    };
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "NVRTC's caller panicked")?)
    })?;
    let include = |target: &str| format!("include_bytes!({:?})", output.join(format!("{target}.cuda12")));
    let images: String = ARCHITECTURES
        .iter()
        .map(|number| format!("({number}, {}), ", include(&format!("sm_{number}"))))
        .collect();
    let ptx = include(&targets[ARCHITECTURES.len()]);
    let text = format!("Cuda12 {{ images: &[{images}], ptx: {ptx} }}\n");
    let file = output.join("cuda12.rs");
    fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(file)
}

/// The machine code (`sm_..`) or the PTX (`compute_..`, with a zero byte behind it) of one architecture.
fn compile_for(
    library: &Library,
    unit: &str,
    kernels: &str,
    options: &[&str],
    target: &str,
) -> Result<Vec<u8>, String> {
    let missing = |error: libloading::Error| format!("NVRTC lacks a function: {error}");
    let own = [format!("--gpu-architecture={target}"), format!("-I{kernels}"), format!("-I{kernels}/nvrtc")];
    let texts: Vec<CString> = own
        .iter()
        .map(String::as_str)
        .chain(options.iter().copied())
        .filter_map(|text| CString::new(text).ok())
        .collect();
    let pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
    let source = CString::new(unit).map_err(|error| error.to_string())?;
    let (size, text) = if target.starts_with("sm_") {
        (c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")
    } else {
        (c"nvrtcGetPTXSize", c"nvrtcGetPTX")
    };
    // SAFETY: the functions have these types in nvrtc.h of every CUDA 12; all texts outlive the calls, buffers have the sizes
    // that were asked for, and the program is destroyed once.
    unsafe {
        let make = library.get::<Make>(c"nvrtcCreateProgram").map_err(missing)?;
        let compile = library.get::<Compile>(c"nvrtcCompileProgram").map_err(missing)?;
        let destroy = library
            .get::<unsafe extern "C" fn(*mut Program) -> c_int>(c"nvrtcDestroyProgram")
            .map_err(missing)?;
        let read = |program, size: &CStr, text: &CStr| -> Result<Vec<u8>, String> {
            let mut bytes = 0;
            library.get::<Size>(size).map_err(missing)?(program, &raw mut bytes);
            let mut buffer = vec![0u8; bytes];
            library.get::<Text>(text).map_err(missing)?(program, buffer.as_mut_ptr().cast());
            Ok(buffer)
        };
        let mut program: Program = ptr::null_mut();
        let made =
            make(&raw mut program, source.as_ptr(), c"kernels.cu".as_ptr(), 0, ptr::null(), ptr::null());
        if made != 0 {
            return Err(format!("nvrtcCreateProgram gives error {made}"));
        }
        let status = compile(program, pointers.len() as c_int, pointers.as_ptr());
        let result = if status == 0 {
            read(program, size, text)
        } else {
            let log = read(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
            Err(format!("NVRTC, for {target}, gives error {status}:\n{}", String::from_utf8_lossy(&log)))
        };
        destroy(&raw mut program);
        result
    }
}
