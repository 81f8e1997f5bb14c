"""Programs in a process that is forked from one that has imported DALI, PyTorch, xarray and dask.

A program has a `__main__`, a working folder and an environment of its own, but waits for no import: PyTorch and
DALI alone take three seconds of a processor. What the interpreter does behind the last line does not happen.
Programs that need a GPU, and tests about imports or about how an interpreter ends, want an interpreter of their
own: `reading.run_python`.
"""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from functools import lru_cache
from pathlib import Path

IMPORTED = ("dask.array", "xarray", "zarr", "torch", "nvidia.dali.plugin.pytorch", "zarr_dali.cli")
"""None of them may start a thread, which a forked process would lack."""


def run_script(code, name="<script>", first_line=1, **settings):
    """Runs Python code, of which errors say that it stands in `name`; returns the finished process."""
    return _run({"code": "\n" * (first_line - 1) + code, "name": name}, **settings)


def run_command(*words, **settings):
    """Runs `zarr-dali` with these arguments; returns the finished process."""
    return _run({"words": [str(word) for word in words]}, **settings)


def _run(program, environment=None, timeout=120):
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / "stdout", Path(folder) / "stderr"]
        request = {
            **program,
            "folder": os.getcwd(),
            "environment": {**os.environ, **(environment or {})},
            "timeout": timeout,
            "outputs": [str(file) for file in outputs],
        }
        server = _server()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = json.loads(server.stdout.readline())
        return subprocess.CompletedProcess(program, status, *(file.read_text() for file in outputs))


@lru_cache
def _server():
    """The process that programs are forked from."""
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # OpenBLAS would start threads as soon as NumPy is imported.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    atexit.register(server.communicate)
    return server


def _serve():
    """Forks a process for each request, one after the other, and answers with its exit status."""
    for module in IMPORTED:
        importlib.import_module(module)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"an import has started threads: there are {len(threads)}"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_work(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _work(request):
    """Runs the program of a request in this process; returns its exit status."""
    signal.alarm(request["timeout"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in zip((1, 2), request["outputs"]):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    sys.path.insert(0, "")
    try:
        if "code" in request:
            sys.argv = ["-c"]
            exec(compile(request["code"], request["name"], "exec"), main.__dict__)
        else:
            from zarr_dali import cli

            cli.main(request["words"], prog_name="zarr-dali")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve()
