"""What `Loader` looks at before it builds anything: names of arguments, device, process and rank."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from zarr_dali import _plugin, _select, _values

if TYPE_CHECKING:
    import torch

# What the loader gives to the reader itself, and what to give to the loader instead.
RESERVED = {
    "random_shuffle": "shuffle",
    "shard_id": "rank",
    "num_shards": "world_size",
    "pad_last_batch": "drop_last",
    "position": "load_state_dict",
    "max_batch_size": "batch_size",
    "lazy_init": None,
    "name": None,
}
# Arguments of a torch DataLoader, and what stands for them here.
OF_TORCH = {
    "num_workers": "the reader has threads of its own: see `num_io_threads`",
    "pin_memory": "batches are made on the `device`",
    "pin_memory_device": "batches are made on the `device`",
    "prefetch_factor": "give `prefetch`",
    "persistent_workers": "there are no worker processes",
    "multiprocessing_context": "there are no worker processes",
    "worker_init_fn": "there are no worker processes",
    "timeout": "there are no worker processes",
    "collate_fn": "batches come as tensors: give `transform` to change them",
    "sampler": "give `shuffle`, `samples` or `weights`, and `rank` and `world_size`",
    "batch_sampler": "give `batch_size`, and `shuffle`, `samples` or `weights`",
    "generator": "give `seed`",
    "dataset": "give `path` and `arrays`",
}


def import_torch() -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError('Loader needs PyTorch, which is missing: pip install "zarr-dali[train]"') from error


def check_names(reader_arguments: Iterable[str], own: Iterable[str]) -> None:
    """Refuses names of arguments that there are not; `own` are the loader's."""
    from nvidia.dali import backend

    schema = backend.GetSchema(_plugin.SCHEMA)
    for name in reader_arguments:
        if name in RESERVED:
            remedy = f"; give `{RESERVED[name]}` instead" if RESERVED[name] else ""
            raise ValueError(f"{name} is the loader's own argument of the reader{remedy}")
        if not schema.HasArgument(name):
            raise TypeError(
                f"{name} is an argument neither of Loader nor of fn.readers.zarr"
                f"{_instead_of(name, [*schema.GetArgumentNames(), *own])}"
            )


def _instead_of(name: str, known: Iterable[str]) -> str:
    """What to give in place of an argument that there is not."""
    if name in OF_TORCH:
        return f", but of a torch DataLoader; {OF_TORCH[name]}"
    near = difflib.get_close_matches(name, [one for one in known if one not in RESERVED], 1)
    return f"; did you mean `{near[0]}`?" if near else ""


def refuse_workers() -> None:
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        raise RuntimeError(
            "a Loader is used in a worker process of a torch DataLoader: iterate over it directly, without a "
            "DataLoader, since it reads ahead on threads of its own"
        )


def device_of(device: str | torch.device) -> torch.device:
    import torch

    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {device!r}, but has to be cpu, cuda or cuda:N") from error
    if parsed.type == "cpu":
        return torch.device("cpu")
    if parsed.type != "cuda":
        raise ValueError(f"device is {device!r}, but has to be cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()  # says why
            problem = "torch finds no GPU"
        except (RuntimeError, AssertionError) as error:
            problem = str(error).strip().rstrip(".")
        raise RuntimeError(f'device is {str(device)!r}: {problem}; without a GPU give device="cpu"')
    if parsed.index is not None and parsed.index >= torch.cuda.device_count():
        raise RuntimeError(
            f"device is {str(device)!r}, but there are {torch.cuda.device_count()} GPUs, numbered from 0"
        )
    return parsed if parsed.index is not None else torch.device("cuda", torch.cuda.current_device())


def rank_and_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    import torch.distributed

    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank} and world_size={world_size}: give both or none")
    if rank is not None and world_size is not None:
        rank, world_size = _values.whole("rank", rank), _values.whole("world_size", world_size)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not in 0 to world_size - 1, with world_size={world_size}")
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def check_labels(labels: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuses what is no dimension in `select`, and regions given twice."""
    if not isinstance(labels, Mapping):
        raise TypeError(
            'select: has to be a dictionary of labels by dimension, such as {"time": slice("2010", "2015")}, '
            f"not {type(labels).__name__}"
        )
    for name in ("roi_start", "roi_end", "breaks", "per_store"):
        if arguments.get(name) is not None:
            raise ValueError(f"{name} and select: give one of them")
    taken = inspect.signature(_select.select).parameters.values()
    for parameter in taken:
        if parameter.kind != parameter.VAR_KEYWORD and parameter.name in labels:
            raise ValueError(
                f"select: {parameter.name} is no dimension but an argument of Loader; give "
                f"`{parameter.name}=` beside `select=`"
            )
