"""`rechunk` and `statistics` by workers of dask.distributed: values, memory, kills."""

import fcntl
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from click.testing import CliRunner

from forked import start_script
from stores import FORMATS, chunk_files, write_array, write_group

if 3 not in FORMATS:
    pytest.skip("rechunk needs zarr-python 3", allow_module_level=True)
import zarr

import zarr_dali
from range_server import serving
from tiers import quick
from zarr_dali import cli
from zarr_dali._dask import cluster as clusters
from zarr_dali._dask import spreading, worker
from zarr_dali._rechunk import array_copy, cluster_copy, copying, fence, journal, lock
from zarr_dali._rechunk.failing import FinalError

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

pytestmark = pytest.mark.usefixtures("small_regions")

WORKERS, THREADS = 2, 2
NO_PORT = ":0"
"""Any port, so that clusters of other tests have theirs."""
ARGUMENTS = {"chunks": {"dim_0": 1}, "shards": {"dim_0": 4}, "codec": "zstd"}
SHAPE = (40, 6, 8)


@pytest.fixture(scope="module", autouse=True)
def forked_workers():
    """dask's workers are forked from a process that has imported what they need, which takes seconds."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        distributed.utils.get_mp_context().set_forkserver_preload(["distributed", "zarr_dali._dask.worker"])
        yield


@contextmanager
def two_workers():
    """Each is a process with two threads; one that is killed is started again."""
    with (
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=THREADS, dashboard_address=NO_PORT, memory_limit="3GB"
        ) as started,
        distributed.Client(started, set_as_default=False) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def client():
    with two_workers() as connected:
        yield connected


@pytest.fixture
def mortal():
    """Workers that no other test needs."""
    with two_workers() as connected:
        yield connected


@pytest.fixture
def source(tmp_path, rng):
    """Three arrays, one sharded, one of integers; parts are of the fill value."""
    folder = write_group(tmp_path / "source.zarr", zarr_format=3)
    values = rng.normal(size=SHAPE).astype("float32")
    values[8:14], values[20, 0, 0] = 0, np.nan
    write_array(folder, "t", values, chunks=(2, 6, 8), codec="zstd")
    write_array(folder, "u", values + 1, chunks=(2, 3, 8), shards=(4, 6, 8))
    write_array(folder, "n", np.nan_to_num(100 * values[:, 0]).astype("int16"), chunks=(7, 8), codec="gzip")
    return folder


def assert_copied(copy, source):
    wanted, found = (zarr.open_group(str(path), mode="r") for path in (source, copy))
    assert sorted(found.array_keys()) == sorted(wanted.array_keys())
    for name, array in wanted.arrays():
        assert np.array_equal(found[name][...].view("u1"), array[...].view("u1")), name
    assert not copying.partial_of(copy).exists()
    assert not list(copy.rglob("*.partial"))


def on_workers(client, work, *arguments):
    """What a function gives in each worker's process."""
    return list(client.run(work, *arguments).values())


def slow_down(seconds):
    """Each region takes longer in this process."""
    from zarr_dali._rechunk import array_copy

    copy = array_copy.ArrayCopy.copy

    def slowly(self, number):
        time.sleep(seconds)
        return copy(self, number)

    array_copy.ArrayCopy.copy = slowly


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.005)


# --- values ---------------------------------------------------------------------------------------


def test_the_copy_is_the_same(client, source, tmp_path):
    ticks = []
    one = zarr_dali.rechunk(
        source,
        tmp_path / "one.zarr",
        dask=client,
        verify=True,
        stats=True,
        progress=lambda *tick: ticks.append(tick),
        **ARGUMENTS,
    )
    other = zarr_dali.rechunk(source, tmp_path / "other.zarr", verify=True, stats=True, **ARGUMENTS)
    assert_copied(tmp_path / "one.zarr", source)
    assert one.statistics == other.statistics and one.checksums == other.checksums
    assert [what for what, _, _ in ticks] == sorted(what for what, _, _ in ticks)
    assert {what for what, _, _ in ticks} == {"copying", "verifying"} and ticks[-1][1] == ticks[-1][2]
    # Both workers have had a part in it.
    assert on_workers(client, lambda: len(worker._opened)) == [1] * WORKERS
    chunks = [
        {str(file.relative_to(copy)): file.stat().st_size for file in copy.rglob("c/**/*") if file.is_file()}
        for copy in (tmp_path / "one.zarr", tmp_path / "other.zarr")
    ]
    assert len(chunks[0]) > 20
    assert chunks[0] == chunks[1]


