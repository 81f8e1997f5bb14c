"""What the programs in this folder share: options, devices, ranks, clocks, tables, the small store."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import era5_like

# The store that is written when none is named: small enough for a laptop's CPU.
DEMO_STEPS, DEMO_GRID = 161, (64, 128)
QUICK_STEPS, QUICK_GRID = 48, (32, 64)

T = TypeVar("T")


# --- the command line -----------------------------------------------------------------------------


def positive(text: str) -> int:
    """A command line argument that has to be a positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def parser(description: str, *, batch_size: int = 8) -> argparse.ArgumentParser:
    """A command line with the options that all programs take."""
    result = argparse.ArgumentParser(description=description)
    add = result.add_argument
    add("--store", help="path of the Zarr store (default: a small one is written and used)")
    add("--data-dir", type=Path, default=Path("data"), help="where the small store is kept (default: ./data)")
    add("--batch-size", type=positive, default=batch_size, help="samples in a batch (default: %(default)s)")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU when one can be used")
    add("--seed", type=int, default=0, help="of the order and of the weights (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the summary there as well")
    add("--quiet", action="store_true", help="no progress bar")
    return result


def add_quick(line: argparse.ArgumentParser) -> None:
    """The option with which a program runs within seconds on any machine."""
    line.add_argument(
        "--quick", action="store_true", help="a smaller store and few steps, to see that everything runs"
    )


def run(name: str, program: Callable[[], None]) -> int:
    """Runs a program; the exit status is 1, with one line on stderr, where data or arguments do not fit."""
    try:
        program()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


def chosen_device(name: str, local_rank: int | None = None) -> torch.device:
    """`name` as a torch device; `auto` is the GPU when PyTorch can use one and else the CPU.

    Args:
        name: `auto`, `cpu` or `gpu`.
        local_rank: the GPU's number; by default the current one.
    """
    if name == "gpu" and not torch.cuda.is_available():
        raise ValueError("--device gpu: PyTorch sees no CUDA device; use --device cpu, or check nvidia-smi")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank is not None:
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"rank {local_rank} of this machine has no GPU of its own, there are "
                f"{torch.cuda.device_count()}: give torchrun a smaller --nproc-per-node"
            )
        torch.cuda.set_device(local_rank)
    return torch.device("cuda", torch.cuda.current_device())


def demo_store(folder: Path, *, quick: bool = False, write: bool = True) -> str:
    """Path of the small ERA5-like store, a group of [T, H, W] arrays, which is written on first use.

    Args:
        folder: where it is kept.
        quick: a still smaller one.
        write: False for ranks that leave the writing to another one.
    """
    steps, grid = (QUICK_STEPS, QUICK_GRID) if quick else (DEMO_STEPS, DEMO_GRID)
    store = folder / ("era5_like_quick.zarr" if quick else "era5_like.zarr")
    if write and era5_like.ensure_stores({"zstd": store}, steps=steps, grid=grid, arrangement="separate"):
        print(f"wrote {store}: {steps} steps of {len(era5_like.VARIABLES)} variables on {grid}")
    return str(store)


# --- ranks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def reduced(self, values: Sequence[float], operation: str = "sum") -> list[float]:
        """The sums (or `max`) of numbers over all ranks."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[operation])
        return tensor.tolist()


def join_ranks(device: str) -> Ranks:
    """Joins the processes that torchrun has started; without it this is one process of one.

    Args:
        device: `auto`, `cpu` or `gpu`; each process of a machine gets a GPU of its own, by its local rank.
            GPUs talk through NCCL, CPUs through gloo.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Ranks(0, 1, chosen_device(device))
    chosen = chosen_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if chosen.type == "cuda":
        dist.init_process_group("nccl", device_id=chosen)
    else:
        dist.init_process_group("gloo")
    return Ranks(dist.get_rank(), dist.get_world_size(), chosen)


# --- clocks ---------------------------------------------------------------------------------------


