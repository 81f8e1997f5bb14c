"""What of an environment keeps the plugin from being loaded, found out without importing DALI."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

DALI = "nvidia-dali-cuda130"
"""The distribution of DALI that is named where neither an installed one nor a driver says which."""

AGAIN = (
    "install zarr-dali again with `pip install --force-reinstall --no-deps SOURCE`, where SOURCE is what it "
    "was installed from (zarr-dali, a wheel or a folder)"
)
"""Where files are missing or damaged. By force, since pip takes what it has noted for installed."""

MACHINES = {62: "x86_64", 183: "aarch64"}
"""By the number in the header of a library (ELF's e_machine)."""


class Problem(NamedTuple):
    """What is wrong, and what to do."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def problem(version: str, release: str, library: Path) -> Problem | None:
    """Why a plugin cannot be loaded.

    Args:
        version: Of the plugin.
        release: Of DALI, to be named where none is installed.
        library: The core, or the plugin.
    """
    return core_problem(library) or _dali_problem(version, release)


def core_problem(library: Path) -> Problem | None:
    """Why the core cannot be loaded, which needs no DALI."""
    if problem := _platform_problem(library):
        return problem
    return None if library.is_file() else Problem(f"{library} is missing", AGAIN)


def other_release(
    version: str, releases: list[str], found: str, names: list[str], why: str, remedy: str
) -> Problem:
    """There is no shim for the installed DALI.

    Args:
        version: Of the plugin.
        releases: Of DALI, for which there are shims.
        found: The release of DALI that is installed.
        names: The distributions of DALI that are installed.
        why: No shim could be compiled.
        remedy: What would make that possible; empty: nothing.
    """
    install = _install(releases[-1] if releases else "", names[:1])
    return Problem(
        f"zarr_dali {version} has no library for NVIDIA DALI {found}, which is installed (it has those for "
        f"{', '.join(releases) or 'none'}); {why}",
        f"{remedy}, or {install}" if remedy else install,
    )


def damaged(release: str, error: BaseException) -> Problem:
    """DALI is there and cannot be imported.

    Args:
        release: To be installed where it is not known which one is there.
        error: Of the import.
    """
    folder = dali_folder()
    found = distributions(folder.parents[1]) if folder else {}
    names = list(found)
    name = names[0] if len(names) == 1 else _for_driver() or DALI
    first = f"{_uninstall(names)}, then " if len(names) > 1 else ""
    versions = found.get(name, [])
    if len(names) == len(versions) == 1 and not versions[0].startswith(("0.", "1.")):
        release = versions[0]
    # What DALI needs is missing, and not a part of it: pip brings that without touching the rest.
    lacks = isinstance(error, ModuleNotFoundError) and (error.name or "nvidia").partition(".")[0] != "nvidia"
    force = "" if lacks else "--force-reinstall --no-deps "
    return Problem(
        f"NVIDIA DALI in {folder} cannot be imported ({type(error).__name__}: {error})",
        f"{first}`pip install {force}{name}=={release}`",
    )


def not_loaded(library: Path, error: BaseException) -> Problem:
    """DALI fits, and the dynamic loader refuses the plugin."""
    newest = re.search(r"version `(GLIBC|GLIBCXX|CXXABI)_([\d.]+)' not found", str(error))
    remedy = AGAIN
    if newest and newest[1] == "GLIBC":
        remedy = (
            f"it needs a system with glibc {newest[2]} or newer, or a container of one (docs/installing.md)"
        )
    elif newest:
        remedy = (
            "an older libstdc++ is found first: take its folder out of LD_LIBRARY_PATH, or in conda "
            "`conda install -c conda-forge libstdcxx-ng`"
        )
    return Problem(f"{library} cannot be loaded ({error})", remedy)


def dali_folder() -> Path | None:
    """The folder of the package that `import nvidia.dali` would take."""
    try:
        spec = importlib.util.find_spec("nvidia.dali")
    except (ImportError, ValueError):
        return None
    # One without a file is a folder that an uninstallation has left.
    return Path(spec.origin).parent if spec and spec.origin else None


def distributions(folder: Path) -> dict[str, list[str]]:
    """The distributions of DALI in a folder of packages, one for each release of CUDA, with their versions.

    An interrupted upgrade leaves several versions of one.
    """
    found: dict[str, list[str]] = {}
    for one in sorted(folder.glob("*-*.dist-info")):
        name, _, version = one.name.removesuffix(".dist-info").rpartition("-")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if re.fullmatch(r"nvidia-dali(-[a-z]+)?-cuda\d+", name):
            found.setdefault(name, []).append(version)
    return found


def glibc() -> str | None:
    """The version of the system's glibc, if it is one."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION").rpartition(" ")[2]
    except (AttributeError, OSError, ValueError):
        return None


def _platform_problem(library: Path) -> Problem | None:
    if sys.platform != "linux":
        return Problem(
            f"zarr_dali works on Linux only, and this is {sys.platform}",
            "use a Linux machine, a container or WSL 2",
        )
    if glibc() is None:
        return Problem(
            "zarr_dali and NVIDIA DALI need glibc, which this system does not have (Alpine has musl)",
            "use a system or container with glibc, such as Debian, Ubuntu or RHEL",
        )
    built_for = _machine_of(library)
    if built_for and built_for != os.uname().machine:
        return Problem(
            f"{library} is built for {built_for}, and this machine is {os.uname().machine}",
            "build zarr-dali from source on this machine (docs/installing.md)",
        )
    return None


def _machine_of(library: Path) -> str | None:
    try:
        with library.open("rb") as file:
            head = file.read(20)
    except OSError:
        return None
    known = len(head) == 20 and head[:4] == b"\x7fELF"
    return MACHINES.get(struct.unpack_from("<H", head, 18)[0]) if known else None


def _dali_problem(version: str, release: str) -> Problem | None:
    folder = dali_folder()
    if folder is None:
        # What an uninstallation has left of a second one would be taken for an installed one by pip.
        left = list(distributions(Path(__file__).parents[1]))
        return Problem(
            f"zarr_dali {version} needs NVIDIA DALI, which is not installed",
            _install(release, left, files=False),
        )
    found = distributions(folder.parents[1])
    # They share files, so that what is loaded is the one or the other or some of both.
    if len(found) > 1:
        return Problem(
            f"{' and '.join(found)} are installed in one place, and each wrote over the other's files",
            _install(release, list(found)),
        )
    return None


def _install(release: str, names: list[str], *, files: bool = True) -> str:
    """How to get to a release where these distributions are or were installed. pip does not know that those
    for different releases of CUDA, and nightly ones, have the same files, so they go first where it would
    leave one of them, and where it would take one for installed that has no files left."""
    known = names[0] if len(names) == 1 else _for_driver()
    # Nightly ones have other versions, and are not where pip looks.
    name = re.sub(r"-dali-[a-z]+-cuda", "-dali-cuda", known or DALI)
    install = f"`pip install {name}=={release}`" if release else f"`pip install {name}`"
    if names and (names != [name] or not files):
        install = f"{_uninstall(names)}, then {install}"
    return install if known else f"{install} (nvidia-dali-cuda120 for a driver of CUDA 12)"


def _for_driver() -> str | None:
    """The distribution of DALI that fits the driver, if there is one. Asks for its version only."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return f"nvidia-dali-cuda{min(max(number.value // 1000, 12), 13)}0"


def _uninstall(names: list[str]) -> str:
    return f"`pip uninstall -y {' '.join(names)}`"
