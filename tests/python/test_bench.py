"""The command `zarr-dali bench` and what it is made of, on small stores: that its figures are of the right
bytes, its sentence follows from its figures, and nothing that is missing ends it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import reference
from reading import gpu_problem, run_python
from stores import FORMATS, chunk_files, read_array, write_array, write_group
from zarr_dali import cli
from zarr_dali._bench import cache, ceilings, loaders, timing, verdict
from zarr_dali._bench.ceilings import Ceiling
from zarr_dali._bench.timing import Expected, Row, WrongValues
from zarr_dali._bench.verdict import Gains
from zarr_dali._bench.work import Work

V3 = pytest.mark.skipif(3 not in FORMATS, reason="needs zarr-python 3")
QUICK = ("--rounds", "1", "--seconds", "0.01")


@pytest.fixture(autouse=True)
def _short_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 0.01)


@pytest.fixture
def store(tmp_path, rng):
    """Two variables of 12 steps on a 16 x 24 grid in zstd, with latitude beside them."""
    path = write_group(tmp_path / "weather.zarr")
    for name in ("t2m", "msl"):
        values = np.round(rng.normal(size=(12, 16, 24)), 1).astype("float32")
        write_array(path, name, values, chunks=(1, 16, 24), codec="zstd")
    write_array(path, "lat", np.linspace(90, -90, 16), chunks=(16,))
    return path


def bench(*arguments):
    return CliRunner().invoke(cli.main, ["bench", *map(str, arguments)])


# --- the command ----------------------------------------------------------------------------------


def test_table_json_chart_and_sentence(store, tmp_path):
    kept, chart = tmp_path / "result.json", tmp_path / "result.png"
    done = bench(store, *QUICK, "--device", "cpu", "--npy", "--shuffle", "--output", kept, "--png", chart)
    assert done.exit_code == 0, done.output
    result = json.loads(kept.read_text())
    assert [array["name"] for array in result["arrays"]] == ["msl", "t2m"], "latitude is left out"
    assert result["work"]["samples"] == 12
    assert result["work"]["pass_bytes"] == 2 * 8 * 2 * 16 * 24 * 4, "two batches of 8 begin anew once"
    assert result["work"]["decoded_bytes"] == 2 * 12 * 16 * 24 * 4
    assert result["work"]["stored_bytes"] == sum(
        file.stat().st_size for name in ("t2m", "msl") for file in chunk_files(store / name)
    )

    rows = result["loaders"]
    timed = {name: row["median_gb_per_s"] for name, row in rows.items() if "problem" not in row}
    ours = timed["zarr-dali"]
    assert {"zarr-dali", "zarr-dali, shuffled", "zarr-python"} <= timed.keys()
    assert any(name.startswith("torch DataLoader") for name in timed)
    assert any("external_source" in name for name in timed)
    assert any(".npy" in name for name in timed)
    assert not any("enable_gpu" in name or "czarr" in name for name in rows), "these need a GPU"
    peers = {name: rate for name, rate in timed.items() if not name.startswith("zarr-dali")}
    assert result["best_peer"] == max(peers, key=peers.get)
    assert result["times_best_peer"] == pytest.approx(ours / max(peers.values()))
    assert rows["zarr-dali"]["stats"]["bytes_decoded"] > 0

    by_key = {one["key"]: one for one in result["ceilings"]}
    assert by_key.keys() == {"page_cache", "disk"}
    page_cache = by_key["page_cache"]
    assert page_cache["gb_per_s"] > 0
    assert page_cache["delivered_gb_per_s"] > page_cache["gb_per_s"], "each encoded byte is more when decoded"
    assert result["cold"].keys() >= {"gb_per_s"} or result["cold"]["problem"]

    sentence = result["verdict"]
    assert sentence.startswith("Warm, ")
    assert "cold" in sentence and sentence.endswith(".")
    assert f"{ours:.3g}" in sentence or "limits:" in sentence or "consumer" in sentence
    assert sentence in " ".join(done.output.split())
    for name in rows:
        assert name in done.output
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_missing_and_refusing_peers_do_not_end_it(store, tmp_path, monkeypatch):
    for module in ("tensorstore", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    kept = tmp_path / "result.json"
    done = bench(
        store,
        *QUICK,
        "--device",
        "cpu",
        "--npy",
        "--no-cold",
        "--arrays",
        "t2m",
        "--window",
        2,
        "--output",
        kept,
    )
    assert done.exit_code == 0, done.output
    result = json.loads(kept.read_text())
    rows = result["loaders"]
    assert rows["tensorstore"]["problem"].startswith("not installed")
    assert rows["torch DataLoader"]["problem"].startswith("not installed")
    assert rows["DALI readers.numpy, .npy files"]["problem"].startswith("refused")
    assert rows["zarr-python"]["median_gb_per_s"] > 0
    assert result["cold"] is None
    assert [one["key"] for one in result["ceilings"]] == ["page_cache"]


def test_without_zarr_python(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    kept = tmp_path / "result.json"
    done = bench(store, *QUICK, "--device", "cpu", "--no-cold", "--no-peers", "--output", kept)
    assert done.exit_code == 0, done.output
    assert "not compared" in done.output
    assert json.loads(kept.read_text())["loaders"]["zarr-dali"]["median_gb_per_s"] > 0


def test_wrong_values_are_a_failure(store, monkeypatch):
    read = loaders.TensorStore.read
    monkeypatch.setattr(
        loaders.TensorStore,
        "read",
        lambda self, selections: [[part + 1 for part in parts] for parts in read(self, selections)],
    )
    done = bench(store, *QUICK, "--device", "cpu", "--no-cold", "--peer", "tensorstore")
    assert done.exit_code == 1
    assert "other values than zarr-python" in done.output


def test_result_is_kept_while_it_runs(store, tmp_path, monkeypatch):
    """A run that is cut short leaves what it measured."""

    def interrupted(files, pinned):
        raise KeyboardInterrupt

    monkeypatch.setattr(ceilings, "page_cache", interrupted)
    kept = tmp_path / "result.json"
    done = bench(store, *QUICK, "--device", "cpu", "--no-peers", "--output", kept)
    assert done.exit_code != 0
    assert json.loads(kept.read_text())["loaders"]["zarr-dali"]["median_gb_per_s"] > 0


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["nowhere.zarr"], ["nowhere.zarr"]),
        (["weather.zarr", "--arrays", "t2n"], ["t2n"]),
        (["weather.zarr", "--arrays", "t2m,lat"], ["--arrays"]),
        (["weather.zarr", "--window", "99"], ["window"]),
        (["weather.zarr", "--batch-size", "0"], ["--batch-size 0", "more than 0"]),
        (["weather.zarr", "--peer", "numpy"], ["numpy", "tensorstore"]),
        (["weather.zarr", "--output", "nowhere/r.json"], ["--output", "make it first"]),
        (["weather.zarr", "--png", "nowhere/r.png"], ["--png", "make it first"]),
    ],
)
def test_what_is_wrong_is_said(store, monkeypatch, arguments, parts):
    monkeypatch.chdir(store.parent)
    done = bench(*arguments, "--device", "cpu")
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    for part in parts:
        assert part in done.output


@pytest.mark.skipif(gpu_problem() is None, reason="there is a GPU")
def test_gpu_that_is_not_there(store):
    done = bench(store, "--device", "gpu")
    assert done.exit_code == 1
    assert "--device cpu" in done.output


@pytest.mark.gpu
@V3
def test_on_a_gpu(tmp_path, rng):
    values = np.round(rng.normal(size=(16, 64, 96)), 1).astype("float32")
    path = write_array(tmp_path / "a.zarr", None, values, chunks=(1, 8, 96), shards=(1, 64, 96),
                       codec="sharded-end-zstd")  # fmt: skip
    kept = tmp_path / "result.json"
    done = bench(path, *QUICK, "--device", "gpu", "--npy", "--output", kept, "--png", tmp_path / "r.png")
    assert done.exit_code == 0, done.output
    result = json.loads(kept.read_text())
    found = {one["key"]: one for one in result["ceilings"]}
    assert found["copy"]["gb_per_s"] > 0, found
    assert result["loaders"]["zarr-python .cuda()"]["median_gb_per_s"] > 0


def test_help_waits_for_no_measuring():
    code = """
        import sys
        from zarr_dali import cli
        heavy = {"torch", "zarr", "tensorstore", "matplotlib", "zarr_dali._bench"} & set(sys.modules)
        assert not heavy, heavy
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


