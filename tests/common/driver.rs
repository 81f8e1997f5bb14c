//! A stub in the place of the driver, `tests/driver/libcuda.c`. Tests that use it run themselves in a process of their own.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder with a stub for a release of CUDA and a compute capability. `None` without gcc.
pub fn stub(release: u32, capability: u32) -> Option<TempDir> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stub = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/libcuda.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-pthread", "-w"])
        .arg(format!("-DRELEASE={release}"))
        .arg(format!("-DCAPABILITY={capability}"));
    let Ok(compiled) = gcc.arg("-o").arg(&stub).arg(source).status() else {
        eprintln!("no gcc, so there is no stub of the driver");
        return None;
    };
    assert!(compiled.success());
    fs::copy(&stub, folder.path().join("libcuda.so")).expect("a second name");
    Some(folder)
}

/// Runs a test that is ignored otherwise, with the stub of that folder. Returns what it printed.
pub fn run(stub: &TempDir, test: &str, set: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--exact", test, "--ignored", "--nocapture"]).env("LD_LIBRARY_PATH", stub.path());
    set(&mut command);
    let done = command.output().expect("a process");
    let printed = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{printed}");
    printed
}
