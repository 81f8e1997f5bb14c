//! Compiles what is not Rust: the CUDA kernels to one fatbin, and the C++ shim with its half of the bridge.
//!
//! Headers, libraries and nvcc come from the wheels of a Python environment (`nvcomp-sys/build/wheels.rs` says which).

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "nvcomp-sys/build/wheels.rs"]
mod wheels;

const BRIDGE: &str = "src/bridge.rs";
const KERNELS: &str = "src/kernels";
const SHIM: &str = "cpp_shim";

/// Where the plugin finds DALI, nvCOMP and cuFile: in the same `site-packages`. libdali itself is loaded by then, because
/// `import zarr_dali` imports nvidia.dali first.
const RUNPATH: &str = "$ORIGIN/../nvidia/dali:$ORIGIN/../nvidia/libnvcomp/lib64:$ORIGIN/../nvidia/cu13/lib";

fn main() {
    if let Err(message) = build() {
        wheels::fail(&message);
    }
}

fn build() -> Result<(), String> {
    for path in ["build.rs", "nvcomp-sys/build/wheels.rs", BRIDGE, KERNELS, SHIM] {
        wheels::rerun_if_changed(path.as_ref());
    }
    let wheels = wheels::Wheels::find()?;
    let output = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    compile_kernels(&wheels, &output)?;
    compile_shim(&wheels, &output)
}

/// Compiles all kernels as one translation unit and names the fatbin to the crate in `ZARR_DALI_FATBIN`.
///
/// `-arch=all` gives machine code for every architecture that this nvcc knows, and PTX of the newest major one, which
/// the driver compiles for GPUs that come later. GPUs between two of the architectures run the older one's code.
fn compile_kernels(wheels: &wheels::Wheels, output: &Path) -> Result<(), String> {
    let unit = output.join("kernels.cu");
    let includes: String = files_of(KERNELS, "cu")?
        .iter()
        .filter_map(|file| file.file_name()?.to_str())
        .map(|name| format!("#include \"{name}\"\n"))
        .collect();
    fs::write(&unit, includes).map_err(|error| format!("cannot write {}: {error}", unit.display()))?;

    let fatbin = output.join("kernels.fatbin");
    let mut nvcc = Command::new(wheels.nvcc()?);
    nvcc.args(["-fatbin", "-arch=all", "-std=c++17", "-O3", "-lineinfo", "-Werror=all-warnings"])
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
    run(nvcc.arg("-o").arg(&fatbin).arg(&unit))?;
    println!("cargo::rustc-env=ZARR_DALI_FATBIN={}", fatbin.display());
    Ok(())
}

/// Compiles the shim with cxx's glue into one archive and links it, whole, into the plugin only.
///
/// Rust's own tests do without DALI: they would need libdali and all its libraries to start.
fn compile_shim(wheels: &wheels::Wheels, output: &Path) -> Result<(), String> {
    let dali = wheels.dali()?;
    let mut build = cxx_build::bridge(BRIDGE);
    build
        .files(files_of(SHIM, "cc")?)
        .include(SHIM)
        .std("c++17")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .flag("-fvisibility=hidden")
        .flag("-fvisibility-inlines-hidden")
        .warnings(true)
        .extra_warnings(true)
        // A false alarm of GCC 12 inside DALI's SmallVector.
        .flag_if_supported("-Wno-free-nonheap-object")
        .cargo_metadata(false);
    // As system headers, because DALI's would warn.
    for folder in wheels.cuda_include()?.iter().chain([&dali.include]) {
        build.flag("-isystem").flag(folder);
    }
    let archive = "zarr_dali_shim";
    build.try_compile(archive).map_err(|error| format!("the C++ shim does not compile: {error}"))?;

    for argument in [
        // Nothing refers to the operators' static registrations, so the linker would drop them.
        format!("-Wl,--whole-archive,{}/lib{archive}.a,--no-whole-archive", output.display()),
        format!("-L{}", dali.lib.display()),
        "-ldali".into(),
        "-ldali_core".into(),
        "-lstdc++".into(),
        // A missing symbol shows here and not at the first call: DALI does not export the CUDA runtime, for one.
        "-Wl,--no-undefined".into(),
        // cxx's own symbols stay inside, and what is still exported binds here: other plugins may use cxx too.
        "-Wl,--exclude-libs,ALL".into(),
        "-Wl,-Bsymbolic".into(),
        format!("-Wl,--enable-new-dtags,-rpath,{RUNPATH}"),
    ] {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
    Ok(())
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