# --- what is read ---------------------------------------------------------------------------------

CASES = [
    # codec, format, window, batch size
    ("zstd", 2, None, 3),
    ("zstd", 3, None, 5),
    ("sharded-end-zstd", 3, (2,), 3),
    ("blosc-lz4", 3, (1,), 4),
    ("gzip", 2, (3, 4), 3),
    ("raw", 3, (2, 4, 5), 7),
]


@pytest.mark.parametrize(
    "codec, zarr_format, window, batch_size",
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.full) for case in CASES[1:])],
    ids=str,
)
def test_all_loaders_read_the_same(tmp_path, rng, codec, zarr_format, window, batch_size):
    values = rng.normal(size=(7, 8, 10)).astype("float32")
    path = write_array(
        tmp_path / "a.zarr", None, values, chunks=(1, 4, 10), codec=codec, zarr_format=zarr_format
    )
    work = Work.of(path, batch_size=batch_size, window=window)
    windows = reference.windows(values.shape, window, None)
    assert work.samples == len(windows)
    assert work.batches == math.ceil(len(windows) / batch_size)
    assert work.sample_bytes == values[windows[0]].nbytes
    expected = Expected(work)
    for number, window_of in enumerate(windows):
        np.testing.assert_array_equal(expected.sample(number)[0], values[window_of])
    ours = [
        loaders.ZarrDali("cpu"),
        loaders.ZarrDali("cpu", shuffle=True),
        loaders.ZarrDali("cpu", lazy=True),
    ]
    keys = ("zarr-python", "zarrs", "tensorstore", "external_source", "readers.numpy")
    copies = loaders.NpyCopies(tmp_path)
    peers = [loader for _, loader, _ in loaders.peers("cpu", keys, copies) if loader]
    assert len(peers) == len(keys)
    for loader in ours + peers:
        if loader.key == "readers.numpy" and window is not None and window != (1,):
            with pytest.raises(ValueError, match="overlap"):
                timing.verify(loader, work, expected, work.batches)
            continue
        timing.verify(loader, work, expected, work.batches)


