"""Shims: the part of the plugin that is compiled against DALI's headers, a library for each DALI release.

The wheel has shims for the releases that were there when it was built. For another one `compiled` makes the
shim from the sources that the wheel has, once, and keeps it in the user's cache. Headers of DALI for CUDA 12
and for CUDA 13 are the same, so that one shim serves both.

This file imports nothing of its package, because the build hook runs it too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

CORE = "libzarr_dali_core.so"
AGAIN = (
    "install zarr-dali again with `pip install --force-reinstall --no-deps SOURCE`, where SOURCE is what it "
    "was installed from (zarr-dali, a wheel or a folder)"
)
"""Where files are missing or damaged. By force, since pip takes what it has noted for installed."""
OLDEST = (2, 0)
"""The oldest release of DALI whose interface the sources know."""

FLAGS = ["-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-w"]
FLAGS += ["-D_GLIBCXX_USE_CXX11_ABI=1"]
EXPORTS = "{ local: *; };\n"
"""A linker script: operators register themselves while the shim loads, so that it exports nothing."""

CUDA_PROBES = ("cuda_runtime.h", "crt/host_config.h", "nv/target")
CUDA_FOLDERS = ("cu13/include", "cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include")
CUDA_SYSTEM = ("/usr/local/cuda/include",)
CUDA_WHEELS = {
    "12": "nvidia-cuda-runtime-cu12 nvidia-cuda-nvcc-cu12 nvidia-cuda-cccl-cu12",
    "13": "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl",
}


class Impossible(Exception):
    """No shim can be compiled here; the text says why."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy
        """What makes it possible."""


def name_for(release: str) -> str:
    """The file of the shim for a DALI release."""
    return f"libzarr_dali_{release}.so"


def releases(folder: Path) -> list[str]:
    """The DALI releases for which a folder has shims, oldest first."""
    found = (re.fullmatch(r"libzarr_dali_(\d[\w.]*)\.so", file.name) for file in folder.glob("*.so"))
    return sorted((one[1] for one in found if one), key=numbers)


def numbers(release: str) -> tuple[int, ...]:
    """The numbers of a release, to be compared; of a nightly build (2.5.0.dev20261101) the first ones."""
    return tuple(map(int, re.match(r"\d+(?:\.\d+)*", release)[0].split(".")))


