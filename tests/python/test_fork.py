"""Readers in forked processes: what was built before the fork raises, and nothing hangs.

Each case runs in an interpreter of its own. Its child says what it got and ends as an interpreter does, with
atexit and destructors; one that has not ended after 20 seconds is killed, which its status shows.
"""

import numpy as np
import pytest

from reading import DALI_2_0, run_python
from stores import write_array

PARENT = """
import os, sys, threading
import numpy as np
import zarr_dali
from nvidia.dali import Pipeline, fn
import nvidia.dali.experimental.dynamic as ndd
from nvidia.dali.plugin.pytorch import DALIGenericIterator

path, device = sys.argv[1:3]
device_id = 0 if device == "gpu" else None

def define(device=device, device_id=device_id, reader=fn.readers.zarr, **settings):
    pipe = Pipeline(batch_size=4, num_threads=2, device_id=device_id, **settings)
    with pipe:
        pipe.set_outputs(reader(path=path, device=device, name="reader"))
    return pipe

def built(**settings):
    pipe = define(**settings)
    pipe.build()
    return pipe

def first(outputs):
    output = outputs[0].as_cpu() if hasattr(outputs[0], "as_cpu") else outputs[0]
    return int(np.array(output.at(0)).ravel()[0])

def attempt(what, use):
    try:
        print(what, "gave", use(), flush=True)
    except RuntimeError as error:
        print(what, "raised", str(error).replace("\\n", " "), flush=True)

def fork_and(child):
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        child()
        print("child left", flush=True)
        sys.exit(0)
    timer = threading.Timer(20, os.kill, (process, 9))
    timer.start()
    status = os.waitpid(process, 0)[1]
    timer.cancel()
    print("child ended", status, flush=True)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    store = tmp_path_factory.mktemp("fork") / "n.zarr"
    write_array(store, "", np.arange(40.0).reshape(20, 2), chunks=(4, 2))
    return store


def run(backend, path, code):
    """What parent and child print, as (subject, verb, rest); the child has to end well."""
    done = run_python(PARENT + code, path, backend.device, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    lines = [tuple(line.split(" ", 2)) for line in done.stdout.splitlines()]
    # Behind the last line of a child DALI frees the parent's GPU memory, which ends the process by itself.
    ends = ["0"] if backend.device == "cpu" else ["0", "6"]
    assert ("child", "left") in lines, done.stdout + done.stderr
    assert any(("child", "ended", end) in lines for end in ends), done.stdout + done.stderr
    return lines


def assert_refused(lines, subjects):
    """Each of the subjects raised, and said what to do instead."""
    found = {line[0]: line for line in lines}
    for subject in subjects:
        assert found[subject][1] == "raised", found[subject]
        assert "fork" in found[subject][2] and "spawn" in found[subject][2], found[subject]


@pytest.mark.parametrize("dynamic", [True, pytest.param(False, marks=pytest.mark.full)])
def test_pipelines_of_the_parent(backend, path, dynamic):
    """Every use raises at once in the child, whatever the pipeline has done; the parent goes on."""
    lines = run(
        backend,
        path,
        f"""
pipes = {{
    "built": built(exec_dynamic={dynamic}),
    "ran": built(exec_dynamic={dynamic}),
    "alias": built(exec_dynamic={dynamic}, reader=fn.zarr_reader),
    "checkpointed": built(exec_dynamic={dynamic}, enable_checkpointing=True),
    "deserialized": Pipeline.deserialize(define().serialize()),
}}
pipes["ran"].run()
fresh, scheduled = built(exec_dynamic={dynamic}), built(exec_dynamic={dynamic})
scheduled.schedule_run()
iterator = DALIGenericIterator([built(exec_dynamic={dynamic})], ["x"], reader_name="reader")
started = DALIGenericIterator([built(exec_dynamic={dynamic})], ["x"], reader_name="reader")
next(started)

def child():
    for name, pipe in pipes.items():
        attempt(name, lambda: first(pipe.run()))
    attempt("schedule_run", fresh.schedule_run)
    attempt("share_outputs", scheduled.share_outputs)
    attempt("outputs", scheduled.outputs)
    attempt("release_outputs", scheduled.release_outputs)
    attempt("reader_meta", pipes["ran"].reader_meta)
    attempt("checkpoint", pipes["checkpointed"].checkpoint)
    attempt("stats", lambda: zarr_dali.stats(pipes["ran"]))
    attempt("iterator", lambda: next(iterator))
    attempt("started", lambda: list(started))
    del pipes["built"]

