//! Generates the bindings to nvCOMP's C API from the headers of the libnvcomp wheel.

use std::env;
use std::path::PathBuf;
use std::process::Command;

#[path = "build/wheels.rs"]
mod wheels;

/// The C API's headers; `nvcomp/version.h` and `nvcomp/shared_types.h` come with `nvcomp.h`.
const HEADERS: [&str; 2] = ["nvcomp.h", "nvcomp/zstd.h"];

fn main() {
    if let Err(message) = generate() {
        wheels::fail(&message);
    }
}

fn generate() -> Result<(), String> {
    wheels::rerun_if_changed("build.rs".as_ref());
    wheels::rerun_if_changed("build/wheels.rs".as_ref());
    let found = wheels::Wheels::find()?;
    let nvcomp = found.nvcomp_include()?;
    // For the unit tests; whatever uses the crate finds the library when it runs.
    println!("cargo::rustc-env=NVCOMP_SYS_WHEEL_LIBRARY={}", found.nvcomp_library()?.display());
    let cuda = found.cuda_include()?;
    let libclang = found.libclang()?;
    // SAFETY: a build script has one thread here, so nothing else reads the environment meanwhile.
    unsafe { env::set_var("LIBCLANG_PATH", libclang) };

    let mut builder = bindgen::Builder::default()
        .header_contents("nvcomp_all.h", &HEADERS.map(|header| format!("#include <{header}>\n")).concat())
        .clang_arg(format!("-isystem{}", nvcomp.display()));
    for folder in cuda {
        builder = builder.clang_arg(format!("-isystem{}", folder.display()));
    }
    // The libclang wheel has no builtin headers (stddef.h); gcc's serve as well.
    if let Some(folder) = gcc_include() {
        builder = builder.clang_arg(format!("-isystem{}", folder.display()));
    }
    let bindings = builder
        // Those that releases 5 and 6 have with the same types; lib.rs has the one whose name and arguments changed.
        .allowlist_function("nvcomp(GetProperties|GetStatusString)")
        .allowlist_function("nvcompBatchedZstdDecompress(Async|GetTempSizeSync|GetRequiredAlignments)")
        .allowlist_type("nvcompBatchedZstdDecompressOpts_t|nvcompStatus_t|nvcompProperties_t")
        .allowlist_var("NVCOMP_VER_.*|nvcompZstd.*Decompression.*")
        // The stream belongs to whoever made it: an opaque pointer, interchangeable with any other binding's.
        .blocklist_type("cudaStream_t|CUstream_st")
        .raw_line("/// A CUDA stream (`CUstream`, `cudaStream_t`).\npub type cudaStream_t = *mut ::std::ffi::c_void;")
        .dynamic_library_name("Functions")
        .dynamic_link_require_all(true)
        // Statuses are read from device memory: integers to be matched, not enums that a stray value would break.
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(true)
        .wrap_unsafe_ops(true)
        .layout_tests(true)
        .generate()
        .map_err(|error| format!("bindgen cannot read nvCOMP's headers in {}: {error}", nvcomp.display()))?;
    let output =
        PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?).join("bindings.rs");
    bindings.write_to_file(&output).map_err(|error| format!("cannot write {}: {error}", output.display()))
}

fn gcc_include() -> Option<PathBuf> {
    let compiler = wheels::variable("CC").unwrap_or_else(|| "gcc".into());
    let output = Command::new(compiler).arg("-print-file-name=include").output().ok()?;
    let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    folder.join("stddef.h").is_file().then_some(folder)
}
