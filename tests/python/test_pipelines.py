"""The programs in `pipelines/` run as a person would run them, on every device that is there."""

import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from forked import finished, run_program, start_program
from programs import help_of
from reading import DALI_2_0, assert_reads
from stores import FORMATS, read_array, write_array, write_group

sys.path.insert(0, str(Path(__file__).parents[2] / "pipelines"))
import fields
import forecast_rollout
import loaders
import patches

PIPELINES = Path(fields.__file__).parent
PROGRAMS = sorted(path.name for path in PIPELINES.glob("*.py") if "__main__" in path.read_text())
WEATHER = ("t2m", "msl")
STEPS, GRID = 12, (48, 64)


IMPORTED = ("segmentation_models_pytorch", "rich.console", "rich.table", "tqdm", "psutil")
"""What most programs import, for seconds."""
# More OpenMP threads would spin against each other and the reader's on a small machine.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run_script(name, *arguments, cwd, timeout=300):
    """Runs one program in an empty folder; returns the finished process."""
    if "gpu" in arguments:
        return run_command(sys.executable, PIPELINES / name, *arguments, cwd=cwd, timeout=timeout)
    return run_program(
        PIPELINES / name, *arguments, imports=IMPORTED, folder=cwd, timeout=timeout, environment=ONE_THREAD
    )


def run_command(*command, cwd, timeout=300):
    """Runs a command in an interpreter of its own; returns the finished process."""
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | ONE_THREAD,
    )


