"""The ranges that a profiler sees: `../nvtx/consumer.c` takes the place of Nsight Systems."""

import importlib.metadata
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reading import run_python
from stores import chunk_files, write_array

CONSUMER = Path(__file__).parents[1] / "nvtx" / "consumer.c"
BATCHES, BATCH_SIZE = 6, 2

READ = """
import sys
import zarr_dali
from nvidia.dali import Pipeline, fn

path, device, batches, batch_size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
pipe = Pipeline(batch_size=batch_size, num_threads=1, device_id=0 if device == "gpu" else None)
with pipe:
    pipe.set_outputs(fn.readers.zarr(path=path, device=device, decode=sys.argv[5], name="reader"))
pipe.build()
for _ in range(batches):
    pipe.run()
assert zarr_dali.stats(pipe)["chunks_decoded"] >= batches * batch_size
print("read", batches)
"""


@dataclass(frozen=True)
class Range:
    """A range that ended. Times are nanoseconds of one clock."""

    domain: str
    thread: str
    thread_id: int
    name: str
    payload: str
    begin: int
    end: int


@pytest.fixture(scope="module")
def consumer(tmp_path_factory):
    """The compiled library, for NVTX_INJECTION64_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the consumer has to be compiled, and there is no cc")
    headers = importlib.metadata.distribution("nvidia-nvtx").locate_file("nvidia/cu13/include")
    library = tmp_path_factory.mktemp("nvtx") / "consumer.so"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-pthread", *warnings, "-isystem", headers, "-o", library, CONSUMER],
        check=True,
    )
    return library


@pytest.fixture
def store(tmp_path, rng):
    """32 chunks that hold the same; returns the path and the encoded and decoded bytes of each."""
    chunk = rng.integers(0, 1000, (1, 64, 64)).astype("float32")
    path = write_array(tmp_path, "x", np.repeat(chunk, 32, axis=0), chunks=(1, 64, 64), codec="zstd")
    (encoded,) = {file.stat().st_size for file in chunk_files(path)}
    return path, encoded, chunk.nbytes


def watch(consumer, code, *arguments, output):
    """Runs a script with the consumer attached; returns the process and the ranges in order of their ends."""
    environment = {"NVTX_INJECTION64_PATH": str(consumer), "ZARR_DALI_TEST_NVTX_OUTPUT": str(output)}
    done = run_python(code, *arguments, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    ranges = []
    for line in output.read_text().splitlines() if output.exists() else []:
        domain, thread, thread_id, name, payload, begin, end = line.split("\t")
        ranges.append(Range(domain, thread, int(thread_id), name, payload, int(begin), int(end)))
    return done, ranges


def by_name(ranges):
    """The ranges of our domain, by name."""
    found = defaultdict(list)
    for each in ranges:
        if each.domain == "zarr_dali":
            found[each.name].append(each)
    return dict(found)


def test_the_consumer_sees_ranges(consumer, tmp_path):
    """Those of NVIDIA's Python package, which DALI needs: nested, overlapping, with and without domain."""
    _, ranges = watch(
        consumer,
        """
        import nvtx
        with nvtx.annotate("outer", domain="a", payload=5):
            with nvtx.annotate("inner", domain="b"):
                pass
            started = nvtx.start_range("started", domain="a", payload=2.5)
            with nvtx.annotate("plain"):
                nvtx.end_range(started)
        """,
        output=tmp_path / "ranges",
    )
    assert [(each.domain, each.name, each.payload) for each in ranges] == [
        ("b", "inner", "-"),
        ("a", "started", "2.5"),
        ("-", "plain", "-"),
        ("a", "outer", "5"),
    ]
    outer = ranges[-1]
    assert all(outer.begin <= each.begin <= each.end <= outer.end for each in ranges)


def test_ranges_on_the_cpu(consumer, store, tmp_path):
    """Each stage has its ranges on its own threads, with what the manual says as payload."""
    path, encoded, decoded = store
    done, ranges = watch(consumer, READ, path, "cpu", BATCHES, BATCH_SIZE, "auto", output=tmp_path / "ranges")
    assert done.stdout == f"read {BATCHES}\n"
    found = by_name(ranges)
    assert set(found) == {"plan", "fetch", "decode on the CPU", "wait for a batch"}

    assert {each.payload for each in found["fetch"]} == {str(encoded)}
    assert {each.payload for each in found["decode on the CPU"]} == {str(decoded)}
    for name in ("fetch", "decode on the CPU"):
        assert len(found[name]) >= BATCHES * BATCH_SIZE
        assert all(each.thread.startswith("zarr") for each in found[name])
    assert {each.thread for each in found["plan"]} == {"zarr planner"}

    for name in ("plan", "wait for a batch"):
        numbers = [int(each.payload) for each in found[name]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) >= BATCHES
    planned = {each.payload: each for each in found["plan"]}
    assert all(planned[each.payload].begin < each.end for each in found["wait for a batch"])
    assert not any(each.thread.startswith("zarr") for each in found["wait for a batch"])


def test_ranges_of_a_thread_do_not_overlap(consumer, store, tmp_path):
    """A thread reads, then decodes: what Nsight Systems shows in one row are times that can be added up."""
    _, ranges = watch(
        consumer, READ, store[0], "cpu", BATCHES, BATCH_SIZE, "auto", output=tmp_path / "ranges"
    )
    threads = defaultdict(list)
    for each in ranges:
        if each.domain == "zarr_dali":
            threads[each.thread_id].append(each)
    assert len(threads) >= 3  # the planner, at least one worker, and DALI's
    for own in threads.values():
        own.sort(key=lambda each: each.begin)
        assert all(earlier.end <= later.begin for earlier, later in pairwise(own))


@pytest.mark.gpu
@pytest.mark.parametrize("decode, stage", [("gpu", "decode on the GPU"), ("cpu", "decode on the CPU")])
def test_ranges_on_the_gpu(consumer, store, tmp_path, decode, stage):
    path, encoded, decoded = store
    _, ranges = watch(consumer, READ, path, "gpu", BATCHES, BATCH_SIZE, decode, output=tmp_path / "ranges")
    found = by_name(ranges)
    assert {"plan", "fetch", stage, "wait for a batch"} <= set(found)
    assert {each.payload for each in found["fetch"]} == {str(encoded)}
    if decode == "gpu":
        assert "decode on the CPU" not in found
        assert {each.thread for each in found[stage]} == {"zarr GPU worker"}
        assert sum(int(each.payload) for each in found[stage]) >= BATCHES * BATCH_SIZE
    else:
        assert {each.payload for each in found[stage]} == {str(decoded)}


def test_nothing_is_attached(store, tmp_path, monkeypatch):
    """Without a consumer the same script runs, and what the consumer would write is not there."""
    output = tmp_path / "ranges"
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    done = run_python(
        READ, store[0], "cpu", BATCHES, BATCH_SIZE, "auto", env={"ZARR_DALI_TEST_NVTX_OUTPUT": str(output)}
    )
    assert (done.returncode, done.stdout) == (0, f"read {BATCHES}\n"), done.stderr
    assert not output.exists()


def test_a_consumer_that_cannot_be_loaded(store, tmp_path):
    """A profiler that is gone leaves a reader that works."""
    gone = str(tmp_path / "gone.so")
    done = run_python(READ, store[0], "cpu", BATCHES, BATCH_SIZE, "auto", env={"NVTX_INJECTION64_PATH": gone})
    assert (done.returncode, done.stdout) == (0, f"read {BATCHES}\n"), done.stderr
