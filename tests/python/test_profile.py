"""`zarr-dali profile`: on reports that are made up, with a known answer, and on one that nsys records."""

import json
import random
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest
from click.testing import CliRunner

import nsys
from reading import run_python
from stores import write_array
from zarr_dali import cli
from zarr_dali._profile import findings, recording

MS = 1_000_000
POP = recording.POP


def run(*arguments):
    return CliRunner().invoke(cli.main, ["profile", *map(str, arguments)])


@pytest.fixture
def made(tmp_path):
    """A training that waits 10 ms for its second batch, which the GPU decodes."""
    report = nsys.Made(tmp_path / "report.sqlite")
    pid = 77
    report.domain(pid, 1, "DALI")
    report.domain(pid, 2, "zarr_dali")
    for thread, name in ((1, "python"), (2, "[DALI][TP0]Exec"), (3, "zarr I/O"), (4, "zarr GPU worker")):
        report.name_thread(pid, thread, name)
    for start, end in ((0, 10), (110, 120), (200, 200.1)):
        report.range(pid, 1, 1, POP, round(start * MS), round(end * MS), registered=False)
    for number, (start, end) in enumerate(((0, 9), (111, 119))):
        report.range(pid, 2, 2, recording.WAIT, start * MS, end * MS, number)
    for start, end in ((0, 5), (112, 114)):
        report.range(pid, 3, 2, "fetch", start * MS, end * MS, 4_000_000)
    report.range(pid, 4, 2, "decode on the GPU", 5 * MS, round(8.9 * MS), 12)
    report.range(pid, 4, 2, "decode on the GPU", 114 * MS, round(118.9 * MS), 12)
    report.range(pid, 1, 1, "another", 0, 300 * MS)
    for start, end in ((10, 100), (120, 200)):
        report.kernel(pid, 7, "sgemm", start * MS, end * MS)
    for start, end, name in ((50, 60, "gather"), (115, 118, "gather(unsigned char*)")):
        report.kernel(pid, 13, name, start * MS, end * MS)
    report.kernel(pid, 14, "nvcompZstd", 95 * MS, 105 * MS)
    report.copy(pid, 13, 90 * MS, 100 * MS, 5_000_000)
    report.copy(pid, 13, 112 * MS, 114 * MS, 1_000_000)
    report.copy(pid, 7, 130 * MS, 131 * MS, 4, kind=2)
    return report


def test_a_known_answer(made):
    (found,) = findings.of(recording.read(made.path))
    assert (found.pid, found.window, found.first_wait_ms) == (77, (10 * MS, round(200.1 * MS)), 9)
    assert found.seconds == pytest.approx(0.1901)
    assert (found.training.ranges, found.training.ms, found.training.longest_ms) == (
        2,
        pytest.approx(10.1),
        10,
    )
    assert found.training.share == pytest.approx(10.1 / 190.1)
    assert (found.reader.ranges, found.reader.ms, found.reader.share) == (1, 8, pytest.approx(8 / 190.1))
    assert found.waited_for == {"decode on the GPU": 8}
    fetch, decode = found.stages["fetch"], found.stages["decode on the GPU"]
    assert (fetch.ranges, fetch.ms, fetch.threads, fetch.bytes) == (1, 2, 1, 4_000_000)
    assert fetch.gb_per_s == pytest.approx(2) and fetch.busy == pytest.approx(2 / 190.1)
    assert (decode.ranges, decode.ms, decode.bytes, decode.gb_per_s) == (1, pytest.approx(4.9), 0, None)
    assert found.stages.keys() == {"fetch", "decode on the GPU"}
    gpu = found.gpu
    assert gpu.training_share == pytest.approx(170 / 190.1)
    assert gpu.copy_share == pytest.approx(12 / 190.1) and gpu.copy_bytes == 6_000_000
    assert gpu.decode_share == pytest.approx(23 / 190.1)
    assert (gpu.copy_hidden, gpu.decode_hidden) == (pytest.approx(10 / 12), pytest.approx(15 / 23))
    assert gpu.hidden == gpu.hidden_with_pauses == pytest.approx(20 / 30)
    assert gpu.idle_waiting_share == pytest.approx(10.1 / 190.1)
    assert found.limit == (
        "the reader is the limit: the GPU, without work, waits 5.3% of the time, most of it for the GPU to "
        "copy, decode and gather: a faster codec or more chunks in flight help"
    )


