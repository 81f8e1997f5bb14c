"""Trains a classifier on images and labels of one Zarr store, augmented by DALI's own operators.

    python pipelines/images_labels.py                          # writes and uses a small store of drawn shapes
    python pipelines/images_labels.py --store cells.zarr --images images --labels labels --size 128

The store is a group with the images [N, H, W, 3] in uint8 and their labels [N] as integers. One reader gives
both, so that an image and its label stay together however the samples are shuffled. Behind it stand DALI's
operators: a random crop that is resized, a flip, a change of colours, and the normalization to [3, H, W], on
the GPU where the pipeline has one.

The last tenth of the images is for validation, which has no augmentation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import torch
import torch.nn.functional as F
import zarr
from nvidia.dali import pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch import Tensor, nn

import program
import zarr_dali  # noqa: F401  registers fn.readers.zarr
from program import positive

VALIDATION_SHARE = 0.1
SHAPES = ("disc", "square", "ring", "cross")
DEMO_IMAGES, QUICK_IMAGES, DEMO_SIZE = 4000, 640, 48
CHUNK = 64
"""Images of a chunk of the small store."""


def draw(shape: int, rng: np.random.Generator, size: int) -> np.ndarray:
    """An image [size, size, 3] in uint8: one of SHAPES at a random place, in random colours, with noise."""
    rows, columns = np.mgrid[:size, :size]
    radius = rng.uniform(0.15, 0.3) * size
    row, column = rng.uniform(radius, size - radius, 2)
    down, right = np.abs(rows - row), np.abs(columns - column)
    distance = np.hypot(down, right)
    inside = {
        "disc": distance < radius,
        "square": np.maximum(down, right) < radius * 0.9,
        "ring": (distance < radius) & (distance > radius * 0.6),
        "cross": (np.minimum(down, right) < radius * 0.25) & (np.maximum(down, right) < radius),
    }[SHAPES[shape]]
    dark, bright = rng.uniform(0, 90, 3), rng.uniform(150, 255, 3)
    colours = np.where(inside[..., None], bright, dark) + rng.normal(0, 12, (size, size, 3))
    return np.clip(colours, 0, 255).astype("uint8")


def demo_store(folder: Path, *, quick: bool) -> str:
    """Path of a store of drawn shapes with their labels, which is written on first use."""
    count = QUICK_IMAGES if quick else DEMO_IMAGES
    store = folder / ("shapes_quick.zarr" if quick else "shapes.zarr")
    if store.exists():
        return str(store)
    rng = np.random.default_rng(0)
    labels = rng.integers(len(SHAPES), size=count)
    images = np.stack([draw(label, rng, DEMO_SIZE) for label in labels])
    part = store.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    group = zarr.open_group(str(part), mode="w")
    values = {"images": (images, ("sample", "y", "x", "c")), "labels": (labels, ("sample",))}
    for name, (array, dimensions) in values.items():
        chunks = (CHUNK, *array.shape[1:])
        if int(zarr.__version__.split(".")[0]) >= 3:
            group.create_array(name, data=array, chunks=chunks, dimension_names=dimensions)
        else:
            group.create_dataset(name, data=array, chunks=chunks).attrs["_ARRAY_DIMENSIONS"] = dimensions
    part.rename(store)
    print(f"wrote {store}: {count} images of {DEMO_SIZE} x {DEMO_SIZE}")
    return str(store)


def inspect(store: str, images: str, labels: str) -> tuple[int, int]:
    """Number of images and of classes; ValueError where the arrays do not fit."""
    if not os.path.exists(store):
        raise ValueError(f"{store} does not exist; check --store")
    group = zarr.open_group(store, mode="r")
    for option, name in (("images", images), ("labels", labels)):
        if name not in group or not isinstance(group[name], zarr.Array):
            raise ValueError(f"{store} has no array {name!r}; name one with --{option}")
    pixels, classes = group[images], group[labels]
    if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(
            f"{images} is {list(pixels.shape)} {pixels.dtype}, but images [N, H, W, 3] in uint8 are needed"
        )
    if classes.shape != pixels.shape[:1] or classes.dtype.kind not in "iu":
        raise ValueError(
            f"{labels} is {list(classes.shape)} {classes.dtype}, but one integer for each of the "
            f"{pixels.shape[0]} images is needed"
        )
    return pixels.shape[0], int(classes[:].max()) + 1


@pipeline_def
def batches(device: str, size: int, augment: bool, options: dict[str, Any]) -> tuple[Any, Any]:
    """Images [3, size, size] float32 around 0 and labels int64; `options` go to the reader."""
    images, labels = fn.readers.zarr(name="reader", device=device, pad_last_batch=True, **options)
    # The operators need to know which dimension is which, whatever the store calls them.
    images = fn.reshape(images, layout="HWC")
    if augment:
        images = fn.random_resized_crop(images, size=size, random_area=[0.6, 1.0])
        images = fn.color_twist(
            images,
            brightness=fn.random.uniform(range=[0.7, 1.3]),
            contrast=fn.random.uniform(range=[0.7, 1.3]),
            saturation=fn.random.uniform(range=[0.5, 1.5]),
            hue=fn.random.uniform(range=[-20.0, 20.0]),
        )
        mirror = fn.random.coin_flip()
    else:
        images = fn.resize(images, size=size)
        mirror = 0
    images = fn.crop_mirror_normalize(
        images, dtype=types.FLOAT, output_layout="CHW", mean=[127.5] * 3, std=[64.0] * 3, mirror=mirror
    )
    return images, fn.cast(labels, dtype=types.INT64)


def classifier(classes: int, width: int) -> nn.Module:
    """Maps images [B, 3, H, W] to logits [B, classes]."""

    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(3, width),
        *block(width, 2 * width),
        *block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def loader(args: argparse.Namespace, device: torch.device, *, augment: bool, **region: Any) -> Any:
    """An iterable over epochs of [{"images", "labels"}]."""
    on_gpu = device.type == "cuda"
    pipe = batches(
        "gpu" if on_gpu else "cpu",
        args.size,
        augment,
        {
            "path": args.store,
            "arrays": [args.images, args.labels],
            "random_shuffle": augment,
            "seed": args.seed,
            **region,
        },
        batch_size=args.batch_size,
        num_threads=args.num_threads,
        device_id=device.index if on_gpu else None,
        seed=args.seed,
    )
    return DALIGenericIterator(
        pipe,
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=True,
    )


def labelled(batch: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Images [B, 3, H, W] and labels [B] of a batch."""
    return batch[0]["images"], batch[0]["labels"].flatten()


