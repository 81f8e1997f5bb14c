"""The versions of symbols that the built libraries ask for are no newer than docs/installing.md says."""

import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest

import zarr_dali
from zarr_dali import _plugin

INSTALLING = Path(__file__).parents[2] / "docs/installing.md"


def number(text):
    return tuple(map(int, text.split(".")))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf (binutils)")
@pytest.mark.parametrize("family", ["GLIBC", "GLIBCXX"])
def test_newest_symbols(family):
    libraries = {zarr_dali.library_path(), _plugin.core_path()}
    libraries |= set(Path(zarr_dali.__file__).parent.glob("shims/*.so"))
    found = set()
    for library in libraries:
        command = ["readelf", "--wide", "--version-info", library]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        versions = re.findall(rf"Name: {family}_([\d.]+)", listed.stdout)
        assert versions, f"{library} asks for no version at all"
        found |= set(versions)
    (said,) = set(re.findall(rf"`{family}_([\d.]+)`", INSTALLING.read_text()))
    assert max(map(number, found)) <= number(said), f"newer than {said}: {sorted(found, key=number)[-3:]}"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf (binutils)")
def test_tag_of_the_wheel():
    """It names the newest symbols of glibc that any of its libraries asks for, no older and no newer ones."""
    wheels = [
        *(INSTALLING.parents[1] / "dist").glob("*.whl"),
        *(INSTALLING.parents[1] / "dist/wheels").glob("*.whl"),
    ]
    if not wheels:
        pytest.skip("no wheel was built")
    for wheel in wheels:
        tag = re.search(r"-manylinux_(\d+)_(\d+)_", wheel.name)
        assert tag, wheel.name
        found = set()
        with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
            names = [name for name in archive.namelist() if name.endswith(".so")]
            assert len(names) > 1
            for name in names:
                command = ["readelf", "--wide", "--version-info", archive.extract(name, folder)]
                listed = subprocess.run(command, capture_output=True, text=True, check=True)
                found |= set(re.findall(r"Name: GLIBC_([\d.]+)", listed.stdout))
        assert max(map(number, found)) == (int(tag[1]), int(tag[2]))