def test_parts_of_a_recording(made):
    recorded = recording.read(made.path)
    (found,) = findings.of(recorded, 0.0, 0.0105)
    assert found.window == (0, round(10.5 * MS)) and found.training.ms == 10 and found.reader.ms == 9
    assert found.stages["fetch"].ms == 5 and found.waited_for == {"decode on the GPU": 9}
    (found,) = findings.of(recorded, 0.125, 0.199)
    assert found.reader.ranges == 0 and found.training.ms == 0 and found.stages == {}
    assert found.gpu.hidden is None and found.gpu.training_share == 1
    assert found.limit.startswith("the training is the limit: the GPU, without work, waits 0.0% of the time")
    for start, end in ((0.3, None), (0.1, 0.1), (0.4, 0.2)):
        with pytest.raises(
            ValueError, match=r"nothing of process 77 was recorded .* from 0\.000 to 0\.200 s"
        ):
            findings.of(recorded, start, end)


def test_processes_are_told_apart(made):
    """Of another process the same numbers stand for other domains, and its kernels hide nothing."""
    made.domain(78, 1, "zarr_dali")
    made.range(78, 1, 1, recording.WAIT, 20 * MS, 30 * MS, 0)
    made.range(78, 1, 2, "fetch", 30 * MS, 40 * MS, 1)
    made.range(78, 1, 1, "decode on the CPU", 35 * MS, 45 * MS, 8, kind=nsys.STARTED)
    made.domain(79, 2, "torch")
    made.range(79, 1, 2, "fetch", 0, 40 * MS, 1)
    made.kernel(79, 7, "sgemm", 100 * MS, 120 * MS)
    first, second = findings.of(recording.read(made.path))
    assert first.gpu.hidden == pytest.approx(20 / 30)
    assert second.gpu is None and second.training is None and second.stages.keys() == {"decode on the CPU"}
    assert second.window == (30 * MS, 45 * MS) and second.stages["decode on the CPU"].ms == 10


@pytest.mark.parametrize("seed", range(20))
def test_shares_by_counting_moments(tmp_path, seed):
    draw, length = random.Random(seed), 400
    report = nsys.Made(tmp_path / "r.sqlite")
    report.domain(5, 3, "zarr_dali")
    moments = {name: np.zeros(length, bool) for name in ("pop", "wait", "copy", "own", "model")}

    def spans(name, count):
        for _ in range(count):
            start = draw.randrange(length - 1)
            end = draw.randint(start + 1, min(length, start + 60))
            moments[name][start:end] = True
            yield start, end

    for start, end in spans("pop", 4):
        report.range(5, 1, 0, POP, start, end)
    for start, end in spans("wait", 4):
        report.range(5, 2, 3, recording.WAIT, start, end, 0)
    for start, end in spans("copy", 5):
        report.copy(5, draw.choice([7, 13]), start, end, 1)
    for start, end in spans("own", 4):
        report.kernel(5, 13, draw.choice(["gather", "inflate"]), start, end)
    for start, end in spans("model", 6):
        report.kernel(5, 7, "conv", start, end)
    start, end = draw.randrange(100), draw.randint(300, length)
    recorded = recording.read(report.path)
    end = min(end, max(one.end for one in (*recorded.processes[0].kernels, *recorded.processes[0].pops)))
    (found,) = findings.of(recorded, start / 1e9, end / 1e9)
    seen = {name: those[start:end] for name, those in moments.items()}
    both = seen["copy"] | seen["own"]
    assert found.training.share == pytest.approx(seen["pop"].mean())
    assert found.reader.share == pytest.approx(seen["wait"].mean())
    assert found.gpu.training_share == pytest.approx(seen["model"].mean())
    assert found.gpu.copy_share == pytest.approx(seen["copy"].mean())
    assert found.gpu.decode_share == pytest.approx(seen["own"].mean())
    assert found.gpu.idle_waiting_share == pytest.approx((seen["pop"] & ~seen["model"]).mean())
    assert found.gpu.hidden == pytest.approx(seen["model"][both].mean())
    for share, its in ((found.gpu.copy_hidden, seen["copy"]), (found.gpu.decode_hidden, seen["own"])):
        assert share == (pytest.approx(seen["model"][its].mean()) if its.any() else None)


