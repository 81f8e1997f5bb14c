"""Loaders of pairs of neighbouring steps: ours, and those that people use today, behind one interface.

All of them give each rank its part of the samples, shuffle with a seed and go on exactly where a state says.
The peers are used as their documentation shows and read with zarr-python; their samples come in a permutation
that depends on the seed and the epoch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import psutil
import torch
import zarr
from torch import Tensor

import zarr_dali
from fields import Source

WINDOW = 2
"""Steps of a sample: input and target."""
MOST_WORKERS = 14
WORKER_TIMEOUT_S = 300
"""After which worker processes that hang are an error."""

Batch = dict[str, Tensor]
"""`fields` [B, 2, C, H, W] float32 on the device, and `index` [B], the first step of each sample."""


@dataclass(frozen=True)
class Wanted:
    """What a loader is asked for.

    Attributes:
        workers: worker processes, for the loaders that have them; 0 reads in the training's own process.
        options: arguments of `fn.readers.zarr`, for our loader.
    """

    source: Source
    batch_size: int
    device: torch.device
    shuffle: bool = True
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    workers: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples of an epoch, on all ranks together."""
        return self.source.steps - WINDOW + 1

    @property
    def batches(self) -> int:
        """Batches of an epoch on each rank."""
        return math.ceil(math.ceil(self.samples / self.world_size) / self.batch_size)


class Loader(Protocol):
    """Iterating over a loader gives one epoch, or the rest of one after `load_state_dict`."""

    def __len__(self) -> int:
        """Batches of an epoch on each rank."""

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]:
        """Where the batch stands that comes next: `epoch`, `batch`, and what the loader needs besides."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def stats(self) -> dict[str, Any]:
        """Counters of the loader, if it has any."""

    def close(self) -> None: ...


def default_workers(processes: int = 1) -> int:
    """Worker processes for one of so many processes on this machine; two cores are left to the training."""
    cores = len(os.sched_getaffinity(0)) // processes
    return max(1, min(MOST_WORKERS, cores - 2))


class Ours:
    """`zarr_dali.Loader`: threads of this process read, GPU and idle cores decode."""

    def __init__(self, wanted: Wanted) -> None:
        source = wanted.source
        self.join = torch.cat if source.dims == 4 else torch.stack
        self.loader = zarr_dali.Loader(
            source.store,
            source.arrays,
            wanted.batch_size,
            shuffle=wanted.shuffle,
            device=wanted.device,
            seed=wanted.seed,
            rank=wanted.rank,
            world_size=wanted.world_size,
            window=[WINDOW],
            # The reader stacks arrays of one type as it gathers them, which costs nothing.
            stack=source.dims == 3 and len(source.arrays) > 1 and len(set(source.dtypes)) == 1,
            return_index=True,
            **({} if source.float32 else {"dtype": "float32"}),
            **wanted.options,
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            index = batch.pop("index")[:, 0]
            values = list(batch.values())
            if len(values) > 1 or values[0].ndim == 4:
                values = [self.join(values, dim=2)]
            yield {"fields": values[0], "index": index}

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        return self.loader.stats()

    def close(self) -> None:
        self.loader.close()


# --- the peers ------------------------------------------------------------------------------------


class _Order:
    """The batches of each epoch for one rank, and the place in them."""

    def __init__(self, wanted: Wanted) -> None:
        self.identity = {
            "seed": wanted.seed,
            "shuffle": wanted.shuffle,
            "samples": wanted.samples,
            "world_size": wanted.world_size,
            "batch_size": wanted.batch_size,
        }
        self.rank = wanted.rank
        self.length = wanted.batches
        self.epoch, self.batch = 0, 0
        self._order: tuple[int, np.ndarray] | None = None

    def _order_of(self, epoch: int) -> np.ndarray:
        """All samples of an epoch, in order."""
        if self._order is None or self._order[0] != epoch:
            order = np.arange(self.identity["samples"])
            if self.identity["shuffle"]:
                order = np.random.default_rng((self.identity["seed"], epoch)).permutation(order)
            self._order = (epoch, order)
        return self._order[1]

    def samples(self, epoch: int, batch: int) -> list[int]:
        """The samples of a batch; a rank that has none left repeats its last one."""
        count, ranks, size = (self.identity[name] for name in ("samples", "world_size", "batch_size"))
        part = self._order_of(epoch)[count * self.rank // ranks : count * (self.rank + 1) // ranks]
        chosen = part[batch * size : (batch + 1) * size]
        return (chosen if len(chosen) else part[-1:]).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        """From the place on, epoch after epoch. Those who ask are ahead, so that nothing is counted here."""
        number = self.epoch * self.length + self.batch
        while True:
            yield self.samples(*divmod(number, self.length))
            number += 1

    def __len__(self) -> int:
        return self.length

    def handed_out(self) -> None:
        """Counts a batch that the training has got."""
        self.batch += 1
        if self.batch == self.length:
            self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch, **self.identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        theirs = {name: state.get(name) for name in self.identity}
        if theirs != self.identity:
            raise ValueError(f"the state of this loader is from {theirs}, which are now {self.identity}")
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])


class _Samples:
    """A map-style dataset over zarr-python; each process opens the arrays for itself."""

    def __init__(self, source: Source) -> None:
        self.paths = source.paths
        self.stacked = source.dims == 3
        self.arrays: list[zarr.Array] | None = None

    def __getitem__(self, sample: int) -> tuple[np.ndarray, int]:
        """The values [2, C, H, W] of a sample in float32, and its number."""
        if self.arrays is None:
            self.arrays = [zarr.open_array(path, mode="r") for path in self.paths]
        steps = [array[sample : sample + WINDOW] for array in self.arrays]
        if self.stacked:
            values = np.stack(steps, axis=1)
        else:
            values = np.concatenate(steps, axis=1) if len(steps) > 1 else steps[0]
        return values.astype(np.float32, copy=False), sample


class _Peer:
    """A loader that hands out the batches of an `_Order`."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.order = _Order(wanted)

    def __len__(self) -> int:
        return self.wanted.batches

    def __iter__(self) -> Iterator[Batch]:
        # As many as the order has left, since a loader may go on for ever.
        batches = self.batches()
        for _ in range(self.order.batch, len(self.order)):
            batch = next(batches)
            self.order.handed_out()
            yield batch

    def batches(self) -> Iterator[Batch]:
        """The batches from the place in the order to the end of its epoch, at least."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return self.order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.order.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Gives back processes and memory."""


