"""Fixtures shared by all tests, and what belongs to which tier.

`-m "not full"` is the quick tier. Left out of it are tests with the marker `full` and, of a test with many
parameters, all cases but those that have a value of a parameter which no other chosen case has.

Tests that take `backend` run once on the CPU and once on the GPU. Without a GPU the latter are skipped with
the reason, or fail when the environment variable ZARR_DALI_REQUIRE_GPU is 1: a GPU job that skips is none.
"""

import gc
import os
import zlib
from collections import defaultdict
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import reading

QUICK_SEEDS = 2
"""Seeds of a random test in the quick tier."""
LONG_FILES = (
    *("real_servers", "cluster", "remote_python", "damage_tool", "fault_schedules", "benches_training"),
    *("pipelines", "bench", "docs", "disk_cache", "bounds", "environments", "matrix", "parity"),
)
"""Files that take long begin first, so that none is left at the end to one process."""


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "gpu_where(condition): of the cases on the GPU only those whose parameters meet the condition, or "
        "none (False). For what both backends share, since pipelines on a GPU take long to build.",
    )
    config.addinivalue_line("filterwarnings", "ignore:Combining a `sharding_indexed` codec")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    place = {f"test_{name}": number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
    for item in repetitions(items):
        item.add_marker("full")
    left_out = []
    for item in items:
        case = getattr(item, "callspec", None)
        marker = item.get_closest_marker("gpu_where")
        if marker and case and case.params.get("backend") == "gpu":
            condition = marker.args[0]
            if not (condition(case.params) if callable(condition) else condition):
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_finish():
    """All that collecting has made stays: what garbage collections would look at again and again."""
    gc.collect()
    gc.freeze()


def repetitions(items):
    """The cases of parametrised tests whose values of parameters are all in cases that are not returned.

    Cases are looked at in an order that depends on nothing but their names and mixes the values.
    """
    seen = defaultdict(set)
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        case = getattr(item, "callspec", None)
        if case is None:
            continue
        # Without a GPU its cases are skipped, so that those on the CPU have to have every value.
        known = seen[item.nodeid.partition("[")[0], case.params.get("backend")]
        if item.get_closest_marker("full"):
            continue
        values = {value for name, given in case.params.items() for value in values_of(name, given)}
        if values <= known:
            yield item
        known |= values


def values_of(name, given):
    """What a parameter brings: its value, of a case that is a dataclass the values of its fields.

    A few seeds stand for all.
    """
    if name == "seed":
        yield name, given % QUICK_SEEDS
    elif is_dataclass(given) and not isinstance(given, type):
        for field in fields(given):
            yield name, field.name, repr(getattr(given, field.name))
    else:
        yield name, repr(given)


def require_gpu():
    """Skips, or fails in a GPU job, where the GPU backend cannot run."""
    if problem := reading.gpu_problem():
        if os.environ.get("ZARR_DALI_REQUIRE_GPU") == "1":
            pytest.fail(f"ZARR_DALI_REQUIRE_GPU=1, but {problem}", pytrace=False)
        pytest.skip(problem)


@pytest.fixture(autouse=True)
def _gpu_where_marked(request):
    if request.node.get_closest_marker("gpu"):
        require_gpu()


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request):
    """Where the reader under test runs."""
    return {"cpu": reading.CPU, "gpu": reading.GPU}[request.param]


@pytest.fixture
def rng():
    """A generator with a fixed seed, the same for every test."""
    return np.random.default_rng(20260101)


@pytest.fixture
def small_regions(monkeypatch):
    """`rechunk` and `statistics` cut arrays into regions of one chunk, so that small ones have several."""
    from zarr_dali._rechunk import regions

    monkeypatch.setattr(regions, "REGION_BYTES", 0)


@pytest.fixture(scope="session")
def cached_store(tmp_path_factory):
    """`cached_store(key, write)`: the folder that `write(folder)` filled, once per session and key."""
    folders = {}

    def get(key, write):
        if key not in folders:
            folder = tmp_path_factory.mktemp("store") / "test.zarr"
            write(folder)
            folders[key] = folder
        return folders[key]

    return get
