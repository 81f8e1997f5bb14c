"""Trains a U-Net to predict the next time step, on batches that DALI reads from a Zarr store.

    python pipelines/train_unet.py                                  # writes and uses a small ERA5-like store
    python pipelines/train_unet.py --store era5.zarr --arrays t2m msl z500 --batch-size 16 --epochs 2

The store is a group of arrays [T, H, W] or [T, C, H, W], or one such array; all variables and levels become
the channels of one image. A sample is a window of two steps: the first is the input, the second the target.
The model is the U-Net of segmentation-models-pytorch with a ResNet-18 encoder and scSE attention, trained
from scratch.

The summary says how much of the time went into waiting for data: the time that next(loader) blocked, on a GPU
only as far as the GPU had nothing to do meanwhile, read from CUDA events. Warm-up steps are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F
import zarr
from nvidia.dali import pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch import Tensor, nn
from tqdm import tqdm

import era5_like
import zarr_dali  # noqa: F401  registers fn.readers.zarr

# The store that is written when none is named: small enough for a laptop's CPU.
DEMO_STEPS = 161
DEMO_GRID = (64, 128)

# Samples that the normalisation is computed from, spread evenly over the store.
STATISTICS_SAMPLES = 16


@dataclass(frozen=True)
class Source:
    """What is read: the store, its arrays (none if the store itself is one) and the shape of one step."""

    store: str
    arrays: list[str]
    steps: int
    dims: int
    channels: int
    height: int
    width: int
    float32: bool
    mean: Tensor
    std: Tensor

    @property
    def step_bytes(self) -> int:
        """Bytes of one time step as float32."""
        return self.channels * self.height * self.width * 4


def inspect(store: str, names: Sequence[str] | None) -> Source:
    """Looks at the store's arrays and computes mean and standard deviation of each channel.

    `names` picks arrays of a group; without it a group gives all its arrays that share the largest shape.
    Raises ValueError when the store holds nothing that a U-Net can be trained on.
    """
    if "://" not in store and not os.path.exists(store):
        raise ValueError(f"{store} does not exist; check --store")
    node = zarr.open(store, mode="r")
    if isinstance(node, zarr.Array):
        if names:
            raise ValueError(f"{store} is an array, so --arrays does not apply; leave it out")
        names, arrays = [], [node]
    else:
        if not names:
            names = largest_arrays(node, store)
        if unknown := [name for name in names if name not in node]:
            raise ValueError(
                f"{store} has no array {unknown[0]!r}; it has {', '.join(sorted(node.array_keys()))}"
            )
        arrays = [node[name] for name in names]
        if groups := [
            name for name, array in zip(names, arrays, strict=True) if isinstance(array, zarr.Group)
        ]:
            raise ValueError(f"{groups[0]!r} in {store} is a group; name an array inside it")
    shape = arrays[0].shape
    for name, array in zip(names or [store], arrays, strict=True):
        if array.ndim not in (3, 4) or array.shape[0] < 2:
            raise ValueError(
                f"{name} has shape {list(array.shape)}; it must be [T, H, W] or [T, C, H, W], with at least "
                "2 steps"
            )
        if (array.ndim, array.shape[0], array.shape[-2:]) != (len(shape), shape[0], shape[-2:]):
            raise ValueError(
                f"{name} has shape {list(array.shape)} and {names[0]} {list(shape)}; choose with --arrays "
                "those that share time steps and grid"
            )
    mean, std = (np.concatenate(parts) for parts in zip(*map(channel_statistics, arrays), strict=True))
    return Source(
        store=store,
        arrays=list(names),
        steps=shape[0],
        dims=len(shape),
        channels=len(mean),
        height=shape[-2],
        width=shape[-1],
        float32=all(array.dtype == np.float32 for array in arrays),
        mean=torch.tensor(mean, dtype=torch.float32),
        std=torch.tensor(std, dtype=torch.float32),
    )


def channel_statistics(array: zarr.Array) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [C] of an array's channels, over the finite values of a few steps.

    A constant channel gets the standard deviation 1, one without any value the mean 0 as well.
    """
    count, total, squares = 0, 0.0, 0.0
    for step in np.unique(np.linspace(0, array.shape[0] - 1, STATISTICS_SAMPLES).astype(int)):
        values = np.asarray(array[int(step)], dtype=np.float64).reshape(-1, math.prod(array.shape[-2:]))
        finite = np.isfinite(values)
        values = np.where(finite, values, 0.0)
        count = count + finite.sum(axis=1)
        total = total + values.sum(axis=1)
        squares = squares + np.square(values).sum(axis=1)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(squares / np.maximum(count, 1) - np.square(mean), 0.0))
    return mean, np.where(std > 0, std, 1.0)


