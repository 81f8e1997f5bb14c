"""The scripts in `benches/` on small stores and the CPU backend, and what they make of what they measure."""

import csv
import json
import os
import random
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from programs import help_of
from stores import FORMATS

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))
import budgets
import cold
import common
import gds
import hungry
import overlap
import rechunk
import report
from zarr_dali._profile import findings

BENCHES = Path(common.__file__).parent
SCRIPTS = (
    "scaling",
    "budgets",
    "cold",
    "gds",
    "beside_training",
    "hungry",
    "overlap",
    "rechunk",
    "rechunk_cluster",
    "cpu_backend",
    "remote",
    "report",
)


def run_script(name, *arguments, timeout=300):
    """Runs one script; returns the finished process."""
    return subprocess.run(
        [sys.executable, str(BENCHES / f"{name}.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Where the scripts keep their small stores."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Where all results of this module go."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def quick(data, results):
    """`quick(name, *arguments)`: runs a script once on small stores and the CPU; the result it kept."""
    kept = {}

    def run(name, *arguments):
        if (name, arguments) not in kept:
            before = set(results.iterdir())
            done = run_script(
                name, "--quick", "--device", "cpu", "--folder", data, "--out", results, *arguments
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (new,) = set(results.iterdir()) - before
            assert str(new) in done.stdout
            kept[name, arguments] = json.loads(new.read_text())
        return kept[name, arguments]

    return run


def rows_of(result):
    """Rows by point."""
    return {row["point"]: row for row in result["rows"]}


def scaling(quick):
    return quick(
        "scaling", "--points", "windows/zstd/8/2/*", "chunks/raw/51200", "chunks/sharded/*", "cores/*/raw"
    )


def small_budgets(quick):
    return quick("budgets", "--stores", "raw", "--points", "*/40MB/1", "*/2MB/8")


def beside(quick):
    return quick("beside_training", "--stores", "raw", "--decode", "cpu", "--batch-size", "2")


def from_cold(quick):
    return quick("cold", "--stores", "raw", "--threads", "2", "--rounds", "1")


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    assert "usage:" in help_of(BENCHES / f"{script}.py")


@pytest.mark.full
@pytest.mark.alone
def test_results_say_how_they_came_about(quick, data, results):
    result = scaling(quick)
    assert result["kind"] == "scaling"
    assert result["command"][:4] == ["python", "benches/scaling.py", "--quick", "--device"]
    assert result["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert {"python", "zarr", "nvidia-dali-cuda130"} <= set(result["versions"])
    assert result["work"]["quick"] and result["work"]["device"] == "cpu"
    for place in (data, results, Path.home()):
        assert str(place) not in json.dumps(result)


@pytest.mark.full
@pytest.mark.alone
def test_scaling(quick):
    rows = rows_of(scaling(quick))
    for order in ("in order", "shuffled"):
        row = rows[f"windows/zstd/8/2/{order}"]
        # 15 windows of two steps touch 16 steps.
        assert row["decodes_per_epoch"] < 1.2
        assert row["delivered_gb_per_s"] > 1.5 * row["decoded_gb_per_s"]
    for chunk in ("raw/51200", "sharded/640", "sharded/6400", "sharded/51200", "sharded/307200"):
        row = rows[f"chunks/{chunk}"]
        assert row["delivered_gb_per_s"] == pytest.approx(row["decoded_gb_per_s"], rel=0.25)
        assert row["chunk_bytes"] == int(chunk.partition("/")[2])
    (cores,) = (row for row in rows.values() if row["section"] == "cores")
    assert 0 < cores["cpu_cores"] < cores["cores"] + 0.5


def test_points_that_match_nothing_are_an_error():
    done = run_script("scaling", "--quick", "--device", "cpu", "--points", "nothing/*")
    assert done.returncode == 2
    assert "nothing/*" in done.stderr and "windows/raw/1/2/in order" in done.stderr


@pytest.mark.alone
def test_cuts_hold_the_same_values(quick, data):
    import zarr

    scaling(quick)
    expected = zarr.open_array(str(data / "16x80x160" / "raw.zarr"), mode="r")[:]
    cut = zarr.open_array(str(data / "16x80x160" / "cuts" / "sharded-307200.zarr"), mode="r")
    assert (cut.shards, cut.chunks) == ((4, 6, 80, 160), (1, 6, 80, 160))
    assert (cut[:] == expected).all()


@pytest.mark.alone
def test_budgets(quick):
    rows = rows_of(small_budgets(quick))
    row = rows["raw/40MB/1"]
    assert row["measured"] == "process"
    assert row["looks"] > 10
    assert 0 < row["peak"] < 40_000_000 + 30_000_000
    assert row["share_of_budget"] == row["peak"] / 40_000_000
    assert "host_memory_budget" in rows["raw/2MB/8"]["problem"]


def test_a_watch_sees_the_peak_and_its_end():
    used = iter([10, 30, 20])

    def next_use():
        for use in used:
            return use
        raise ProcessLookupError("gone")

    with budgets.Watch(next_use) as watch:
        watch._thread.join(10)
    assert (watch.peak, watch.looks) == (30, 3)


@pytest.mark.alone
def test_cold(quick):
    (row,) = from_cold(quick)["rows"]
    assert row["disk_way"] in row["disk_rounds"]
    rate = row["disk_gb_per_s"] * row["ratio"]
    assert row["share_of_disk"] == pytest.approx(row["delivered_gb_per_s"] / rate)
    cold_enough = row["least_from_disk"] is None or row["least_from_disk"] >= cold.REALLY_COLD
    assert ("problem" in row) != cold_enough


def rechunked(quick):
    return quick("rechunk", "--points", "copy", "after")


@pytest.mark.full
@pytest.mark.alone
def test_rechunk(quick):
    rows = rows_of(rechunked(quick))
    copy, after = rows["copy"], rows["after"]
    assert copy["equal"] is True
    assert copy["regions"] >= 1 and len(copy["regions_finished_at_kills"]) <= 2
    assert copy["share_of_memory"] == copy["peak"] / copy["memory"] < 1
    assert after["chunk"][0] < 10 and after["decodes_per_epoch"] < 1.5
    assert after["samples_per_s"] > 0


@pytest.mark.full
@pytest.mark.alone
def test_rechunk_by_a_cluster(quick):
    pytest.importorskip("distributed")
    rows = rows_of(quick("rechunk_cluster"))
    assert rows.keys() == {f"{one}/{by}" for one in ("rechunk", "statistics") for by in ("threads", "1", "4")}
    for name, row in rows.items():
        assert row["equal"] is True and row["share_of_memory"] < 1, name
    assert rows["rechunk/4"]["processes"] == rows["statistics/4"]["processes"] == 4
    four, one = rows["rechunk/4"], rows["rechunk/1"]
    assert four["times_one_worker"] == four["gb_per_s"] / one["gb_per_s"]


def test_a_copy_that_differs_is_seen(tmp_path):
    import zarr

    values = np.zeros((25, 2, 3), np.float32)
    for name in ("a", "b"):
        zarr.create_array(str(tmp_path / name), data=values, chunks=(1, 2, 3))
    assert rechunk.equal(tmp_path / "a", tmp_path / "b")
    zarr.open_array(str(tmp_path / "b"))[24, 1, 2] = -0.0
    assert not rechunk.equal(tmp_path / "a", tmp_path / "b")


def test_files_are_read_to_their_ends(tmp_path):
    sizes = (0, 1, 4096, cold.BLOCK, cold.BLOCK + 1, 2 * cold.BLOCK + 4096)
    files = []
    for size in sizes:
        files.append(tmp_path / str(size))
        files[-1].write_bytes(bytes(size))
    cold.cache.evict(files)
    assert cold.read_all(files, 3, direct=False) == sum(sizes)


class HostFile:
    """What `gds.Bare` uses of cuda.bindings.cufile, with host memory in the GPU's place."""

    FileHandleType = Namespace(OPAQUE_FD=1)

    def __init__(self, most=1 << 30):
        self.most, self.registered, self.handles, self.memory, self.found = most, {}, set(), {}, {}

    def Descr(self):
        # cuda-bindings 13.3 does not clear it.
        description = Namespace(type=None, handle=Namespace(fd=None), fs_ops=0xABAB)
        description.ptr = len(self.registered) + 1
        self.registered[description.ptr] = description
        return description

    def handle_register(self, pointer):
        description = self.registered[pointer]
        assert description.type == 1 and description.fs_ops == 0
        self.handles.add(description.handle.fd)
        return description.handle.fd

    def handle_deregister(self, handle):
        self.handles.remove(handle)

    def buf_register(self, address, size, flags):
        self.memory[address] = bytearray(size)

    def buf_deregister(self, address):
        del self.memory[address]

    def read(self, handle, address, size, offset, into):
        assert handle in self.handles and into + size <= len(self.memory[address])
        read = os.pread(handle, min(size, self.most), offset)
        self.memory[address][into : into + len(read)] = read
        for byte, count in Counter(read).items():
            self.found[byte] = self.found.get(byte, 0) + count
        return len(read)


@pytest.mark.parametrize("most", [1 << 30, 700])
def test_a_bare_loop_reads_every_byte_once_in_a_pass(tmp_path, most):
    sizes = {1: 0, 2: 1, 3: 1000, 4: 2000, 5: 2001, 6: 9999}
    for byte, size in sizes.items():
        (tmp_path / str(byte)).write_bytes(bytes([byte]) * size)
    cufile, numbers = HostFile(most), iter(range(100))
    with gds.Bare(sorted(tmp_path.iterdir()), 1, 1000, cufile, lambda size: (None, next(numbers))) as bare:
        assert bare.rate(0.0) > 0
        assert len(cufile.memory) == 1 and len(cufile.handles) == len(sizes)
    # Once before the clock starts, once behind it.
    assert cufile.found == {byte: 2 * size for byte, size in sizes.items() if size}
    assert not cufile.memory and not cufile.handles


def test_a_bare_loop_says_where_a_file_ends_early(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    with gds.Bare([file], 1, 64, HostFile(), lambda size: (None, size)) as bare:
        file.write_bytes(bytes(70))
        with pytest.raises(OSError, match="returned 0 at byte 70"):
            bare.rate(0.0)


def test_gds_needs_a_gpu():
    done = run_script("gds", "--device", "cpu")
    assert done.returncode == 2 and "cuFile reads to a GPU" in done.stderr


@pytest.mark.full
@pytest.mark.alone
def test_beside_training(quick):
    (row,) = beside(quick)["rows"]
    assert row["share_of_alone"] == row["samples_per_s"] / row["alone_samples_per_s"]
    assert row["gpu_share"] == 0
    # A shuffled epoch of 15 windows takes each of the 16 steps about once.
    assert 0.3 < row["supplied"] < 3
    assert row["reader"]["batches"] > 0
    assert 0 <= row["waited_share"] <= row["blocked_share"] <= 1


@pytest.mark.full
@pytest.mark.alone
def test_hungry(quick):
    result = quick("hungry", "--stores", "zstd", "--layers", "4,2", "--warm-steps", "2")
    cores = len(os.sched_getaffinity(0))
    assert [row["point"] for row in result["rows"]] == [f"{cores}/{layers}/zstd/auto" for layers in (4, 2)]
    for row in result["rows"]:
        assert row["share_of_synthetic"] == row["samples_per_s"] / row["synthetic_samples_per_s"]
        assert row["reader"]["batches"] > 0
        assert "batches are taken in a second" in row["policy"]
    assert result["work"]["steps_of_layers"]["4"]["warm_steps"] == 2


def test_a_hungry_training_learns_from_what_was_read():
    torch = pytest.importorskip("torch")
    stack = hungry.Stack(4, "cpu", 2, (16, 32))
    convolutions = [part for part in stack.model if isinstance(part, torch.nn.Conv2d)]
    assert [each.out_channels for each in convolutions] == [32, 32, 32, 24]
    assert stack.model(stack.batch[:, 0]).shape == stack.batch[:, 1].shape
    before = [weights.detach().clone() for weights in stack.model.parameters()]
    # The gradients of a batch without a number are none either.
    assert stack.step_with([{"fields": stack.batch * torch.nan}]) == 2
    assert all(torch.isnan(weights).any() for weights in stack.model.parameters())
    assert not any(torch.isnan(weights).any() for weights in before)


def test_steps_of_a_hungry_training():
    args = Namespace(seconds=4.0, quick=False, warm_steps=None)
    steps = {layers: hungry.steps_of(layers, args)["timed_steps"] for layers in (40, 30, 12, 4, 2)}
    assert steps == {40: 64, 30: 64, 12: 140, 4: 292, 2: 292}


@pytest.mark.full
@pytest.mark.alone
def test_cpu_backend(quick, tmp_path):
    program = tmp_path / "zarrs_direct"
    program.write_text('#!/bin/sh\n[ "$2 $3" = "/ 2" ] && [ -d "$1" ] && echo "{\\"gb_per_s\\": 1e-6}"\n')
    program.chmod(0o755)
    arguments = ("--stores", "zstd", "--threads", "2", "--zarrs-direct", str(program))
    result = quick("cpu_backend", *arguments)
    (row,) = result["rows"]
    assert row["problems"] == {}
    assert row["zarrs, Rust"] == 1e-6
    peers = row["zarrs"], row["zarrs, one array"]
    assert row["of_best_zarrs"] == row["zarr-dali"] / max(peers)
    assert str(program) not in json.dumps(result)


@pytest.mark.full
@pytest.mark.alone
def test_a_peer_that_fails_costs_its_own_figures_only(quick):
    result = quick("cpu_backend", "--stores", "raw", "--rounds", "1", "--zarrs-direct", "/bin/false")
    (row,) = result["rows"]
    assert list(row["problems"]) == ["zarrs, Rust"]
    assert "problem" not in row and row["zarr-dali"] > 0


def test_overlap_needs_a_gpu_or_a_trace():
    done = run_script("overlap", "--quick", "--device", "cpu")
    assert done.returncode == 2
    assert "--trace" in done.stderr


def test_a_child_that_dies_costs_one_point(tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(
        f"import os, sys; sys.path.insert(0, {str(BENCHES)!r})\n"
        "import common\n"
        "for point in common.child_task()['points']:\n"
        "    print('some words')\n"
        "    if point['point'] == 'b': os.abort()\n"
        "    common.hand_over({'seen': point['point']})\n"
    )
    points = [{"point": name} for name in "abc"]
    rows = [row for _, row in common.in_child(str(script), {}, points, limit_s=60)]
    assert rows == [{"seen": "a"}, {"problem": "the process ended with -6"}, {"seen": "c"}]


@pytest.mark.full
def test_a_child_that_hangs_costs_one_point(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(
        f"import sys, time; sys.path.insert(0, {str(BENCHES)!r})\n"
        "import common\n"
        "for point in common.child_task()['points']:\n"
        "    if point['point'] == 'a': time.sleep(600)\n"
        "    common.hand_over({'seen': point['point']})\n"
    )
    points = [{"point": name} for name in "ab"]
    rows = [row for _, row in common.in_child(str(script), {}, points, limit_s=3)]
    assert rows == [{"problem": "took more than 3 s"}, {"seen": "b"}]


def test_time_is_dealt_out(monkeypatch):
    monkeypatch.setattr(common.time, "time", lambda: 1000.0)
    assert common.fair_seconds(2.0, None, 5) == 2.0
    assert common.fair_seconds(2.0, 1100.0, 5) == 2.0
    assert common.fair_seconds(2.0, 1100.0, 50) == pytest.approx(0.8)
    assert common.fair_seconds(2.0, 900.0, 50) == 0.2


def test_commands_tell_no_places():
    command = ["--folder", "/a", "--seconds", "2", "--out=/b", "--data-dir", "/c", "--quick"]
    assert common.without_places(command) == [
        "--folder", "...", "--seconds", "2", "--out=...", "--data-dir", "...", "--quick",
    ]  # fmt: skip


def random_spans(random_numbers, count):
    starts = [random_numbers.randrange(200) for _ in range(count)]
    return [(start, start + random_numbers.randrange(1, 20)) for start in starts]


@pytest.mark.parametrize("seed", range(20))
def test_intervals_are_sets_of_moments(seed):
    numbers = random.Random(seed)
    spans = [random_spans(numbers, numbers.randrange(0, 15)) for _ in range(2)]

    def moments(intervals):
        return {moment for start, end in intervals for moment in range(start, end)}

    a, b = (overlap.union(one) for one in spans)
    for one, merged in zip(spans, (a, b)):
        assert moments(merged) == moments(one)
        assert all(left[1] < right[0] for left, right in pairwise(merged))
        assert overlap.length(merged) == len(moments(one))
    both = overlap.intersection(a, b)
    assert moments(both) == moments(a) & moments(b)
    assert overlap.length(both) == len(moments(a) & moments(b))


def test_a_gap_is_closed_only_where_it_is_small():
    assert overlap.union([(0, 1), (3, 4), (10, 11)], gap=2) == [(0, 4), (10, 11)]


def trace(steps=6):
    """Events of steps of 100 us: training from 0 to 80, a copy from 10 to 30, decoding from 70 to 90."""

    def event(cat, name, start, duration, stream):
        return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": duration, "args": {"stream": stream}}

    events = [{"ph": "M", "name": "process_name"}]
    for start in range(0, 100 * steps, 100):
        events += [
            event("kernel", "void conv(float*)", start, 80, 7),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + 80, 2, 7),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start + 10, 20, 20),
            event("kernel", "nvcomp::decode<int>(int)", start + 70, 15, 20),
            event("kernel", "gather", start + 85, 5, 20),
            # A status that the reader fetches is no end of a step; a training kernel may be called alike.
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + 91, 1, 20),
            event("kernel", "at::native::gather_kernel(float)", start + 40, 10, 7),
        ]
    return events


def test_events_are_told_apart():
    assert {"gather", "inflate", "decode_lz4", "zstd_check_frames"} <= overlap.own_kernels()
    # `zarr-dali profile`, which is installed without the sources, has a list of them.
    assert overlap.own_kernels() == findings.OWN_KERNELS
    found = overlap.activity(trace(2), overlap.own_kernels())
    assert found.copy == [(10, 30), (110, 130)]
    assert found.decode == [(70, 90), (170, 190)]
    assert found.training == [(0, 80), (100, 180)]
    assert found.step_ends == [82, 182]


def test_shares_of_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": trace()}))
    done = run_script("overlap", "--trace", path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    # The last step's end cuts its decoding from 20 to 12 us.
    copied, decoded, total = 6 * 20, 5 * 20 + 12, 582
    assert figures["copy_hidden"] == 1
    assert figures["decode_hidden"] == pytest.approx(6 * 10 / decoded)
    assert figures["hidden"] == pytest.approx((copied + 6 * 10) / (copied + decoded))
    # Between the steps there are 20 us, which are a pause only.
    assert figures["hidden_in_training"] == pytest.approx((copied + 5 * 20 + 10) / (copied + decoded))
    waits = [(0.0, 80.0), (111.0, 190.0)]
    assert overlap.shares(overlap.Activity([(85.0, 95.0)], [], waits, [190.0]))["hidden_in_training"] == 0
    assert figures["copy_share"] == pytest.approx(copied / total)
    assert figures["training_share"] == pytest.approx(6 * 80 / total)
    shown = figures["timeline"]
    assert len(shown["step_ends"]) == overlap.SHOWN_STEPS + 1
    assert all(0 <= a < b <= shown["step_ends"][-1] for a, b in shown["copy"] + shown["training"])


def test_a_trace_without_a_training_is_an_error():
    with pytest.raises(ValueError, match="no training step"):
        overlap.shares(overlap.activity(trace()[:1], {"gather"}))


@pytest.fixture(scope="module")
def reported(quick, tmp_path_factory):
    """A folder with results as a GPU's would be, and pages with an empty section."""
    root = tmp_path_factory.mktemp("reported")
    folder = root / "results"
    folder.mkdir()
    for result in (
        scaling(quick),
        small_budgets(quick),
        beside(quick),
        from_cold(quick),
        rechunked(quick),
    ):
        result = json.loads(json.dumps(result))
        result["work"] |= {"device": "gpu", "quick": False}
        result["machine"]["gpus"] = ["NVIDIA H200"]
        for row in result["rows"]:
            if result["kind"] == "cold":
                row.pop("problem", None)
        (folder / f"{result['kind']}.json").write_text(json.dumps(result))
    figures = {
        "hidden": 0.5,
        "hidden_in_training": 0.6,
        "copy_hidden": 1.0,
        "decode_hidden": None,
        "copy_share": 0.1,
    }
    figures |= {"decode_share": 0.0, "training_share": 0.9}
    found = overlap.activity(trace(), overlap.own_kernels())
    row = {"point": "zstd/auto", "store": "zstd", "decode": "auto", "timeline": overlap.timeline(found)}
    result = {**result, "kind": "overlap", "rows": [{**row, **figures}]}
    (folder / "overlap.json").write_text(json.dumps(result))
    row = {"point": "raw", "store": "raw", "delivered_gb_per_s": 14.5, "bare_gb_per_s": 15.0, "direct": False}
    row |= {"bare_way": "8 threads, 4 MiB", "share_of_bare": 14.5 / 15, "posix_gb_per_s": 50.0}
    (folder / "gds.json").write_text(json.dumps({**result, "kind": "gds", "rows": [row]}))
    for page in ("README.md", "performance.md"):
        (root / page).write_text(f"# Title\n\n{report.BEGIN}\n{report.END}\n\nThe end\n")
    return root


@pytest.mark.full
@pytest.mark.alone
def test_report(reported):
    pytest.importorskip("matplotlib")
    results, page = reported / "results", reported / "performance.md"
    arguments = ["--results", str(results), "--readme", str(reported / "README.md"), "--page", str(page)]
    assert report.main([*arguments, "--check"]) == 1
    assert report.main(arguments) == 0
    assert report.main([*arguments, "--check"]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n") and text.endswith("\nThe end\n")
    charts = {path.stem: path for path in results.glob("*.png")}
    assert set(charts) == {
        "scaling-windows", "scaling-chunks", "scaling-cores", "budgets", "beside_training", "overlap",
    }  # fmt: skip
    for name, path in charts.items():
        assert f"](results/{name}.png)" in text
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
    row = next(
        r for r in json.loads((results / "scaling.json").read_text())["rows"] if r["section"] == "chunks"
    )
    assert f"{row['delivered_gb_per_s']:.1f}" in text
    assert "| zstd, `auto` | 50.0 % | 60.0 % | 100.0 % |  | 10.0 % |" in text
    assert "equal value by value" in text and "times that a byte is decoded" in text
    assert "compatibility mode" in text and "15.0 (8 threads, 4 MiB) |" in text and "**96.7 %**" in text
    assert "refused" in text and "host_memory_budget" in text
    with (results / report.HISTORY).open() as file:
        history = list(csv.DictReader(file))
    assert sorted(line["file"] for line in history) == sorted(path.name for path in results.glob("*.json"))
    assert report.with_history(results, (results / report.HISTORY).read_text()).count("scaling.json") == 1
    charts["budgets"].unlink()
    assert report.main([*arguments, "--check"]) == 1


def test_a_readme_without_markers_is_an_error(tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("nothing")
    assert report.main(["--results", str(tmp_path), "--readme", str(readme), "--page", str(readme)]) == 1
    assert report.BEGIN in capsys.readouterr().err
    assert readme.read_text() == "nothing"


def a_result(points, *, written="2026-01-02T03:00:00", **changes):
    """A result of cold.py with a point for each name and value."""
    rows = [
        {"point": name, **({"problem": value} if isinstance(value, str) else {"figure": value})}
        for name, value in points.items()
    ]
    machine = {"cpu": "x", "cores": 16, "gpus": ["NVIDIA H200"], "ram_gb": 1}
    work = {"device": "gpu", "quick": False, "page_cache": "cold"}
    kept = {"kind": "cold", "date": written[:10], "written": written, "machine": machine, "work": work}
    kept["command"] = ["python", "bench.py"]
    return {**kept, "rows": rows, **changes}


def test_a_table_is_of_one_run():
    """The run that measured the most is drawn and comes first; then the others, the newest first."""
    results = [
        ("whole, old", a_result({"a": 0, "b": 0, "c": 0}, written="2025-12-30T09:00:00")),
        ("whole", a_result({"a": 1, "b": 1, "c": 1}, written="2025-12-31T09:00:00", revision="abcdef012")),
        ("part", a_result({"a": 2, "b": 2, "c": "left out"})),
        ("newest", a_result({"b": 3}, written="2026-01-02T04:00:00")),
        ("failed", a_result({"b": "no disk"}, written="2026-01-02T05:00:00")),
        ("cpu", a_result({"b": 4}, work={"device": "cpu", "quick": False})),
        ("other", a_result({"b": 5}, written="2026-01-03T00:00:00", kind="budgets")),
    ]
    found = report.runs_of(results, "cold")
    assert [(one.file, one.drawn) for one in found] == [
        ("whole", True), ("newest", False), ("part", False), ("whole, old", False),
    ]  # fmt: skip
    assert [row["figure"] for row in found[2].good()] == [2, 2]
    text = report.caption(found[0], "results")
    assert "commit `abcdef0`" in text and "cold page cache, 2025-12-31 ([figures](results/whole))" in text
    assert report.picture(found[0], "x", "y", "z") and not report.picture(found[1], "x", "y", "z")


def test_the_table_of_loaders():
    row = {"loaders": {"zarr-dali": {"median_gb_per_s": 1.25}, "other": {"problem": "refused"}}}
    row |= {"best_peer": "x", "times_best_peer": 2.0}
    work = {"device": "gpu", "batch_size": 8, "grid": [2, 2], "rounds": 1, "page_cache": "warm"}
    result = a_result({}, work=work) | {"stores": dict.fromkeys(["blosc-lz4", "raw", "zstd"], row)}
    del result["kind"], result["rows"]
    (found,) = report.runs_of([("read_table-1.json", result)], "read_table")
    lines = report.read_table_lines(found, "results")
    assert "|  | raw | zstd | blosc-lz4 |" in lines
    assert "| other | refused | refused | refused |" in lines
    assert "| **times the fastest other row** | **2.0** | **2.0** | **2.0** |" in lines
    line = dict(zip(report.COLUMNS, report.history_line("read_table-1.json", result)))
    assert (line["benchmark"], line["unit"]) == ("read_table", "GB/s")
    assert line["figures"] == "blosc-lz4 1.25; raw 1.25; zstd 1.25"


@pytest.mark.parametrize("layers", [None, 12])
def test_points_beside_a_training_are_told_apart_by_budget(layers):
    def row(decode, budget, share, gpu_share=0.25):
        common = {"point": "", "store": "zstd", "cores": 4, "gpu_share": gpu_share, "supplied": 1.0}
        common |= {"decode": decode, "budget_gb": budget, "waited_share": 0.0}
        if layers is None:
            return common | {"share_of_alone": share, "alone_samples_per_s": 100.0}
        return common | {"layers": layers, "share_of_synthetic": share, "synthetic_samples_per_s": 100.0}

    rows = [row("auto", None, 0.922), row("gpu", None, 0.956), row("auto", 6.0, 0.971)]
    work = {"device": "gpu", "quick": False, "page_cache": "warm", "batch_size": 16, "window": 2}
    kind = "beside_training" if layers is None else "hungry"
    result = a_result({}, kind=kind, work=work) | {"rows": rows}
    (found,) = report.runs_of([("one.json", result)], kind)
    lines = report.SECTIONS[kind][1](found, "results")
    start = "| 4 cores, 12 layers, " if layers else "| 4 cores, "
    assert [line for line in lines if line.startswith("| 4")] == [
        f"{start}`auto` | 92.2 % (GPU 25 %) |",
        f"{start}`gpu` | 95.6 % |",
        f"{start}`auto`, 6 GB | 97.1 % (GPU 25 %) |",
    ]
    assert ("stacks of convolutions keep" if layers else "a U-Net") in lines[0]
    # A chart is of the U-Net.
    assert any("beside_training.png" in line for line in lines) == (layers is None)


def test_trainings_are_shown_by_cores_and_loader():
    def row(cores, loader, store, samples_per_s, case="warm", share=None):
        return {
            "point": f"{cores}/{case}/{store}/{loader}", "cores": cores, "loader": loader, "store": store,
            "case": case,
            "samples_per_s": samples_per_s, "share_of_synthetic": share, "cpu_seconds_per_sample": 0.021,
            "wait_share": 0.0003, "encoder": "resnet18",
        }  # fmt: skip

    rows = [
        row(4, "ours", "zstd", 95.0, share=0.95),
        row(16, "torch", "raw", 20.0, share=0.2),
        row(16, "synthetic", "zstd", 100.0),
        row(16, "ours", "raw", 99.0, share=0.99),
        row(16, "ours", "zstd", 50.0, case="cold", share=0.5),
    ]
    run = a_result({}, work={"device": "gpu", "quick": False, "batch_size": 16, "page_cache": "warm"})
    found = report.Found({**run, "rows": rows}, "training.json")
    lines = report.training_lines(found, "results")
    at = lines.index("|  | raw | zstd |")
    assert lines[at + 2 : at + 5] == [
        "| 16 cores, ours | 99.0 (99.0 %, 21 ms) |  |",
        "| 16 cores, torch | 20.0 (20.0 %, 21 ms) |  |",
        "| 4 cores, ours |  | 95.0 (95.0 %, 21 ms) |",
    ]
    assert "| 16 cores, ours | 50.0 (50.0 %, 21 ms) |" in lines
    assert "100 samples/s" in lines[0] and "0.03 %" in lines[0]


def test_quick_results_do_not_count(tmp_path):
    quick = a_result({"a": 1}, work={"device": "gpu", "quick": True})
    (tmp_path / "quick.json").write_text(json.dumps(quick))
    (tmp_path / "other.json").write_text(json.dumps([1, 2]))
    (tmp_path / "real.json").write_text(json.dumps(a_result({"a": 2})))
    assert [name for name, _ in report.results_of(tmp_path)] == ["real.json"]


def test_results_are_whole_after_every_row(tmp_path):
    args = Namespace(
        out=tmp_path, folder=Path("/somewhere"), device="cpu", steps=1, grid=(2, 2), quick=True, command=[],
        revision="abc", machine={"cpu": "x", "cores": 1, "gpus": []}, versions={"python": "3"},
    )  # fmt: skip
    kept = common.Results("cold", "nothing", args)
    assert json.loads(kept.path.read_text())["rows"] == []
    kept.add({"point": "a", "problem": "no /somewhere/a.zarr"})
    assert json.loads(kept.path.read_text())["rows"] == [{"point": "a", "problem": "no .../a.zarr"}]
    assert kept.finish() == 1
    kept.add({"point": "b", "figure": 1.0})
    assert kept.finish() == 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_pages_and_history_say_what_the_results_say():
    assert report.main(["--check"]) == 0


def test_every_result_is_in_the_history():
    with (report.common.RESULTS / report.HISTORY).open() as file:
        known = {line["file"] for line in csv.DictReader(file)}
    kept = {path.name for path in report.common.RESULTS.iterdir() if path.suffix in (".json", ".md")}
    assert kept <= known
