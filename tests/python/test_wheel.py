"""What a wheel contains, packed by the build hook around a core that is there already."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from zarr_dali import _plugin, _shim

ROOT = Path(__file__).parents[2]
# Not through sys.path: the source folder of the package is there, which later processes would import.
_SPEC = importlib.util.spec_from_file_location("licences", ROOT / "python" / "licences.py")
licences = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(licences)

FAKE = """#!/bin/sh
[ "$1" = build ] || exec {cargo} "$@"
cat <<'END'
{lines}
END
"""
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""
"""Writes the file that it is asked for."""


@pytest.mark.parametrize("machine", [None, "aarch64"])
def test_licences_are_those_of_the_machine_that_is_built_for(monkeypatch, tmp_path, machine):
    """Crates differ between machines, so that a cross build asks for those of its target."""
    cargo = tmp_path / "cargo"
    cargo.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\nexit 1\n')
    cargo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("ZARR_DALI_TARGET", raising=False)
    if machine:
        monkeypatch.setenv("ZARR_DALI_TARGET", f"{machine}-unknown-linux-gnu")
    with pytest.raises(RuntimeError, match="cargo metadata"):
        licences.crates(ROOT)
    target = f"{machine or os.uname().machine}-unknown-linux-gnu"
    assert (tmp_path / "called").read_text().endswith(f"--filter-platform {target}\n")


@pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo, which knows what the library is made of")
def test_wheel_has_licences(tmp_path):
    core = shutil.copy(_plugin.core_path(), tmp_path / _shim.CORE)
    # What cxx makes of the bridge, of which the wheel has copies for the shim.
    glue = ("sources/zarr-dali/src/bridge.rs.cc", "include/zarr-dali/src/bridge.rs.h", "include/rust/cxx.h")
    for file in (*(f"cxxbridge/{name}" for name in glue), "cxx/src/cxx.cc"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text('#include "../include/cxx.h"\n')
    artefact = {"reason": "compiler-artifact"}
    messages = [
        artefact | {"target": {"name": "zarr_dali_core"}, "filenames": [str(core)]},
        artefact | {"target": {"name": "cxx"}, "manifest_path": str(tmp_path / "cxx/Cargo.toml")},
        {"reason": "build-script-executed", "out_dir": str(tmp_path)},
    ]
    programs = tmp_path / "bin"
    programs.mkdir()
    lines = "\n".join(map(json.dumps, messages))
    for name, text in (("cargo", FAKE.format(cargo=shutil.which("cargo"), lines=lines)), ("g++", COMPILER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    wheels = list(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        text = wheel.read(f"zarr_dali/{licences.NAME}").decode()
    assert "zarr_dali_command.py" in names and "zarr_dali/_doctor/probe.py" in names
    assert {"zarr_dali/libzarr_dali_core.so", "zarr_dali/shims/libzarr_dali_2.4.0.so"} <= set(names)
    sources = {name.removeprefix("zarr_dali/shim_sources/") for name in names if "/shim_sources/" in name}
    own = {"schema.cc", "zarr_reader.cc", "zarr_reader.h"}
    assert sources == own | {"bridge.rs.cc", "zarr-dali/src/bridge.rs.h", "rust/cxx.h", "cxx.cc"}
    assert re.search(r"-py3-none-manylinux_2_(\d\d)_", wheels[0].name)
    assert any(re.fullmatch(r"zarr_dali-.*\.dist-info/licenses/LICENSE", name) for name in names)
    linked = licences.crates(ROOT)
    assert len(linked) > 100
    for crate in linked:
        assert f"\n{crate['name']} {crate['version']}: {crate['license']}" in text
    # Crates that bring C sources, with the licences of these.
    for part in ("Francesc Alted", "Kiyoshi Masui", "Ariya Hidayat", "Zstandard", "bzip2"):
        assert re.search(part, text, re.IGNORECASE), part
    assert "proptest " not in text  # for tests only