class Waiting:
    """Times what the training waits for, after a number of warm-up steps.

    `blocked` is the host time inside next(loader), `waited` the part of it that held the training up. On the
    CPU they are equal. On a GPU the host runs one step ahead, so being blocked does no harm while the GPU
    still works: what counts is the gap between the end of a step and the arrival of the next batch, read from
    the GPU's clock.
    """

    def __init__(self, device: torch.device, warmup: int) -> None:
        self.cuda = device.type == "cuda"
        self.warmup = warmup
        self.steps = 0
        self.start()

    def start(self) -> None:
        """Forgets what was counted and starts the clock, with the device idle."""
        self.samples, self.blocked, self.waited = 0, 0.0, 0.0
        # The i-th batch came after the i-th of these ends; the first one stands for the start.
        self._ends: list[torch.cuda.Event] = []
        self._arrivals: list[tuple[torch.cuda.Event, float]] = []
        if self.cuda:
            torch.cuda.synchronize()
            self._ends.append(self._record())
        self._began = time.perf_counter()

    def next(self, batches: Iterator[Any]) -> Any:
        """next(batches), timed; None at the end of an epoch."""
        began = time.perf_counter()
        batch = next(batches, None)
        blocked = time.perf_counter() - began
        self.blocked += blocked
        if not self.cuda:
            self.waited += blocked
        elif batch is not None:
            self._arrivals.append((self._record(), blocked))
        return batch

    def stepped(self, samples: int) -> None:
        """Called when all work of a step has been given to the device. Waits for the step before it."""
        self.steps += 1
        self.samples += samples
        if self.cuda:
            self._ends.append(self._record())
            self._ends[-2].synchronize()
            if len(self._arrivals) > 1:
                self._settle()
        if self.steps == self.warmup:
            self.start()

    def finish(self) -> float:
        """Waits for the device and returns the seconds since the warm-up ended."""
        if self.cuda:
            torch.cuda.synchronize()
            while self._arrivals:
                self._settle()
        return time.perf_counter() - self._began

    @property
    def seconds(self) -> float:
        """Since the warm-up ended, or since the start where it has not."""
        return time.perf_counter() - self._began

    def _settle(self) -> None:
        """Adds the gap between the oldest end of a step and the batch that came after it."""
        arrival, blocked = self._arrivals.pop(0)
        gap = self._ends.pop(0).elapsed_time(arrival) / 1e3
        self.waited += min(max(gap, 0.0), blocked)

    @staticmethod
    def _record() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def family() -> list[psutil.Process]:
    """This process and all below it, such as the workers of a DataLoader."""
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def _asked(ask: Callable[[psutil.Process], float]) -> float:
    """The sum of an answer over the family; a process that ends meanwhile has none."""
    total = 0.0
    for process in family():
        try:
            total += ask(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return total


def cpu_seconds() -> float:
    """CPU time of this process and of all below it, those that ended included."""
    return _asked(lambda process: sum(process.cpu_times()[:4]))


def host_bytes() -> int:
    """Host memory of this process and of all below it, shared pages counted once (proportional set size)."""
    return int(_asked(lambda process: process.memory_full_info().pss))


# --- what a person sees ---------------------------------------------------------------------------


def progress(total: int, *, quiet: bool, unit: str = "step", initial: int = 0) -> tqdm:
    """A progress bar on stdout."""
    return tqdm(total=total, initial=initial, unit=unit, file=sys.stdout, disable=quiet)


def shown(items: Iterable[T], *, quiet: bool, unit: str = "batch", total: int | None = None) -> Iterable[T]:
    """The items, with a progress bar on stdout."""
    return tqdm(items, total=total, unit=unit, file=sys.stdout, disable=quiet)


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; the first column is text, the others are figures."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True).print(table)


def print_summary(title: str, facts: Mapping[str, str]) -> None:
    """Prints what a run came to, one fact a line."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, fact in facts.items():
        table.add_row(name, fact)
    Console(soft_wrap=True).print(table)


def write_json(path: Path | None, summary: Mapping[str, Any]) -> None:
    """Writes a summary, if there is a place for it."""
    if path is not None:
        path.write_text(json.dumps(summary, indent=2) + "\n")
