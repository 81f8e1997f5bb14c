"""What shuffling costs and how well it mixes: fn.readers.zarr on the CPU beside DALI's own shuffle.

Cost: how often each chunk is decoded in an epoch, by the memory that the reader may keep chunks in. A store
of 1000 steps, ten in a chunk, is read at random as single steps and as windows of four. Memory is counted in
groups: what the samples that start in the same chunk need, here one chunk. Counted over whole epochs after
the first.

Mixing: the orders of several epochs over 10000 samples, ten in a chunk, of

- fn.readers.zarr with several values of `initial_fill`, the size of its buffer in samples;
- DALI's shuffle (fn.readers.file, one entry for each sample) with the same values. It permutes the list once,
  the same way in every run, and draws from a buffer that walks along it, or, with `shuffle_after_epoch`,
  permutes it anew in every epoch;
- a true permutation in every epoch.

An order that mixes well has neighbours far apart, batches from many chunks, no correlation of a sample's
number with that of samples drawn shortly before or with the time in the epoch, and none between the places
that a sample has in one epoch and in the next.

    python benches/shuffle.py --output benches/results/shuffle.md
    python benches/shuffle.py --quick
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from nvidia.dali import Pipeline, fn

import zarr_dali
from read_table import machine, revision, versions  # a neighbour, not a package

CHUNK_STEPS = 10
STEP_ELEMENTS = 64
CHUNK_BYTES = CHUNK_STEPS * STEP_ELEMENTS * 4
COST_STEPS, MIXING_STEPS = 1000, 10_000
BUDGETS = (1, 2, 4, 8, 16, 32)
WINDOWS = (1, 4)
FILLS = (64, 256, 1024, 4096)
MEMORY_GROUPS = 16
BATCH = 32
LAGS = (1, 100)
QUANTILES = (0.1, 0.5, 0.9)


def write_store(path: Path, steps: int) -> Path:
    """Steps that are worth nothing, `CHUNK_STEPS` to a chunk."""
    values = np.zeros((steps, STEP_ELEMENTS), "float32") + np.arange(steps, dtype="float32")[:, None]
    array = zarr.create_array(
        store=str(path),
        name="a",
        shape=values.shape,
        dtype="float32",
        chunks=(CHUNK_STEPS, STEP_ELEMENTS),
        compressors=None,
        fill_value=-1,
    )
    array[...] = values
    return path


def zarr_pipeline(store: Path, batch_size: int = BATCH, **arguments: Any) -> Any:
    """A pipeline of one shuffled Zarr reader that yields samples and their starts."""
    pipe = Pipeline(batch_size=batch_size, num_threads=2, device_id=None)
    with pipe:
        reader = fn.readers.zarr(
            path=str(store),
            arrays=["a"],
            random_shuffle=True,
            seed=1,
            return_index=True,
            name="reader",
            **arguments,
        )
        pipe.set_outputs(*reader)
    pipe.build()
    return pipe


def file_pipeline(folder: Path, samples: int, **arguments: Any) -> Any:
    """DALI's file reader over as many entries; only their labels, the sample numbers, matter."""
    file = folder / "file"
    # Once: other pipelines may have it mapped into memory.
    if not file.exists():
        file.write_bytes(b"x")
    pipe = Pipeline(batch_size=BATCH, num_threads=2, device_id=None)
    with pipe:
        reader = fn.readers.file(
            files=[str(file)] * samples,
            labels=list(range(samples)),
            name="reader",
            **arguments,
        )
        pipe.set_outputs(*reader)
    pipe.build()
    return pipe


def epochs_of(pipe: Any, samples: int, epochs: int) -> np.ndarray:
    """The sample numbers of the first epochs, [epoch, place]."""
    numbers: list[int] = []
    while len(numbers) < samples * epochs:
        numbers += np.array(pipe.run()[-1].as_array()).ravel().tolist()
    return np.array(numbers[: samples * epochs]).reshape(epochs, samples)


def windows_of(window: int) -> dict[str, Any]:
    return {"window": [window]} if window > 1 else {}