def start_ranks(name, *arguments, cwd, ranks):
    """Starts one program in so many processes; several have the variables that torchrun sets."""
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        port = it.getsockname()[1]
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    for rank in range(ranks):
        variables = shared | {"RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
        environment = ONE_THREAD | {key: str(value) for key, value in variables.items()}
        started.append(
            start_program(
                PIPELINES / name,
                *arguments,
                imports=IMPORTED,
                folder=cwd,
                environment=environment,
                timeout=300,
            )
        )
    return started


def summary_of(name, *arguments, cwd, ranks=1):
    """Runs one program that has to succeed; returns what it writes with --json."""
    path = cwd / f"{name}.json"
    path.unlink(missing_ok=True)
    arguments = (*arguments, "--json", path)
    if ranks == 1:
        done = [run_script(name, *arguments, cwd=cwd)]
    else:
        done = [finished(rank) for rank in start_ranks(name, *arguments, cwd=cwd, ranks=ranks)]
    assert all(rank.returncode == 0 for rank in done), done
    return json.loads(path.read_text())


def write_weather(path, rng, steps=STEPS):
    """Steps of two variables on a 48 x 64 grid, with latitude and longitude beside them."""
    write_group(path)
    trend = np.linspace(0, 1, steps, dtype="float32")[:, None, None]
    for name in WEATHER:
        field = rng.standard_normal(GRID, dtype="float32") + trend
        write_array(
            path, name, field, chunks=(1, *GRID), fill_value=0, dimension_names=("time", "lat", "lon")
        )
    write_array(path, "lat", np.linspace(90, -90, GRID[0]), chunks=(GRID[0],))
    return path


@pytest.fixture
def store(tmp_path, rng):
    """12 steps of two variables on a 48 x 64 grid."""
    return write_weather(tmp_path / "weather.zarr", rng)


@pytest.mark.parametrize("script", PROGRAMS)
def test_help(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "usage:" in help_of(PIPELINES / script)
    assert list(tmp_path.iterdir()) == []


def test_minimal(backend, store, tmp_path):
    done = run_script(
        "minimal.py", store, "--arrays", "t2m", "msl", "--window", 2, "--batch-size", 3, "--batches", 2,
        "--device", backend.device, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "11 samples" in done.stdout
    for batch in range(2):
        for step in range(3 * batch, 3 * batch + 3):
            for name in ("t2m", "msl"):
                assert f"{store}/{name}[{step}:{step + 2}, 0:48, 0:64]" in done.stdout
    assert "[3, 2, 48, 64] float32" in done.stdout
    assert "THW" in done.stdout


@pytest.mark.parametrize("more", [(), pytest.param(("--synthetic",), marks=pytest.mark.full)])
def test_weather_channels(backend, tmp_path, more):
    arguments = ("--quick", "--quiet", "--device", backend.device, "--json", "summary.json", *more)
    done = run_script("weather_channels.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Four arrays, of which one has levels: two of its three are chosen.
    assert "channels: t_850 t_500 t2m msl land_mask" in done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["samples_per_s"] > 0
    # All channels are normalized: a model that knows nothing is off by about their variance.
    assert 0.1 < summary["first_loss"] < 10


def test_minimal_over_one_array(backend, store, tmp_path):
    done = run_script("minimal.py", store / "lat", "--device", backend.device, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "48 samples" in done.stdout


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["nowhere.zarr"], "nowhere.zarr"),
        (["weather.zarr"], "msl"),
        (["weather.zarr", "--arrays", "t2n"], "t2m"),
        (["weather.zarr", "--arrays", "t2m", "--window", "99"], "window"),
    ],
)
def test_minimal_says_what_is_wrong(store, tmp_path, arguments, part):
    done = run_script("minimal.py", *arguments, "--device", "cpu", cwd=store.parent)
    assert_refused(done, part)


def assert_refused(done, part):
    """The program ended with one line that says what is wrong."""
    assert done.returncode == 1
    assert part in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr


# --- train_unet.py --------------------------------------------------------------------------------


@pytest.mark.full
def test_train_unet_on_a_store(backend, store, tmp_path):
    summary = tmp_path / "summary.json"
    done = run_script(
        "train_unet.py", "--store", store, "--arrays", "t2m", "msl", "--batch-size", 3, "--epochs", 2,
        "--warmup", 1, "--device", backend.device, "--no-kernel-search", "--json", summary, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d samples/s", done.stdout)
    assert "waiting for data" in done.stdout
    result = json.loads(summary.read_text())
    # 11 pairs in batches of 3 make 4 steps an epoch, the last one of 2 samples; one step warms up.
    assert result["steps"] == 7
    assert result["samples"] == 2 * 11 - 3
    assert len(result["losses"]) == 8
    assert np.isfinite([result["first_loss"], result["last_loss"], *result["losses"]]).all()
    assert 0 <= result["wait_share"] <= result["blocked_share"] <= 1
    assert result["cpu_seconds_per_sample"] * result["samples"] == pytest.approx(
        result["busy_cores"] * result["seconds"]
    )
    assert result["host_bytes"] > 100e6


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--store", "nowhere.zarr"], "nowhere.zarr"),
        (["--store", "weather.zarr/lat"], "T, H, W"),
        (["--store", "weather.zarr", "--loader", "kvikio"], "needs a GPU"),
    ],
)
def test_train_unet_says_what_is_wrong(store, tmp_path, arguments, part):
    done = run_script("train_unet.py", *arguments, "--device", "cpu", cwd=store.parent)
    assert_refused(done, part)


@pytest.mark.full
def test_train_unet_without_a_store(backend, tmp_path):
    """Writes its small store, uses it, and does not write it again."""
    arguments = ["--steps", 2, "--batch-size", 2, "--warmup", 0, "--quiet", "--device", backend.device]
    arguments.append("--no-kernel-search")
    for wrote in (True, False):
        done = run_script("train_unet.py", *arguments, "--data-dir", tmp_path / "data", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("wrote " in done.stdout) == wrote
        assert "6 channels" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


CASES = [
    (kind, loader, 0, shuffle)
    for kind in ("separate", "stacked", "mixed")
    for loader in ("ours", "torch", "external-source", "memory")
    for shuffle in (False, True)
] + [
    pytest.param("separate", loader, 1, True, marks=pytest.mark.full)
    for loader in ("torch", "external-source")
]


def write_fields(tmp_path, rng, kind):
    """Fields of the kinds that train_unet.py takes: two of [T, H, W], one of [T, C, H, W], two data types."""
    path = write_group(tmp_path / "fields.zarr")
    shape = (7, 3, 5, 6) if kind == "stacked" else (7, 5, 6)
    for name in ("a", "b") if kind != "stacked" else ("a",):
        values = rng.integers(0, 1000, shape).astype("int16" if (kind, name) == ("mixed", "b") else "float32")
        write_array(path, name, values, chunks=(2, *shape[1:]), fill_value=0)
    return fields.inspect(str(path / "a" if kind == "stacked" else path))


@pytest.mark.gpu_where(lambda case: case["shuffle"])
@pytest.mark.parametrize("kind, loader, workers, shuffle", CASES)
def test_loaders_give_the_same_samples(backend, tmp_path, rng, kind, loader, workers, shuffle):
    """Each sample once an epoch, with the values that zarr-python reads, and on from any place."""
    source = write_fields(tmp_path, rng, kind)
    device = torch.device("cuda", 0) if backend.device == "gpu" else torch.device("cpu")
    arrays = [zarr.open_array(path, mode="r")[:].astype("float32") for path in source.paths]
    expected = np.stack(arrays, axis=1) if source.dims == 3 else arrays[0]

    def made(rank):
        return loaders.LOADERS[loader](
            loaders.Wanted(
                source, 2, device, shuffle=shuffle, seed=5, rank=rank, world_size=2, workers=workers
            )
        )

    seen, states, batches = [], [], []
    for rank in range(2):
        one = made(rank)
        assert len(one) == 2
        for _ in range(2):
            for batch in one:
                index = batch["index"].tolist()
                for values, start in zip(batch["fields"].cpu().numpy(), index):
                    np.testing.assert_array_equal(values, expected[start : start + 2], strict=True)
                batches.append(index)
                states.append(one.state_dict())
        one.close()
    for epoch in range(2):
        seen = [
            sample for batch in (*batches[2 * epoch :][:2], *batches[4 + 2 * epoch :][:2]) for sample in batch
        ]
        assert sorted(seen) == list(range(6))
    in_order = all(batch == list(range(batch[0], batch[0] + len(batch))) for batch in batches)
    assert in_order != shuffle
    # Behind the first batch of the second rank there is one more of that epoch.
    again = made(1)
    again.load_state_dict(json.loads(json.dumps(states[4])))
    assert [batch["index"].tolist() for batch in again] == [batches[5]]
    assert [batch["index"].tolist() for batch in again] == batches[6:]
    again.close()


def test_a_state_of_another_order_is_refused(store):
    source = fields.inspect(str(store))
    wanted = {"source": source, "batch_size": 2, "device": torch.device("cpu")}
    one = loaders.LOADERS["torch"](loaders.Wanted(**wanted, seed=1))
    other = loaders.LOADERS["torch"](loaders.Wanted(**wanted, seed=2))
    with pytest.raises(ValueError, match="seed"):
        other.load_state_dict(one.state_dict())


def history_of(folder):
    """Lines by step for each rank; a step that was done again has to have had the same samples."""
    ranks = []
    for path in sorted(folder.glob("rank*.jsonl")):
        lines = {}
        for line in map(json.loads, path.read_text().splitlines()):
            assert lines.setdefault(line["step"], line)["samples"] == line["samples"]
            lines[line["step"]] = line
        ranks.append(lines)
    return ranks


@pytest.mark.full
def test_two_ranks(tmp_path, rng):
    """Through torchrun: each sample on one of them, and one loss for both."""
    store = write_weather(tmp_path / "weather.zarr", rng, steps=13)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    arguments = ("--store", store, "--device", "cpu", "--batch-size", 2, "--history", tmp_path / "history")
    arguments += ("--epochs", 2, "--json", tmp_path / "summary.json")
    done = run_command(*torchrun, PIPELINES / "train_unet.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ranks"] == 2 and summary["steps"] == 6 - 4
    assert summary["samples"] == 2 * 2 * 2
    first, second = history_of(tmp_path / "history")
    for epoch in range(2):
        parts = [
            {sample for line in rank.values() if line["epoch"] == epoch for sample in line["samples"]}
            for rank in (first, second)
        ]
        assert parts[0] | parts[1] == set(range(12))
        assert not parts[0] & parts[1]
    for step, loss in enumerate(summary["losses"]):
        assert loss == pytest.approx((first[step]["loss"] + second[step]["loss"]) / 2, rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_and_resumed(tmp_path, rng, ranks):
    """The samples that follow, and the losses, are those of a training that nobody killed."""
    store = write_weather(tmp_path / "weather.zarr", rng, steps=13)
    arguments = ("--store", store, "--device", "cpu", "--batch-size", 2, "--steps", 14)
    whole = summary_of(
        "train_unet.py", *arguments, "--history", tmp_path / "whole", cwd=tmp_path, ranks=ranks
    )
    arguments += ("--history", tmp_path / "parts", "--checkpoint", tmp_path / "checkpoint.pt")
    arguments += ("--checkpoint-every", 3, "--resume")
    step = random.Random(ranks).randrange(4, 10)
    killed = start_ranks("train_unet.py", *arguments, cwd=tmp_path, ranks=ranks)
    lines = tmp_path / "parts" / "rank0.jsonl"
    until = time.monotonic() + 200
    while not lines.exists() or lines.read_text().count("\n") < step:
        assert all(rank.poll() is None for rank in killed) and time.monotonic() < until
        time.sleep(0.01)
    for rank in killed:
        rank.kill()
    for rank in killed:
        finished(rank)
    resumed = summary_of("train_unet.py", *arguments, cwd=tmp_path, ranks=ranks)
    assert 0 < resumed["first_step"] < 14
    assert len(resumed["losses"]) == 14 - resumed["first_step"]
    expected, found = history_of(tmp_path / "whole"), history_of(tmp_path / "parts")
    assert len(expected) == len(found) == ranks
    for rank in range(ranks):
        assert {step: line["samples"] for step, line in found[rank].items()} == {
            step: line["samples"] for step, line in expected[rank].items()
        }
    np.testing.assert_allclose(resumed["losses"], whole["losses"][resumed["first_step"] :], rtol=1e-3)
    if ranks == 1:
        assert_refused(run_script("train_unet.py", *arguments, cwd=tmp_path), "nothing left to train")


@pytest.mark.full
def test_resumed_on_another_number_of_ranks(tmp_path, rng):
    """What two ranks left of an epoch one rank finishes."""
    store = write_weather(tmp_path / "weather.zarr", rng, steps=25)
    shared = ("--store", store, "--device", "cpu", "--checkpoint", tmp_path / "checkpoint.pt", "--resume")
    summary_of(
        "train_unet.py",
        *shared,
        "--batch-size",
        3,
        "--steps",
        2,
        "--history",
        tmp_path / "two",
        cwd=tmp_path,
        ranks=2,
    )
    rest = summary_of(
        "train_unet.py",
        *shared,
        "--batch-size",
        4,
        "--epochs",
        1,
        "--history",
        tmp_path / "one",
        cwd=tmp_path,
    )
    assert rest["first_step"] == 2
    assert len(rest["losses"]) == 3
    lines = [
        line for rank in history_of(tmp_path / "two") + history_of(tmp_path / "one") for line in rank.values()
    ]
    assert sorted(sample for line in lines for sample in line["samples"]) == list(range(24))


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--resume"], "--checkpoint"),
        (["--loader", "nothing"], "external-source"),
        (["--batch-size", "0"], "positive"),
    ],
)
def test_train_unet_refuses_arguments(tmp_path, arguments, part):
    done = run_script("train_unet.py", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in done.stderr


# --- the other programs ---------------------------------------------------------------------------


@pytest.mark.full
def test_patches(backend, tmp_path):
    summary = summary_of("patches.py", "--quick", "--quiet", "--device", backend.device, cwd=tmp_path)
    grid = summary["grid"]
    # The last 10 of 48 steps in pairs; on 32 x 64 points a row of three patches, which overlap by 16.
    assert grid["patches"] == 5 * 1 * 3
    assert grid["covered"] == 1
    assert grid["rmse_model"] < grid["rmse_interpolated"]
    assert summary["train"]["steps"] == 20


def patches_of(store, patch, overlap):
    """What cuts patches of this store on the CPU."""
    args = Namespace(store=str(store), patch=patch, overlap=overlap, batch_size=4, seed=1)
    return patches.Patches(args, fields.inspect_planes(str(store), WEATHER), torch.device("cpu"))


def test_patches_are_stitched_where_they_were_cut(store):
    """Overlapping patches of the reader make the fields again, normalized."""
    cut = patches_of(store, [1, 20, 24], [0, 6, 4])
    source = cut.source
    stitched = patches.Stitched((STEPS - cut.split, 2, *GRID), cut.split, cut.device)
    for batch in cut.on_grid():
        stitched.add(batch["data"], batch["index"])
    values = np.stack([read_array(store, name)[cut.split :] for name in WEATHER], axis=1)
    expected = (values - source.mean.numpy()[:, None, None]) / source.std.numpy()[:, None, None]
    # Rows 0, 14 and 28 and columns 0, 20 and 40 each fit once.
    assert stitched.covered.all()
    np.testing.assert_allclose(stitched.fields.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_random_patches_move(store):
    """Another grid in each epoch, inside the steps for training, no place twice."""
    cut = patches_of(store, [2, 20, 24], [0, 0, 0])
    epochs = []
    for _ in range(4):
        places = [tuple(place) for batch in cut.randomly() for place in batch["index"].tolist()]
        assert len(set(places)) == len(places)
        assert all(
            start >= 0 and start + size <= end
            for place in places
            for start, size, end in zip(place, cut.args.patch, (cut.split, *GRID))
        )
        epochs.append(frozenset(places))
    assert len(set(epochs)) > 1


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments, status, part",
    [
        (["--patch", "2", "99", "32"], 1, "99"),
        (["--overlap", "0", "32", "0"], 2, "--overlap"),
        (["--patch", "1", "2", "2", "--overlap", "0", "0", "0"], 2, "--patch"),
    ],
)
def test_patches_says_what_is_wrong(store, tmp_path, arguments, status, part):
    done = run_script("patches.py", "--store", store, *arguments, "--device", "cpu", cwd=tmp_path)
    assert done.returncode == status
    assert part in done.stderr and "Traceback" not in done.stderr


@pytest.mark.full
def test_forecast_rollout(backend, tmp_path):
    arguments = ("--quick", "--quiet", "--device", backend.device, "--leads", 3, "--steps", 40)
    summary = summary_of("forecast_rollout.py", *arguments, cwd=tmp_path)
    test = summary["test"]
    # The last 10 of 48 steps hold 6 windows of two steps of history and three lead times.
    assert test["forecasts"] == 6
    for name in ("model", "persistence", "climatology"):
        assert len(test[name]) == 3
    assert test["persistence"] == sorted(test["persistence"])
    assert all(model < climate for model, climate in zip(test["model"], test["climatology"]))
    losses = summary["train"]["losses"]
    assert len(losses) == 40
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_forecast_parts_are_the_stores_steps(tmp_path):
    """History, lead times and static fields of a sample, normalized."""
    store = forecast_rollout.demo_store(tmp_path, quick=True)
    source = fields.inspect_planes(store)
    args = Namespace(
        store=store, static=list(forecast_rollout.STATIC), history=3, leads=2, batch_size=4, seed=0
    )
    forecasts = forecast_rollout.Forecasts(args, source, torch.device("cpu"))
    batch = next(iter(forecasts.testing()))
    history, leads, static = forecasts.parts(batch)
    mean, std = (values.numpy()[:, None, None] for values in (source.mean, source.std))
    values = np.stack([read_array(Path(store), name) for name in source.arrays], axis=1)
    expected = (values[forecasts.split :] - mean) / std
    for sample in range(4):
        np.testing.assert_allclose(history[sample], expected[sample : sample + 3], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(leads[sample], expected[sample + 3 : sample + 5], rtol=1e-4, atol=1e-4)
        for field, name in zip(static[sample].numpy(), forecast_rollout.STATIC):
            plain = read_array(Path(store), name)
            np.testing.assert_allclose(field, (plain - plain.mean()) / plain.std(), rtol=1e-4, atol=1e-4)


def test_a_rollout_feeds_on_itself():
    """Each step is made from the model's own ones, the newest last."""

    def model(history, static):
        return history[:, -1] + history[:, 0] + static

    history = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1, 1)
    static = torch.full((1, 1, 1, 1), 10.0)
    steps = forecast_rollout.rollout(model, history, static, 3).flatten().tolist()
    assert steps == [2 + 1 + 10, 13 + 2 + 10, 25 + 13 + 10]


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--static", "lat", "--leads", "1", "--history", "1"], "lat"),
        (["--history", "9"], "13 steps in a row"),
    ],
)
def test_forecast_rollout_says_what_is_wrong(store, tmp_path, arguments, part):
    arguments = ("--store", store, "--device", "cpu", *arguments)
    assert_refused(run_script("forecast_rollout.py", *arguments, cwd=tmp_path), part)