fork_and(child)
attempt("parent-ran", lambda: first(pipes["ran"].run()))
attempt("parent-iterator", lambda: int(next(iterator)[0]["x"][0, 0]))
""",
    )
    assert_refused(
        lines,
        [
            *("built", "ran", "alias", "checkpointed", "deserialized"),
            *("schedule_run", "share_outputs", "outputs", "release_outputs", "reader_meta", "checkpoint"),
            *("stats", "iterator", "started"),
        ],
    )
    assert ("parent-ran", "gave", "8") in lines
    assert ("parent-iterator", "gave", "0") in lines


@pytest.mark.full
def test_pipelines_of_the_child(backend, path):
    """Beside a running pipeline of the parent the child builds its own on the CPU, as its own children do."""
    lines = run(
        backend,
        path,
        """
old, later = built(), define(device="cpu", device_id=None)
old.run()

def grandchild():
    attempt("old", lambda: first(old.run()))
    attempt("forked-twice", lambda: first(own.run()))
    attempt("own-of-grandchild", lambda: [first(built(device="cpu", device_id=None).run()) for _ in range(3)])

def child():
    global own
    own = built(device="cpu", device_id=None)
    attempt("own", lambda: [first(own.run()) for _ in range(3)])
    attempt("later", lambda: first(later.run()))
    own_iterator = DALIGenericIterator(
        [built(device="cpu", device_id=None)], ["x"], reader_name="reader", auto_reset=True
    )
    attempt("own-iterator", lambda: [int(batch["x"][0, 0]) for _ in range(2) for (batch,) in own_iterator])
    fork_and(grandchild)

fork_and(child)
""",
    )
    assert_refused(lines, ["old", "forked-twice"])
    assert ("own", "gave", "[0, 8, 16]") in lines
    assert ("own-of-grandchild", "gave", "[0, 0, 0]") in lines
    assert ("later", "gave", "0") in lines
    assert ("own-iterator", "gave", "[0, 8, 16, 24, 32, 0, 8, 16, 24, 32]") in lines
    assert sum(line[:2] == ("child", "ended") for line in lines) == 2


@pytest.mark.full
def test_readers_of_dynamic_mode(backend, path):
    """One that has begun raises in the child; a new one works there."""
    if DALI_2_0 and backend.device == "gpu":
        pytest.skip("dynamic mode of DALI 2.0 asks CUDA in the child, which ends it with SIGSEGV")
    lines = run(
        backend,
        path,
        """
def batches(reader):
    return (int(np.asarray(batch.cpu().tensors[0])[0]) for (batch,) in reader.next_epoch(batch_size=4))

reader = ndd.readers.Zarr(path=path, device=device)
begun = batches(reader)
attempt("parent", lambda: next(begun))

def child():
    attempt("begun", lambda: next(begun))
    attempt("again", lambda: list(batches(reader)))
    attempt("new", lambda: list(batches(ndd.readers.Zarr(path=path, device="cpu"))))

fork_and(child)
""",
    )
    assert ("parent", "gave", "0") in lines
    if backend.device == "cpu":
        assert_refused(lines, ["begun", "again"])
        assert ("new", "gave", "[0, 8, 16, 24, 32]") in lines
    else:  # Dynamic mode asks CUDA before it asks the reader, and CUDA refuses.
        assert {"begun", "again", "new"} <= {line[0] for line in lines if line[1] == "raised"}


@pytest.mark.full
@pytest.mark.gpu_where(False)
def test_other_pipelines_are_left_alone(backend, path, tmp_path):
    """Pipelines without a Zarr reader keep what DALI gave them."""
    np.save(tmp_path / "0.npy", np.arange(3))
    lines = run(
        backend,
        path,
        f"""
other = Pipeline(batch_size=1, num_threads=1, device_id=None)
with other:
    other.set_outputs(fn.readers.numpy(files=[{str(tmp_path / "0.npy")!r}], name="reader"))
other.build()
kept, zarr = other._pipe, built()

def child():
    attempt("numpy", lambda: other._pipe is kept)
    attempt("zarr", lambda: zarr.reader_meta("reader"))
    print("child left", flush=True)
    os._exit(0)  # DALI itself would wait for ever

fork_and(child)
""",
    )
    assert ("numpy", "gave", "True") in lines
    assert_refused(lines, ["zarr"])


@pytest.mark.full
@pytest.mark.gpu_where(False)
def test_workers_of_a_torch_data_loader(backend, path):
    """A data set that runs a pipeline of the parent gets the error in its worker, and the loader ends."""
    lines = run(
        backend,
        path,
        """
import torch.utils.data

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, row):
        try:
            return first(pipe.run())
        except RuntimeError as error:
            return str(error)

pipe = built()
pipe.run()
loader = torch.utils.data.DataLoader(
    Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork"
)
for number, text in enumerate(loader):
    print(f"row{number} raised", text, flush=True)
attempt("parent", lambda: first(pipe.run()))
fork_and(lambda: None)
""",
    )
    assert_refused(lines, ["row0", "row1"])
    assert ("parent", "gave", "8") in lines
