"""Trains a model that forecasts step by step, and scores it by lead time.

    python pipelines/forecast_rollout.py                          # writes and uses a small ERA5-like store
    python pipelines/forecast_rollout.py --store era5.zarr --arrays t2m msl --static orography --leads 8

A sample is named by the time of its analysis: `offsets` gives the history that the model sees, the analysis
itself and the lead times that it is trained and scored on. Static fields [H, W] of the same group, such as a
land mask, are further outputs of the reader, which reads them once. All are normalized by the reader (`mean`
and `std`, one for each array).

The model maps the last steps and the static fields to the next step. It is applied to its own output for
every lead time (a rollout), and the loss is the mean over all of them. At the end its error stands beside two
that cost nothing: persistence (the analysis is kept) and climatology (the mean).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import zarr
from torch import Tensor, nn

import era5_like
import program
import zarr_dali
from fields import Source, inspect_planes
from program import positive

TEST_SHARE = 0.2
"""Of the steps, the last ones."""
STATIC = ("land_mask", "orography")


class NextStep(nn.Module):
    """The change from one step to the next.

    Args:
        history: steps that are seen.
        channels: variables.
        statics: static fields.
        width: channels inside.
    """

    def __init__(self, history: int, channels: int, statics: int, width: int) -> None:
        super().__init__()
        sizes = [history * channels + statics, width, width, channels]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in pairwise(sizes))
        # Starts as persistence.
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, history: Tensor, static: Tensor) -> Tensor:
        """Maps the history [B, N, C, H, W] and static fields [B, S, H, W] to the next step [B, C, H, W]."""
        x = torch.cat([history.flatten(1, 2), static], dim=1)
        for number, layer in enumerate(self.layers):
            # Longitudes close to a circle, latitudes end.
            x = F.pad(F.pad(x, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1), mode="replicate")
            x = layer(x if number == 0 else F.gelu(x))
        return history[:, -1] + x


def rollout(model: nn.Module, history: Tensor, static: Tensor, leads: int) -> Tensor:
    """Forecasts [B, leads, C, H, W] from a history [B, N, C, H, W], each step from those before it."""
    steps = []
    for _ in range(leads):
        step = model(history, static)
        history = torch.cat([history[:, 1:], step[:, None]], dim=1)
        steps.append(step)
    return torch.stack(steps, dim=1)


def demo_store(folder: Path, *, quick: bool) -> str:
    """Path of the small store with static fields, which is written on first use."""
    store = Path(program.demo_store(folder / "forecast", quick=quick))
    group = zarr.open_group(str(store), mode="a")
    if STATIC[-1] not in group:
        height, width = group[era5_like.VARIABLES[0].name].shape[1:]
        rows, columns = np.meshgrid(
            np.linspace(0, np.pi, height), np.linspace(0, 2 * np.pi, width), indexing="ij"
        )
        relief = np.sin(2 * rows) * np.cos(3 * columns) + 0.5 * np.cos(5 * rows) * np.sin(2 * columns)
        values = {"land_mask": relief > 0, "orography": 2000 * np.maximum(relief, 0)}
        for name in STATIC:
            group[name] = values[name].astype("float32")
    return str(store)


class Forecasts:
    """Samples of history, lead times and static fields.

    Attributes:
        split: steps from here on are for testing.
    """

    def __init__(self, args: argparse.Namespace, source: Source, device: torch.device) -> None:
        self.args, self.source, self.device = args, source, device
        self.split = round(source.steps * (1 - TEST_SHARE))
        least = args.history + args.leads
        if min(self.split, source.steps - self.split) < least:
            raise ValueError(
                f"--history {args.history} and --leads {args.leads} need {least} steps in a row, for "
                f"training and again for testing; {source.store} has {self.split} and "
                f"{source.steps - self.split}"
            )
        self.static_mean, self.static_std = self._static_statistics()

    def _static_statistics(self) -> tuple[list[float], list[float]]:
        mean, std = [], []
        for name in self.args.static:
            array = zarr.open(self.source.store, mode="r").get(name)
            if not isinstance(array, zarr.Array) or array.shape != (self.source.height, self.source.width):
                raise ValueError(
                    f"--static {name}: {self.source.store} has no such array of the shape "
                    f"[{self.source.height}, {self.source.width}]"
                )
            values = np.asarray(array[:], dtype=np.float64)
            mean.append(float(np.nanmean(values)))
            std.append(float(np.nanstd(values)) or 1.0)
        return mean, std

    def loader(self, **options: Any) -> zarr_dali.Loader:
        """Batches of [B, N + leads, H, W] for each variable and [B, H, W] for each static field."""
        first = 1 - self.args.history
        return zarr_dali.Loader(
            self.source.store,
            [*self.source.arrays, *self.args.static],
            self.args.batch_size,
            device=self.device,
            seed=self.args.seed,
            offsets=list(range(first, self.args.leads + 1)),
            mean=[*self.source.mean.tolist(), *self.static_mean],
            std=[*self.source.std.tolist(), *self.static_std],
            dtype="float32",
            **options,
        )

    def training(self) -> zarr_dali.Loader:
        """Samples of the first steps, shuffled."""
        return self.loader(roi_end=[self.split], shuffle=True)

    def testing(self) -> zarr_dali.Loader:
        """Samples of the last steps, in order."""
        return self.loader(roi_start=[self.split])

    def parts(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """History [B, N, C, H, W], lead times [B, leads, C, H, W] and static fields [B, S, H, W]."""
        steps = torch.stack([batch[name] for name in self.source.arrays], dim=2).nan_to_num()
        one = steps[:, 0, :1]
        fields = [batch[name][:, None].nan_to_num() for name in self.args.static]
        static = torch.cat(fields, dim=1) if fields else one[:, :0]
        return steps[:, : self.args.history], steps[:, self.args.history :], static


def train(args: argparse.Namespace, forecasts: Forecasts, model: nn.Module) -> dict[str, Any]:
    """Trains over rollouts; figures of the training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    losses: list[float] = []
    began, samples = time.perf_counter(), 0
    with forecasts.training() as loader, program.progress(args.steps, quiet=args.quiet) as bar:
        while len(losses) < args.steps:
            for batch in loader:
                history, leads, static = forecasts.parts(batch)
                loss = F.mse_loss(rollout(model, history, static, args.leads), leads)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                samples += len(leads)
                bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
                bar.update()
                if len(losses) == args.steps:
                    break
    seconds = time.perf_counter() - began
    return {"steps": len(losses), "samples_per_s": samples / seconds, "losses": losses}


