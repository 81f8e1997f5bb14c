"""Trains on random patches of gridded fields and applies the model on a grid of overlapping patches.

    python pipelines/patches.py                                   # writes and uses a small ERA5-like store
    python pipelines/patches.py --store era5.zarr --arrays t2m msl --patch 4 64 64 --overlap 0 16 16

The arrays [T, H, W] of a group are stacked: a sample is [T', C, H', W'], normalized by the reader. The two
ways to cut patches are those of xbatcher, with `window` for its `input_dims` and the stride that its
`input_overlap` leaves:

- random, for training: in each epoch a grid without overlap whose origin is drawn at random, in random order.
  Every place is as likely as any other in the long run, and each chunk is decoded about once an epoch.
- grid, for applying a model: overlapping patches in order, whose outputs are averaged where they overlap.
  `return_index` says where a patch belongs.

The model learns to sharpen: from a patch whose values were averaged over 4 x 4 points to the patch itself.
The summary has its error beside that of plain interpolation, on steps that it was not trained on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import program
import zarr_dali
from fields import Source, inspect_planes
from program import positive

COARSE = 4
"""Points in each direction whose mean the model sees."""
TEST_SHARE = 0.2
"""Of the steps, the last ones."""


class Sharpener(nn.Module):
    """Adds what is missing to an interpolated patch; maps [B, T, C, H, W] to the same shape."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, padding_mode="replicate"),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="replicate"),
            nn.GELU(),
            nn.Conv2d(width, channels, 3, padding=1, padding_mode="replicate"),
        )
        # Starts as plain interpolation.
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(self, blurred: Tensor) -> Tensor:
        steps = blurred.flatten(0, 1)
        return (steps + self.layers(steps)).reshape(blurred.shape)


def blur(patch: Tensor) -> Tensor:
    """Means over COARSE x COARSE points of [B, T, C, H, W], interpolated to the patch's own points."""
    steps = patch.flatten(0, 1)
    coarse = F.avg_pool2d(steps, COARSE)
    fine = F.interpolate(coarse, size=steps.shape[-2:], mode="bilinear", align_corners=False)
    return fine.reshape(patch.shape)


class Patches:
    """Cuts patches from the arrays of a group.

    Attributes:
        split: steps from here on are for testing.
    """

    def __init__(self, args: argparse.Namespace, source: Source, device: torch.device) -> None:
        self.args, self.source, self.device = args, source, device
        self.split = source.steps - max(args.patch[0], round(source.steps * TEST_SHARE))
        for name, size, extent in zip("THW", args.patch, (self.split, source.height, source.width)):
            if size > extent:
                raise ValueError(f"--patch: {size} is more than the {extent} points along {name}")
        self.random = np.random.default_rng(args.seed)

    def loader(self, stride: Sequence[int], start: Sequence[int], **options: Any) -> zarr_dali.Loader:
        """Batches {"data": [B, T, C, H, W], "index": [B, 3]}."""
        return zarr_dali.Loader(
            self.source.store,
            self.source.arrays,
            self.args.batch_size,
            device=self.device,
            seed=self.args.seed,
            names=["data"],
            window=self.args.patch,
            stride=list(stride),
            roi_start=list(start),
            stack=True,
            dtype="float32",
            mean=self.source.mean.tolist(),
            std=self.source.std.tolist(),
            return_index=True,
            **options,
        )

    def randomly(self) -> zarr_dali.Loader:
        """The patches of one epoch of the training, on a grid of its own."""
        ends = (self.split, self.source.height, self.source.width)
        # Where the grid may begin so that at least one patch fits.
        start = [int(self.random.integers(min(n, end - n + 1))) for n, end in zip(self.args.patch, ends)]
        return self.loader(self.args.patch, start, roi_end=list(ends), shuffle=True)

    def on_grid(self) -> zarr_dali.Loader:
        """The overlapping patches of the steps for testing."""
        stride = [size - shared for size, shared in zip(self.args.patch, self.args.overlap)]
        return self.loader(stride, [self.split, 0, 0])


class Stitched:
    """Whole fields [T, C, H, W] from overlapping patches, whose mean counts where several lie."""

    def __init__(self, shape: Sequence[int], first_step: int, device: torch.device) -> None:
        self.first_step = first_step
        self.total = torch.zeros(tuple(shape), device=device)
        self.count = torch.zeros((shape[0], 1, *shape[2:]), device=device)

    def add(self, patches: Tensor, index: Tensor) -> None:
        """Puts patches [B, T, C, H, W] to their places [B, 3]: step, row and column."""
        steps, _, height, width = patches.shape[1:]
        for patch, (step, row, column) in zip(patches, index.tolist()):
            place = (
                slice(step - self.first_step, step - self.first_step + steps),
                slice(None),
                slice(row, row + height),
                slice(column, column + width),
            )
            self.total[place] += patch
            self.count[place] += 1

    @property
    def covered(self) -> Tensor:
        """Which points [T, 1, H, W] at least one patch holds."""
        return self.count > 0

    @property
    def fields(self) -> Tensor:
        """The means; 0 where there is no patch."""
        return self.total / self.count.clamp(min=1)


