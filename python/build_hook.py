"""Builds the core with cargo and a shim for each DALI release, and puts them into the wheel.

The version of the package is that of the workspace in Cargo.toml. Shims are compiled against the DALI of
the build's environment, or against those in the folders that `ZARR_DALI_SHIMS` lists (`python/wheels.py`
fills it); the wheel has their sources too. Release and version go into zarr_dali/_build_info.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIMS = "ZARR_DALI_SHIMS"
TARGET = "ZARR_DALI_TARGET"
"""Rust's name of another machine to build for; the crate cc says how compilers for it are named (CXX_...)."""
RUNPATH = ["$ORIGIN/..", "$ORIGIN/../../nvidia/dali"]


class CustomBuildHook(BuildHookInterface):
    """Hatchling calls `initialize` before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            raise RuntimeError(
                "zarr-dali cannot be installed with --editable, because the compiled plugin has to lie "
                "beside the Python files: use `pip install .`"
            )
        root = Path(self.root)
        shim, licences = load(root / "python/zarr_dali/_shim.py"), load(root / "python/licences.py")
        built = build_core(root, shim.CORE)
        folder = built.core.parent / "wheel"
        sources = gather_sources(root, built, folder / "shim_sources")
        shims = compile_shims(shim, sources, built.core, folder)
        build_info = folder / "build_info.py"
        build_info.write_text(
            '"""Written when the libraries were built."""\n\n'
            f'VERSION = "{self.metadata.version}"\n'
            f'DALI_RELEASE = "{max(shims, key=shim.numbers)}"\n'
        )
        texts = folder / licences.NAME
        texts.write_text(licences.collect(root))
        # Nothing in the libraries depends on the Python version: they only know DALI.
        build_data["tag"] = f"py3-none-{platform_tag([built.core, *shims.values()])}"
        build_data["pure_python"] = False
        files = {built.core: shim.CORE, build_info: "_build_info.py", texts: licences.NAME}
        files |= {sources: sources.name}
        files |= {file: f"shims/{shim.name_for(release)}" for release, file in shims.items()}
        for file, name in files.items():
            build_data["force_include"][str(file)] = f"zarr_dali/{name}"


class Built(NamedTuple):
    """What cargo made."""

    core: Path
    bridge: Path
    """Folder of the C++ that cxx generated."""
    cxx: Path
    """Folder of the crate cxx."""


def build_core(root: Path, library: str) -> Built:
    """Runs cargo and finds the results, wherever cargo's settings put them."""
    if shutil.which("cargo") is None:
        raise RuntimeError("cargo not found: zarr-dali is built from Rust; install it from https://rustup.rs")
    command = ["cargo", "build", "--release", "--package", "zarr-dali-core"]
    command.append("--message-format=json-render-diagnostics")
    if target := os.environ.get(TARGET):
        command += ["--target", target]
    # The interpreter whose environment has the wheels to build against; see nvcomp-sys/build/wheels.rs.
    environment = {"ZARR_DALI_PYTHON": sys.executable} | os.environ
    cargo = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if cargo.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed ({cargo.returncode}); its errors are above")
    found: dict[str, Path] = {}
    for line in cargo.stdout.splitlines():
        message = json.loads(line)
        for file in message.get("filenames") or []:
            if Path(file).name == library:
                found["core"] = Path(file)
        bridge = Path(message.get("out_dir") or "", "cxxbridge")
        if (bridge / "sources/zarr-dali/src/bridge.rs.cc").is_file():
            found["bridge"] = bridge
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "cxx":
            found["cxx"] = Path(message["manifest_path"]).parent
    missing = set(Built._fields) - set(found)
    if missing:
        raise RuntimeError(f"`{' '.join(command)}` does not tell of its {' and '.join(sorted(missing))}")
    return Built(**found)


def gather_sources(root: Path, built: Built, folder: Path) -> Path:
    """Copies all that a shim is compiled from, headers of DALI and CUDA excepted, into one folder."""
    shutil.rmtree(folder, ignore_errors=True)
    # What does not need DALI is in the core.
    own = [file for file in (root / "cpp_shim").iterdir() if file.name != "trace.cc"]
    include = built.bridge / "include"
    files = {file: file.name for file in own} | {
        built.bridge / "sources/zarr-dali/src/bridge.rs.cc": "bridge.rs.cc",
        include / "zarr-dali/src/bridge.rs.h": "zarr-dali/src/bridge.rs.h",
        include / "rust/cxx.h": "rust/cxx.h",
        built.cxx / "src/cxx.cc": "cxx.cc",
    }
    for file, name in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # cxx's own source looks for its header beside its folder.
        target.write_text(file.read_text().replace('"../include/cxx.h"', '"rust/cxx.h"'))
    return folder


def compile_shims(shim: ModuleType, sources: Path, core: Path, folder: Path) -> dict[str, Path]:
    """The shims by DALI release; those that are there from the same sources are not compiled again."""
    path = [Path(entry) for entry in sys.path]
    listed = [Path(entry) for entry in os.environ.get(SHIMS, "").split(os.pathsep) if entry]
    if not listed:
        listed = [entry / "nvidia/dali" for entry in path if (entry / "nvidia/dali/libdali.so").is_file()][:1]
    if not listed:
        raise RuntimeError('DALI is not found in the environment of the build: pip install ".[build]"')
    # For another machine its own; else what _shim.py finds.
    compiler = os.environ.get(f"CXX_{os.environ[TARGET].replace('-', '_')}") if TARGET in os.environ else None
    found = {}
    for dali in listed:
        release = dali_release(dali / "libdali.so")
        # Named by what it is made of.
        target = folder / "shims" / f"{shim.key(sources, core, dali, release)}.so"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            include = shim.cuda_include(path, "13")
            shim.compile_shim(sources, core, dali, include, target, RUNPATH, compiler)
        found[release] = target
    return found


def dali_release(library: Path) -> str:
    """The DALI release of its library, from the versions of its symbols."""
    releases = set(re.findall(rb"\0DALI_(\d[\w.]*)(?=\0)", library.read_bytes()))
    if len(releases) != 1:
        raise RuntimeError(f"{library} has symbols of {len(releases)} DALI releases instead of one")
    return releases.pop().decode()


def platform_tag(libraries: list[Path]) -> str:
    """The tag of the oldest systems that have the symbols which the libraries ask for (PEP 600)."""
    version = re.compile(rb"\0GLIBC_2\.(\d+)(?=\0)")
    newest = max(int(minor) for file in libraries for minor in version.findall(file.read_bytes()))
    machine = os.environ.get(TARGET, "").partition("-")[0] or os.uname().machine
    return f"manylinux_2_{newest}_{machine}"


def load(file: Path) -> ModuleType:
    """A file as a module. The package that it may lie in is not imported, as it has no libraries yet."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