@pytest.mark.parametrize("dtype", ["uint8", "float64", "complex64", "datetime64[s]", "bool"])
def test_types_that_dali_gives_otherwise(tmp_path, rng, dtype):
    values = rng.integers(0, 2, size=(4, 6, 2)).astype(dtype)
    path = write_array(tmp_path / "a.zarr", None, values, chunks=(1, 6, 2), codec="zstd", zarr_format=2)
    work = Work.of(path, batch_size=2)
    timing.verify(loaders.ZarrDali("cpu"), work, Expected(work), work.batches)
    assert work.pass_bytes == values.nbytes


def test_differing_values_are_found(tmp_path, rng):
    values = rng.normal(size=(4, 6)).astype("float32")
    path = write_array(tmp_path / "a.zarr", None, values, chunks=(1, 6))
    work = Work.of(path, batch_size=2)
    expected = Expected(work)
    expected.sample(3)[0][5] += 1
    timing.verify(loaders.ZarrDali("cpu"), work, expected, 1)
    with pytest.raises(WrongValues, match="sample 3"):
        timing.verify(loaders.ZarrDali("cpu"), work, expected, 2)


def test_limit_reads_the_first_steps(store):
    work = Work.of(store, ["t2m"], batch_size=2, limit_bytes=5 * 16 * 24 * 4)
    assert (work.steps, work.samples) == (5, 5)
    assert work.decoded_bytes == 5 * 16 * 24 * 4
    assert len(list(work.chunk_files())) == 5
    timing.verify(loaders.ZarrDali("cpu"), work, Expected(work), work.batches)
    least = Work.of(store, ["t2m"], batch_size=4, window=[3], limit_bytes=1)
    assert least.samples == 4, "one batch at least"


