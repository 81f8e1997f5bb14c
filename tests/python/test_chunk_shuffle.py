"""The shuffle that knows chunks: what it decodes, counted, and the order that it gives.

Stores hold ten steps in a chunk. With memory for 16 groups of chunks every chunk is read and decoded exactly
once an epoch, whatever the windows are; each sample comes once, in an order that follows from seed, epoch and
reader shard alone. The counters are compared with what the order itself asks for: how many different chunks
each epoch has touched up to the last batch that was prepared.
"""

import itertools
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pytest
import zarr

import reference
import zarr_dali
from counting import Chunks, counters, settled_stats
from naive import Sampling, visits
from reading import CPU, GPU, build, on_host, to_samples
from stores import FORMATS, write_array, write_group
from tiers import quick

WIDTH = 2048
"""Elements of a step. Budgets are counted in chunks, and on a GPU decoders need some memory, too."""


@dataclass(frozen=True)
class Case:
    """Arrays of one or several stores and the samples that are taken from them."""

    sampling: Sampling
    arrays: dict = field(default_factory=lambda: {"a": ((400, WIDTH), (10, WIDTH))})
    """Name -> (shape, chunk extents)."""
    parts: tuple = ()
    """Of joined stores: how many steps each holds, and how many of them a chunk."""
    sharded: bool = False

    @property
    def shape(self):
        return next(iter(self.arrays.values()))[0]

    def chunks(self):
        """The read chunks of each array."""
        return [
            Chunks(
                shape,
                [(extent, (chunk, *chunks[1:])) for extent, chunk in self.parts] or [(shape[0], chunks)],
            )
            for shape, chunks in self.arrays.values()
        ]

    def group_bytes(self):
        """Decoded bytes of the chunks over as many steps as the largest of them has."""
        steps = max([chunks[0] for _, chunks in self.arrays.values()] + [chunk for _, chunk in self.parts])
        return 4 * sum(
            prod(-(-n // chunk) * chunk for n, chunk in zip((steps, *shape[1:]), chunks))
            for shape, chunks in self.arrays.values()
        )


CASES = {
    "steps": Case(Sampling()),
    "windows": Case(Sampling(window=(4,))),
    "long windows": Case(Sampling(window=(13,), stride=(3,))),
    "dilated": Case(Sampling(window=(4,), dilation=(3,))),
    "offsets": Case(Sampling(offsets=(-6, 0, 6, 12))),
    "excluded": Case(Sampling(window=(4,), exclude=(0, 55, 120, 121, 399))),
    "region": Case(Sampling(window=(4,), roi_start=(33,), roi_end=(377,))),
    "patches": Case(
        Sampling(window=(1, 32, 32), stride=(1, 16, 16)),
        {"a": ((40, 128, 128), (4, 64, 64))},
    ),
    "several arrays": Case(
        Sampling(window=(4,)),
        {
            "a": ((400, WIDTH), (10, WIDTH)),
            "b": ((400, WIDTH), (5, WIDTH)),
            "c": ((400, 2, WIDTH), (10, 1, WIDTH)),
        },
    ),
    # So many that what lies across the borders of groups would not all stay.
    "chunks that do not align": Case(
        Sampling(), {"a": ((2000, WIDTH // 8), (10, WIDTH // 8)), "b": ((2000, WIDTH // 8), (8, WIDTH // 8))}
    ),
    "sharded": Case(Sampling(window=(4,)), sharded=True),
    "joined": Case(Sampling(window=(4,)), parts=((130, 10), (75, 15), (195, 10))),
}


def store_of(case, cached_store):
    """The case's store, or the list of its stores; values tell samples apart."""
    key = f"shuffle-{case.arrays}-{case.parts}-{case.sharded}"

    def write(folder):
        folder.mkdir()
        start = 0
        for number, (extent, steps) in enumerate(case.parts or ((case.shape[0], None),)):
            path = write_group(folder / f"part-{number}")
            for name, (shape, chunks) in case.arrays.items():
                whole = np.arange(prod(shape), dtype="int32").reshape(shape)
                write_array(
                    path,
                    name,
                    whole[start : start + extent],
                    chunks=(steps or chunks[0], *chunks[1:]),
                    shards=(5 * chunks[0], *chunks[1:]),
                    codec="sharded-end-zstd" if case.sharded else "zstd",
                    fill_value=-1,
                )
            start += extent

    if case.sharded and 3 not in FORMATS:
        pytest.skip("Zarr v2 has no sharded chunks")
    folder = cached_store(key, write)
    paths = sorted(str(part) for part in folder.iterdir())
    return paths if len(paths) > 1 else paths[0]


def build_case(backend, cached_store, case, *, groups=None, batch_size=4, seed=1, **arguments):
    """A reader of the case, with memory for so many groups beside its batches if that is said."""
    if groups is not None:
        # Half of a budget is for chunks that stay in memory.
        budget = 2 * groups * case.group_bytes()
        arguments[f"{'host' if backend is CPU else 'device'}_memory_budget"] = budget
    # With padding no batch holds the end of one epoch and the start of the next: epochs can be told apart.
    given = {"random_shuffle": True, "seed": seed, "return_index": True, "pad_last_batch": True}
    arguments = given | arguments
    return build(
        backend,
        store_of(case, cached_store),
        arrays=list(case.arrays),
        batch_size=batch_size,
        **case.sampling.arguments(),
        **arguments,
    )


def starts_of(pipe, how_many):
    """The starts of all samples of the next batches, from `return_index`."""
    starts = []
    for _ in range(how_many):
        index = on_host(pipe.run()[-1])
        starts += [tuple(map(int, np.array(index.at(i)))) for i in range(len(index))]
    return starts


def chunks_to_decode(case, found, batch_size):
    """For each number of batches: how many chunks they need, each counted once an epoch."""
    touched = {}
    seen, needed = set(), [0]
    for epoch, (_, samples, repeats) in enumerate(found):
        for place, start in enumerate([*samples, *repeats], 1):
            if start not in touched:
                touched[start] = [
                    (number, chunk)
                    for number, chunks in enumerate(case.chunks())
                    for chunk in chunks.of(case.sampling.index(chunks.shape, start))
                ]
            seen |= {(epoch, chunk) for chunk in touched[start]}
            if place % batch_size == 0:
                needed.append(len(seen))
    return needed


def assert_decoded_once(backend, cached_store, case, *, epochs=3, batch_size=4, **arguments):
    """Over several epochs each chunk is read and decoded once an epoch, and each sample comes once."""
    samples = case.sampling.samples(case.shape)
    pipe = build_case(backend, cached_store, case, batch_size=batch_size, **arguments)
    reader = {key: arguments.get(key, default) for key, default in (("num_shards", 1), ("shard_id", 0))}
    every = reference.batches_per_epoch(len(samples), reader["num_shards"], batch_size)
    # Two epochs more, to know what the batches need that are prepared ahead.
    order = starts_of(
        build_case(CPU, cached_store, case, batch_size=batch_size, **arguments), every * (epochs + 2)
    )
    found = visits(order, len(samples), batch_size, pad_last_batch=True, **reader)
    assert len(found) == epochs + 2
    for _, visit, _ in found:
        assert len(set(visit)) == len(visit)
        assert reader["num_shards"] > 1 or sorted(visit) == samples
    needed = chunks_to_decode(case, found, batch_size)
    ahead = set(range(len(needed)))
    for done in range(every, every * epochs + 1, every):
        assert starts_of(pipe, every) == order[(done - every) * batch_size : done * batch_size]
        stats = settled_stats(pipe)
        assert stats["chunks_read"] == stats["chunks_decoded"]
        # So many more batches are prepared; a chunk decoded twice would make them seem more from then on.
        ahead &= {more for more, chunks in enumerate(needed[done:]) if chunks == stats["chunks_decoded"]}
        assert ahead, (stats, needed[done])


@pytest.mark.gpu_where(
    lambda case: case["name"] in ("steps", "windows", "patches", "several arrays", "joined")
)
@pytest.mark.parametrize("name", quick(CASES, "steps", "offsets", "patches", "several arrays", "joined"))
def test_each_chunk_is_decoded_once_an_epoch(backend, cached_store, name):
    """Shuffled, with memory for 16 groups."""
    assert_decoded_once(backend, cached_store, CASES[name], groups=16)


@pytest.mark.full
@pytest.mark.gpu_where(lambda case: case["name"] in ("windows", "patches"))
@pytest.mark.parametrize("name", CASES)
def test_each_chunk_is_decoded_once_in_sequence(backend, cached_store, name):
    """Unshuffled: what overlapping windows share stays from one batch to the next."""
    assert_decoded_once(backend, cached_store, CASES[name], groups=16, random_shuffle=False, epochs=2)


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("name", quick(["steps", "windows", "patches", "joined"], "windows", "joined"))
def test_shards_leave_each_others_chunks_alone(backend, cached_store, name):
    """Three ranks share an epoch: at each border of their parts they both need what one group and the windows
    that reach beyond it touch, and nothing else."""
    case, count = CASES[name], 3
    samples, seen, touched = case.sampling.samples(case.shape), [], []
    for shard_id in range(count):
        reader = {"num_shards": count, "shard_id": shard_id}
        pipe = build_case(backend, cached_store, case, groups=16, batch_size=1, **reader)
        size = len(samples) * (shard_id + 1) // count - len(samples) * shard_id // count
        part = starts_of(pipe, size)
        seen += part
        of = case.chunks()[0].of
        touched.append(set().union(*(of(case.sampling.index(case.shape, start)) for start in part)))
        assert_decoded_once(backend, cached_store, case, groups=16, epochs=2, **reader)
    assert sorted(seen) == samples
    both = sum(map(len, touched)) - len(set().union(*touched))
    rows = prod(-(-n // chunk) for n, chunk in zip(case.shape[1:], case.chunks()[0].parts[0][1][1:]))
    assert both <= (count - 1) * 2 * rows


@pytest.mark.gpu_where(False)
def test_less_memory_costs_decodes(backend, cached_store):
    """Windows of four: the more groups fit, the fewer chunks are decoded twice; 16 are enough for none."""
    case = CASES["windows"]
    every, cost = reference.batches_per_epoch(len(case.sampling.samples(case.shape)), 1, 8), []
    for groups in (1, 2, 4, 8, 16, 32):
        pipe = build_case(backend, cached_store, case, groups=groups)
        starts_of(pipe, every * 5)
        cost.append(settled_stats(pipe)["chunks_decoded"] / 5 / 40)
    assert cost[0] > 1.5
    assert all(more >= less - 0.1 for more, less in itertools.pairwise(cost)), cost
    assert all(one <= 1.2 for one in cost[-2:]), cost


# --- the order ------------------------------------------------------------------------------------


def orders(backend, cached_store, case, epochs=2, batch_size=7, **arguments):
    """The starts of the samples in each of the first epochs."""
    count = len(case.sampling.samples(case.shape))
    pipe = build_case(backend, cached_store, case, batch_size=batch_size, **arguments)
    starts = starts_of(pipe, reference.batches_per_epoch(count, 1, batch_size) * epochs)
    return [samples for _, samples, _ in visits(starts, count, batch_size, pad_last_batch=True)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_order_is_the_same_on_both_backends(cached_store, name):
    """Also with a budget, which each backend has an argument of its own for."""
    # With the budget batches of four: of larger ones of long windows DALI alone holds more.
    for groups, batch_size in ((None, 7), (16, 4)):
        on_cpu, on_gpu = (
            orders(backend, cached_store, CASES[name], epochs=1, groups=groups, batch_size=batch_size)
            for backend in (CPU, GPU)
        )
        assert on_cpu == on_gpu


@pytest.mark.gpu_where(lambda case: case["name"] == "windows")
@pytest.mark.parametrize("name", ["steps", "windows", "patches", "several arrays"])
def test_order_depends_on_nothing_else(backend, cached_store, name):
    """Not on threads, queues, batch sizes, on who decodes or on a budget of what is not used."""
    case, unused = CASES[name], "device" if backend is CPU else "host"
    expected = orders(backend, cached_store, case)
    for arguments in (
        {},
        {"num_io_threads": 1},
        {"num_io_threads": 7, "prefetch_queue_depth": 3},
        {"batch_size": 31},
        {"decode": "cpu"},
        {f"{unused}_memory_budget": 1 << 26},
    ):
        assert orders(backend, cached_store, case, **arguments) == expected, arguments


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize("name", ["steps", "windows", "patches"])
def test_seeds_and_epochs_differ(backend, cached_store, name):
    """Two orders of a random kind agree in about one place; groups and samples inside them move, too."""
    case = CASES[name]
    found = [
        *orders(backend, cached_store, case, epochs=3, seed=1),
        *orders(backend, cached_store, case, epochs=3, seed=2),
        case.sampling.samples(case.shape),
    ]
    for one, other in itertools.combinations(found, 2):
        assert sum(map(tuple.__eq__, one, other)) < 0.05 * len(one)


@pytest.mark.gpu_where(False)
def test_initial_fill_is_the_size_of_the_buffer(backend, cached_store):
    """Samples of so many groups are mixed: neighbours in an epoch come from as many chunks."""
    case, mixed = CASES["steps"], []
    for initial_fill in (1, 40, 160, 1024):
        pipe = build_case(backend, cached_store, case, initial_fill=initial_fill)
        assert zarr_dali.stats(pipe)["shuffle"]["strands"] == min(-(-initial_fill // 10), 40)
        (order,) = orders(backend, cached_store, case, epochs=1, initial_fill=initial_fill)
        runs = [{start // 10 for (start,) in order[at : at + 20]} for at in range(0, 400, 20)]
        mixed.append(np.mean([len(run) for run in runs]))
    assert mixed[0] <= 3.5
    assert all(more > less + 2 for less, more in itertools.pairwise(mixed[:3])), mixed
    assert mixed[-1] > 14, mixed


@pytest.mark.gpu_where(False)
def test_samples_without_shared_chunks_are_permuted(backend, cached_store):
    """Chunks of one step and single steps: nothing is to be kept, and a true permutation costs nothing."""
    case = Case(Sampling(), {"a": ((400, WIDTH), (1, WIDTH))})
    pipe = build_case(backend, cached_store, case, initial_fill=2)
    order = [start for (start,) in starts_of(pipe, 100)]
    assert sorted(order) == list(range(400))
    distances = np.abs(np.diff(order))
    # The mean distance of two random places is a third of the length.
    assert 400 / 3 * 0.85 < distances.mean() < 400 / 3 * 1.15
    stats = settled_stats(pipe)
    assert stats["chunks_reused"] == 0
    assert stats["chunk_cache_bytes"] == 0
    assert stats["shuffle"] is None


@pytest.mark.gpu_where(lambda case: case["shuffle"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_counters_add_up(backend, cached_store, shuffle):
    """What `zarr_dali.stats` says of samples, batches, bytes and memory."""
    case = CASES["windows"]
    # Where both may decode, it is the machine's speed that says who does.
    decode = {} if backend is CPU else {"decode": "gpu"}
    pipe = build_case(backend, cached_store, case, groups=16, random_shuffle=shuffle, **decode)
    starts_of(pipe, 20)
    stats = settled_stats(pipe)
    assert stats == counters(pipe)
    # DALI runs ahead of what it was asked for.
    assert 20 <= stats["batches"] <= 25
    assert stats["samples"] == 397
    assert stats["chunks_decoded"] * 10 * WIDTH * 4 == stats["bytes_decoded"]
    assert 0 < stats["bytes_read"] < stats["bytes_decoded"]
    assert stats["chunks_missing"] == 0
    assert stats["chunks_decoded_gpu"] == (stats["chunks_decoded"] if backend is GPU else 0)
    assert stats["chunks_reused"] > 0
    assert 0 < stats["chunk_cache_peak_bytes"] <= stats["chunk_cache_bytes"]
    assert (stats["shuffle"] is not None) == shuffle
    if shuffle:
        assert stats["shuffle"]["groups"] == 40
        # Each holds the chunks that a window spans, two; some memory is for what is read ahead.
        assert 5 <= stats["shuffle"]["strands"] <= 8


def test_counters_are_documented_and_keep_their_former_names(cached_store):
    """The docstring of `zarr_dali.stats` names every counter; renamed counters have both names."""
    stats = zarr_dali.stats(build_case(CPU, cached_store, CASES["steps"]))
    assert [name for name in stats if f"`{name}`" not in zarr_dali.stats.__doc__] == []
    for name, former in {
        "chunks_decoded_sm_partition": "chunks_decoded_green",
        "chunk_cache_bytes": "resident_bytes",
        "chunk_cache_peak_bytes": "resident_peak_bytes",
    }.items():
        assert stats[name] == stats[former], name


def test_counters_of_what_is_no_zarr_reader(cached_store):
    """A name that no reader has is refused and said; so is a pipeline without a Zarr reader."""
    pipe = build_case(CPU, cached_store, CASES["steps"])
    with pytest.raises(ValueError, match=r"nobody.*reader|reader.*nobody"):
        zarr_dali.stats(pipe, "nobody")


def test_dense_patches_come_from_all_of_a_volume(tmp_path):
    """A row of chunks has millions of them, of which a short epoch would see no other."""
    extents, window = (128, 2048, 2048), (16, 16, 16)
    array = zarr.create_array(
        str(tmp_path / "a.zarr"), shape=extents, chunks=(64, 64, 64), dtype="float32", fill_value=1
    )
    array[0, 0, 0] = 2
    pipe = build(
        CPU, tmp_path / "a.zarr", batch_size=50, window=window, stride=(1, 1, 1), random_shuffle=True, seed=3,
        return_index=True,
    )  # fmt: skip
    found = np.concatenate([np.stack(to_samples(pipe.run()[1])) for _ in range(40)])
    assert len(np.unique(found, axis=0)) == len(found) == 2000
    shuffle = zarr_dali.stats(pipe)["shuffle"]
    assert shuffle["passes"] > 10 and shuffle["strands"] > 1
    for starts, extent, length in zip(found.T[-3:], extents, window):
        share = starts / (extent - length)
        # Evenly spread starts have 0.289.
        assert 0.15 < share.std() < 0.45, shuffle