@pytest.mark.parametrize("by", quick([None, "dim_0", "dim_1"], "dim_1"))
def test_statistics_have_the_same_digits(client, source, tmp_path, by):
    output = tmp_path / "stats.json"
    found = zarr_dali.statistics(source, by=by, dask=client, output=output)
    assert found == zarr_dali.statistics(source, by=by)
    assert output.exists() and not output.with_name("stats.json.partial").exists()
    shutil.copytree(source, tmp_path / "second.zarr")
    both = [source, tmp_path / "second.zarr"]
    assert zarr_dali.statistics(both, "t", by=by, dask=client) == zarr_dali.statistics(both, "t", by=by)


def test_a_source_at_a_url(client, source, tmp_path):
    with serving(source.parent) as server:
        url = f"{server.url}/{source.name}/t"
        zarr_dali.rechunk(url, tmp_path / "copy.zarr", dask=client, **ARGUMENTS)
        assert zarr_dali.statistics(url, dask=client) == zarr_dali.statistics(url)
    found = zarr.open_array(str(tmp_path / "copy.zarr"), mode="r")[...]
    assert found.tobytes() == zarr.open_array(str(source / "t"), mode="r")[...].tobytes()


def test_the_commands(client, source, tmp_path):
    address, copy = client.scheduler.address, tmp_path / "copy.zarr"
    options = ["--dask", address, "--chunks", "dim_0=1", "--workers", "1", "--memory", "1MB"]
    done = CliRunner().invoke(cli.main, ["rechunk", str(source), str(copy), *options])
    assert done.exit_code == 0, done.output
    assert_copied(copy, source)
    done = CliRunner().invoke(cli.main, ["statistics", str(source), "--dask", address, "--json"])
    assert done.exit_code == 0 and '"mean"' in done.output, done.output


@pytest.mark.full
def test_a_local_cluster_and_a_file_of_a_scheduler(source, tmp_path):
    copy, file = tmp_path / "copy.zarr", tmp_path / "scheduler.json"
    zarr_dali.rechunk(source, copy, dask="local:2", **ARGUMENTS)
    assert_copied(copy, source)
    with distributed.LocalCluster(n_workers=1, dashboard_address=NO_PORT, processes=False) as started:
        started.scheduler.scheduler_file = str(file)
        import json

        file.write_text(json.dumps({"address": started.scheduler_address}))
        found = zarr_dali.statistics(source, dask=str(file))
        assert found == zarr_dali.statistics(source, dask=started) == zarr_dali.statistics(source)


# --- errors ---------------------------------------------------------------------------------------


def test_what_is_no_cluster(source, tmp_path, monkeypatch, client):
    copy = tmp_path / "copy.zarr"
    for given in ("4", "remote:4", 4, "host:8786"):
        with pytest.raises(ValueError, match=r"is no scheduler; give tcp://HOST:8786"):
            zarr_dali.rechunk(source, copy, dask=given)
    with pytest.raises(ValueError, match="has no workers"):
        zarr_dali.rechunk(source, copy, dask="local:0")
    text = r"there is no scheduler at tcp://127.0.0.1:9 .*start one"
    quickly = {"distributed.comm.timeouts.connect": "1s"}
    with dask.config.set(quickly), pytest.raises(RuntimeError, match=text):
        zarr_dali.statistics(source, dask="tcp://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"dask's worker tcp.* may take 3 GB in all; give less memory"):
        zarr_dali.rechunk(source, copy, dask=client, memory="4GB")
    with pytest.raises(ValueError, match="give one of them"):
        zarr_dali.rechunk(source, copy, dask=client, part="1/2")
    with pytest.raises(ValueError, match="workers: 0; it takes 1 at least"):
        zarr_dali.statistics(source, dask=client, workers=0)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r'pip install "zarr-dali\[dask\]"'):
        zarr_dali.rechunk(source, copy, dask="local:2")
    assert not copying.partial_of(copy).exists()