def decodes(store: Path, window: int, groups: int, epochs: int) -> float:
    """How often a chunk is decoded in an epoch."""
    # Batches of one sample: what a batch shares within itself needs no memory. Half of a budget is for chunks
    # that stay.
    budget = {"host_memory_budget": 2 * groups * CHUNK_BYTES}
    pipe = zarr_pipeline(store, 1, **windows_of(window), **budget)

    def decoded_after(batches: int) -> int:
        for _ in range(batches):
            pipe.run()
        return zarr_dali.stats(pipe, "reader")["chunks_decoded"]

    samples = COST_STEPS - window + 1
    first = decoded_after(samples)
    return (decoded_after(samples * epochs) - first) / epochs / (COST_STEPS / CHUNK_STEPS)


def cost_table(folder: Path, epochs: int) -> list[str]:
    """Decodes of each chunk in an epoch, by memory and window."""
    store = write_store(folder / "cost.zarr", COST_STEPS)
    lines = [
        "| memory for chunks, in groups | " + " | ".join(map(str, BUDGETS)) + " |",
        "|---" * (len(BUDGETS) + 1) + "|",
    ]
    for window in WINDOWS:
        cells = [f"{decodes(store, window, groups, epochs):.2f}" for groups in BUDGETS]
        name = "single steps" if window == 1 else f"windows of {window} steps"
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


