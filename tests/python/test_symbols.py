"""The versions of symbols that the built library asks for are no newer than docs/installing.md says."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import zarr_dali

INSTALLING = Path(__file__).parents[2] / "docs/installing.md"


def number(text):
    return tuple(map(int, text.split(".")))


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf (binutils)")
@pytest.mark.parametrize("family", ["GLIBC", "GLIBCXX"])
def test_newest_symbols(family):
    listed = subprocess.run(
        ["readelf", "--wide", "--version-info", zarr_dali.library_path()],
        capture_output=True,
        text=True,
        check=True,
    )
    found = set(re.findall(rf"Name: {family}_([\d.]+)", listed.stdout))
    assert found, "the library asks for no version at all"
    (said,) = set(re.findall(rf"`{family}_([\d.]+)`", INSTALLING.read_text()[:1500]))
    assert max(map(number, found)) <= number(said), f"newer than {said}: {sorted(found, key=number)[-3:]}"