def largest_arrays(group: zarr.Group, store: str) -> list[str]:
    """Names of a group's arrays [T, H, W] or [T, C, H, W] of the shape that holds the most elements."""
    shapes = {name: array.shape for name, array in group.arrays() if array.ndim in (3, 4)}
    if not shapes:
        raise ValueError(
            f"{store} has no array [T, H, W] or [T, C, H, W]; it has "
            f"{', '.join(sorted(group.array_keys())) or 'no arrays'}"
        )
    largest = max(shapes.values(), key=math.prod)
    return sorted(name for name, shape in shapes.items() if shape == largest)


@pipeline_def
def step_pairs(source: Source, device: str, options: dict[str, Any]) -> Any:
    """Samples [2, C, H, W] float32: two consecutive steps of all variables; `options` go to the reader."""
    fields = fn.readers.zarr(
        name="reader",
        device=device,
        path=source.store,
        arrays=source.arrays or None,
        window=[2],
        # Every epoch then ends with the reader shard's own samples, which PARTIAL needs to cut exactly.
        pad_last_batch=True,
        **options,
    )
    fields = fields if isinstance(fields, list) else [fields]
    if not source.float32:
        fields = [fn.cast(field, dtype=types.FLOAT) for field in fields]
    if source.dims == 3:
        return fn.stack(*fields, axis=1)
    return fn.cat(*fields, axis=1) if len(fields) > 1 else fields[0]