@pytest.mark.parametrize("zarr_format, separator", [(2, "."), (2, "/"), (3, "/"), (3, ".")])
def test_chunk_files(tmp_path, rng, zarr_format, separator):
    values = rng.normal(size=(4, 6, 8)).astype("float32")
    values[2] = 0  # has no files
    path = write_array(
        tmp_path / "a.zarr", None, values, chunks=(1, 4, 8), zarr_format=zarr_format, separator=separator
    )
    found = [file for _, file in Work.of(path, batch_size=1).chunk_files()]
    assert len(found) == 6
    assert sorted(found) == chunk_files(path)


# --- ceilings -------------------------------------------------------------------------------------


def test_ceiling_that_cannot_be_measured():
    def fails():
        raise RuntimeError("no such thing\nsecond line")

    found = ceilings.attempt("disk", "disk", fails)
    assert (found.gb_per_s, found.note) == (None, "not measured: no such thing")


def test_cold_files_are_told_from_warm_ones(store, monkeypatch):
    files = chunk_files(store / "t2m")
    for file in files:
        file.read_bytes()
    assert cache.resident_share(files) == 1.0
    size = sum(file.stat().st_size for file in files)
    monkeypatch.setattr(cache, "evict", lambda files: None)
    watch = cache.Watch(files, size)
    for file in files:
        file.read_bytes()
    assert "100% of the files stayed in memory" in watch.problem()
    with pytest.raises(RuntimeError, match="stayed in memory"):
        ceilings.disk(ceilings.Files(Work.of(store, ["t2m"], batch_size=1)), 1)


def test_evicted_files_are_cold(store):
    files = chunk_files(store / "t2m")
    cache.evict(files)
    share = cache.resident_share(files)
    if share == 1.0:
        pytest.skip("the file system keeps its files in memory")
    assert share == 0.0
    assert cache.Watch(files, 1).problem() == ""
    files[0].read_bytes()
    assert cache.resident_share(files[:1]) == 1.0


# --- the sentence ---------------------------------------------------------------------------------

CEILINGS = [
    Ceiling("copy", "copy", 50.0),
    Ceiling("page_cache", "page cache", 20.0),
    Ceiling("disk", "disk", 2.0),
]
GAINS = Gains(read=2.0, copied=2.0)


def row(**stats):
    return Row(gb_per_s=[1.0], cpu_cores=[1.0], stats=stats, seconds=10.0)


@pytest.mark.parametrize(
    "rate, stats, sentence",
    [
        (39.0, {}, "the copy from the page cache limits (39 of 40 GB/s)"),
        (101.0, {}, "the copy to the GPU limits (101 of 100 GB/s)"),
        (10.0, {"ms_waiting_cpu": 8000.0, "ms_waiting_gpu": 1000.0},
         "decoding on the CPU limits: batches waited for it 80% of the time, 1 of 16 cores busy (10 GB/s, "
         "below every ceiling that was measured)"),
        (10.0, {"ms_waiting_consumer": 9000.0, "ms_waiting_fetch": 100.0},
         "the consumer limits: for 90% of the time the reader had all batches ready"),
        (10.0, {}, "no ceiling that was measured is reached (10 GB/s, 1 of 16 cores busy)"),
    ],
)  # fmt: skip
def test_sentence_when_warm(rate, stats, sentence):
    assert verdict.warm(rate, row(**stats), CEILINGS, GAINS, cores=16) == sentence


def test_sentence_between_two_ceilings_asks_what_was_waited_for():
    close = [Ceiling("copy", "copy", 21.0), Ceiling("page_cache", "page cache", 20.0)]
    fetching = verdict.warm(40.0, row(ms_waiting_fetch=5.0), close, GAINS, 16)
    decoding = verdict.warm(40.0, row(ms_waiting_gpu=5.0), close, GAINS, 16)
    assert fetching.startswith("the copy from the page cache")
    assert decoding.startswith("the copy to the GPU")


def a_store(**seen):
    seen = {"requests": 64, "rates": {16: 1.0, 64: 4.0, 256: 3.9}, "busy": 0.3, "threads": 4} | seen
    seen = {"ms_to_first_byte": 50.0, "over_tls": True} | seen
    return [Ceiling("store", "the store", max(seen["rates"].values()), "", ceilings.StoreCeiling(**seen))]