@pytest.mark.parametrize(
    "stage, text", [("fetch", "for chunks to be read"), ("decode on the CPU", "for the CPU to decode"),
                    ("plan", "for the planner"), (None, "for what has no range")], ids=str
)  # fmt: skip
def test_what_a_wait_was_for(tmp_path, stage, text):
    """The range that ended last before it did; what ended before it began is not to blame."""
    report = nsys.Made(tmp_path / "r.sqlite", ("StringIds", "NVTX_EVENTS"))
    report.domain(5, 1, "zarr_dali")
    for start, end in ((0, 10), (20, 40), (50, 80)):
        report.range(5, 2, 1, recording.WAIT, start, end, 0)
    report.range(5, 3, 1, "fetch", 1, 9, 1)
    report.range(5, 3, 1, "fetch", 41, 49, 1)
    if stage:
        report.range(5, 3, 1, "fetch", 21, 30, 1)
        for start, end in ((31, 39), (51, 79)):
            report.range(5, 4, 1, stage, start, end, 1)
    (found,) = findings.of(recording.read(report.path))
    assert found.waited_for == {stage or "nothing that has a range": pytest.approx(50 / MS)}
    assert (
        found.limit.startswith("the reader is the limit: DALI waits 71.4% of the time, most of it")
        and text in found.limit
    )


def test_what_dali_does_behind_the_reader(tmp_path):
    report = nsys.Made(tmp_path / "r.sqlite", ("StringIds", "NVTX_EVENTS"))
    report.domain(5, 1, "zarr_dali")
    report.range(5, 2, 1, recording.WAIT, 0, 10, 0)
    for start, end in ((0, 12), (20, 40), (50, 80)):
        report.range(5, 1, 0, POP, start, end)
    (found,) = findings.of(recording.read(report.path))
    assert "look at what DALI does behind it" in found.limit and found.gpu is None


def test_files_that_are_none(tmp_path, made):
    def problem(path):
        done = run(path)
        assert done.exit_code == 1, done.output
        return " ".join(done.output.split())

    assert "there is no file" in problem(tmp_path / "none.sqlite")
    for name, text in (
        ("a.nsys-rep", "is not exported yet: nsys export --type sqlite --output"),
        ("a.qdstrm", "behind an import by QdstrmImporter"),
        ("a.sqlite", "is no SQLite file; give a report that was exported with nsys export"),
    ):
        (tmp_path / name).write_bytes(b"something else")
        assert text in problem(tmp_path / name)
    empty = nsys.Made(tmp_path / "empty.sqlite", ("StringIds",))
    assert "has no ranges of NVTX" in problem(empty.path) and "--trace=nvtx" in problem(empty.path)
    other = nsys.Made(tmp_path / "other.sqlite")
    other.domain(5, 1, "torch")
    other.range(5, 1, 1, "fetch", 0, 5)
    assert 'no range of the domain "zarr_dali", but of "torch"' in problem(other.path)
    with closing(sqlite3.connect(made.path)) as database, database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN shortName TO name")
    assert "its tables cannot be read (no such column: shortName); export the report again" in problem(
        made.path
    )
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(made.path.read_bytes()[:5000])
    assert "cannot be read" in problem(cut)


def test_reports_without_kernels(tmp_path, made):
    with closing(sqlite3.connect(made.path)) as database, database:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "ThreadNames"):
            database.execute(f"DROP TABLE {table}")
    done = run(made.path)
    assert done.exit_code == 0 and "No kernels in the report: without a GPU, or --trace=cuda" in done.output
    assert "the reader is the limit: the training waits 5.3% of the time" in done.output
    (found,) = json.loads(run(made.path, "--json").output)["processes"]
    assert found["gpu"] is None and found["reader"]["ms"] == 8


def test_reports_without_kernels_of_a_model(made):
    """An old nsys records those that were started by a call that it knows: nothing is said of the rest."""
    with closing(sqlite3.connect(made.path)) as database, database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE streamId <> 13")
    done = run(made.path)
    assert done.exit_code == 0 and "hidden behind" not in done.output
    text = " ".join(done.output.split())
    assert "Of the kernels in the report (2) none is a model's." in text and "older than the driver" in text
    assert "the reader is the limit: the training waits 5.3% of the time" in text
    (found,) = json.loads(run(made.path, "--json").output)["processes"]
    assert found["gpu"] is None and found["kernels"] == 2