class PaddedUnet(nn.Module):
    """U-Net from C to C channels for images of any size: pads to what the encoder needs, then crops."""

    STRIDE = 32
    # Below two positions at the bottleneck, batch normalisation has nothing to average in a batch of one.
    SMALLEST = 64

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.unet = smp.Unet(
            "resnet18",
            encoder_weights=None,
            decoder_attention_type="scse",
            in_channels=channels,
            classes=channels,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C, H, W]."""
        height, width = x.shape[-2:]
        down, right = (max(self.SMALLEST, -(-n // self.STRIDE) * self.STRIDE) - n for n in (height, width))
        if down or right:
            x = F.pad(x, (0, right, 0, down), mode="replicate")
        return self.unet(x)[..., :height, :width]


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


@dataclass(frozen=True)
class Summary:
    """What a run measured, without its warm-up steps."""

    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    wait_share: float
    blocked_share: float
    first_loss: float
    last_loss: float


def batches_of(args: argparse.Namespace, source: Source, device: torch.device) -> Any:
    """The loader: an iterable over epochs of [{"fields": [B, 2, C, H, W]}]."""
    if args.synthetic:
        shape = (args.batch_size, 2, source.channels, source.height, source.width)
        values = torch.randn(shape, device=device) * source.std.to(device)[:, None, None]
        batch = {"fields": values + source.mean.to(device)[:, None, None]}
        return [[batch]] * math.ceil((source.steps - 1) / args.batch_size)
    options: dict[str, Any] = {"random_shuffle": args.shuffle, "seed": args.seed}
    if args.decode is not None:
        options["decode"] = args.decode
    if args.prefetch_queue_depth is not None:
        options["prefetch_queue_depth"] = args.prefetch_queue_depth
    pipe = step_pairs(
        source,
        "gpu" if device.type == "cuda" else "cpu",
        options,
        batch_size=args.batch_size,
        num_threads=args.num_threads,
        device_id=device.index if device.type == "cuda" else None,
    )
    return DALIGenericIterator(
        pipe, ["fields"], reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )


def train(args: argparse.Namespace, source: Source, device: torch.device) -> Summary:
    """Runs the training loop; returns its measurements."""
    torch.manual_seed(args.seed)
    on_gpu = device.type == "cuda"
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    torch.backends.cudnn.benchmark = on_gpu
    model = PaddedUnet(source.channels).to(device=device, memory_format=layout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    mean, std = (t.to(device)[:, None, None] for t in (source.mean, source.std))
    amp = torch.autocast(device.type, torch.bfloat16) if args.amp else nullcontext()

    loader = batches_of(args, source, device)
    total = args.epochs * len(loader) if args.steps is None else args.steps
    warmup = min(max(args.warmup, 0), total - 1)
    waiting = Waiting(device, warmup)
    # Losses travel to the host behind the step, so that showing them stops nothing.
    losses = torch.empty(total, pin_memory=on_gpu)
    done = 0
    with tqdm(total=total, unit="step", file=sys.stdout, disable=args.quiet) as bar:
        while done < total:
            batches = iter(loader)
            while done < total and (batch := waiting.next(batches)) is not None:
                # Missing values become the channel's mean.
                fields = torch.nan_to_num((batch[0]["fields"] - mean) / std, nan=0.0, posinf=0.0, neginf=0.0)
                x = fields[:, 0].contiguous(memory_format=layout)
                with amp:
                    prediction = model(x)
                loss = F.mse_loss(prediction.float(), fields[:, 1])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses[done].copy_(loss.detach(), non_blocking=True)
                waiting.stepped(len(x))
                shown = done if not on_gpu else done - 1
                if shown >= 0:
                    bar.set_postfix(loss=f"{losses[shown]:.3f}", refresh=False)
                done += 1
                bar.update()
    seconds = waiting.finish()
    few = max(1, min(5, total // 2))
    return Summary(
        steps=total - warmup,
        samples=waiting.samples,
        seconds=seconds,
        samples_per_s=waiting.samples / seconds,
        wait_share=waiting.waited / seconds,
        blocked_share=waiting.blocked / seconds,
        first_loss=losses[:few].mean().item(),
        last_loss=losses[-few:].mean().item(),
    )


def demo_store(folder: Path) -> str:
    """Path of the small ERA5-like store, which is written on first use."""
    store = folder / "era5_like.zarr"
    if era5_like.ensure_stores({"zstd": store}, steps=DEMO_STEPS, grid=DEMO_GRID, arrangement="separate"):
        print(f"wrote {store}: {DEMO_STEPS} steps of {len(era5_like.VARIABLES)} variables on {DEMO_GRID}")
    return str(store)


def chosen_device(name: str) -> torch.device:
    """`name` as a torch device; `auto` is the GPU when PyTorch can use one and else the CPU."""
    if name == "gpu" and not torch.cuda.is_available():
        raise ValueError("--device gpu: PyTorch sees no CUDA device; use --device cpu, or check nvidia-smi")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def positive(text: str) -> int:
    """A command line argument that has to be a positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        description="Train a U-Net (ResNet-18, scSE) to predict the next time step from a Zarr store, read "
        "through DALI. Without --store a small ERA5-like store is written and used."
    )
    add = result.add_argument
    add("--store", help="path of a group of arrays [T, H, W] or [T, C, H, W], or of one such array")
    add("--arrays", nargs="+", metavar="NAME", help="arrays of the group (default: all of the largest shape)")
    add("--data-dir", type=Path, default=Path("data"), help="where the small store is kept (default: ./data)")
    add("--batch-size", type=positive, default=8, help="samples in a batch (default: %(default)s)")
    add("--epochs", type=positive, default=2, help="passes over the store (default: %(default)s)")
    add("--steps", type=positive, help="stop after so many steps instead, however many epochs that takes")
    add("--warmup", type=int, default=4, help="steps left out of the timing (default: %(default)s)")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU when one can be used")
    add(
        "--shuffle",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="read the samples in random order (default: yes)",
    )
    add("--seed", type=int, default=0, help="of the order and of the weights (default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="AdamW's learning rate (default: %(default)s)")
    add("--amp", action=argparse.BooleanOptionalAction, help="bf16 autocast (default: on a GPU)")
    add("--decode", choices=("auto", "gpu", "cpu"), help="where chunks are decoded (default: the reader's)")
    add("--prefetch-queue-depth", type=positive, metavar="N", help="batches the reader keeps ready")
    add("--num-threads", type=positive, default=min(4, os.cpu_count() or 1), help="DALI's CPU threads")
    add(
        "--synthetic",
        action="store_true",
        help="train on one random batch that stays on the device: the speed that no loader can exceed",
    )
    add("--json", type=Path, metavar="FILE", help="write the summary there as well")
    add("--quiet", action="store_true", help="no progress bar")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        device = chosen_device(args.device)
        args.amp = device.type == "cuda" if args.amp is None else args.amp
        source = inspect(args.store or demo_store(args.data_dir), args.arrays)
        print(
            f"{source.store}: {source.channels} channels on {source.height} x {source.width}, "
            f"{source.step_bytes / 1e6:.2f} MB a step as float32, training on {device}"
        )
        summary = train(args, source, device)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        print(f"train_unet.py: {error}", file=sys.stderr)
        return 1
    blocked = f" (host blocked in next(): {summary.blocked_share:.2%})" if device.type == "cuda" else ""
    print(
        f"{summary.samples} samples in {summary.seconds:.1f} s after the warm-up: "
        f"{summary.samples_per_s:.1f} samples/s\n"
        f"waiting for data: {summary.wait_share:.2%} of the time{blocked}\n"
        f"loss {summary.first_loss:.3f} -> {summary.last_loss:.3f}"
    )
    if args.json:
        args.json.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
