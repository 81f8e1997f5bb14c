//! Compiles the C++ shim, with its half of the bridge, against the DALI of the build's environment.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

#[path = "../nvcomp-sys/build/wheels.rs"]
mod wheels;

const SHIM: &str = "../cpp_shim";

/// Where the plugin finds DALI, nvCOMP and cuFile: in the same `site-packages`. libdali itself is loaded by then, because
/// `import zarr_dali` imports nvidia.dali first.
const RUNPATH: &str = "$ORIGIN/../nvidia/dali:$ORIGIN/../nvidia/libnvcomp/lib64:$ORIGIN/../nvidia/cu13/lib";

fn main() {
    if let Err(message) = build() {
        wheels::fail(&message);
    }
}

/// Compiles the shim with cxx's glue into one archive and links it, whole, into the plugin only.
///
/// Rust's own tests do without DALI: they would need libdali and all its libraries to start.
fn build() -> Result<(), String> {
    for path in ["build.rs", "../nvcomp-sys/build/wheels.rs", SHIM] {
        wheels::rerun_if_changed(path.as_ref());
    }
    let wheels = wheels::Wheels::find()?;
    let dali = wheels.dali()?;
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(format!("cargo did not set {name}"));
    let (output, bridge) = (folder("OUT_DIR")?, folder("DEP_ZARR_DALI_BRIDGE")?);
    let glue = bridge.join("sources/zarr-dali/src/bridge.rs.cc");
    wheels::rerun_if_changed(&glue);
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .files(sources()?)
        .file(glue)
        .include(SHIM)
        .include(bridge.join("include"))
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
        // It has `__aarch64_cas4_sync` and others, which g++ calls for atomics; rustc links without default libraries.
        "-lgcc".into(),
        // A missing symbol shows here and not at the first call: DALI does not export the CUDA runtime, for one.
        "-Wl,--no-undefined".into(),
        // What is exported binds here: other plugins may use cxx too.
        "-Wl,-Bsymbolic".into(),
        format!("-Wl,--enable-new-dtags,-rpath,{RUNPATH}"),
    ] {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
    Ok(())
}

fn sources() -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(SHIM).map_err(|error| format!("cannot list {SHIM}: {error}"))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new("cc")))
        .collect();
    files.sort();
    Ok(files)
}
