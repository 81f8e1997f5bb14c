//! Compiles the CUDA kernels, for drivers of CUDA 13 and of CUDA 12, and generates the C++ side of the bridge.
//!
//! Compilers come from the wheels of a Python environment (`nvcomp-sys/build/wheels.rs` says which). What is linked from this
//! crate, with C++, is in `plugin/` and `core/`.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "build/cuda12.rs"]
mod cuda12;
#[path = "nvcomp-sys/build/wheels.rs"]
mod wheels;

const BRIDGE: &str = "src/bridge.rs";
const KERNELS: &str = "src/kernels";

/// GPUs that are used with processors of x86-64; those of aarch64 are all that nvcc knows.
const ARCHITECTURES_X86_64: [u32; 8] = [75, 80, 86, 89, 90, 100, 103, 120];

/// Set to 1, kernels name their source lines to profilers, which makes them three times as large.
const LINES: &str = "ZARR_DALI_KERNEL_LINES";

fn main() {
    if let Err(message) = build() {
        wheels::fail(&message);
    }
}

fn build() -> Result<(), String> {
    for path in ["build.rs", "build", "nvcomp-sys/build/wheels.rs", BRIDGE, KERNELS] {
        wheels::rerun_if_changed(path.as_ref());
    }
    let wheels = wheels::Wheels::find()?;
    let output = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    compile_kernels(&wheels, &output)?;
    // Generates the files only; what is linked compiles them.
    let _ = cxx_build::bridge(BRIDGE);
    println!("cargo::metadata=bridge={}", output.join("cxxbridge").display());
    Ok(())
}

/// Compiles all kernels as one translation unit, to a fatbin for drivers of CUDA 13, which the crate gets by the name
/// `ZARR_DALI_FATBIN`, and to one image for each architecture for drivers of CUDA 12, listed in `ZARR_DALI_CUDA12`.
///
/// There is machine code for the architectures that the compiler knows, and PTX of the newest one, which the driver compiles for
/// GPUs that come later. GPUs between two of the architectures run the older one's code.
fn compile_kernels(wheels: &wheels::Wheels, output: &Path) -> Result<(), String> {
    let unit: String = files_of(KERNELS, "cu")?
        .iter()
        .filter_map(|file| file.file_name()?.to_str())
        .map(|name| format!("#include \"{name}\"\n"))
        .collect();
    let lines: &[&str] =
        if wheels::variable(LINES).is_some_and(|value| value != "0") { &["-lineinfo"] } else { &[] };

    let options = [&["-std=c++17", "-default-device"], lines].concat();
    let listed = cuda12::compile(&wheels.nvrtc12()?, &unit, KERNELS, &options, output)?;
    println!("cargo::rustc-env=ZARR_DALI_CUDA12={}", listed.display());

    let file = output.join("kernels.cu");
    fs::write(&file, unit).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    let fatbin = output.join("kernels.fatbin");
    let mut nvcc = Command::new(wheels.nvcc()?);
    nvcc.args(["-fatbin", "-std=c++17", "-O3", "-Werror=all-warnings"])
        .args(architectures())
        .args(lines)
        // Only device code is kept, so that a host compiler newer than nvcc knows does no harm.
        .arg("-allow-unsupported-compiler")
        .arg("--threads")
        .arg(env::var("NUM_JOBS").unwrap_or_else(|_| "1".into()))
        .args(["-I", KERNELS]);
    for folder in wheels.cuda_include()? {
        nvcc.arg("-isystem").arg(folder);
    }
    // nvcc reads these as further flags; the result should not depend on the caller's shell.
    nvcc.env_remove("NVCC_PREPEND_FLAGS").env_remove("NVCC_APPEND_FLAGS");
    run(nvcc.arg("-o").arg(&fatbin).arg(&file))?;
    println!("cargo::rustc-env=ZARR_DALI_FATBIN={}", fatbin.display());
    Ok(())
}

/// nvcc's arguments for the architectures.
fn architectures() -> Vec<String> {
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|machine| machine != "x86_64") {
        return vec!["-arch=all".into()];
    }
    let code = |number| format!("-gencode=arch=compute_{number},code=sm_{number}");
    let newest = ARCHITECTURES_X86_64[ARCHITECTURES_X86_64.len() - 1];
    let ptx = format!("-gencode=arch=compute_{newest},code=compute_{newest}");
    ARCHITECTURES_X86_64.into_iter().map(code).chain([ptx]).collect()
}

/// The files of a folder that end in `extension`, sorted.
fn files_of(folder: &str, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("cannot list {folder}: {error}"))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new(extension)))
        .collect();
    files.sort();
    Ok(files)
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_owned();
    let output = command.output().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{} failed ({}):\n{}{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}
