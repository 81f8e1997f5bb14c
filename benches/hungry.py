"""Trainings that need more and more data: the share of their synthetic speed that they keep.

The U-Net of the other benchmarks takes some 5 GB/s. The models here are lighter: stacks of 3 x 3
convolutions of 32 channels at half the resolution, that predict the next step from one step (bf16,
channels_last, MSE, AdamW). The fewer layers a stack has, the more samples a second it takes, and the more
it costs the training when the GPU decodes beside it. The first convolution has stride 2, the last one has
four times the variables as channels, which PixelShuffle(2) brings back to the full resolution.

- The training uses what was read: shuffled windows of two steps, of which the first is the input and the
  second the target.
- One child process for each number of cores and layers: it restricts itself to the cores before it imports
  anything, builds the model once and goes through stores and decoders.
- The synthetic speed, of the same steps on one batch that stays on the device, is measured before and after
  each point; the share is of their mean.
- Before the clock starts, the reader fills its queue, and then some steps take from it, in which the reader
  also finds out who decodes; `policy` is what it says of that at the end.

    python benches/hungry.py --cores 16,4 --layers 30,12,4 --stores zstd,raw --decode auto,cpu,gpu
    python benches/hungry.py --quick --device cpu
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import common
from beside_training import (
    BATCH,
    CHANNELS,
    QUICK_BATCH,
    WINDOW,
    Training,
    add_arguments,
    add_choices,
    beside,
    loader,
    readers,
)

CORES = (16, 4)
LAYERS = (30, 12, 4)
WIDTH = 32
STEPS_PER_S = {30: 16, 12: 35, 4: 73}
"""Steps of batch 16 on an H200, so that the timed ones take about as long everywhere."""


class Stack(Training):
    """A stack of convolutions with its optimiser, and steps on batches [B, 2, C, H, W].

    Args:
        layers: convolutions, at least 2.
        device: `gpu` or `cpu`.
        batch_size: samples in a batch.
        grid: H and W.
    """

    def __init__(self, layers: int, device: str, batch_size: int, grid: Sequence[int]) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        self.torch = torch
        self.device = torch.device("cuda", 0) if device == "gpu" else torch.device("cpu")
        torch.backends.cudnn.benchmark = device == "gpu"
        parts: list[Any] = [nn.Conv2d(CHANNELS, WIDTH, 3, stride=2, padding=1), nn.ReLU()]
        for _ in range(layers - 2):
            parts += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()]
        parts += [nn.Conv2d(WIDTH, 4 * CHANNELS, 3, padding=1), nn.PixelShuffle(2)]
        self.model = nn.Sequential(*parts).to(device=self.device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn((batch_size, WINDOW, CHANNELS, *grid), device=self.device)

    def step_with(self, batch: Any) -> int:
        """A training step on a batch of the loader, or on the synthetic one; returns its samples."""
        torch = self.torch
        fields = self.batch if batch is None else batch[0]["fields"]
        x = fields[:, 0].contiguous(memory_format=torch.channels_last)
        # Processors without units for bf16 take many times as long for it.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            prediction = self.model(x)
        loss = torch.nn.functional.mse_loss(prediction.float(), fields[:, 1])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return len(x)


def measured(
    training: Stack, point: dict[str, Any], task: dict[str, Any], before: dict[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """The row of a point, and the synthetic speed behind it; `before` is that in front of it."""
    pipe = batches = None
    try:
        pipe, batches = loader(task, point)
        row = beside(training, pipe, batches, task, task["store_bytes"])
    except (RuntimeError, ValueError) as error:
        row = {"problem": common.gist(error)}
    # The reader is gone before the synthetic speed is measured again.
    pipe = batches = None
    gc.collect()
    after = training.run(task["alone_steps"])
    if "problem" not in row:
        synthetic = statistics.mean([before["samples_per_s"], after["samples_per_s"]])
        row["synthetic_samples_per_s"] = synthetic
        row["synthetic_drift"] = after["samples_per_s"] / before["samples_per_s"] - 1
        row["share_of_synthetic"] = row["samples_per_s"] / synthetic
    return row, after


def child() -> None:
    """Goes through the points of one number of cores and one stack."""
    task = common.child_task()
    common.hold_to(task["cores"])
    training = Stack(task["layers"], task["device"], task["batch_size"], task["grid"])
    training.run(task["warm_steps"])
    synthetic = training.run(task["alone_steps"])
    for point in task["points"]:
        row, synthetic = measured(training, point, task, synthetic)
        common.hand_over(row)


def points_of(args: Any) -> list[dict[str, Any]]:
    """All points, those of one number of cores and one stack together."""
    cores = common.cores_here(args.cores) or [len(os.sched_getaffinity(0))]
    return [
        {
            **reader,
            "point": f"{n}/{layers}/{store}/{reader['point']}",
            "cores": n,
            "layers": layers,
            "store": store,
        }
        for n, layers, store, reader in itertools.product(cores, args.layers, args.stores, readers(args))
    ]


def steps_of(layers: int, args: Any) -> dict[str, int]:
    """How many steps are timed for a stack, and how many before and beside them."""
    # The stack with the nearest number of layers says how long a step takes.
    nearest = min(STEPS_PER_S, key=lambda known: abs(known - layers))
    timed = max(3, round(args.seconds * (8 if args.quick else STEPS_PER_S[nearest])))
    return {
        "timed_steps": timed,
        "warm_steps": args.warm_steps or max(2, timed // 2),
        "alone_steps": max(2, timed // 3),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Time trainings of growing appetite, as shares of their synthetic speed.", 4.0)
    add_arguments(line)
    add_choices(line, CORES, ["auto"])
    line.add_argument(
        "--layers",
        type=common.list_of(int),
        default=list(LAYERS),
        metavar="N,...",
        help="convolutions of each stack, at least 2 (default: 30,12,4)",
    )
    args = common.parse(line, argv)
    if args.child:
        child()
        return 0
    if min(args.layers) < 2:
        line.error("--layers: a stack has at least 2 convolutions")
    args.batch_size = args.batch_size or (QUICK_BATCH if args.quick else BATCH)
    points = common.chosen(line, args, points_of(args))
    stores = common.ensure_stores(args, sorted({point["store"] for point in points}))
    task = {
        "device": args.device,
        "batch_size": args.batch_size,
        "grid": args.grid,
        "stores": {name: str(path) for name, path in stores.items()},
        "store_bytes": common.decoded_bytes(args),
    }
    results = common.Results(
        "hungry",
        "samples/s of stacks of convolutions that train on what the reader reads, and the share of their "
        "speed on synthetic data",
        args,
        window=WINDOW,
        random_shuffle=True,
        batch_size=args.batch_size,
        steps_of_layers={layers: steps_of(layers, args) for layers in args.layers},
    )
    progress = common.Progress(len(points))
    for (cores, layers), group in itertools.groupby(
        points, key=lambda point: (point["cores"], point["layers"])
    ):
        own = {**task, **steps_of(layers, args), "cores": cores, "layers": layers}
        for point, row in common.in_child(__file__, own, list(group), limit_s=250):
            results.add({**point, **row})
            progress.show(point, row)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