def test_a_damaged_chunk_is_named_and_the_rest_is_kept(client, source, tmp_path):
    copy, damaged = tmp_path / "copy.zarr", sorted(chunk_files(source / "n"))[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:20])
    words = r'array "n", dim_0=0:\d+, dim_1=0:8 of the source: .*stays in .*partial, resume=True goes on'
    with pytest.raises(RuntimeError, match=words):
        zarr_dali.rechunk(source, copy, dask=client, **ARGUMENTS)
    assert not (copying.partial_of(copy) / fence.NAME).exists()
    with pytest.raises(RuntimeError, match=r'source.zarr: array "n", dim_0=0:7'):
        zarr_dali.statistics(source, dask=client)
    damaged.write_bytes(whole)
    zarr_dali.rechunk(source, copy, resume=True, dask=client, **ARGUMENTS)
    assert_copied(copy, source)


def test_workers_that_see_something_else(source, tmp_path):
    """Another array under the same path, or no folder at all."""
    made = zarr_dali.rechunk(source, tmp_path / "copy.zarr", dry_run=True, **ARGUMENTS).plan
    from zarr_dali._rechunk.source import of

    partial = tmp_path / "copy.zarr.partial"
    sides = array_copy.Sides(of(source, None, True), partial / "store-0", False, False, False, True)
    root = zarr.open_group(str(source), mode="r")
    work = cluster_copy.CopyWork.of(made, sides, dict(root.arrays()))
    done, text = worker.run(pickle.dumps(work), "copy", "t", 0)
    assert not done and "is not there on a worker" in text and "file system that all machines share" in text
    partial.mkdir()
    assert "has ended" in worker.run(pickle.dumps(work), "copy", "t", 0)[1]
    fence.put(partial, work.run)
    (source / "n" / "zarr.json").write_text((source / "u" / "zarr.json").read_text())
    assert "n is another array there" in worker.run(pickle.dumps(work), "copy", "n", 0)[1]


def test_what_is_on_another_machine_is_brought_to_the_disk_there(client, source, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(journal, "sync_file_system", lambda descriptor: synced.append(descriptor))
    for other in (False, True):
        with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=NO_PORT) as started:
            if other:
                names = iter(["client's"])
                monkeypatch.setattr(cluster_copy, "kernel", lambda names=names: next(names, "worker's"))
            before = len(synced)
            zarr_dali.rechunk(source, tmp_path / f"{other}.zarr", dask=started, **ARGUMENTS)
        calls = len(synced) - before
        assert (calls > 30) == other  # once for each region, or now and then for all


# --- memory ---------------------------------------------------------------------------------------


def test_regions_share_the_memory_of_a_worker():
    draw = random.Random(1)

    class Work:
        memory = 100
        opened = 0

        def open(self):
            Work.opened += 1

        def decoding(self, chunks):
            return nullcontext()

    opened, used, most, seen = worker.Opened(Work()), [0], [0], set()
    guard = threading.Lock()

    def one(cost, decoding):
        with opened.room(cost, decoding):
            with guard:
                used[0] += cost
                most[0] = max(most[0], used[0])
                seen.add((opened._decoding, decoding))
            time.sleep(0.001)
            with guard:
                used[0] -= cost

    costs = [(draw.randint(1, 100), draw.randint(1, 2)) for _ in range(200)]
    threads = [
        threading.Thread(target=lambda part=part: [one(*cost) for cost in part])
        for part in np.array_split(costs, 8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Work.opened == 1 and used == [0] and 60 < most[0] <= 100
    assert seen == {(1, 1), (2, 2)}


@pytest.mark.full
@pytest.mark.alone
def test_memory_stays_under_its_bound_in_each_worker(tmp_path):
    """300 MB of values with a bound of 40 MB for each worker, beside what a copy of some regions takes."""
    values = np.random.default_rng(1).normal(size=(280, 256, 1024)).astype("float32")
    folder = write_array(tmp_path / "a.zarr", None, values, chunks=(2, 256, 1024), codec="zstd")
    memory = 40_000_000

    def peak():
        with open("/proc/self/status") as status:
            return 1024 * int(next(line for line in status if line.startswith("VmHWM:")).split()[1])

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=NO_PORT) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):
        arguments = {"chunks": {"dim_0": 1}, "shards": {"dim_0": 4}, "codec": "blosc-lz4", "memory": memory}
        zarr_dali.rechunk(folder, tmp_path / "0", dask=client, index_range={"dim_0": (0, 8)}, **arguments)
        zarr_dali.statistics(folder, dask=client, memory=memory, index_range={"dim_0": (0, 8)})
        before = on_workers(client, peak)
        done = zarr_dali.rechunk(folder, tmp_path / "1", dask=client, verify=True, stats=True, **arguments)
        (array,) = done.plan.arrays
        assert array.cut.workers * array.cut.memory <= memory and array.regions > 16
        zarr_dali.statistics(folder, dask=client, memory=memory)
        used = [after - base for after, base in zip(on_workers(client, peak), before)]
        assert max(used) < memory, f"{[f'{one / 1e6:.0f} MB' for one in used]}"


