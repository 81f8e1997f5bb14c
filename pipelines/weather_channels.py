"""Trains on chosen levels of several variables, normalized by level and stacked to channels.

    python pipelines/weather_channels.py                              # writes and uses the example store
    python pipelines/weather_channels.py --store wb2.zarr --arrays z t t2m msl --levels 500 850 --steps 300
    python pipelines/weather_channels.py --synthetic                  # the same model on one batch

Arrays with levels are [time, level, latitude, longitude], others [time, latitude, longitude] or without time.
`train` is all that a user writes: statistics, loader, model and loop. What is around it parses the command
line and times the steps. A batch is [B, 2, C, H, W]: the model maps the first step to the second.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import program
import zarr_dali
from program import Waiting, positive
from train_unet import PaddedUnet


def train(
    args: argparse.Namespace, device: str, timed: Callable[[zarr_dali.Loader], Iterable[Any]]
) -> Iterator[torch.Tensor]:
    """The training; each step gives its loss. `timed` goes through the loader's batches with a clock."""
    loader = zarr_dali.Loader(
        args.store, args.arrays, args.batch_size, shuffle=True, drop_last=True, seed=args.seed, device=device,
        window=[2], select={"level": args.levels}, stack="channels", dtype="float32", decode=args.decode,
        normalize=zarr_dali.statistics(args.store, args.arrays, by="level"),
    )  # fmt: skip
    print("channels:", *loader.channels)
    model = PaddedUnet(len(loader.channels)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in timed(loader):
        before, after = batch["data"].unbind(1)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            forecast = model(before.contiguous(memory_format=torch.channels_last))
        loss = F.mse_loss(forecast.float(), after)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()
    loader.close()


class Clock:
    """Times the steps behind `warmup` of them, over as many epochs as `steps` needs.

    Args:
        device: where the training runs.
        steps: that are timed.
        warmup: steps before them.
        synthetic: give the first batch again and again in place of reading.
    """

    def __init__(self, device: torch.device, steps: int, warmup: int, synthetic: bool) -> None:
        self.waiting = Waiting(device, warmup)
        self.steps = steps + warmup
        self.synthetic = synthetic
        self.counted: dict[str, Any] = {}

    def over(self, loader: zarr_dali.Loader) -> Iterator[Any]:
        """The batches of all epochs, or the first one again and again. Keeps what the reader has counted."""
        if self.synthetic:
            batches: Iterator[Any] = itertools.repeat(next(iter(loader)))
        else:
            batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for _ in range(self.steps):
            batch = self.waiting.next(batches)
            yield batch
            self.waiting.stepped(len(batch["data"]))
        self.counted = loader.stats()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = program.parser(__doc__.splitlines()[0])
    program.add_quick(line)
    line.add_argument(
        "--arrays", nargs="+", default=["t", "t2m", "msl", "land_mask"], help="default: %(default)s"
    )
    line.add_argument("--levels", nargs="+", type=float, default=[850, 500], help="default: %(default)s")
    line.add_argument("--steps", type=positive, default=40, help="timed steps (default: %(default)s)")
    line.add_argument("--warmup", type=positive, default=10, help="steps before them (default: %(default)s)")
    line.add_argument("--decode", choices=("auto", "cpu", "gpu"), default="auto", help="who decodes chunks")
    line.add_argument(
        "--synthetic", action="store_true", help="one batch again and again: the model's own speed"
    )
    return line


def run(args: argparse.Namespace) -> None:
    """Trains, and prints what the steps came to."""
    device = program.chosen_device(args.device)
    if args.quick:
        args.steps, args.warmup, args.batch_size = 3, 1, 2
    if args.store is None:
        args.data_dir.mkdir(parents=True, exist_ok=True)
        args.store = zarr_dali.example_store(args.data_dir / "example.zarr")
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = device.type == "cuda"
    clock = Clock(device, args.steps, args.warmup, args.synthetic)
    losses = []
    for loss in program.shown(
        train(args, device.type, clock.over), quiet=args.quiet, unit="step", total=clock.steps
    ):
        losses.append(loss)
    seconds = clock.waiting.finish()
    summary = {
        "samples_per_s": clock.waiting.samples / seconds,
        "waiting": clock.waiting.waited / seconds,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "decoded_by_gpu": clock.counted["bytes_decoded_gpu"] / max(1, clock.counted["bytes_decoded"]),
    }
    program.print_summary(
        "synthetic" if args.synthetic else str(args.store),
        {name: f"{value:.4g}" for name, value in summary.items()},
    )
    print(clock.counted["policy"])
    program.write_json(args.json, summary)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    args = parser().parse_args(argv)
    return program.run("weather_channels", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
