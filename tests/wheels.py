"""Tries a wheel with many releases of DALI and of Python, each in a fresh environment, as a user installs it.

    make wheels-test                                       # all of them; the result goes to benches/results
    python tests/wheels.py dist/zarr_dali-*.whl --dali 2.4.0 --cuda 13

Each environment gets the wheel, a DALI from the package index and what both depend on. In it a program reads
a store on the CPU and compares values with what NumPy makes of the files. One environment is there at a time:
a DALI takes more than a GB.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

RELEASES = ("2.0.0", "2.1.1", "2.2.0", "2.3.0", "2.4.0")
CUDA = {"12": "nvidia-dali-cuda120", "13": "nvidia-dali-cuda130"}

PROGRAM = """
import gzip, os, sys
import numpy as np
import zarr_dali
import nvidia.dali as dali
from nvidia.dali import fn, pipeline_def

store = zarr_dali.example_store(os.path.join(sys.argv[1], "era5.zarr"), steps=30)

def chunk(array, step):
    with gzip.open(f"{store}/{array}/c/{step}/0/0") as file:
        return np.frombuffer(file.read(), "<f4").reshape(16, 32)

@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def batches():
    reader = fn.readers.zarr(path=store, arrays=["t2m", "msl"], window=[2], device="cpu", name="reader",
                             random_shuffle=True, seed=7)
    return tuple(reader)

pipe = batches()
pipe.build()
seen = set()
for _ in range(7):
    outputs = pipe.run()
    for array, output in zip(("t2m", "msl"), outputs):
        for index in range(4):
            sample = output.at(index)
            source = output[index].source_info()
            step = int(source.split("[")[1].split(":")[0])
            expected = np.stack([chunk(array, step), chunk(array, step + 1)])
            assert source.startswith(f"{store}/{array}["), source
            assert sample.dtype == np.float32 and np.array_equal(sample, expected), (array, step)
            seen.add((array, step))
assert len(seen) == 56, len(seen)
assert zarr_dali.stats(pipe)["batches"] >= 7
print(dali.__version__, os.path.basename(zarr_dali.library_path()), len(seen), "samples")
"""


class Tried(NamedTuple):
    """One environment."""

    python: str
    dali: str
    distribution: str
    problem: str
    """Empty: values were those of the files."""
    said: str
    seconds: float


def environment(python: str, folder: Path, packages: list[str]) -> Path:
    """A fresh virtual environment with packages; uv, which is faster, makes it if it is there.

    Returns:
        Its interpreter.

    Raises:
        RuntimeError: Something cannot be installed.
    """
    inside = folder / "bin/python"
    if uv := shutil.which("uv"):
        _run([uv, "venv", "--quiet", "--python", python, str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", str(inside), *packages])
    else:
        _run([python, "-m", "venv", str(folder)])
        _run([str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    return inside


def read_with(python: Path, folder: Path) -> str:
    """Runs the program with an interpreter and returns what it printed.

    Raises:
        RuntimeError: It failed, or read other values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return _run([str(python), "-c", PROGRAM, str(folder)], cwd=folder).strip().splitlines()[-1]


def try_one(wheel: Path, python: str, release: str, cuda: str) -> Tried:
    """Installs a wheel beside a DALI and reads with both."""
    started = time.monotonic()
    problem, said = "", ""
    with tempfile.TemporaryDirectory(prefix="zarr-dali-wheel-") as folder:
        try:
            inside = environment(python, Path(folder, "env"), [str(wheel), f"{CUDA[cuda]}=={release}"])
            said = read_with(inside, Path(folder, "work"))
        except RuntimeError as error:
            problem = str(error)
    return Tried(version_of(python), release, CUDA[cuda], problem, said, time.monotonic() - started)


def version_of(python: str) -> str:
    return _run([python, "-c", "import platform; print(platform.python_version())"]).strip()


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=1800, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ...: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def revision() -> str:
    """The commit of the source folder, and whether files differ from it."""
    root = Path(__file__).parents[1]
    try:
        commit = _run(["git", "rev-parse", "--short", "HEAD"], cwd=root).strip()
        changed = _run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=root).strip()
    except (RuntimeError, OSError):
        return "no commit (the source is no git repository)"
    return f"{commit} with changes that are not committed" if changed else commit


def report(wheel: Path, tried: list[Tried], commit: str) -> str:
    """The result as a page of Markdown.

    Args:
        wheel: That was tried.
        tried: The environments.
        commit: That the wheel was built from.
    """
    pythons = sorted({one.python for one in tried}, key=lambda text: tuple(map(int, text.split("."))))
    lines = [
        f"# The wheel with releases of DALI and Python, {date.today()}",
        "",
        f"`make wheels-test` at {commit}: `{wheel.name}`, {wheel.stat().st_size / 1e6:.1f} MB, SHA-256",
        f"`{hashlib.sha256(wheel.read_bytes()).hexdigest()}`,",
        f"on {platform.freedesktop_os_release()['PRETTY_NAME']}. Each cell is a fresh virtual environment",
        "in which the wheel and that DALI were installed from the package index: `import zarr_dali`, then 56",
        "windows of two arrays, shuffled, read on the CPU and compared with what gzip and NumPy make of the",
        "files. A cell names the shim that was loaded.",
        "",
        f"| DALI | {' | '.join(f'Python {python}' for python in pythons)} |",
        f"|---|{'---|' * len(pythons)}",
    ]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for one in tried:
        cell = "failed" if one.problem else f"values equal, `{one.said.split()[1]}`"
        rows.setdefault((one.distribution, one.dali), {})[one.python] = cell
    for (distribution, release), cells in rows.items():
        lines.append(
            f"| {distribution} {release} | {' | '.join(cells.get(p, 'not tried') for p in pythons)} |"
        )
    failed = [one for one in tried if one.problem]
    lines += ["", f"{len(tried) - len(failed)} of {len(tried)} environments read the right values."]
    for one in failed:
        lines += ["", f"{one.distribution} {one.dali}, Python {one.python}:", "", "```", one.problem, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--dali", nargs="+", default=RELEASES, metavar="RELEASE")
    parser.add_argument("--cuda", nargs="+", default=list(CUDA), choices=list(CUDA))
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--report", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    # Asked for now: it takes an hour, in which others may commit.
    wheel, tried, commit = arguments.wheel.resolve(), [], revision()
    for release in arguments.dali:
        for cuda in arguments.cuda:
            for python in arguments.python:
                one = try_one(wheel, python, release, cuda)
                tried.append(one)
                print(
                    f"{one.distribution} {one.dali} Python {one.python}: {one.problem or one.said} "
                    f"({one.seconds:.0f} s)",
                    flush=True,
                )
            if arguments.report:
                arguments.report.write_text(report(wheel, tried, commit))
    sys.exit(any(one.problem for one in tried))


if __name__ == "__main__":
    main()
