"""Commands of which nobody reads the output, or not all of it, as in `zarr-dali info STORE | head -1`."""

import io
import os
import subprocess
import sys

import pytest

import zarr_dali
from tiers import quick
from zarr_dali import _pipes

COMMANDS = {
    "help": ("--help",),
    "info": ("info", "STORE"),
    "info, JSON": ("info", "STORE", "--json", "--strict"),
    "example": ("example", "new.zarr"),
    "rechunk": ("rechunk", "STORE", "copy.zarr", "--dry-run"),
    "rechunk, JSON": ("rechunk", "STORE", "copy.zarr", "--dry-run", "--json"),
    "statistics": ("statistics", "STORE", "--arrays", "land_mask"),
    "doctor": ("doctor", "--json"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return zarr_dali.example_store(tmp_path_factory.mktemp("pipes") / "era5.zarr", steps=4)


def run(words, folder, stdout, **settings):
    words = [sys.executable, "-m", "zarr_dali_command", *words]
    return subprocess.run(words, cwd=folder, stdout=stdout, timeout=120, **settings)


@pytest.mark.parametrize("command", quick(COMMANDS, "help", "info", "rechunk", "statistics"))
@pytest.mark.parametrize("is_buffered", [True, False], ids=["buffered", "unbuffered"])
def test_a_pipe_without_a_reader(store, tmp_path, command, is_buffered):
    words = COMMANDS[command]
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    words = [str(store) if word == "STORE" else word for word in words]
    done = run(words, tmp_path, writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    assert done.returncode == _pipes.CLOSED == 141
    # A progress bar may be there.
    assert not any(word in done.stderr for word in ("Traceback", "Error", "Exception", "Broken"))


def test_no_standard_output_at_all(store, tmp_path):
    done = subprocess.run(
        ["sh", "-c", '"$0" -m zarr_dali_command info "$1" >&-', sys.executable, store],
        stderr=subprocess.PIPE,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_error_that_nobody_reads_keeps_its_exit_status(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(["info", "nowhere.zarr"], tmp_path, subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert (done.returncode, done.stdout) == (1, b"")


def test_streams_are_as_before_behind_a_command(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with _pipes.watched():
        print("text")
        assert sys.stdout.isatty() is False
    assert sys.stdout is stream and stream.getvalue() == "text\n"
