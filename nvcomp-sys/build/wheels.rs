//! Finds what the build needs (headers, compilers, libclang) among the wheels of one Python environment.
//!
//! Shared by the build scripts of the workspace; each uses the part it needs. Nothing of the
//! environment is imported: Python is only asked for its search path, which is then looked through file by file.
//! That also finds `nvidia.*` spread over several entries, as under pip's build isolation, and works on machines
//! where importing DALI would not.
//!
//! The Python environment is, in this order: `ZARR_DALI_PYTHON` (an interpreter), `VIRTUAL_ENV`, `.venv` beside
//! `pyproject.toml`, `python3`.

#![allow(dead_code)] // each build script uses a part

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The wheels of one Python environment.
pub struct Wheels {
    python: PathBuf,
    /// The import search path, in Python's order.
    folders: Vec<PathBuf>,
}

/// Where DALI's C++ side lies.
pub struct Dali {
    /// The folder that holds `dali/`, for `-isystem`.
    pub include: PathBuf,
    /// The folder of `libdali.so` and `libdali_core.so`, for `-L`.
    pub lib: PathBuf,
}

impl Wheels {
    /// Asks the Python interpreter for its search path and tells cargo what the answer depends on.
    ///
    /// # Errors
    /// One sentence for the user when there is no interpreter that runs.
    pub fn find() -> Result<Self, String> {
        let python = interpreter()?;
        let script = "import sys, sysconfig\n\
                      print('\\n'.join([*sys.path, *map(sysconfig.get_path, ('purelib', 'platlib'))]))";
        let output = Command::new(&python).args(["-c", script]).output().map_err(|error| {
            format!("cannot run {}: {error}; set ZARR_DALI_PYTHON to a Python interpreter", python.display())
        })?;
        if !output.status.success() {
            return Err(format!(
                "{} did not tell its search path ({}): {}; set ZARR_DALI_PYTHON to a working Python interpreter",
                python.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        let mut folders: Vec<PathBuf> = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()) {
            let folder = PathBuf::from(line);
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        Ok(Self { python, folders })
    }

    /// DALI's headers and libraries.
    pub fn dali(&self) -> Result<Dali, String> {
        let probes = ["include/dali/core/common.h", "libdali.so", "libdali_core.so"];
        let folder = self.locate("DALI", "nvidia-dali-cuda130", &probes, "nvidia/dali")?;
        Ok(Dali { include: folder.join("include"), lib: folder })
    }

    /// The folders with the CUDA runtime's headers and the CUDA C++ core headers (`nv/target`), and
    /// NVTX's; one folder as a rule.
    pub fn cuda_include(&self) -> Result<Vec<PathBuf>, String> {
        let mut folders = Vec::new();
        for (what, wheel, probe) in [
            ("the CUDA runtime's headers", "nvidia-cuda-runtime", "cuda_runtime.h"),
            ("the CUDA compiler's headers", "nvidia-cuda-crt", "crt/host_config.h"),
            ("the CUDA C++ core headers", "nvidia-cuda-cccl", "nv/target"),
            ("NVTX's headers", "nvidia-nvtx", "nvtx3/nvToolsExt.h"),
        ] {
            let folder = self.locate(what, wheel, &[probe], "nvidia/cu13/include")?;
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        Ok(folders)
    }

    /// `nvcc`, with the compiler passes it starts (`cicc` from the nvvm wheel) in the places where it looks for them.
    pub fn nvcc(&self) -> Result<PathBuf, String> {
        let folder = "nvidia/cu13";
        self.locate("nvcc", "nvidia-cuda-nvcc", &["bin/nvcc"], folder)?;
        self.locate("nvcc's compiler pass cicc", "nvidia-nvvm", &["nvvm/bin/cicc"], folder)?;
        // nvcc starts ../nvvm/bin/cicc, so both have to lie in the same folder.
        let root = self.locate(
            "nvcc and cicc in one folder",
            "nvidia-cuda-nvcc",
            &["bin/nvcc", "nvvm/bin/cicc"],
            folder,
        )?;
        Ok(root.join("bin/nvcc"))
    }

    /// NVRTC of CUDA 12, a library.
    pub fn nvrtc12(&self) -> Result<PathBuf, String> {
        let (folder, file) = ("nvidia/cuda_nvrtc/lib", "libnvrtc.so.12");
        Ok(self.locate("NVRTC of CUDA 12", "nvidia-cuda-nvrtc-cu12", &[file], folder)?.join(file))
    }

    /// nvCOMP's C headers.
    pub fn nvcomp_include(&self) -> Result<PathBuf, String> {
        self.locate(
            "nvCOMP's headers",
            "nvidia-libnvcomp-cu13",
            &["nvcomp.h", "nvcomp/version.h"],
            "nvidia/libnvcomp/include",
        )
    }

    /// nvCOMP itself.
    pub fn nvcomp_library(&self) -> Result<PathBuf, String> {
        let (name, package, folder) = ("nvCOMP", "nvidia-libnvcomp-cu13", "nvidia/libnvcomp/lib64");
        let file_of = |file: &str| Ok(self.locate(name, package, &[file], folder)?.join(file));
        file_of("libnvcomp.so.6").or_else(|_: String| file_of("libnvcomp.so.5"))
    }

    /// The folder of `libclang.so`, which bindgen loads.
    pub fn libclang(&self) -> Result<PathBuf, String> {
        self.locate("libclang", "libclang", &["libclang.so"], "clang/native")
    }

    /// The first `folder` below the search path that holds every one of `probes`.
    fn locate(&self, what: &str, wheel: &str, probes: &[&str], folder: &str) -> Result<PathBuf, String> {
        for root in &self.folders {
            let found = root.join(folder);
            if probes.iter().all(|probe| found.join(probe).is_file()) {
                for probe in probes {
                    rerun_if_changed(&found.join(probe));
                }
                return Ok(found);
            }
        }
        Err(format!(
            "{what} ({folder}/{}) not found in the Python environment of {python}: {python} -m pip install \"{}\"",
            probes.join(&format!(", {folder}/")),
            requirement(wheel),
            python = self.python.display(),
        ))
    }
}

/// Prints `message` as the build's error, without the noise of a panic, and ends the build script.
pub fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    std::process::exit(1)
}

/// Tells cargo to run the build script again when `path` (a file, or any file of a folder) is newer than its output.
pub fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

/// The value of an environment variable, unless it is empty; cargo reruns the script when it changes.
pub fn variable(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn interpreter() -> Result<PathBuf, String> {
    if let Some(python) = variable("ZARR_DALI_PYTHON") {
        return Ok(python.into());
    }
    let environment =
        variable("VIRTUAL_ENV").map(PathBuf::from).or_else(|| workspace().map(|root| root.join(".venv")));
    if let Some(python) = environment.map(|root| root.join("bin/python")).filter(|python| python.is_file()) {
        return Ok(python);
    }
    let available =
        Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    available.then(|| "python3".into()).ok_or_else(|| {
        "no Python interpreter found: install python3, or set ZARR_DALI_PYTHON to the one whose environment has DALI".into()
    })
}

/// What to give to pip for `wheel`: its pinned line in `pyproject.toml`, the one home of the pins.
fn requirement(wheel: &str) -> String {
    let text =
        workspace().and_then(|root| fs::read_to_string(root.join("pyproject.toml")).ok()).unwrap_or_default();
    text.split('"')
        .find(|part| {
            part.strip_prefix(wheel).is_some_and(|rest| rest.starts_with(['=', '>', '<', '~', '!', ' ']))
        })
        .unwrap_or(wheel)
        .to_owned()
}

/// The folder of `pyproject.toml`: the crate's own, or the one above it for a member of the workspace.
fn workspace() -> Option<PathBuf> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    manifest.ancestors().take(2).find(|folder| folder.join("pyproject.toml").is_file()).map(Path::to_owned)
}
