"""Programs in processes that are forked from one that has imported DALI, PyTorch, xarray and dask.

A program has a `__main__`, a working folder and an environment of its own, but waits for no import: PyTorch
and DALI alone take three seconds of a processor. What the interpreter does behind the last line is left out.
Programs that need a GPU, and tests about imports or about how an interpreter ends, want an interpreter of
their own: `reading.run_python`.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from functools import lru_cache
from pathlib import Path

IMPORTED = ("dask.array", "xarray", "zarr", "torch", "nvidia.dali.plugin.pytorch", "zarr_dali.cli")
"""None of them may start a thread, which a forked process would lack."""


class Forked:
    """A program that runs. Has of `subprocess.Popen` what tests use, and ends as a context does."""

    def __init__(self, program, environment=None, timeout=120, folder=None):
        """Starts a program in this folder. If it runs on after `timeout` seconds, SIGALRM ends it."""
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self.returncode = None
        self.pid = _asked(
            {
                **program,
                "folder": str(folder or os.getcwd()),
                "environment": {**os.environ, **(environment or {})},
                "timeout": timeout,
                "outputs": [str(file) for file in self._outputs],
            }
        )

    def wait(self):
        if self.returncode is None:
            self.returncode = _asked({"wait": self.pid})
        return self.returncode

    def poll(self):
        """Its exit status if it has ended, else None."""
        if self.returncode is None:
            self.returncode = _asked({"poll": self.pid})
        return self.returncode

    def communicate(self):
        """Waits for its end; what it has printed, and its errors."""
        self.wait()
        return tuple(file.read_text() for file in self._outputs)

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._folder.cleanup()


def start_script(code, *arguments, name="<script>", first_line=1, **settings):
    """Starts Python code, of which errors say that it stands in `name`."""
    code = "\n" * (first_line - 1) + textwrap.dedent(code)
    return Forked({"code": code, "name": name, "words": [*map(str, arguments)]}, **settings)


def run_script(code, *arguments, **settings):
    """Runs Python code; returns the finished process."""
    return finished(start_script(code, *arguments, **settings))


def start_program(path, *arguments, imports=(), **settings):
    """Starts a program of a file. It finds these modules imported, as programs after it do."""
    _asked({"import": imports})
    return Forked({"program": str(path), "words": [*map(str, arguments)]}, **settings)


def run_program(path, *arguments, **settings):
    """Runs a program of a file; returns the finished process."""
    return finished(start_program(path, *arguments, **settings))


def run_command(*words, **settings):
    """Runs `zarr-dali` with these arguments; returns the finished process."""
    return finished(Forked({"words": [*map(str, words)]}, **settings))


def finished(forked):
    """Waits for a program that was started; returns the finished process."""
    with forked:
        printed, errors = forked.communicate()
    return subprocess.CompletedProcess(["forked"], forked.returncode, printed, errors)


def _asked(request):
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@lru_cache
def _server():
    """The process that programs are forked from."""
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # OpenBLAS would start threads as soon as NumPy is imported, and pyarrow's allocator one with pandas.
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        },
    )
    atexit.register(server.communicate)
    return server


def _serve():
    """Answers requests, one a line: for a program the number of its process, for that its exit status."""
    _import(IMPORTED)
    for line in sys.stdin:
        request = json.loads(line)
        if "import" in request:
            _import(request["import"])
            print("null", flush=True)
        elif "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        elif "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            print(os.waitstatus_to_exitcode(status) if ended else "null", flush=True)
        elif (child := os.fork()) == 0:
            os._exit(_work(request))
        else:
            print(child, flush=True)


def _import(modules):
    """Imports what programs need, once."""
    if all(module in sys.modules for module in modules):
        return
    for module in modules:
        importlib.import_module(module)
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"importing {module} has started threads: there are {threads}"
    gc.collect()
    gc.freeze()  # what a collection would write to need not be copied


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
            sys.argv = ["-c", *request["words"]]
            exec(compile(request["code"], request["name"], "exec"), main.__dict__)
        elif "program" in request:
            main.__file__ = path = request["program"]
            sys.argv = [path, *request["words"]]
            sys.path[0] = str(Path(path).parent)
            exec(compile(Path(path).read_text(), path, "exec"), main.__dict__)
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
