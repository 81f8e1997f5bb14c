"""Fixtures shared by all tests.

Tests that take `backend` run once on the CPU and once on the GPU. Without a GPU the latter are skipped with
the reason, or fail when the environment variable ZARR_DALI_REQUIRE_GPU is 1: a GPU job that skips is none.
"""

import os

import numpy as np
import pytest

import reading


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "gpu_where(condition): of the cases on the GPU only those whose parameters meet the condition, or "
        "none (False). For what both backends share, since pipelines on a GPU take long to build.",
    )
    config.addinivalue_line("filterwarnings", "ignore:Combining a `sharding_indexed` codec")


def pytest_collection_modifyitems(config, items):
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