@dataclass
class Mixing:
    """How well the orders of several epochs mix."""

    neighbours: np.ndarray
    """Quantiles of the distance between neighbours."""
    chunks: np.ndarray
    """Quantiles of the number of chunks that a batch comes from."""
    lags: list[float]
    """Correlation of a sample's number with that of the sample so many draws before."""
    time: float
    """The same with its place in the epoch; without sign, which differs from epoch to epoch."""
    epochs: float
    """Correlation of a sample's places in one epoch and in the next, without sign."""

    @classmethod
    def of(cls, orders: np.ndarray) -> Mixing:
        epochs, samples = orders.shape
        places = np.argsort(orders, axis=1)
        whole = orders[:, : samples // BATCH * BATCH].reshape(-1, BATCH)
        chunks = [len(np.unique(batch // CHUNK_STEPS)) for batch in whole]
        return cls(
            np.quantile(np.abs(np.diff(orders, axis=1)), QUANTILES),
            np.quantile(chunks, QUANTILES),
            [float(np.mean(correlations(orders[:, lag:], orders[:, :-lag]))) for lag in LAGS],
            float(np.mean(np.abs(correlations(orders, [np.arange(samples)] * epochs)))),
            float(np.mean(np.abs(correlations(places[1:], places[:-1])))),
        )

    def cells(self) -> list[str]:
        return [
            " / ".join(f"{distance:.0f}" for distance in self.neighbours),
            " / ".join(f"{count:.0f}" for count in self.chunks),
            *(f"{value:+.2f}" for value in self.lags),
            f"{self.time:.2f}",
            f"{self.epochs:.2f}",
        ]


def correlations(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[float]:
    """Pearson's, of each row with the other's."""
    return [np.corrcoef(a, b)[0, 1] for a, b in zip(one, other)]


def mixed_orders(folder: Path, samples: int, epochs: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Name, strands that are mixed, and the orders of some epochs."""
    store = write_store(folder / "mixing.zarr", samples)
    buffers: list[dict[str, int]] = [{"initial_fill": fill} for fill in FILLS]
    # Batches are small beside this much.
    buffers.append({"host_memory_budget": 2 * MEMORY_GROUPS * CHUNK_BYTES})
    for window, buffer in product(WINDOWS, buffers):
        pipe = zarr_pipeline(store, 4, **buffer, **windows_of(window))
        strands = zarr_dali.stats(pipe, "reader")["shuffle"]["strands"]
        fill = buffer.get("initial_fill")
        what = f"`initial_fill={fill}`" if fill else f"memory for {MEMORY_GROUPS} groups"
        name = f"zarr-dali, {'steps' if window == 1 else f'windows of {window}'}, {what}"
        yield name, str(strands), epochs_of(pipe, samples - window + 1, epochs)
    for fill in FILLS:
        pipe = file_pipeline(folder, samples, random_shuffle=True, initial_fill=fill, seed=1)
        yield f"DALI's file reader, `initial_fill={fill}`", "", epochs_of(pipe, samples, epochs)
    pipe = file_pipeline(folder, samples, shuffle_after_epoch=True)
    yield "DALI's file reader, `shuffle_after_epoch`", "", epochs_of(pipe, samples, epochs)
    random = np.random.default_rng(1)
    permutations = np.stack([random.permutation(samples) for _ in range(epochs)])
    yield "a permutation", "", permutations


def mixing_table(folder: Path, samples: int, epochs: int) -> list[str]:
    """One row for each kind of order."""
    lags = " | ".join(f"correlation, {lag} draw{'s' * (lag > 1)} before" for lag in LAGS)
    quantiles = " / ".join(f"{quantile:.0%}" for quantile in QUANTILES)
    lines = [
        f"| order | strands | distance of neighbours, {quantiles} | "
        f"chunks in a batch of {BATCH}, {quantiles} | {lags} | correlation with time | "
        "with the place in the epoch before |",
        "|---" * (6 + len(LAGS)) + "|",
    ]
    for name, strands, orders in mixed_orders(folder, samples, epochs):
        assert all(len(np.unique(order)) == len(order) for order in orders), name
        lines.append(f"| {name} | {strands} | " + " | ".join(Mixing.of(orders).cells()) + " |")
    return lines


def report(args: argparse.Namespace) -> str:
    """Everything that is measured, as Markdown."""
    where, used = machine(), versions()
    with tempfile.TemporaryDirectory(dir=args.data_dir) as folder:
        costs = cost_table(Path(folder), args.epochs)
        mixing = mixing_table(Path(folder), args.samples, args.epochs)
    lines = [
        "# What shuffling costs and how well it mixes",
        "",
        f"`{' '.join(['python', 'benches/shuffle.py', *args.command])}`; "
        f"{where['cpu']}, {where['cores']} cores; {datetime.date.today().isoformat()}; "
        f"revision {(revision() or 'unknown')[:7]}; "
        + ", ".join(f"{package} {version}" for package, version in used.items())
        + ".",
        "",
        "## Cost",
        "",
        f"How often each chunk is decoded in an epoch: {COST_STEPS} steps, {CHUNK_STEPS} to a chunk, in "
        f"random order, batches of one sample; mean of {args.epochs} epochs after the first.",
        "",
        *costs,
        "",
        "## Mixing",
        "",
        f"{args.samples} steps, {CHUNK_STEPS} to a chunk; {args.epochs} epochs. The distance of neighbours "
        "is that of the numbers of two samples drawn one after the other; correlations are means of all "
        "epochs, the last two of values without sign.",
        "",
        *mixing,
    ]
    if args.quick:
        lines += ["", "A quick run: it shows that everything works, the figures mean nothing."]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point."""
    parser = argparse.ArgumentParser(
        description="Count what chunk-aware shuffling decodes, and measure how well it mixes beside DALI's "
        "own shuffle and a permutation; print Markdown."
    )
    add = parser.add_argument
    add("--samples", type=int, help=f"steps whose mixing is measured (default: {MIXING_STEPS})")
    add("--epochs", type=int, help="epochs of each order, 2 or more (default: 20, quick: 2)")
    add("--data-dir", type=Path, help="folder for the stores (default: the system's for temporary files)")
    add("--output", type=Path, help="file that the Markdown is written to as well")
    add("--quick", action="store_true", help="few samples and epochs, to see that everything runs")
    args = parser.parse_args(argv)
    args.command = list(sys.argv[1:] if argv is None else argv)
    args.epochs = args.epochs or (2 if args.quick else 20)
    if args.epochs < 2:
        parser.error(f"--epochs {args.epochs} is too few: epochs are compared with the one before")
    args.samples = args.samples or (1000 if args.quick else MIXING_STEPS)
    text = report(args)
    print(text, end="")
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
