"""Short runs of `../fault_schedules.py`, what it has to notice, and faults that it does not draw."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reading import run_python
from stores import FORMATS

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

PROGRAM = Path(__file__).parents[1] / "fault_schedules.py"

PLANTED = """
import json, sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import fault_plans
import fault_schedules
from fault_server import Fault, Schedule

URL = "s3://bucket/raw.zarr"
WORDS = f'chunk [0], file "{URL}/c/0/0": 503 Service Unavailable'

def judge(found=None, error=None, faults=("503",), passes=False, expected=(1.0, 2.0)):
    plan = fault_plans.plan(1, Path("/nowhere"))
    plan.passes, plan.causes = passes, []
    samples = lambda values: [fault_schedules.np.array([it], "f4") for it in values]
    found = None if found is None else samples(found)
    came = {"faults": dict.fromkeys(faults, 1)}
    return fault_schedules.judged(plan, URL, samples(expected), found, error, came)

verdicts = {
    "bits": judge(found=(1.0, 2.0)),
    "wrong": judge(found=(1.0, -1.0)),
    "error": judge(error=RuntimeError(WORDS)),
    "unnamed": judge(error=RuntimeError("c/0/0: 503")),
    "nowhere": judge(error=RuntimeError(f"{URL}: 503")),
    "no cause": judge(error=RuntimeError(f"{URL}/c/0/0: it failed")),
    "another cause": judge(error=RuntimeError(WORDS), faults=["429"]),
    "no fault": judge(error=RuntimeError(WORDS), faults=[]),
    "secret": judge(error=RuntimeError(WORDS + " s3cr3t")),
    "not meant": judge(error=KeyError(WORDS)),
    "bug": judge(error=RuntimeError(WORDS + " internal error")),
    "gave up": judge(error=RuntimeError(WORDS), passes=True),
}

# Workers that do not do what they should.
program = Path(sys.argv[2]) / "worker.py"
program.write_text('''
import os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    if int(line) == 1:
        time.sleep(1000)
    if int(line) == 2:
        os.abort()
    print('{"seed": %d, "verdict": "bits"}' % int(line), flush=True)
''')
fault_schedules.__file__ = str(program)
outcomes = fault_schedules.run(range(4), jobs=1, patience_s=3)
verdicts |= {f"worker {it.seed}": (it.verdict, it.detail) for it in outcomes}
report = fault_schedules.as_markdown(outcomes, {})
print(json.dumps([verdicts, report]))
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The verdicts on planted outcomes by name, and the report of planted workers."""
    done = run_python(PLANTED, PROGRAM, tmp_path_factory.mktemp("planted"))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.parametrize(
    "name, verdict, words",
    [
        ("bits", "bits", ""),
        ("wrong", "wrong values", "sample 1[0] is -1.0, not 2.0"),
        ("error", "error", "503"),
        ("unnamed", "unclear error", "does not name s3://bucket/raw.zarr"),
        ("nowhere", "unclear error", "does not say where"),
        ("no cause", "unclear error", "does not say the cause"),
        ("another cause", "unclear error", "does not say the cause"),
        ("no fault", "unclear error", "does not say the cause"),
        ("secret", "secret", "s3cr3t"),
        ("not meant", "unclear error", "KeyError"),
        ("bug", "unclear error", "internal error"),
        ("gave up", "gave up", "503"),
        ("worker 0", "bits", ""),
        ("worker 1", "hang", ""),
        ("worker 2", "abort", ""),
        ("worker 3", "bits", ""),
    ],
)
def test_what_is_planted_is_found(planted, name, verdict, words):
    verdicts, report = planted
    found, detail = verdicts[name]
    assert found == verdict and words in detail, detail
    assert "2 failures." in report and "- seed 1, " in report and "- seed 2, " in report


def run_program(*arguments):
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 failures.\n" in done.stdout
    return done.stdout


@pytest.mark.parametrize("count", [5, pytest.param(12, marks=pytest.mark.full)])
def test_some_schedules(tmp_path, count):
    out = tmp_path / "report.md"
    said = run_program("--count", count, "--jobs", 2, "--out", out)
    assert out.read_text() in said
    (line,) = [line for line in said.splitlines() if line.startswith("| all ")]
    schedules, bits, errors = (int(cell) for cell in line.split("|")[2:5])
    assert schedules == bits + errors == count and min(bits, errors) > count // 6


@pytest.mark.full
def test_a_hundred_and_twenty_schedules():
    said = run_program("--first", 5000, "--count", 120, "--jobs", 2)
    kinds = [line for line in said.splitlines() if line.startswith("| ")]
    assert len(kinds) > 30, said