def rmse(a: Stitched, b: Stitched) -> float:
    """The root mean square difference of two fields, in standard deviations, where they are covered."""
    squares = (a.fields - b.fields).square().mean(dim=1, keepdim=True)
    return squares[a.covered].mean().sqrt().item()


def train(args: argparse.Namespace, patches: Patches, model: nn.Module) -> dict[str, Any]:
    """Trains on random patches; figures of the training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    losses: list[float] = []
    began, samples = time.perf_counter(), 0
    with program.progress(args.steps, quiet=args.quiet) as bar:
        while len(losses) < args.steps:
            with patches.randomly() as loader:
                for batch in loader:
                    patch = torch.nan_to_num(batch["data"])
                    loss = F.mse_loss(model(blur(patch)), patch)
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                    samples += len(patch)
                    bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
                    bar.update()
                    if len(losses) == args.steps:
                        break
    seconds = time.perf_counter() - began
    return {"steps": len(losses), "samples": samples, "samples_per_s": samples / seconds, "losses": losses}


@torch.inference_mode()
def apply(args: argparse.Namespace, patches: Patches, model: nn.Module) -> dict[str, Any]:
    """Applies the model on the grid of patches; errors of the whole fields that come out."""
    source = patches.source
    shape = (source.steps - patches.split, source.channels, source.height, source.width)
    truth, blurred, sharp = (Stitched(shape, patches.split, patches.device) for _ in range(3))
    began, samples = time.perf_counter(), 0
    with patches.on_grid() as loader:
        for batch in program.shown(loader, quiet=args.quiet, total=len(loader)):
            patch, index = torch.nan_to_num(batch["data"]), batch["index"]
            coarse = blur(patch)
            truth.add(patch, index)
            blurred.add(coarse, index)
            sharp.add(model(coarse), index)
            samples += len(patch)
    seconds = time.perf_counter() - began
    return {
        "patches": samples,
        "patches_per_s": samples / seconds,
        "covered": truth.covered.float().mean().item(),
        "rmse_interpolated": rmse(blurred, truth),
        "rmse_model": rmse(sharp, truth),
    }


def run(args: argparse.Namespace) -> None:
    """Trains, applies and prints the summary."""
    device = program.chosen_device(args.device)
    source = inspect_planes(args.store or program.demo_store(args.data_dir, quick=args.quick), args.arrays)
    torch.manual_seed(args.seed)
    model = Sharpener(source.channels, args.width).to(device)
    patches = Patches(args, source, device)
    shape = " x ".join(map(str, args.patch))
    print(f"{source.store}: {source.channels} variables, patches of {shape}, on {device}")
    summary = {"train": train(args, patches, model), "grid": apply(args, patches, model)}
    trained, grid = summary["train"], summary["grid"]
    program.print_table(
        "patches.py",
        ["", "patches", "patches/s", "error, interpolated", "error, model"],
        [
            ["random", str(trained["samples"]), f"{trained['samples_per_s']:.0f}", "", ""],
            [
                f"grid, {grid['covered']:.0%} of the points",
                str(grid["patches"]),
                f"{grid['patches_per_s']:.0f}",
                f"{grid['rmse_interpolated']:.4f}",
                f"{grid['rmse_model']:.4f}",
            ],
        ],
    )
    program.write_json(args.json, summary)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = program.parser(
        "Train on random patches in space and time, several variables stacked; apply the model on a grid of "
        "overlapping patches.",
        batch_size=32,
    )
    program.add_quick(line)
    add = line.add_argument
    add("--arrays", nargs="+", metavar="NAME", help="arrays of the group (default: all of the largest shape)")
    add(
        "--patch",
        type=positive,
        nargs=3,
        default=[2, 32, 32],
        metavar=("T", "H", "W"),
        help="extents of a patch (default: 2 32 32)",
    )
    add(
        "--overlap",
        type=int,
        nargs=3,
        default=[0, 16, 16],
        metavar=("T", "H", "W"),
        help="what neighbours on the grid share (default: 0 16 16)",
    )
    add("--steps", type=positive, help="training steps (default: 200, quick: 20)")
    add("--lr", type=float, default=2e-3, help="AdamW's learning rate (default: %(default)s)")
    add("--width", type=positive, default=32, help="channels inside the model (default: %(default)s)")
    args = line.parse_args(argv)
    args.steps = args.steps or (20 if args.quick else 200)
    if any(not 0 <= shared < size for size, shared in zip(args.patch, args.overlap)):
        line.error("--overlap: less than the patch in each direction, and not negative")
    if min(args.patch[1:]) < COARSE:
        line.error(f"--patch: at least {COARSE} points along H and W")
    return program.run("patches.py", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