# --- the fence ------------------------------------------------------------------------------------


def test_only_the_workers_of_a_run_write(tmp_path, monkeypatch):
    fence.remove(tmp_path)
    with pytest.raises(FinalError, match="has ended"), fence.writing(tmp_path, "one"):
        pass
    fence.put(tmp_path, "one")
    with fence.writing(tmp_path, "one"), fence.writing(tmp_path, "one"):
        pass
    with pytest.raises(FinalError, match="another one has begun"), fence.writing(tmp_path, "two"):
        pass
    # Another run waits for a worker that writes, and no other one begins meanwhile.
    began, go = threading.Event(), threading.Event()

    def write():
        with fence.writing(tmp_path, "one"):
            began.set()
            go.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    began.wait(60)
    monkeypatch.setattr(lock, "TIMEOUT_S", 0.2)
    with pytest.raises(ValueError, match="workers of an earlier run are still writing"):
        fence.remove(tmp_path)
    go.set()
    thread.join()
    fence.remove(tmp_path)
    assert not (tmp_path / fence.NAME).exists()


def test_a_worker_that_opened_the_file_before_it_was_removed(tmp_path, monkeypatch):
    fence.put(tmp_path, "one")
    flock = fcntl.flock

    def late(descriptor, how):
        if how & fcntl.LOCK_SH:
            with monkeypatch.context() as patch:
                patch.setattr(fcntl, "flock", flock)
                fence.remove(tmp_path)
        return flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(FinalError, match="has ended"), fence.writing(tmp_path, "one"):
        pytest.fail("a worker writes without a run")


# --- kills ----------------------------------------------------------------------------------------


def killing(client, draw, times):
    """Kills workers at random moments; returns a function that ends it and says how many were."""
    ended, killed = threading.Event(), []

    def kill():
        while len(killed) < times and not ended.wait(draw.uniform(0.2, 0.8)):
            pids = on_workers(client, os.getpid)
            if pids:
                os.kill(draw.choice(pids), signal.SIGKILL)
                killed.append(True)

    thread = threading.Thread(target=kill)
    thread.start()

    def end():
        ended.set()
        thread.join()
        return len(killed)

    return end


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_workers_are_killed(mortal, source, tmp_path, seed):
    """A region of a worker that is gone is copied by another one."""
    mortal.run(slow_down, 0.1)
    end = killing(mortal, random.Random(seed), 2)
    try:
        done = zarr_dali.rechunk(
            source, tmp_path / "copy.zarr", dask=mortal, verify=True, stats=True, **ARGUMENTS
        )
    finally:
        killed = end()
    assert killed > 0
    assert_copied(tmp_path / "copy.zarr", source)
    other = zarr_dali.rechunk(source, tmp_path / "other.zarr", verify=True, stats=True, **ARGUMENTS)
    assert (done.checksums, done.statistics) == (other.checksums, other.statistics)


