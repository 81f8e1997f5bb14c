"""The wheel of a release (`make wheels`), with the oldest and the newest DALI, in fresh environments.

All combinations are tried by `make wheels-test`. Here packages come from the index as well, of which a DALI
is hundreds of MB: without it, or without a wheel in dist/wheels, tests are skipped. CI builds the wheel.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


wheels = module(ROOT / "tests/wheels.py")
releases = module(ROOT / "python/wheels.py").RELEASES


@pytest.fixture(scope="session")
def wheel():
    found = sorted((ROOT / "dist/wheels").glob("zarr_dali-*.whl"))
    if not found:
        pytest.skip("there is no wheel in dist/wheels: make wheels")
    return found[-1]


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    """Whether pip gets a package, a small one."""
    folder = tmp_path_factory.mktemp("index")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--retries",
        "0",
        "--no-cache-dir",
    ]
    done = subprocess.run([*command, "--dest", folder, "click"], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.parametrize("folder, status", [("new", os.EX_UNAVAILABLE), ("file", 1)])
def test_releases_that_cannot_be_downloaded(monkeypatch, tmp_path, folder, status):
    """They have an exit status of their own, with which `make test-all` goes on; with others it ends."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "file").write_text("")
    command = [sys.executable, ROOT / "python/wheels.py", tmp_path / folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status and done.stdout == "", done.stderr


def test_report_names_the_commit_and_the_wheel(tmp_path):
    wheel = tmp_path / "zarr_dali-9.8.7-py3-none-manylinux_2_34_x86_64.whl"
    wheel.write_bytes(b"of some bytes")
    tried = [
        wheels.Tried("3.11.7", "2.4.0", "nvidia-dali-cuda130", "", "2.4.0 libzarr_dali_2.4.0.so 56", 1.0),
        wheels.Tried("3.11.7", "2.0.0", "nvidia-dali-cuda130", "no index", "", 1.0),
    ]
    page = wheels.report(wheel, tried, "abc1234")
    assert f"at abc1234: `{wheel.name}`" in page and hashlib.sha256(b"of some bytes").hexdigest() in page
    assert "1 of 2 environments" in page and "no index" in page
    assert re.match(r"[0-9a-f]{7,}( with changes that are not committed)?$|no commit ", wheels.revision())


@pytest.mark.full
def test_wheel_is_small(wheel):
    assert wheel.stat().st_size < 15e6


@pytest.mark.full
@pytest.mark.parametrize(
    "cuda, release", [("12", releases[0]), ("13", releases[-1])], ids=["oldest", "newest"]
)
def test_wheel_reads(wheel, index, cuda, release):
    tried = wheels.try_one(wheel, sys.executable, release, cuda)
    assert not tried.problem, tried.problem
    assert tried.said == f"{release} libzarr_dali_{release}.so 56 samples"


@pytest.mark.full
def test_quick_start(wheel, index, tmp_path):
    """What docs/getting-started.md shows first, with the wheel and the extra that it names alone."""
    text = (ROOT / "docs/getting-started.md").read_text()
    python = wheels.environment(sys.executable, tmp_path / "env", [f"{wheel}[cuda13]"])
    (block,) = re.findall(r"```sh\n(zarr-dali example.*?)```", text, re.DOTALL)
    for line in block.strip().splitlines():
        words = [python.parent / "zarr-dali", *line.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    program = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "pipeline_def" in block
    )
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 [2, 16, 32] era5.zarr/t2m[0:2"), done.stdout
