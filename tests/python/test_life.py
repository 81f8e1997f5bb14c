"""Building, using and destroying readers: nothing is left behind, nothing grows, everything stops at once.

A short run of `../life.py`, batches that outlive what made them, Ctrl-C, and ends in the middle of work.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch.utils.dlpack
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from reading import CPU, GPU, assert_same_bits, build, define, to_samples
from stores import chunk_files, out_of_page_cache, read_array, write_array, write_group

sys.path.insert(0, str(Path(__file__).parents[1]))
import life
from life import MIB, Held, Part

pytestmark = pytest.mark.alone

PROMPT_S = 1.0
"""What has to end ends within this time."""

# --- the tool -------------------------------------------------------------------------------------


@pytest.mark.full
def test_nothing_grows(backend):
    """A short run of the tool: every line is printed and nothing grew behind the warm-up."""
    # On a GPU 2 MiB are taken at a time in some of the first epochs, and hardly anything later: probably when
    # a lane's second stream is first used.
    builds, epochs, readers = (60, 40, 2) if backend is GPU else (160, 10, 3)
    done = subprocess.run(
        [sys.executable, life.__file__, "--device", backend.device]
        + ["--builds", str(builds), "--epochs", str(epochs), "--readers", str(readers)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "flat"
    for head in (f"{builds} builds", f"{epochs} epochs of 1 reader", f"{epochs} epochs of {readers} readers"):
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{head} ")]
        assert [line.split("  ")[0] for line in lines[at + 1 : at + 3]] == [
            "before",
            f"after {max(1, int(head.split()[0]) // 10)}",
        ]
        figures = "3" if backend is CPU else "4"
        assert all(
            re.search(rf"(\s+[\d.]+){{{figures}}}$", line) and not re.search(r"[a-z]$", line)
            for line in lines[at + 1 : at + 12]
        )


@pytest.mark.parametrize(
    "what, by, words",
    [
        ("threads", 1, "threads grew from 10 to 11"),
        ("files", 2, "files grew from 20 to 22"),
        ("resident_bytes", 4 * MIB, "resident memory grew from 100.0 to 104.0 MiB"),
        ("device_bytes", 40 * MIB, "device memory grew from 500.0 to 540.0 MiB"),
    ],
)
def test_growth_is_noticed(monkeypatch, what, by, words):
    """Of each figure, and only behind the warm-up; a peak on the way and little ups and downs are none."""

    def part(*growths):
        start = {"resident_bytes": 100 * MIB, "threads": 10, "files": 20, "device_bytes": 500 * MIB}
        return Part("builds", [Held(**(start | {what: start[what] + growth})) for growth in growths])

    # Where tests run side by side, growth of device memory says nothing.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (line,) = part(-by, *[0] * 7, by, by, by).growth()
    assert line.startswith(f"builds: {words}")
    assert part(-by, *[0] * 10).growth() == []
    assert part(0, 0, 0, 0, 5 * by, *[0] * 6).growth() == []
    assert part(0, *[by] * 10).growth() == []


# --- what outlives a reader -----------------------------------------------------------------------

STEPS = 40


@pytest.fixture
def store(cached_store):
    """40 steps of field [64, 33], five a chunk; mask [64, 33] without the first dimension."""

    def write(path):
        rng = np.random.default_rng(2)
        write_group(path)
        names = ("time", "y", "x")
        field = rng.random((STEPS, 64, 33), "float32")
        write_array(path, "field", field, chunks=(5, 64, 33), dimension_names=names)
        write_array(path, "mask", rng.random((64, 33)) < 0.5, chunks=(64, 33), dimension_names=names[1:])

    return cached_store("life", write)


def test_batches_outlive_everything(backend, store):
    """Outputs, views and tensors stay what they were when reader, pipeline and iterator are gone.

    Other readers run meanwhile and would overwrite whatever was given back too early.
    """
    field, mask = read_array(store, "field"), read_array(store, "mask")
    arguments = {"arrays": ["field", "mask"], "batch_size": 4, "prefetch_queue_depth": 3}
    pipe = build(backend, store, **arguments)
    outputs = [pipe.run() for _ in range(10)]
    views = [np.asarray(output[0][1]) for output in outputs] if backend is CPU else []
    exported = [torch.utils.dlpack.from_dlpack(output[0].as_tensor()) for output in outputs]
    del pipe
    it = DALIGenericIterator([define(backend, store, **arguments)], ["field", "mask"], reader_name="reader")
    tensors = [batch[0] for batch in it]
    del it
    gc.collect()
    for _ in range(2):
        other = build(backend, store, **(arguments | {"random_shuffle": True}))
        for _ in range(20):
            other.run()
        del other
        gc.collect()
    for number, output in enumerate(outputs):
        expected = field[4 * number : 4 * number + 4]
        assert_same_bits(np.stack(to_samples(output[0])), expected)
        assert_same_bits(exported[number].cpu().numpy(), expected)
        assert_same_bits(tensors[number]["field"].cpu().numpy(), expected)
        assert (tensors[number]["mask"].cpu().numpy() == mask).all()
        assert all((sample == mask).all() for sample in to_samples(output[1]))
    for number, view in enumerate(views):
        assert_same_bits(view, field[4 * number + 1])


FILES = textwrap.dedent(
    """
    import resource, sys
    from concurrent.futures import ThreadPoolExecutor
    from nvidia.dali import Pipeline
    import zarr_dali
    from nvidia.dali import fn

    store, readers, count, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    pipes = []
    for seed in range(readers):
        pipe = Pipeline(batch_size=100, num_threads=1, device_id=None, prefetch_queue_depth=8)
        with pipe:
            values = fn.readers.zarr(
                path=store, device="cpu", random_shuffle=True, seed=seed,
                num_io_threads=16, num_decode_threads=16,
            )
            pipe.set_outputs(values)
        pipe.build()
        pipes.append(pipe)
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(lambda pipe: [pipe.run() and None for _ in range(count // 100)], pipes))
    print(sum(zarr_dali.stats(pipe)["chunks_prefetched"] for pipe in pipes))
    """
)


@pytest.mark.full
def test_small_cold_files_do_not_use_up_what_may_be_open(tmp_path):
    """Chunks that are announced hold files open: few of those that all readers of a process may have."""
    count, limit = 4000, 256
    values = np.arange(count * 512, dtype="float32").reshape(count, 512)
    store = write_array(tmp_path, "values", values, chunks=(1, 512), codec="raw")
    out_of_page_cache(chunk_files(store))
    done = subprocess.run(
        [sys.executable, "-c", FILES, str(store), "2", str(count), str(limit)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > limit


def test_no_thread_is_left(backend, store):
    """Destroying a pipeline ends its threads before it returns, in whatever state it was."""

    def names():
        tasks = Path("/proc/self/task").iterdir()
        return sorted(
            name for task in tasks if (name := (task / "comm").read_text().strip()).startswith("zarr")
        )

    gc.collect()
    before = names()
    for runs in (0, 1, 3, 30):
        pipe = build(backend, store, arrays=["field"], batch_size=4, num_io_threads=3, random_shuffle=True)
        for _ in range(runs):
            pipe.run()
        if runs:
            assert len(names()) >= len(before) + 3
        del pipe
        gc.collect()
        assert names() == before, runs


# --- stopping -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow_store(tmp_path_factory):
    """128 chunks that take a CPU about a twentieth of a second each: bz2, one block after the other."""
    path = tmp_path_factory.mktemp("slow") / "slow.zarr"
    values = np.random.default_rng(3).integers(0, 250, 1 << 19, dtype="uint8")
    write_array(path, "", np.stack([values] * 2), chunks=(1, 1 << 19), codec="bz2", zarr_format=2)
    metadata = path / ".zarray"
    metadata.write_text(metadata.read_text().replace("2,", "128,", 1))
    for step in range(2, 128):
        os.link(path / "0.0", path / f"{step}.0")
    return path


PROLOGUE = """
    import gc, pathlib, signal, time
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def end():
        gc.collect()
        tasks = pathlib.Path("/proc/self/task").iterdir()
        assert not [task for task in tasks if (task / "comm").read_text().startswith("zarr")]
        print(time.monotonic())
        raise KeyboardInterrupt
"""


def interrupted(code, *arguments, wait):
    """Runs a script and sends SIGINT `wait` seconds after its line "go".

    Returns:
        Seconds until its reader was gone, if the script ends with `end()` once nothing holds it any more,
        else None; seconds until the process ended.
    """
    process = subprocess.Popen(
        # A shell's background job ignores SIGINT, and so would its child.
        [
            sys.executable,
            "-c",
            textwrap.dedent(PROLOGUE) + textwrap.dedent(code),
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
            ),
        },
    )
    try:
        assert process.stdout.readline() == "go\n", process.communicate()[1]
        time.sleep(wait)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        told, stderr = process.communicate(timeout=60)
        ended = time.monotonic() - sent
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT, stderr
    assert "KeyboardInterrupt" in stderr
    # The clock is the same for all processes.
    return float(told) - sent if told else None, ended


LOOP = """
    import sys
    from reading import CPU, build
    path, batch_size = sys.argv[1:]
    pipe = build(CPU, path, batch_size=int(batch_size), num_io_threads=2, random_shuffle=True)
    print("go", flush=True)
    try:
        while True:
            pipe.run()
    except KeyboardInterrupt:
        pass
    del pipe
    end()
"""
ITERATOR = """
    import sys
    from nvidia.dali.plugin.pytorch import DALIGenericIterator
    from reading import CPU, define
    path, batch_size = sys.argv[1:]
    pipe = define(CPU, path, batch_size=int(batch_size), num_io_threads=2)
    it = DALIGenericIterator([pipe], ["x"], reader_name="reader", auto_reset=True, prepare_first_batch=False)
    print("go", flush=True)
    try:
        while True:
            for batch in it:
                pass
    except KeyboardInterrupt:
        pass
    it = pipe = batch = None
    end()
"""


IDLE = """
    from nvidia.dali.plugin.pytorch import DALIGenericIterator
    import reading
    print("go", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "script",
    [pytest.param(LOOP, id="pipeline"), pytest.param(ITERATOR, id="iterator", marks=pytest.mark.full)],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_interrupt(slow_store, batch_size, script):
    """Ctrl-C in a loop over slow batches. DALI waits for a whole batch before Python sees the signal."""
    gone, ended = interrupted(script, slow_store, batch_size, wait=0.5)
    assert gone < PROMPT_S
    # What a process takes to end that has the same modules and no reader is not the reader's: with PyTorch
    # most of a second.
    idle = interrupted(IDLE, wait=0.1)[1] if script is ITERATOR else 0.0
    assert ended < PROMPT_S + idle


BUILDS = """
    import sys
    from reading import CPU, build
    build(CPU, sys.argv[2])
    print("go", flush=True)
    while True:
        build(CPU, sys.argv[1])
"""


def test_interrupt_of_a_build(slow_store, tmp_path):
    """Ctrl-C while the metadata of some thousand joined stores are read."""
    text = (slow_store / ".zarray").read_text()
    for part in range(4000):
        (tmp_path / "many" / f"{part:04}").mkdir(parents=True)
        (tmp_path / "many" / f"{part:04}" / ".zarray").write_text(text)
    assert interrupted(BUILDS, f"{tmp_path}/many/*", slow_store, wait=0.05)[1] < PROMPT_S


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_destroyed_in_the_middle(backend, slow_store, batch_size):
    """With many seconds' worth of chunks on the way, it goes as soon as DALI has the batch it waits for."""
    pipe = build(backend, slow_store, batch_size=batch_size, num_io_threads=2, prefetch_queue_depth=8)
    pipe.schedule_run()
    time.sleep(0.3)
    start = time.monotonic()
    del pipe
    gc.collect()
    assert time.monotonic() - start < PROMPT_S


def test_destroyed_while_it_reads_ahead(backend, store):
    """The same with fast chunks, on both backends, at moments that differ by milliseconds."""
    for wait in range(0, 30, 3):
        pipe = build(backend, store, arrays=["field"], batch_size=8, random_shuffle=True)
        pipe.schedule_run()
        time.sleep(wait / 1000)
        start = time.monotonic()
        del pipe
        gc.collect()
        assert time.monotonic() - start < PROMPT_S