class Synthetic(_Peer):
    """One random batch that stays on the device: the speed that no loader can exceed."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        source, device = wanted.source, wanted.device
        shape = (wanted.batch_size, WINDOW, source.channels, source.height, source.width)
        values = torch.randn(shape, device=device) * source.std.to(device)[:, None, None]
        self.batch = {
            "fields": values + source.mean.to(device)[:, None, None],
            "index": torch.zeros(wanted.batch_size, dtype=torch.int64, device=device),
        }

    def batches(self) -> Iterator[Batch]:
        while True:
            yield self.batch


class TorchDataLoader(_Peer):
    """A torch DataLoader over zarr-python: worker processes, pinned memory, an asynchronous copy.

    Its order has no end, so that workers have something to do where an epoch has fewer batches than they are.
    """

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self.iterator: Iterator[Any] | None = None

    def _build(self) -> Iterator[Any]:
        wanted = self.wanted
        loader = torch.utils.data.DataLoader(
            _Samples(wanted.source),
            batch_sampler=self.order,
            num_workers=wanted.workers,
            pin_memory=wanted.device.type == "cuda",
            timeout=WORKER_TIMEOUT_S if wanted.workers else 0,
        )
        return iter(loader)

    def batches(self) -> Iterator[Batch]:
        if self.iterator is None:
            self.iterator = self._build()
        device = self.wanted.device
        for fields, index in self.iterator:
            yield {"fields": fields.to(device, non_blocking=True), "index": index}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.iterator = None

    def close(self) -> None:
        self.iterator = None


class _BatchSource:
    """What external_source calls: the batch with a number, counted from a place in the order."""

    def __init__(self, wanted: Wanted, order: _Order) -> None:
        self.samples = _Samples(wanted.source)
        self.order, self.start = order, order.epoch * len(order) + order.batch

    def __call__(self, number: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        place = divmod(self.start + number, len(self.order))
        values, index = zip(*map(self.samples.__getitem__, self.order.samples(*place)))
        return list(values), [np.array(sample) for sample in index]


class ExternalSource(_Peer):
    """DALI's external_source calling zarr-python, in worker processes if there are any."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self.iterator: Iterator[Any] | None = None

    def _build(self) -> Iterator[Any]:
        from nvidia.dali import Pipeline, fn, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        wanted, workers = self.wanted, self.wanted.workers
        on_gpu = wanted.device.type == "cuda"
        pipeline = Pipeline(
            batch_size=wanted.batch_size,
            num_threads=2,
            device_id=wanted.device.index if on_gpu else None,
            py_num_workers=max(1, workers),
            # A forked child could not use what this process has begun on the GPU.
            py_start_method="spawn",
        )
        parallel = {"parallel": True, "prefetch_queue_depth": max(2, workers)} if workers else {}
        with pipeline:
            fields, index = fn.external_source(
                source=_BatchSource(wanted, self.order),
                num_outputs=2,
                batch=True,
                dtype=[types.FLOAT, types.INT64],
                **parallel,
            )
            pipeline.set_outputs(fields.gpu() if on_gpu else fields, index)
        if workers:
            pipeline.start_py_workers()
        pipeline.build()
        return iter(DALIGenericIterator([pipeline], ["fields", "index"]))

    def batches(self) -> Iterator[Batch]:
        if self.iterator is None:
            self.iterator = self._build()
        for (batch,) in self.iterator:
            yield batch

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.iterator = None

    def close(self) -> None:
        self.iterator = None