@pytest.mark.full
def test_images_labels(backend, tmp_path):
    arguments = ("--quick", "--quiet", "--device", backend.device, "--epochs", 4)
    summary = summary_of("images_labels.py", *arguments, cwd=tmp_path)
    epochs = summary["epochs"]
    assert [one["samples"] for one in epochs] == [576] * 4
    assert [one["validated"] for one in epochs] == [64] * 4
    # Four classes; labels that did not belong to their images could not be learned.
    assert epochs[-1]["accuracy"] > 0.5
    assert epochs[-1]["loss"] < epochs[0]["loss"]


@pytest.mark.full
def test_images_labels_says_what_is_wrong(store, tmp_path):
    done = run_script(
        "images_labels.py", "--store", store, "--images", "t2m", "--labels", "lat", cwd=tmp_path
    )
    assert_refused(done, "[N, H, W, 3]")


@pytest.mark.full
def test_jax_iterator(tmp_path):
    pytest.importorskip("jax")
    if DALI_2_0:
        pytest.skip("DALI 2.0's plugin for JAX does not fit today's JAX")
    arguments = ("--quick", "--quiet", "--device", "cpu", "--steps", 40)
    summary = summary_of("jax_iterator.py", *arguments, cwd=tmp_path)
    # 47 pairs of steps fill two batches of 16 an epoch.
    assert (summary["steps"], summary["epochs"]) == (40, 19)
    assert summary["last_loss"] < summary["first_loss"]


