//! Links what the core has of C++: the functions of NVTX, which need no DALI.

use std::env;
use std::path::PathBuf;

#[path = "../nvcomp-sys/build/wheels.rs"]
mod wheels;

const TRACE: &str = "../cpp_shim/trace.cc";

/// Where the core finds nvCOMP and cuFile, whose packages for CUDA 12 and 13 lie in different folders.
const RUNPATH: &str =
    "$ORIGIN/../nvidia/libnvcomp/lib64:$ORIGIN/../nvidia/cu13/lib:$ORIGIN/../nvidia/cufile/lib";

fn main() {
    if let Err(message) = build() {
        wheels::fail(&message);
    }
}

fn build() -> Result<(), String> {
    for path in ["build.rs", "../nvcomp-sys/build/wheels.rs", TRACE] {
        wheels::rerun_if_changed(path.as_ref());
    }
    let wheels = wheels::Wheels::find()?;
    let output = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let mut build = cc::Build::new();
    build.cpp(true).file(TRACE).std("c++17").flag("-fvisibility=hidden").warnings(true).cargo_metadata(false);
    for folder in wheels.cuda_include()? {
        build.flag("-isystem").flag(folder);
    }
    let archive = "zarr_dali_trace";
    build.try_compile(archive).map_err(|error| format!("{TRACE} does not compile: {error}"))?;
    for argument in [
        // Nothing refers to the static object that installs them.
        format!("-Wl,--whole-archive,{}/lib{archive}.a,--no-whole-archive", output.display()),
        "-lstdc++".into(),
        // It has `__aarch64_cas4_sync` and others, which g++ calls for atomics; rustc links without default libraries.
        "-lgcc".into(),
        "-Wl,--no-undefined".into(),
        "-Wl,-Bsymbolic".into(),
        "-Wl,-soname,libzarr_dali_core.so".into(),
        format!("-Wl,--enable-new-dtags,-rpath,{RUNPATH}"),
    ] {
        println!("cargo::rustc-link-arg-cdylib={argument}");
    }
    Ok(())
}
