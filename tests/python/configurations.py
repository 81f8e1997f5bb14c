"""Random arguments of a reader, and what its order has to be like."""

import math
from functools import lru_cache

import numpy as np
import pytest

import reference
from naive import Sampling, visits


def scenes(write_scene, seed):
    """A fixture `scene_of(number)`: what `write_scene(folder, rng)` gave, once for each number."""

    @pytest.fixture(scope="module")
    def scene_of(tmp_path_factory):
        @lru_cache
        def get(number):
            return write_scene(tmp_path_factory.mktemp("scene"), np.random.default_rng([seed, number]))

        return get

    return scene_of


def draw_sampling(rng, shape, shared):
    """Arguments that are valid by themselves; they may leave no sample."""

    def maybe(probability):
        return rng.random() < probability

    def draw(low, high):
        """A number of low..=high."""
        return int(rng.integers(low, high + 1))

    given = {}
    dimensions = draw(0, shared)
    if dimensions:
        given["window"] = tuple(draw(1, max(1, min(4, extent // 2))) for extent in shape[:dimensions])
    if maybe(0.3):
        reach = max(1, shape[0] // 4)
        given["offsets"] = tuple(draw(-reach, reach) for _ in range(draw(1, 4)))
        if dimensions:
            given["window"] = (len(given["offsets"]), *given["window"][1:])
            if dimensions == 1 and maybe(0.7):
                del given["window"]
    if shared > 1 and maybe(0.25):
        _draw_along(draw, maybe, given, shape[:shared])
    if "window" in given and maybe(0.4):
        has_offsets = {0, *given.get("along", {})} if "offsets" in given else given.get("along", {})
        given["dilation"] = tuple(1 if d in has_offsets else draw(1, 3) for d in range(len(given["window"])))
    if maybe(0.5):
        given["stride"] = tuple(draw(1, 4) for _ in range(Sampling(**given).dimensions))
    if maybe(0.5):
        bounds = []
        for extent in shape[: draw(1, shared)]:
            start = draw(0, extent // 3)
            bounds.append((start, draw(max(start + 1, extent - extent // 3), extent)))
        starts, ends = zip(*bounds)
        if maybe(0.8):
            given["roi_start"] = starts[: draw(1, len(starts))]
        if maybe(0.8):
            given["roi_end"] = ends[: draw(1, len(ends))]
    if maybe(0.35):
        given["exclude"] = tuple(draw(0, shape[0] - 1) for _ in range(draw(1, 3)))
    if maybe(0.2):
        given["breaks"] = tuple(draw(0, shape[0] - 1) for _ in range(draw(1, 2)))
    return Sampling(**given)


def _draw_along(draw, maybe, given, shape):
    """Adds offsets of one or more dimensions behind the first, and makes the window fit."""
    reach = [max(1, extent // 3) for extent in shape]
    chosen = [d for d in range(1, len(shape)) if maybe(0.6)] or [1]
    along = {d: tuple(draw(-reach[d], reach[d]) for _ in range(draw(1, 3))) for d in chosen}
    given["along"] = along
    if maybe(0.3):
        given["breaks_along"] = {d: (draw(0, shape[d] - 1),) for d in along if maybe(0.7)}
    if "window" not in given:
        return
    if maybe(0.3):
        del given["window"]
        return
    window = list(given["window"]) + [1] * (max(along) + 1 - len(given["window"]))
    for d, its in along.items():
        window[d] = len(its)
    given["window"] = tuple(window)


def draw_reader(rng, count):
    """Reader shards, batches, padding and order for `count` samples."""
    num_shards = int(rng.integers(1, min(4, count) + 1)) if rng.random() < 0.5 else 1
    reader = {
        "num_shards": num_shards,
        "shard_id": int(rng.integers(0, num_shards)),
        "stick_to_shard": bool(rng.random() < 0.3),
        "pad_last_batch": bool(rng.random() < 0.5),
    }
    order = {}
    if rng.random() < 0.5:
        order = {"random_shuffle": True, "seed": int(rng.integers(0, 1000))}
        if rng.random() < 0.5:
            order["initial_fill"] = int(rng.choice([1, 2, 5, 30, 1024]))
    return reader, order, int(rng.integers(1, 10))


def batches_to_read(count, batch_size, reader):
    """Enough for a visit of every shard, or for two of the own one."""
    visited = 2 if reader["stick_to_shard"] or reader["num_shards"] == 1 else reader["num_shards"]
    if reader["pad_last_batch"]:
        return reference.batches_per_epoch(count, reader["num_shards"], batch_size) * visited
    return math.ceil(math.ceil(count / reader["num_shards"]) * visited / batch_size)


def check_visits(numbers, count, batch_size, reader, shuffled_cells, what):
    """Shuffled visits hold their shard once and repeat the last sample; (shard, sorted samples) of all."""
    found = visits(numbers, count, batch_size, **reader)
    assert found, what
    for shard, samples, repeats in found:
        assert len(set(samples)) == len(samples), f"{what}: shard {shard}"
        assert all(repeat == samples[-1] for repeat in repeats), f"{what}: shard {shard}"
        if not shuffled_cells:
            part = reference.shard_range(count, reader["num_shards"], shard)
            assert sorted(samples) == list(part), f"{what}: shard {shard}"
    return [(shard, sorted(samples)) for shard, samples, _ in found]