@pytest.mark.parametrize(
    "rate, stats, seen, said",
    [
        (8.0, {}, {}, "its bandwidth or the network's does, for more than 64 requests at once gave no more"),
        (8.0, {}, {"rates": {64: 2.0, 256: 4.0}}, "its latency does, for 256 requests at once still gave"),
        (8.0, {}, {"busy": 0.9}, "decrypting TLS and receiving keeps the 4 threads that do it busy"),
        (8.0, {}, {"busy": 0.9, "over_tls": False}, "GB/s): receiving keeps the 4 threads"),
        (1.0, {"requests_in_flight_peak": 256}, {}, "number of requests limits: 256 at once for 10 kB each"),
        (1.0, {"requests_in_flight_peak": 12}, {}, "latency limits: memory allows 12 requests at once"),
        (1.0, {"ms_waiting_cpu": 9000.0}, {}, "decoding on the CPU limits"),
    ],
)  # fmt: skip
def test_sentence_about_a_store(rate, stats, seen, said):
    asked = {"requests": 100, "bytes_fetched": 1_000_000, "ms_waiting_fetch": 5000.0}
    assert said in verdict.warm(rate, row(**(asked | stats)), a_store(**seen), GAINS, 16)


def test_sentence_when_all_cores_are_busy():
    busy = Row(gb_per_s=[1.0], cpu_cores=[15.5], seconds=10.0)
    assert verdict.warm(1.0, busy, CEILINGS, GAINS, 16) == "the CPU limits (15.5 of 16 cores busy, 1 GB/s)"


@pytest.mark.parametrize(
    "rate, with_opening, part",
    [
        (3.9, False, "the disk (3.9 of 4 GB/s: 2 x 2)"),
        (24.0, False, "the same as warm"),
        (1.0, True, "opening the reader"),
        (1.0, False, "neither the disk alone (4 GB/s)"),
    ],
)
def test_sentence_when_cold(rate, with_opening, part):
    assert part in verdict.cold(rate, 25.0, CEILINGS, GAINS, with_opening)


def test_gains_follow_what_was_counted():
    counted = Row(
        delivered_bytes=800, stats={"bytes_read": 100, "bytes_decoded": 200, "bytes_decoded_gpu": 150}
    )
    gains = Gains.of(counted, ratio=2.0, on_gpu=True)
    assert gains.read == 8.0
    assert gains.copied == 800 / (0.75 * 100 + 0.25 * 200)
    assert Gains.of(Row(), ratio=2.0, on_gpu=True) == Gains(2.0, 2.0)


# --- benches/read_table.py ------------------------------------------------------------------------


@V3
def test_read_table(tmp_path):
    script = Path(__file__).parents[2] / "benches/read_table.py"
    arguments = [
        *("--device", "cpu", "--stores", "raw", "zstd", "--steps", 4, "--grid", 16, 32, "--batch-size", 2),
        *("--rounds", 1, "--seconds", 0.01, "--peer", "zarr-python", "readers.numpy"),
        *("--data-dir", tmp_path / "data", "--out", tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "out").glob("*.json")
    assert str(tmp_path) not in kept.read_text()
    stores = json.loads(kept.read_text())["stores"]
    assert stores["raw"]["loaders"].keys() == {"zarr-dali", "zarr-python", "DALI readers.numpy, .npy files"}
    for name in ("raw", "zstd"):
        assert stores[name]["loaders"]["zarr-python"]["median_gb_per_s"] > 0
        assert stores[name]["times_best_peer"] > 0
    assert "median_gb_per_s" not in stores["zstd"]["loaders"]["DALI readers.numpy, .npy files"]
    assert "| zarr-python |" in kept.with_suffix(".md").read_text()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["4x16x32"], "copies do not stay"


def test_read_array_is_what_expected_reads(store):
    """The comparison's own source against the tests' one."""
    work = Work.of(store, ["msl", "t2m"], batch_size=4, window=[2])
    expected = Expected(work)
    for number, name in enumerate(("msl", "t2m")):
        np.testing.assert_array_equal(expected.sample(3)[number], read_array(store, name)[3:5])