def train_epoch(
    training: Any, model: nn.Module, optimizer: torch.optim.Optimizer, bar: Any
) -> tuple[float, int]:
    """Trains for one epoch; returns the mean loss and the number of images."""
    total, samples = 0.0, 0
    model.train()
    for batch in training:
        images, labels = labelled(batch)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(images)
        samples += len(images)
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        bar.update()
    return total / samples, samples


@torch.inference_mode()
def accuracy(validation: Any, model: nn.Module) -> tuple[float, int]:
    """The share of images whose label is the most likely one, and the number of images."""
    right, samples = 0, 0
    model.eval()
    for batch in validation:
        images, labels = labelled(batch)
        right += int((model(images).argmax(dim=1) == labels).sum())
        samples += len(images)
    return right / samples, samples


def run(args: argparse.Namespace) -> None:
    """Trains and prints a line for each epoch."""
    device = program.chosen_device(args.device)
    if args.store is None:
        args.store = demo_store(args.data_dir, quick=args.quick)
    count, classes = inspect(args.store, args.images, args.labels)
    split = count - max(1, round(count * VALIDATION_SHARE))
    if split < 1:
        raise ValueError(f"{args.store} has {count} images, too few for training and validation")
    print(f"{args.store}: {count} images of {classes} classes, training on {device}")
    torch.manual_seed(args.seed)
    model = classifier(classes, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    training = loader(args, device, augment=True, roi_end=[split])
    validation = loader(args, device, augment=False, roi_start=[split])
    epochs: list[dict[str, Any]] = []
    with program.progress(args.epochs * len(training), quiet=args.quiet) as bar:
        for _ in range(args.epochs):
            began = time.perf_counter()
            loss, samples = train_epoch(training, model, optimizer, bar)
            seconds = time.perf_counter() - began
            share, validated = accuracy(validation, model)
            epochs.append(
                {
                    "loss": loss,
                    "accuracy": share,
                    "samples": samples,
                    "validated": validated,
                    "samples_per_s": samples / seconds,
                }
            )
    program.print_table(
        f"images_labels.py: accuracy on {epochs[-1]['validated']} images, by chance {1 / classes:.0%}",
        ["epoch", "images/s", "loss", "accuracy"],
        [
            [str(n), f"{one['samples_per_s']:.0f}", f"{one['loss']:.3f}", f"{one['accuracy']:.1%}"]
            for n, one in enumerate(epochs, 1)
        ],
    )
    program.write_json(args.json, {"epochs": epochs})


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = program.parser(
        "Train a classifier on images and labels of one Zarr store, augmented by DALI's operators.",
        batch_size=32,
    )
    program.add_quick(line)
    add = line.add_argument
    add("--images", default="images", help="array [N, H, W, 3] of uint8 (default: %(default)s)")
    add("--labels", default="labels", help="array [N] of integers (default: %(default)s)")
    add("--size", type=positive, default=32, help="side of the images the model sees (default: %(default)s)")
    add("--epochs", type=positive, help="passes over the images (default: 8, quick: 3)")
    add("--lr", type=float, default=2e-3, help="AdamW's learning rate (default: %(default)s)")
    add("--width", type=positive, default=16, help="channels of the model's first layer (default: 16)")
    add("--num-threads", type=positive, default=min(4, os.cpu_count() or 1), help="DALI's CPU threads")
    args = line.parse_args(argv)
    args.epochs = args.epochs or (3 if args.quick else 8)
    return program.run("images_labels.py", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