CLIENT = """
    import sys
    import zarr_dali
    from zarr_dali._rechunk import journal, regions
    journal.FLUSH_SECONDS = regions.REGION_BYTES = 0
    if sys.argv[1] == "rechunk":
        zarr_dali.rechunk(sys.argv[2], sys.argv[3], chunks={"dim_0": 1}, shards={"dim_0": 4}, codec="zstd",
                          stats=True, dask=sys.argv[4], resume=True)
    else:
        zarr_dali.statistics(sys.argv[2], output=sys.argv[3], dask=sys.argv[4], resume=True)
"""


def lines(partial):
    path = partial / journal.NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_after(count, what, source, copy, client, number):
    """A client in a process of its own, which ends when its journal has so many more lines."""
    partial = copying.partial_of(copy)
    enough = lines(partial) + count
    with start_script(CLIENT, what, source, copy, client.scheduler.address) as child:
        while lines(partial) < enough and child.poll() is None:
            time.sleep(0.002)
        child.send_signal(number)
        _, text = child.communicate()
    assert child.returncode == -number, text


@pytest.mark.full
def test_the_client_is_killed_and_another_one_resumes(mortal, source, tmp_path):
    """The workers of the first one may still be writing when the second one begins."""
    copy = tmp_path / "copy.zarr"
    mortal.run(slow_down, 0.05)
    for count in (5, 9):
        killed_after(count, "rechunk", source, copy, mortal, signal.SIGKILL)
        assert not copy.exists() and (copying.partial_of(copy) / fence.NAME).exists()
    done = zarr_dali.rechunk(source, copy, dask=mortal, resume=True, verify=True, stats=True, **ARGUMENTS)
    assert 0 < done.resumed_bytes < done.plan.bytes
    assert_copied(copy, source)
    other = zarr_dali.rechunk(source, tmp_path / "other.zarr", verify=True, stats=True, **ARGUMENTS)
    assert (done.checksums, done.statistics) == (other.checksums, other.statistics)


@pytest.mark.full
def test_statistics_of_a_client_that_is_killed(mortal, source, tmp_path):
    output = tmp_path / "stats.json"
    killed_after(8, "statistics", source, output, mortal, signal.SIGKILL)
    ticks = []
    found = zarr_dali.statistics(
        source, output=output, dask=mortal, resume=True, progress=lambda *tick: ticks.append(tick)
    )
    assert ticks[0][1] > 0 and found == zarr_dali.statistics(source)


def test_an_interrupted_client_leaves_no_writers(client, source, tmp_path):
    """Ctrl-C: what workers are at is waited for, and what is finished is kept."""
    copy = tmp_path / "copy.zarr"

    def stop(what, done, total):
        if done > total / 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zarr_dali.rechunk(source, copy, dask=client, progress=stop, **ARGUMENTS)
    assert not (copying.partial_of(copy) / fence.NAME).exists()
    wait_for(lambda: not any(client.processing().values()), 20)
    # Threads of this process go on with it.
    done = zarr_dali.rechunk(source, copy, resume=True, **ARGUMENTS)
    assert 0 < done.resumed_bytes < done.plan.bytes
    assert_copied(copy, source)


@pytest.mark.full
def test_ctrl_c_at_a_terminal(source, tmp_path):
    """All processes of the terminal get the signal; the command ends its workers, and says how to go on."""
    copy = tmp_path / "copy.zarr"
    code = """
    import sys
    from zarr_dali import cli
    from zarr_dali._rechunk import journal, regions
    journal.FLUSH_SECONDS = regions.REGION_BYTES = 0
    if __name__ == "__main__":
        cli.main(["rechunk", *sys.argv[1:], "--chunks", "dim_0=1", "--codec", "zstd:22", "--dask", "local:2"])
    """
    script = tmp_path / "command.py"
    script.write_text(textwrap.dedent(code))
    with subprocess.Popen(
        [sys.executable, script, source, copy], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as command:
        wait_for(lambda: lines(copying.partial_of(copy)) > 4 or command.poll() is not None, 120)
        os.killpg(command.pid, signal.SIGINT)
        _, text = command.communicate(timeout=120)
    if command.returncode == 0:  # it was quicker
        assert_copied(copy, source)
        return
    assert command.returncode == 130 and "--resume" in text and "Traceback" not in text, text
    done = zarr_dali.rechunk(source, copy, chunks={"dim_0": 1}, codec="zstd:22", resume=True)
    assert done.resumed_bytes > 0
    assert_copied(copy, source)


def test_a_cluster_without_workers_is_told_of(source, tmp_path, monkeypatch):
    monkeypatch.setattr(spreading, "_LOOK_S", 0.1)
    seen = []
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=NO_PORT) as started:

        def come(what, done, total):
            seen.append(what)
            if what.startswith("waiting") and len(started.workers) == 0:
                started.scale(1)

        zarr_dali.rechunk(source, tmp_path / "copy.zarr", dask=started, progress=come, **ARGUMENTS)
    assert "waiting for dask's workers" in seen
    assert_copied(tmp_path / "copy.zarr", source)


