"""A short run of `../hostile.py`, and what it has to notice, planted.

Always in a process of its own: the program forks, and this one may have threads and a GPU.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reading import run_python
from stores import FORMATS

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

PROGRAM = Path(__file__).parents[1] / "hostile.py"
QUICK = (
    *("chain-zstd.3", "chain-gzip.5", "dtype-bfloat16", "fill-nan-with-payload", "layout-edge-chunks"),
    *("shard-index-at-start", "frames-zstd-without-size", "name-unicode", "link-chunk-that-leaves"),
    *("metadata-type-unknown", "bomb-gzip", "index-beyond-the-end", "cut-blosc.lz4.shuffle"),
)

PLANTED = """
import json, os, signal, sys, time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import cases
import hostile

MIB = 1 << 20

def planted(name, expect="values", midway=None, change=lambda read: None, **options):
    def make(folder):
        made = cases.read(cases.plain(folder), cases.VALUES)
        change(made)
        return made
    return cases.Case(name, "planted", make, expect, midway=midway, interfaces=("operator",), **options)

def fill_memory(read):
    taken = np.ones(options["bytes"] // 8)
    time.sleep(1)

def say(text, kind=RuntimeError):
    def midway(read):
        raise kind(text)
    return midway

def panic_elsewhere(read):
    print("thread 'x' panicked at src/x.rs:1:1", file=sys.stderr, flush=True)

def not_written(folder):
    raise OSError("no space left")

def another_value(read):
    read.samples[7] = read.samples[7] + 1

class Stuck:
    def __del__(self):
        time.sleep(1000)

def stuck_at_the_end(read):
    # It goes when the interpreter of the child looks for what can be freed, behind the verdict.
    one = Stuck()
    one.self = one

options = {"bytes": hostile.CONSTANT_BYTES["cpu"] + 264 * MIB}
chosen = [
    planted("good"),
    planted("abort", midway=lambda read: os.abort()),
    planted("killed", midway=lambda read: os.kill(os.getpid(), signal.SIGSEGV)),
    planted("exit", midway=lambda read: os._exit(3)),
    planted("hang", midway=lambda read: time.sleep(1000)),
    planted("hang-at-the-end", midway=stuck_at_the_end),
    planted("memory", midway=fill_memory),
    planted("memory-allowed", midway=fill_memory, budget_bytes=512 * MIB),
    planted("wrong", change=another_value),
    planted("few", change=lambda read: read.samples.pop()),
    planted("accepted", expect="error"),
    planted("refused", midway=say("store.zarr is bad")),
    planted("clear", expect="error", midway=say("chunk [0] of store.zarr is bad"), says="chunk"),
    planted("unsaid", expect="error", midway=say("store.zarr is bad"), says="chunk"),
    planted("unnamed", expect="error", midway=say("Permission denied (os error 13)")),
    planted("bug", expect="error", midway=say("store.zarr: internal error, this is a bug")),
    planted("not-meant", expect="error", midway=say("store.zarr", KeyError)),
    planted("panic", midway=panic_elsewhere),
    cases.Case("not-made", "planted", not_written, "values"),
]
outcomes = hostile.run(chosen, jobs=3, patience_s=15)
report = hostile.Report(outcomes)
about = {"backend": "cpu"}
print(json.dumps([
    {it.case.name: [it.verdict, it.good, it.detail] for it in outcomes},
    report.as_markdown(about),
    len(report.failures),
]))
"""


@pytest.fixture(scope="module")
def planted():
    """The outcomes of planted faults by name, the report, and how many failures it has."""
    done = run_python(PLANTED, PROGRAM, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.parametrize(
    "name, verdict, words",
    [
        ("good", "values", ""),
        ("abort", "abort", "SIGABRT"),
        ("killed", "abort", "SIGSEGV"),
        ("exit", "abort", "exit code 3"),
        ("hang", "hang", "after 15 s"),
        ("hang-at-the-end", "hang", "while the reader was destroyed; it had said values"),
        ("memory", "memory", "more than 320 MiB"),
        ("memory-allowed", "values", ""),
        ("wrong", "wrong values", "sample 7: 6 of 6 elements differ, the first is 42.0, not 43.0"),
        ("few", "wrong values", "10 samples, not 9"),
        ("accepted", "accepted", ""),
        ("refused", "refused", "store.zarr is bad"),
        ("clear", "error", "chunk [0]"),
        ("unsaid", "unsaid", "it does not say 'chunk'"),
        ("unnamed", "unclear error", "it does not name"),
        ("bug", "unclear error", "internal error"),
        ("not-meant", "unclear error", "KeyError"),
        ("panic", "unclear error", "a thread panicked"),
        ("not-made", "not made", "no space left"),
    ],
)
def test_what_is_planted_is_found(planted, name, verdict, words):
    outcomes, report, _ = planted
    found, good, detail = outcomes[name]
    assert found == verdict, detail
    assert words in detail
    assert good == (verdict in ("values", "error"))
    assert (f"- {name}, " in report) == (not good)


@pytest.mark.full
def test_failures_are_counted(planted):
    outcomes, report, failures = planted
    assert failures == sum(not good for _, good, _ in outcomes.values()) == 16
    assert f"{failures} failures of {failures} stores." in report
    (line,) = [line for line in report.splitlines() if line.startswith("| planted ")]
    assert line.startswith(f"| planted | {len(outcomes)} | 2 | 1 |")


def run_program(*arguments, timeout=300):
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.full
def test_quick_cases(backend, tmp_path):
    """A dozen stores of all kinds, on both backends, and the report of them."""
    out = tmp_path / "report.md"
    done = run_program("--backend", backend.device, "--jobs", 2, "--out", out, "--only", *QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert out.read_text() in done.stdout
    assert f"on the {backend.device.upper()}" in out.read_text()
    (line,) = [line for line in out.read_text().splitlines() if line.startswith("| all ")]
    assert line.startswith(f"| all | {len(QUICK)} |")


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.timeout(960)
def test_all_cases():
    """Every store, on the CPU."""
    done = run_program("--backend", "cpu", timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]


@pytest.mark.full
def test_list_and_a_name_that_is_none():
    done = run_program("--list")
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} cases"
    assert len(lines) > 350
    assert {line[17:25].strip() for line in lines[:-1]} == {"values", "error", "either"}
    assert run_program("--only", "no-such-store").returncode == 2
