"""Builds the plugin with cargo and puts it into the wheel.

The version of the package is that of the workspace in Cargo.toml; the DALI release is read from the symbols
that the built library asks for. Both go into zarr_dali/_build_info.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "libzarr_dali.so"


class CustomBuildHook(BuildHookInterface):
    """Hatchling calls `initialize` before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            raise RuntimeError(
                "zarr-dali cannot be installed with --editable, because the compiled plugin has to lie "
                "beside the Python files: use `pip install .`"
            )
        library = build_library(Path(self.root))
        build_info = library.with_name("zarr_dali_build_info.py")
        build_info.write_text(
            '"""Written when the library was built."""\n\n'
            f'VERSION = "{self.metadata.version}"\n'
            f'DALI_RELEASE = "{dali_release(library)}"\n'
        )
        sys.path.insert(0, str(Path(self.root, "python")))
        import licences  # beside this file, which is no package

        texts = library.with_name(licences.NAME)
        texts.write_text(licences.collect(Path(self.root)))
        # Nothing in the library depends on the Python version: it only knows DALI.
        build_data["tag"] = f"py3-none-{re.sub('[-.]', '_', sysconfig.get_platform())}"
        build_data["pure_python"] = False
        build_data["force_include"][str(library)] = f"zarr_dali/{LIBRARY}"
        build_data["force_include"][str(build_info)] = "zarr_dali/_build_info.py"
        build_data["force_include"][str(texts)] = f"zarr_dali/{licences.NAME}"


def build_library(root: Path) -> Path:
    """Runs cargo and returns the path of the plugin, wherever cargo's settings put it."""
    if shutil.which("cargo") is None:
        raise RuntimeError("cargo not found: zarr-dali is built from Rust; install it from https://rustup.rs")
    command = ["cargo", "build", "--release", "--lib", "--message-format=json-render-diagnostics"]
    # The interpreter whose environment has the wheels to build against; see nvcomp-sys/build/wheels.rs.
    environment = {"ZARR_DALI_PYTHON": sys.executable} | os.environ
    cargo = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if cargo.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed ({cargo.returncode}); its errors are above")
    for line in cargo.stdout.splitlines():
        message = json.loads(line)
        for file in message.get("filenames") or []:
            if Path(file).name == LIBRARY:
                return Path(file)
    raise RuntimeError(f"`{' '.join(command)}` built no {LIBRARY}")


def dali_release(library: Path) -> str:
    """The DALI release that the library is tied to, from the versions of the symbols it asks for."""
    releases = set(re.findall(rb"\0DALI_(\d[\w.]*)(?=\0)", library.read_bytes()))
    if len(releases) != 1:
        raise RuntimeError(f"{library} asks for the symbols of {len(releases)} DALI releases instead of one")
    return releases.pop().decode()