class KvikIO(_Peer):
    """zarr-python with `enable_gpu` over KvikIO's GDSStore, in this process."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        if wanted.device.type != "cuda":
            raise ValueError("--loader kvikio needs a GPU")
        from kvikio.zarr import GDSStore

        with zarr.config.enable_gpu():
            self.arrays = [
                zarr.open_array(GDSStore(path, read_only=True), mode="r") for path in wanted.source.paths
            ]

    def batches(self) -> Iterator[Batch]:
        join = torch.stack if self.wanted.source.dims == 3 else torch.cat
        for samples in self.order:
            # The kind of buffer is chosen when it is made, that is while reading.
            with zarr.config.enable_gpu():
                read = [[array[i : i + WINDOW] for array in self.arrays] for i in samples]
            values = [
                join([torch.as_tensor(part, device=self.wanted.device) for part in parts], dim=1)
                for parts in read
            ]
            yield {"fields": torch.stack(values).float(), "index": torch.tensor(samples)}


class InMemory(_Peer):
    """The whole store in this machine's memory, read once: what a loader that caches everything comes to."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        source = wanted.source
        needed = source.steps * source.step_bytes
        if needed > psutil.virtual_memory().available / 2:
            raise ValueError(
                f"--loader memory: {source.store} has {needed / 1e9:.1f} GB of values, more than half of "
                "the memory that is free"
            )
        arrays = [zarr.open_array(path, mode="r") for path in source.paths]
        self.values = torch.empty((source.steps, source.channels, source.height, source.width))
        into = self.values.numpy()
        for step in range(source.steps):
            parts = [array[step] for array in arrays]
            (np.stack if source.dims == 3 else np.concatenate)(parts, out=into[step])
        self.on_gpu = wanted.device.type == "cuda"

    def batches(self) -> Iterator[Batch]:
        for samples in self.order:
            shape = (len(samples), WINDOW, *self.values.shape[1:])
            batch = torch.empty(shape, pin_memory=self.on_gpu)
            for into, sample in zip(batch, samples):
                into.copy_(self.values[sample : sample + WINDOW])
            yield {
                "fields": batch.to(self.wanted.device, non_blocking=True),
                "index": torch.tensor(samples),
            }


LOADERS: dict[str, type[Any]] = {
    "ours": Ours,
    "torch": TorchDataLoader,
    "external-source": ExternalSource,
    "kvikio": KvikIO,
    "memory": InMemory,
    "synthetic": Synthetic,
}
