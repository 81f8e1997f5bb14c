"""Loads the plugin into DALI, once."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import ModuleType

from zarr_dali import _environment

try:
    from zarr_dali._build_info import DALI_RELEASE, VERSION
except ModuleNotFoundError as error:
    raise ImportError(
        f"zarr_dali in {Path(__file__).parent} is the source folder, which has no compiled plugin: "
        "`pip install .` in the project's root, and keep its folder python/ out of the import path"
    ) from error

SCHEMA = "readers__Zarr"
ALIAS = "ZarrReader"


def library_path() -> Path:
    """The plugin's shared library.

    For what loads plugins by path, such as `DALI_PRELOAD_PLUGINS` or `nvidia.dali.plugin_manager`.
    """
    return Path(__file__).with_name("libzarr_dali.so")


def load() -> None:
    """Checks the DALI release, then loads the library and makes the operator known to dynamic mode.

    Raises:
        ImportError: DALI or the library is missing, DALI is another release than the library was built for,
            or another copy of the plugin is loaded already.
    """
    library = library_path()
    if problem := _environment.problem(VERSION, DALI_RELEASE, library):
        raise ImportError(str(problem))
    try:
        import nvidia.dali
    except Exception as error:  # of mixed or missing files comes anything
        raise ImportError(str(_environment.damaged(DALI_RELEASE, error))) from error
    found = nvidia.dali.__version__
    if found != DALI_RELEASE:
        names = list(_environment.distributions(Path(nvidia.dali.__file__).parents[2]))
        raise ImportError(str(_environment.other_release(VERSION, DALI_RELEASE, found, names)))
    if not library.is_file():
        raise ImportError(f"{library} is missing: install zarr-dali again")

    from nvidia.dali import backend, plugin_manager  # only after the checks

    # A second copy would register the operator twice, which DALI answers by ending the process.
    if backend.TryGetSchema(SCHEMA) is not None and not _is_loaded(library):
        raise ImportError(
            f"the operator {SCHEMA} is registered already, by {_other_copy() or 'another plugin'}, so that "
            f"{library} cannot be loaded into this process as well: look for the other one in "
            "DALI_PRELOAD_PLUGINS and in calls of plugin_manager.load_library"
        )
    try:
        plugin_manager.load_library(str(library))
    except RuntimeError as error:
        raise ImportError(str(_environment.not_loaded(library, error))) from error
    dynamic = sys.modules.get("nvidia.dali.experimental.dynamic")
    if dynamic is not None:
        _add_to_dynamic_mode(dynamic)


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
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines())
    return next((path for path in paths if Path(path).name == library_path().name), None)
