"""What a wheel contains, packed by the build hook around the library that is there already."""

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

import zarr_dali

ROOT = Path(__file__).parents[2]
# Not through sys.path: the source folder of the package is there, which later processes would import.
_SPEC = importlib.util.spec_from_file_location("licences", ROOT / "python" / "licences.py")
licences = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(licences)

FAKE = """#!/bin/sh
[ "$1" = build ] || exec {cargo} "$@"
echo '{message}'
"""


@pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo, which knows what the library is made of")
def test_wheel_has_licences(tmp_path):
    library = shutil.copy(zarr_dali.library_path(), tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = programs / "cargo"
    fake.write_text(
        FAKE.format(cargo=shutil.which("cargo"), message=json.dumps({"filenames": [str(library)]}))
    )
    fake.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        text = wheel.read(f"zarr_dali/{licences.NAME}").decode()
    assert "zarr_dali_command.py" in names and "zarr_dali/_doctor/probe.py" in names
    assert any(re.fullmatch(r"zarr_dali-.*\.dist-info/licenses/LICENSE", name) for name in names)
    linked = licences.crates(ROOT)
    assert len(linked) > 100
    for crate in linked:
        assert f"\n{crate['name']} {crate['version']}: {crate['license']}" in text
    # Crates that bring C sources, with the licences of these.
    for part in ("BLOSC", "Zstandard", "bzip2"):
        assert re.search(part, text, re.IGNORECASE), part
    assert "proptest " not in text  # for tests only
