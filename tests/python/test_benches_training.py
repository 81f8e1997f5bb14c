"""`benches/training.py` on small stores and the CPU backend, and what it makes of what it measures."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from stores import FORMATS

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))
import common
import training


def run_script(*arguments):
    """Runs the benchmark; returns the finished process."""
    return subprocess.run(
        [sys.executable, training.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A quick run of the cases on one store: the result it kept, and the folder with all it wrote."""
    out = tmp_path_factory.mktemp("results")
    done = run_script(
        "--quick", "--device", "cpu", "--folder", tmp_path_factory.mktemp("stores"), "--out", out,
        "--stores", "zstd", "--loaders", "ours,torch,memory", "--cases", "warm,cold,cached,tiny-chunks",
        "--cores", len(os.sched_getaffinity(0)), "--seconds", 0.3, "--steps", 8, "--batch-size", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.json")
    return json.loads(path.read_text()), path, done.stdout


@pytest.mark.full
def test_points_are_measured(quick):
    result, _, _ = quick
    cores = len(os.sched_getaffinity(0))
    rows = {row["point"].partition("/")[2]: row for row in result["rows"]}
    assert set(rows) == {
        "warm/zstd/synthetic",
        "warm/zstd/ours",
        "cached/zstd/ours",
        "tiny-chunks/zstd-51200/ours",
        "cold/zstd/ours",
        "warm/zstd/torch",
        "tiny-chunks/zstd-51200/torch",
        "cold/zstd/torch",
        "cached/zstd/memory",
        "warm/zstd/synthetic, again",
    }
    assert [row for row in result["rows"] if "problem" in row] == []
    for row in result["rows"]:
        assert row["cores"] == cores
        assert row["samples_per_s"] == pytest.approx(row["samples"] / row["seconds"])
        assert row["cpu_seconds_per_sample"] > 0
        assert 0 < row["busy_cores"] < cores + 0.5
        assert row["host_bytes"] > 100e6
        assert 0 <= row["wait_share"] <= 1
    alone = [rows[f"warm/zstd/{name}"]["samples_per_s"] for name in training.SYNTHETIC]
    row = rows["warm/zstd/ours"]
    assert row["share_of_synthetic"] == pytest.approx(row["samples_per_s"] / (sum(alone) / 2))
    # 7 pairs fill three batches of 2.
    assert rows["cold/zstd/ours"]["samples"] == 6


@pytest.mark.full
def test_table_and_chart(quick):
    pytest.importorskip("matplotlib")
    result, path, printed = quick
    table = path.with_suffix(".md").read_text()
    assert table in printed
    assert "| zstd |" in table and "A quick run" in table
    for row in result["rows"]:
        assert f"| {row['case']} | {row['store']} | {row['loader']} | {row['samples_per_s']:.1f} |" in table
    chart = path.with_suffix(".png")
    assert chart.stat().st_size > 1000
    chart.unlink()
    path.with_suffix(".md").unlink()
    assert training.main(["--render", str(path)]) == 0
    assert chart.exists() and path.with_suffix(".md").read_text() == table


@pytest.mark.full
def test_a_loader_that_cannot_run_costs_its_own_points(tmp_path, monkeypatch):
    """KvikIO needs a GPU; asked for by a child of the CPU backend it says so, and the row with it."""
    store = common.ensure_stores(
        Namespace(folder=tmp_path, steps=4, grid=(80, 160)), ["raw"]
    )["raw"]  # fmt: skip
    point = {"case": "warm", "store": "raw", "encoder": "resnet18"}
    points = [{**point, "point": name, "loader": name} for name in ("kvikio", "memory")]
    task = {"cores": None, "device": "cpu", "batch_size": 2, "seconds": 0.1, "warmup": 1}
    task |= {"stores": {"raw": str(store)}, "quick": True}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = [row for _, row in common.in_child(training.__file__, task, points, limit_s=200)]
    assert "needs a GPU" in rows[0]["problem"]
    assert "problem" not in rows[1] and rows[1]["samples_per_s"] > 0


def row_of(loader, speed, cores=16, encoder="resnet18"):
    return {"loader": loader, "samples_per_s": speed, "cores": cores, "encoder": encoder}


def test_shares_compare_what_belongs_together():
    rows = [
        row_of("synthetic", 100.0),
        row_of("synthetic", 10.0, encoder="resnet101"),
        row_of("ours", 99.0),
        row_of("ours", 5.0, encoder="resnet101"),
        row_of("ours", 50.0, cores=4),
        {**row_of("torch", 0.0), "problem": "missing"},
        row_of("synthetic, again", 120.0),
    ]
    training.fill_shares(rows)
    shares = [row.get("share_of_synthetic") for row in rows]
    assert shares == [100 / 110, 1, 99 / 110, 0.5, None, None, 120 / 110]


@pytest.mark.parametrize("cores", [[16, 4], [1]])
def test_points(monkeypatch, cores):
    """One group for each loader and number of cores, synthetic data first and last."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    args = training.parser().parse_args(["--device", "cpu"])
    args.cores = cores
    points = training.points_of(args)
    assert len({point["point"] for point in points}) == len(points)
    groups = [(point["cores"], point["loader"]) for point in points]
    seen = [group for number, group in enumerate(groups) if number == 0 or groups[number - 1] != group]
    assert len(seen) == len(set(seen)), "each group has one process"
    for count in cores:
        loaders = [loader for n, loader in seen if n == count]
        assert loaders == ["synthetic", *training.LOADERS, "synthetic, again"]
    encoders = {point["encoder"] for point in points if point["case"] == "large-model"}
    assert encoders == {training.LARGE}


def test_options_that_do_not_exist(tmp_path):
    done = run_script("--quick", "--device", "cpu", "--loaders", "ours,none")
    assert done.returncode == 2
    assert "none" in done.stderr and "external-source" in done.stderr