def compiled(sources: Path, core: Path, dali: Path, release: str, cuda: str) -> Path:
    """The shim for a DALI release in the user's cache, compiled now if it is not there yet.

    Args:
        sources: Folder of the shim's sources.
        core: The core, which the shim is linked with.
        dali: Folder of DALI's package, with its headers and libraries.
        release: Of DALI.
        cuda: Major release of CUDA that this DALI is for, to name packages of headers.

    Raises:
        Impossible: Sources, compiler or headers are missing, the compiler fails, or the cache cannot be
            written.
    """
    shim = place(sources, core, dali, release, cuda)
    if shim.is_file():
        return shim
    with (shim.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shim.is_file():  # another process may have compiled it meanwhile
            include = cuda_include([Path(path) for path in sys.path], cuda)
            print(f"zarr_dali: compiling for DALI {release}, once ({shim})", file=sys.stderr, flush=True)
            compile_shim(sources, core, dali, include, shim, [str(core.parent), str(dali)])
    return shim


def place(sources: Path, core: Path, dali: Path, release: str, cuda: str) -> Path:
    """The file of the shim that `compiled` gives, which is there or can be compiled as far as is known.

    Raises:
        Impossible: As for `compiled`, besides a compiler that fails.
    """
    if not sources.is_dir():
        raise Impossible(f"{sources} is missing", AGAIN)
    if not (dali / "include").is_dir():
        raise Impossible(f"{dali} has no C++ headers", "install DALI from its wheel")
    _compiler()
    shim = _cache() / f"{key(sources, core, dali, release)}-{name_for(release)}"
    if not shim.is_file():
        cuda_include([Path(path) for path in sys.path], cuda)
    return shim


def cuda_include(site: list[Path], cuda: str) -> list[Path]:
    """Folders that together have the CUDA headers that DALI's headers include.

    Raises:
        Impossible: Some are missing.
    """
    candidates = [root / "nvidia" / folder for root in site for folder in CUDA_FOLDERS]
    homes = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    candidates += [Path(home, "include") for home in homes if home]
    candidates += [Path(folder) for folder in CUDA_SYSTEM]
    found: list[Path] = []
    for probe in CUDA_PROBES:
        folder = next((folder for folder in candidates if (folder / probe).is_file()), None)
        if folder is None:
            raise Impossible(
                f"the CUDA header {probe} is not found, in the Python environment, in CUDA_HOME and in "
                f"{CUDA_SYSTEM[0]}",
                f"`pip install {CUDA_WHEELS.get(cuda, CUDA_WHEELS['13'])}`",
            )
        if folder not in found:
            found.append(folder)
    return found


def compile_shim(
    sources: Path,
    core: Path,
    dali: Path,
    cuda: list[Path],
    shim: Path,
    runpath: list[str],
    compiler: str | None = None,
) -> None:
    """Compiles and links a shim.

    Args:
        sources, core, dali: As for `compiled`.
        cuda: Folders of CUDA's headers.
        shim: The file to write, which is there only when it is complete.
        runpath: Where the shim looks for the core and for DALI's libraries if they are not loaded yet.
        compiler: For C++; not given: CXX, or the first that is found.

    Raises:
        Impossible: There is no compiler, or it fails.
    """
    compiler = compiler or _compiler()
    include = [f"-I{sources}"] + [f"-isystem{folder}" for folder in [dali / "include", *cuda]]
    with tempfile.TemporaryDirectory(dir=shim.parent) as folder:
        there = Path(folder)

        def compile_one(source: Path) -> Path:
            target = there / f"{source.stem}.o"
            _run([compiler, "-c", *FLAGS, *include, "-o", str(target), str(source)])
            return target

        with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
            objects = list(pool.map(compile_one, sorted(sources.glob("*.cc"))))
        (there / "exports").write_text(EXPORTS)
        link = ["-shared", "-s", "-Wl,--no-undefined", "-Wl,-Bsymbolic", "-Wl,-z,now"]
        link += [f"-Wl,--version-script={there / 'exports'}", f"-Wl,-soname,{shim.name}"]
        link += [f"-Wl,--enable-new-dtags,-rpath,{':'.join(runpath)}"]
        libraries = [str(core), f"-L{dali}", "-ldali", "-ldali_core"]
        _run([compiler, *link, "-o", str(there / "shim"), *map(str, objects), *libraries])
        os.replace(there / "shim", shim)


def _compiler() -> str:
    named = os.environ.get("CXX", "").split()
    found = next(filter(None, map(shutil.which, named[:1] or ["g++", "c++", "clang++"])), None)
    if found is None:
        raise Impossible(
            f"there is no C++ compiler ({named[0] if named else 'g++'})",
            "install one (`apt install g++`, `dnf install gcc-c++`, `conda install -c conda-forge gxx`)",
        )
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        first = [line for line in done.stderr.splitlines() if "error" in line.lower()][:3]
        text = " | ".join(first) or done.stderr.strip()[-300:]
        raise Impossible(
            f"{command[0]} fails with status {done.returncode}: {text}",
            "use GCC 11 or newer (CXX=...)",
        )


def key(sources: Path, core: Path, dali: Path, release: str) -> str:
    """A name that changes with whatever the shim depends on."""
    digest = hashlib.sha256("\0".join([release, str(core.parent), str(dali), *FLAGS]).encode())
    for file in sorted(file for file in sources.rglob("*") if file.is_file()):
        digest.update(file.relative_to(sources).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _cache() -> Path:
    """The user's folder of compiled shims, which nobody else can write to."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path("~/.cache").expanduser()
    folder = base / "zarr-dali" / "shims"
    remedy = "set XDG_CACHE_HOME to a folder of your own"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):
            folder.chmod(0o700)
        status = folder.stat()
    except OSError as error:
        raise Impossible(f"the cache cannot be made ({error})", remedy) from error
    # What lies there is loaded as code.
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not os.access(folder, os.W_OK):
        raise Impossible(f"{folder} belongs to somebody else or cannot be written to", remedy)
    return folder