@torch.inference_mode()
def score(args: argparse.Namespace, forecasts: Forecasts, model: nn.Module) -> dict[str, Any]:
    """Root mean square errors by lead time, in standard deviations, over the steps for testing."""
    squares = {name: torch.zeros(args.leads) for name in ("model", "persistence", "climatology")}
    samples = 0
    with forecasts.testing() as loader:
        for batch in program.shown(loader, quiet=args.quiet, total=len(loader)):
            history, leads, static = forecasts.parts(batch)
            guesses = {
                "model": rollout(model, history, static, args.leads),
                "persistence": history[:, -1:],
                "climatology": torch.zeros_like(leads[:, :1]),
            }
            for name, guess in guesses.items():
                squares[name] += (guess - leads).square().mean(dim=(2, 3, 4)).sum(dim=0).cpu()
            samples += len(leads)
    return {
        "forecasts": samples,
        **{name: (total / samples).sqrt().tolist() for name, total in squares.items()},
    }


def run(args: argparse.Namespace) -> None:
    """Trains, scores and prints the table."""
    device = program.chosen_device(args.device)
    if args.store is None:
        args.store = demo_store(args.data_dir, quick=args.quick)
        args.static = list(STATIC) if args.static is None else args.static
    args.static = args.static or []
    source = inspect_planes(args.store, args.arrays)
    forecasts = Forecasts(args, source, device)
    torch.manual_seed(args.seed)
    model = NextStep(args.history, source.channels, len(args.static), args.width).to(device)
    print(
        f"{source.store}: {source.channels} variables and {len(args.static)} static fields, "
        f"{args.history} steps to {args.leads} lead times, on {device}"
    )
    summary = {"train": train(args, forecasts, model), "test": score(args, forecasts, model)}
    test = summary["test"]
    program.print_table(
        f"forecast_rollout.py: error of {test['forecasts']} forecasts, {summary['train']['steps']} training "
        f"steps at {summary['train']['samples_per_s']:.0f} samples/s",
        ["lead time", "model", "persistence", "climatology"],
        [
            [str(lead + 1), *(f"{test[name][lead]:.3f}" for name in ("model", "persistence", "climatology"))]
            for lead in range(args.leads)
        ],
    )
    program.write_json(args.json, summary)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = program.parser(
        "Train a model on history, static fields and lead times; roll it out and score it by lead time.",
        batch_size=16,
    )
    program.add_quick(line)
    add = line.add_argument
    add("--arrays", nargs="+", metavar="NAME", help="arrays of the group (default: all of the largest shape)")
    add("--static", nargs="*", metavar="NAME", help="static fields of the group (default: the small store's)")
    add("--history", type=positive, default=2, help="steps the model sees (default: %(default)s)")
    add("--leads", type=positive, default=4, help="steps it forecasts (default: %(default)s)")
    add("--steps", type=positive, help="training steps (default: 150, quick: 15)")
    add("--lr", type=float, default=2e-3, help="AdamW's learning rate (default: %(default)s)")
    add("--width", type=positive, default=32, help="channels inside the model (default: %(default)s)")
    args = line.parse_args(argv)
    args.steps = args.steps or (15 if args.quick else 150)
    return program.run("forecast_rollout.py", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
