"""Pipelines that read from slow servers: destroyed, interrupted and forked with requests in flight."""

import gc
import json
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarr_dali
from fault_server import Fault, Schedule, running
from range_server import serving
from reading import CPU, build
from stores import FORMATS
from test_fork import assert_refused
from test_fork import run as run_and_fork
from test_life import LOOP, PROMPT_S, interrupted

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

LATENCY_S = 1.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder whose store has 2,000 chunks, of one step each."""
    root = tmp_path_factory.mktemp("root")
    data = np.arange(4000, dtype="f4").reshape(2000, 2)
    zarr.create_array(store=root / "n.zarr", data=data, chunks=(1, 2), compressors=None)
    return root


def network_threads():
    comms = [task / "comm" for task in Path("/proc/self/task").iterdir()]
    return [name for name in (comm.read_text().strip() for comm in comms) if name.startswith("zarr")]


def destroyed_in(pipe):
    """Seconds; takes a list, so that the caller holds nothing."""
    began = time.monotonic()
    pipe.clear()
    gc.collect()
    return time.monotonic() - began


def with_requests_in_flight(url, how_many, **arguments):
    """A pipeline in a list, whose reader has that many requests in flight."""
    before = network_threads()
    pipe = build(CPU, url, prefetch_queue_depth=8, pipeline={"prefetch_queue_depth": 1}, **arguments)
    pipe.schedule_run()
    end = time.monotonic() + 30
    while zarr_dali.stats(pipe, "reader")["requests_in_flight"] < how_many:
        assert time.monotonic() < end, zarr_dali.stats(pipe, "reader")
        time.sleep(0.01)
    assert len(network_threads()) > len(before)
    return [pipe]


@pytest.mark.alone
@pytest.mark.parametrize("batch_size", [1, 128])
def test_destroyed_with_256_requests_in_flight(root, batch_size):
    """It goes when the batch is there that DALI waits for, whatever else is on its way."""
    before = network_threads()
    with serving(root, latency_s=LATENCY_S) as server:
        in_flight = min(256, 8 * batch_size)
        pipe = with_requests_in_flight(f"{server.url}/n.zarr", in_flight, batch_size=batch_size)
        assert destroyed_in(pipe) < LATENCY_S + PROMPT_S
    assert network_threads() == before


@pytest.mark.alone
def test_destroyed_while_a_server_hangs(root):
    """It goes when the time is up that `storage_options` give a store to answer."""
    options = {"read_timeout": "1s", "retry_config": {"max_retries": 1, "retry_timeout": "1s"}}
    schedule = Schedule(str(root), faults=[Fault("hang")])
    with running() as server, server.schedule("hangs", schedule) as (url, came):
        pipe = with_requests_in_flight(
            f"{url}/n.zarr", 256, batch_size=64, storage_options=json.dumps(options)
        )
        assert destroyed_in(pipe) < 4 + PROMPT_S
    assert came["faults"]["hang"] >= 256


@pytest.mark.alone
def test_interrupted_with_requests_in_flight(root):
    """Ctrl-C ends a process that reads from a slow server, with its threads."""
    with serving(root, latency_s=LATENCY_S / 2) as server:
        gone, ended = interrupted(LOOP, f"{server.url}/n.zarr", 128, wait=1.2)
    assert gone < LATENCY_S + PROMPT_S and ended < LATENCY_S + PROMPT_S


@pytest.mark.full
def test_forked_with_requests_in_flight(root):
    """The child cannot use what its parent has and reads with a pipeline of its own; the parent reads on."""
    with serving(root, latency_s=0.2) as server:
        lines = run_and_fork(
            CPU,
            f"{server.url}/n.zarr",
            """
old, ran = built(), 0
while ran == 0 or zarr_dali.stats(old, "reader")["requests_in_flight"] == 0:
    old.run()
    ran += 1

def child():
    attempt("old", lambda: first(old.run()))
    new = built()
    attempt("new", lambda: first(new.run()))

fork_and(child)
attempt("parent", lambda: first(old.run()) - 8 * ran)
""",
        )
    assert_refused(lines, ["old"])
    assert ("new", "gave", "0") in lines
    assert ("parent", "gave", "0") in lines