def test_workers_and_threads_decide_the_cut(client, source, tmp_path):
    with clusters.connected(client) as found:
        assert (found.workers, found.threads) == (WORKERS, THREADS)
        threads = found.at_once(None)
    assert (threads.workers, threads.processes, threads.decoding(1)) == (THREADS, WORKERS, THREADS)
    plan = zarr_dali.rechunk(source, tmp_path / "copy.zarr", dask=client, dry_run=True, **ARGUMENTS).plan
    assert {array.cut.workers for array in plan.arrays} == {THREADS}
    assert not copying.partial_of(tmp_path / "copy.zarr").exists()


@pytest.mark.full
def test_the_scheduler_goes_away(source, tmp_path):
    """An error within a minute, and what is finished is kept."""
    copy = tmp_path / "copy.zarr"
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=NO_PORT) as started:
        client = distributed.Client(started, set_as_default=False, timeout="2s")

        def stop(what, done, total):
            if done > total / 3:
                started.close()

        with pytest.raises(
            RuntimeError, match=r"dask: the scheduler .*stays in .*partial, resume=True goes on"
        ):
            zarr_dali.rechunk(source, copy, dask=client, progress=stop, **ARGUMENTS)
        client.close(timeout=1)
    done = zarr_dali.rechunk(source, copy, resume=True, **ARGUMENTS)
    assert done.resumed_bytes > 0
    assert_copied(copy, source)


@pytest.mark.full
def test_workers_that_end_over_the_same_region(source, tmp_path):
    """dask gives up after some, and the command with it."""

    class Deadly(distributed.WorkerPlugin):
        def setup(self, worker):
            from zarr_dali._rechunk import array_copy

            copy = array_copy.ArrayCopy.copy

            def deadly(self, number):
                if self.plan.name == "u" and number == 3:
                    os._exit(1)
                return copy(self, number)

            array_copy.ArrayCopy.copy = deadly

    copy = tmp_path / "copy.zarr"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=NO_PORT) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):
        client.register_plugin(Deadly())
        text = r"workers ended one after the other.*look at their logs.*resume=True goes on"
        with pytest.raises(RuntimeError, match=text):
            zarr_dali.rechunk(source, copy, dask=client, **ARGUMENTS)
    assert zarr_dali.rechunk(source, copy, resume=True, **ARGUMENTS).resumed_bytes > 0
    assert_copied(copy, source)


class Counted:
    """A work of `regions` that notes how much memory all works of this process use at once."""

    memory = 100
    used = most = 0
    lock = threading.Lock()

    def __init__(self, name):
        self.name = name

    def open(self):
        pass

    def cost(self, name):
        return 60, 1

    def decoding(self, chunks):
        return nullcontext()

    def do(self, what, name, number):
        with Counted.lock:
            Counted.used += 60
            Counted.most = max(Counted.most, Counted.used)
        time.sleep(0.005)
        with Counted.lock:
            Counted.used -= 60
        return number

    def explained(self, error, name, number):
        return RuntimeError(str(error))


def test_works_of_two_runs_do_not_use_the_memory_of_a_process_twice():
    """Regions of 60 of 100 bytes, of two works in turn, from eight threads."""
    works = [pickle.dumps(Counted(name)) for name in ("one", "other")]
    found = []

    def regions_of(number):
        for region in range(20):
            found.append(worker.run(works[(number + region) % 2], "copy", "a", region) == (True, region))

    threads = [threading.Thread(target=regions_of, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(found) == 160 and all(found)
    assert Counted.most == 60 and len(worker._opened) == 1
