"""Reading through DALI pipelines, and comparing what comes out."""

import ctypes
import math
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import nvidia.dali as dali
from nvidia.dali import Pipeline, fn

import reference
import zarr_dali


@dataclass(frozen=True)
class Backend:
    """Where a pipeline runs: `device` of the operator and `device_id` of the pipeline."""

    device: str
    device_id: int | None


CPU = Backend("cpu", None)
GPU = Backend("gpu", 0)


@lru_cache
def gpu_problem():
    """Why the GPU backend cannot run on this machine; None when it can."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver: {error}"
    if status := cuda.cuInit(0):
        return f"cuInit failed with CUDA error {status}"
    count = ctypes.c_int()
    if (status := cuda.cuDeviceGetCount(ctypes.byref(count))) or count.value == 0:
        return f"no CUDA device (CUDA error {status})"
    return None


def build(backend, path, *, batch_size=5, pipeline=None, **arguments):
    """A built pipeline whose outputs are those of one Zarr reader named "reader"."""
    pipe = define(backend, path, batch_size=batch_size, pipeline=pipeline, **arguments)
    pipe.build()
    return pipe


def define(backend, path, *, batch_size=5, pipeline=None, **arguments):
    """The same pipeline, not built yet. `pipeline` holds further arguments of `Pipeline`."""
    if decoder := os.environ.get("ZARR_DALI_TEST_GPU_ZSTD"):
        arguments.setdefault("gpu_zstd", decoder)
    settings = {"batch_size": batch_size, "num_threads": 2, "device_id": backend.device_id}
    pipe = Pipeline(**(settings | (pipeline or {})))
    with pipe:
        outputs = fn.readers.zarr(path=path, device=backend.device, name="reader", **arguments)
        pipe.set_outputs(*(outputs if isinstance(outputs, (list, tuple)) else [outputs]))
    return pipe


def on_host(output):
    """One output of `Pipeline.run` in host memory."""
    return output.as_cpu() if hasattr(output, "as_cpu") else output


def to_samples(output):
    """One output as a list of arrays, one per sample, copied out of DALI's memory."""
    output = on_host(output)
    return [np.array(output.at(i)) for i in range(len(output))]


def run_batches(pipe, how_many):
    """For each batch: for each output: a list of samples."""
    return [[to_samples(output) for output in pipe.run()] for _ in range(how_many)]


def read_epoch(pipe):
    """For each output: all samples of one epoch of an unsharded reader."""
    count = pipe.reader_meta("reader")["epoch_size"]
    batches = run_batches(pipe, math.ceil(count / pipe.max_batch_size))
    return [sum((batch[k] for batch in batches), [])[:count] for k in range(len(batches[0]))]


def read_all(backend, path, **arguments):
    """For each output: all samples that a reader with these arguments yields in its first epoch."""
    return read_epoch(build(backend, path, **arguments))


def batches_of(path, backend=CPU, **arguments):
    """All samples of a loader, by key."""
    device = {"cpu": "cpu", "gpu": "cuda"}[backend.device]
    with zarr_dali.Loader(path, device=device, batch_size=4, **arguments) as loader:
        batches = list(loader)
        return loader, {key: np.concatenate([b[key].cpu().numpy() for b in batches]) for key in loader.names}


def bits(values):
    """The same memory as unsigned integers: NaNs compare by payload, zeros by sign."""
    values = np.ascontiguousarray(values)
    return values.view(np.dtype(f"u{values.dtype.itemsize}"))


def assert_same_bits(actual, expected, what=""):
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    actual, expected = bits(actual), bits(expected)
    if not np.array_equal(actual, expected):  # many times as fast as what says where they differ
        np.testing.assert_array_equal(actual, expected, err_msg=str(what))


def assert_samples(samples, whole, window=None, stride=None, what=""):
    """`samples` are all windows of the array `whole`, in order."""
    indices = reference.windows(whole.shape, window, stride)
    assert len(samples) == len(indices), what
    for number, (sample, index) in enumerate(zip(samples, indices)):
        assert_same_bits(sample, np.asarray(whole[index]), f"{what} sample {number}, {index}")


def assert_reads(backend, store, array, whole, window=None, stride=None, **arguments):
    """A reader over one array of a store yields exactly the windows of `whole`; a dozen batches at most."""
    arguments |= {"arrays": [array]} if array else {}
    count = len(reference.windows(whole.shape, window, stride))
    arguments.setdefault("batch_size", max(5, -(-count // 12)))
    (samples,) = read_all(backend, store, window=window, stride=stride, **arguments)
    assert_samples(samples, whole, window, stride, f"{store}/{array or ''} {window} {stride}")


DALI_2_0 = dali.__version__.startswith("2.0.")
"""Has no states of readers in dynamic mode, and refuses large integers itself."""


def run_python(code, *arguments, env=None, timeout=120):
    """Runs a script in a fresh interpreter that can import these helpers; returns the finished process."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
