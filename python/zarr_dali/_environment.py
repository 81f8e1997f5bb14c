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

from zarr_dali._shim import AGAIN

DALI = "nvidia-dali-cuda130"
"""The distribution of DALI that is named where neither an installed one nor a driver says which."""

RELEASED = ("nvidia-dali-cuda120", DALI)
"""The distributions that DALI 2 comes in. PyPI has these."""

CHANNEL = "https://developer.download.nvidia.com/compute/redist/{}"
"""The index of nightly and weekly builds, which PyPI lacks (DALI's docs/installation.rst)."""

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
    version: str, releases: list[str], release: str, found: dict[str, list[str]], why: str, remedy: str
) -> Problem:
    """There is no shim for the installed DALI.

    Args:
        version: Of the plugin.
        releases: Of DALI, for which there are shims.
        release: The release of DALI that is installed.
        found: The distributions of DALI that are installed, with their versions.
        why: No shim could be compiled.
        remedy: What would make that possible; empty: nothing.
    """
    install = _install(releases[-1] if releases else "", found)
    return Problem(
        f"zarr_dali {version} has no library for NVIDIA DALI {release}, which is installed (it has those for "
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
    # What DALI needs is missing, and not a part of it: pip brings that without touching the rest.
    lacks = isinstance(error, ModuleNotFoundError) and (error.name or "nvidia").partition(".")[0] != "nvidia"
    options = "" if lacks else "--force-reinstall --no-deps "
    match list(found.items()):
        case [(name, [version])] if not version.startswith(("0.", "1.")):
            remedy = f"`pip install {options}{_index(name)}{name}=={version}`"
        case []:
            remedy = _install(release, {}, options=options)
        case _:
            remedy = _install(release, found)
    return Problem(f"NVIDIA DALI in {folder} cannot be imported ({type(error).__name__}: {error})", remedy)


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


def release_in(folder: Path) -> str | None:
    """The release of DALI in the folder of its package, which is not imported; None: it does not say."""
    try:
        text = (folder / "__init__.py").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"""^__version__ = ["'](\d[\w.+]*)["']""", text, re.MULTILINE)
    return found and found[1]


def distributions(folder: Path) -> dict[str, list[str]]:
    """The distributions of DALI in a folder of packages, one for each release of CUDA, with their versions.

    An interrupted upgrade leaves several versions of one, here the oldest first.
    """
    found: dict[str, list[str]] = {}
    for one in sorted(folder.glob("*-*.dist-info")):
        name, _, version = one.name.removesuffix(".dist-info").rpartition("-")
        name = re.sub(r"[-_.]+", "-", name).lower()
        if re.fullmatch(r"nvidia-dali(-[a-z]+)?-cuda\d+", name):
            found.setdefault(name, []).append(version)
    return {name: sorted(versions, key=_numbers) for name, versions in found.items()}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def reinstalled(name: str, versions: list[str]) -> str:
    """How to get from several versions of a distribution of DALI, which pip has noted, to the newest."""
    return f"{_uninstall({name: versions})}, then `pip install {_index(name)}{name}=={versions[-1]}`"


def for_another_cuda(name: str, versions: list[str], cuda: int) -> str:
    """How to get from a distribution of DALI to that for another release of CUDA."""
    other = f"nvidia-dali-cuda{cuda}0"
    # Nightly builds have versions that no release has.
    pinned = f"{other}=={versions[-1]}" if name in RELEASED else other
    return f"{_uninstall({name: versions})}, then `pip install {pinned}`"


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
        left = distributions(Path(__file__).parents[1])
        return Problem(
            f"zarr_dali {version} needs NVIDIA DALI, which is not installed",
            _install(release, left, files=False),
        )
    found = distributions(folder.parents[1])
    # They share files, so that what is loaded is the one or the other or some of both.
    if len(found) > 1:
        return Problem(
            f"{' and '.join(found)} are installed in one place, and each wrote over the other's files",
            _install(release, found),
        )
    return None


def _install(release: str, found: dict[str, list[str]], *, files: bool = True, options: str = "") -> str:
    """How to get to a release where these distributions are or were installed. pip does not know that those
    for different releases of CUDA, and nightly ones, have the same files, so they go first where it would
    leave one of them, and where it would take one for installed that has no files left."""
    known = _released(next(iter(found))) if len(found) == 1 else None
    known = known or _for_driver()
    name = known or DALI
    install = f"`pip install {options}{name}=={release}`" if release else f"`pip install {options}{name}`"
    if found and (list(found) != [name] or len(found[name]) > 1 or not files):
        install = f"{_uninstall(found)}, then {install}"
    return install if known else f"{install} (nvidia-dali-cuda120 for a driver of CUDA 12)"


def _released(name: str) -> str | None:
    """The distribution of releases for the same CUDA as a distribution. Those for CUDA 11 have ended."""
    released = re.sub(r"-dali-[a-z]+-cuda", "-dali-cuda", name)
    return released if released in RELEASED else None


def _index(name: str) -> str:
    """The option with which pip finds a distribution of DALI; of releases none."""
    channel = re.match(r"nvidia-dali-([a-z]+)-cuda", name)
    return f"--extra-index-url {CHANNEL.format(channel[1])} " if channel else ""


def _for_driver() -> str | None:
    """The distribution of DALI that fits the driver, if there is one. Asks for its version only."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    return f"nvidia-dali-cuda{min(max(number.value // 1000, 12), 13)}0"


def _uninstall(found: dict[str, list[str]]) -> str:
    """pip removes one version of a distribution at a time."""
    most = max(map(len, found.values()))
    rounds = [[name for name, versions in found.items() if len(versions) > done] for done in range(most)]
    return ", ".join(f"`pip uninstall -y {' '.join(names)}`" for names in rounds)