def test_the_command(made, tmp_path):
    done = run(made.path)
    assert done.exit_code == 0, done.output
    for text in (
        "In short: the reader is the limit",
        "What waits for what",
        "until: decode on the GPU",
        "66.7%",
    ):
        assert text in done.output
    found = json.loads(run(made.path, "--json", "--from", "0.05").output)
    (process,) = found["processes"]
    assert found["report"] == "report.sqlite" and process["window_s"] == [0.05, 0.2001]
    assert process["gpu"]["decode_share"] > 0 and process["limit"]
    picture = tmp_path / "timeline.png"
    assert run(made.path, "--png", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rows_of_a_picture(made):
    from zarr_dali._profile import picture

    (process,) = recording.read(made.path).processes
    rows = picture.rows_of(process)
    assert list(rows) == [
        "the training", "DALI's threads", "zarr I/O", "zarr GPU worker", "GPU 0, stream 7",
        "GPU 0, stream 13", "GPU 0, stream 14",
    ]  # fmt: skip
    assert rows["GPU 0, stream 13"].keys() == {picture.COPIED, picture.DECODED}
    assert rows["GPU 0, stream 14"] == {picture.DECODED: [(95 * MS, 105 * MS)]}


def test_needs_no_plugin(made):
    """A report is read where DALI is missing."""
    code = """
    import sys
    import zarr_dali_command
    sys.modules["nvidia"] = None
    sys.argv = ["zarr-dali", "profile", sys.argv[1], "--json"]
    zarr_dali_command.main()
    """
    done = run_python(code, made.path)
    assert done.returncode == 0 and '"limit"' in done.stdout, done.stderr


# --- recorded by nsys -----------------------------------------------------------------------------

READ = """
import sys
import time
import zarr_dali
loader = zarr_dali.Loader(sys.argv[1], batch_size=4, window=[2], shuffle=True, device=sys.argv[2], seed=1)
for batch in loader:
    [values.mul(2) for values in batch.values()]
    time.sleep(0.1)
time.sleep(2)  # nsys asks for the names of threads now and then
"""


def record(tmp_path, rng, device, *options):
    if (problem := nsys.missing()) is not None:
        pytest.skip(problem)
    values = rng.normal(size=(80, 32, 64)).astype("float32")
    store = write_array(tmp_path, "x", values, chunks=(1, 32, 64), codec="zstd")
    (tmp_path / "read.py").write_text(READ)
    command = [sys.executable, tmp_path / "read.py", store, device]
    found = nsys.recorded(command, tmp_path, *options)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.mark.full
def test_a_report_of_nsys(tmp_path, rng):
    options = ["--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none"]
    exported = record(tmp_path, rng, "cpu", *options)
    (process,) = recording.read(exported).processes
    names = {one.name for one in process.ranges}
    assert names == {"plan", "fetch", "decode on the CPU", recording.WAIT}
    threads = {
        name: {process.threads[one.thread] for one in process.ranges if one.name == name} for name in names
    }
    assert threads["plan"] == {"zarr planner"} and threads["decode on the CPU"] == {"zarr decoder"}
    assert not any(name.startswith("zarr") for name in threads[recording.WAIT])
    assert len(process.pops) >= 79 // 4
    numbers = [one.payload for one in process.ranges if one.name == recording.WAIT]
    assert sorted(numbers) == list(range(len(numbers)))
    decoded = [one.payload for one in process.ranges if one.name == "decode on the CPU"]
    assert set(decoded) == {32 * 64 * 4} and len(decoded) >= 80
    done = run(exported, "--png", tmp_path / "timeline.png")
    assert done.exit_code == 0 and "decode on the CPU" in done.output and (tmp_path / "timeline.png").exists()


@pytest.mark.full
@pytest.mark.gpu
def test_a_report_of_nsys_on_the_gpu(tmp_path, rng):
    recorded = recording.read(record(tmp_path, rng, "cuda", "--trace=cuda,nvtx", "--sample=none"))
    (process,) = recorded.processes
    (found,) = findings.of(recorded)
    assert process.copies
    if found.gpu is None:
        pytest.skip("this release of nsys does not record PyTorch's kernels with this driver")
    assert "gather" in {one.name for one in process.kernels}
    assert found.gpu.copy_bytes > 0 and found.gpu.decode_share > 0
