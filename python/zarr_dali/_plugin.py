"""Loads the plugin into DALI, once."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from zarr_dali import _environment, _shim

try:
    from zarr_dali._build_info import DALI_RELEASE, VERSION
except ModuleNotFoundError as error:
    raise ImportError(
        f"zarr_dali in {Path(__file__).parent} is the source folder, which has no compiled plugin: "
        "`pip install .` in the project's root, and keep its folder python/ out of the import path"
    ) from error

SCHEMA = "readers__Zarr"
ALIAS = "ZarrReader"
PACKAGE = Path(__file__).parent
WHOLE = PACKAGE / "libzarr_dali.so"
"""What `cargo build` makes, for development: core and shim in one, for DALI_RELEASE only. No wheel has it."""

_loaded: Path | None = None


def library_path() -> Path:
    """The plugin's shared library: the one that fits the installed DALI.

    For what loads plugins by path, such as `DALI_PRELOAD_PLUGINS` or `nvidia.dali.plugin_manager`.
    """
    return _loaded or core_path()


def core_path() -> Path:
    """The shared library with what does not depend on DALI, for the functions that Python calls."""
    return WHOLE if WHOLE.is_file() else PACKAGE / _shim.CORE


@cache
def core() -> ctypes.CDLL:
    """The core, loaded. It needs no DALI.

    Raises:
        ImportError: It is missing, or of another platform.
    """
    path = core_path()
    if found := _environment.core_problem(path):
        raise ImportError(str(found))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(str(_environment.not_loaded(path, error))) from error


def problem() -> str | None:
    """What keeps `load` from its work, with a remedy, as far as is seen without importing DALI.

    Not seen is that DALI is damaged, or that the dynamic loader refuses the shim.
    """
    if found := _environment.problem(VERSION, DALI_RELEASE, core_path()):
        return str(found)
    dali = _environment.dali_folder()
    if dali is not None and (release := _environment.release_in(dali)):
        try:
            _library_for(release, dali, _shim.place)
        except ImportError as error:
            return str(error)
    return None


def load() -> None:
    """Finds or compiles the shim for the installed DALI, loads it and adds the operator to dynamic mode.

    Raises:
        ImportError: DALI or the core is missing, there is no shim for the installed release and none can be
            compiled, or another copy of the plugin is loaded already.
    """
    global _loaded
    core = core_path()
    if found := _environment.problem(VERSION, DALI_RELEASE, core):
        raise ImportError(str(found))
    try:
        import nvidia.dali
    except Exception as error:  # of mixed or missing files comes anything
        raise ImportError(str(_environment.damaged(DALI_RELEASE, error))) from error
    library = _library_for(nvidia.dali.__version__, Path(nvidia.dali.__file__).parent, _shim.compiled)

    from nvidia.dali import backend, plugin_manager  # only after the checks

    # A second copy would register the operator twice, which DALI answers by ending the process.
    if backend.TryGetSchema(SCHEMA) is not None and not _is_loaded(library):
        raise ImportError(
            f"the operator {SCHEMA} is registered already, by {_other_copy() or 'another plugin'}, so that "
            f"{library} cannot be loaded into this process as well: look for the other one in "
            "DALI_PRELOAD_PLUGINS and in calls of plugin_manager.load_library"
        )
    try:
        if library != core:
            ctypes.CDLL(str(core))  # a shim in the cache finds the core only if it is loaded
        plugin_manager.load_library(str(library))
    except (OSError, RuntimeError) as error:
        raise ImportError(str(_environment.not_loaded(library, error))) from error
    _loaded = library
    dynamic = sys.modules.get("nvidia.dali.experimental.dynamic")
    if dynamic is not None:
        _add_to_dynamic_mode(dynamic)


def _library_for(release: str, dali: Path, other: Callable[[Path, Path, Path, str, str], Path]) -> Path:
    """The library to load into a DALI release that lies in the folder `dali`.

    Args:
        release, dali: Of DALI.
        other: For a release that the package has no shim for: `_shim.compiled` or `_shim.place`.

    Raises:
        ImportError: There is none.
    """
    if WHOLE.is_file():
        there = [DALI_RELEASE]
        if release == DALI_RELEASE:
            return WHOLE
        why, remedy = "it was built with `cargo build`, for that release only", ""
    else:
        there = _shim.releases(PACKAGE / "shims")
        if release in there:
            return PACKAGE / "shims" / _shim.name_for(release)
        why, remedy = f"releases before {'.'.join(map(str, _shim.OLDEST))} are too old", ""
    found = _environment.distributions(dali.parents[1])
    if not WHOLE.is_file() and _shim.numbers(release) >= _shim.OLDEST:
        cuda = "12" if any("cuda12" in name for name in found) else "13"
        try:
            return other(PACKAGE / "shim_sources", core_path(), dali, release, cuda)
        except _shim.Impossible as error:
            why, remedy = f"none can be compiled, because {error}", error.remedy
    raise ImportError(str(_environment.other_release(VERSION, there, release, found, why, remedy)))


def _add_to_dynamic_mode(dynamic: ModuleType) -> None:
    """Dynamic mode makes its classes when it is imported and does not see later plugins."""
    from nvidia.dali import backend
    from nvidia.dali.experimental.dynamic import _op_builder

    if hasattr(dynamic.readers, "Zarr"):
        return
    setattr(dynamic, ALIAS, _op_builder.build_operator_class(backend.GetSchema(SCHEMA)))


def _is_loaded(library: Path) -> bool:
    """Whether this process has loaded this very file, through whatever path."""
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def _other_copy() -> str | None:
    """The path of a loaded library with our name, for the error message."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    names = (line.split(maxsplit=5)[-1].removesuffix("\n") for line in maps.splitlines())
    own = re.compile(r"([0-9a-f]+-)?libzarr_dali(_\d[\w.]*)?\.so")
    return next((name for name in names if own.fullmatch(Path(name).name)), None)