@pytest.mark.full
def test_profile_overlap(backend, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = (
        "--quick",
        "--quiet",
        "--device",
        backend.device,
        "--batch-size",
        2,
        "--out",
        tmp_path / "out",
    )
    summary = summary_of("profile_overlap.py", *arguments, cwd=tmp_path)
    assert summary["steps"] == 4
    assert 0 <= summary["blocked_share"] < 1
    assert ("hidden" in summary) == (backend.device == "gpu")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "trace.json.gz", "timeline.png", "summary.json",
    }  # fmt: skip


@pytest.mark.full
def test_profile_overlap_of_a_trace(tmp_path):
    """Steps of 100 us: training from 10 to 90, a copy from 20 to 40, decoding from 80 to 100."""
    pytest.importorskip("matplotlib")

    def event(cat, name, start, duration, stream=None):
        found = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": duration}
        return found | ({"args": {"stream": stream}} if stream is not None else {})

    events = []
    for start in range(0, 600, 100):
        events += [
            event("user_annotation", "next batch", start, 5),
            event("user_annotation", "training step", start + 5, 85),
            event("kernel", "void conv(float*)", start + 10, 80, 7),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", start + 90, 1, 7),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start + 20, 20, 20),
            event("kernel", "gather", start + 80, 20, 20),
        ]
    trace = tmp_path / "trace.json.gz"
    with gzip.open(trace, "wt") as file:
        json.dump({"traceEvents": events}, file)
    done = run_script("profile_overlap.py", "--trace", trace, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert figures["steps"] == 6
    assert figures["copy_hidden"] == 1
    # Each step's decoding is hidden for 10 us; the end of the last step, at 591, cuts its own to 11.
    assert figures["decode_hidden"] == pytest.approx(60 / (5 * 20 + 11))
    assert figures["blocked_share"] == pytest.approx(30 / 590)
    assert (tmp_path / "out" / "timeline.png").stat().st_size > 1000


@pytest.mark.skipif(3 not in FORMATS, reason="needs zarr-python 3")
def test_era5_like_stores_hold_the_same_values(backend, tmp_path):
    """Chunks and codecs of the benchmark's stores change nothing about the values, and all can be read."""
    layouts = ["raw", "zstd", "sharded", "blosc-lz4", "blosc-zstd"]
    done = run_script(
        "era5_like.py", "all", "--steps", 3, "--grid", 32, 40, "--layout", *layouts, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    values = read_array(tmp_path / "all/raw.zarr")
    assert values.shape == (3, 6, 32, 40)
    assert len(np.unique(values)) > 1000
    for layout in layouts:
        assert_reads(backend, tmp_path / f"all/{layout}.zarr", "", values)
    again = run_script(
        "era5_like.py", "all", "--steps", 3, "--grid", 32, 40, "--layout", *layouts, cwd=tmp_path
    )
    assert again.stdout.count("already there") == 5
