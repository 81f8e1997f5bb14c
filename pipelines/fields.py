"""What a store of gridded fields holds: its arrays, their shape and the statistics of their channels."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import zarr
from torch import Tensor

# Samples that the normalization is computed from, spread evenly over the store.
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
    dtypes: tuple[str, ...]
    mean: Tensor
    std: Tensor

    @property
    def step_bytes(self) -> int:
        """Bytes of one time step as float32."""
        return self.channels * self.height * self.width * 4

    @property
    def float32(self) -> bool:
        """Whether all arrays are float32 already."""
        return set(self.dtypes) == {"float32"}

    @property
    def paths(self) -> list[str]:
        """Where the arrays are."""
        return [os.path.join(self.store, name) for name in self.arrays] or [self.store]


def inspect(store: str, names: Sequence[str] | None = None) -> Source:
    """Looks at the store's arrays and computes mean and standard deviation of each channel.

    Args:
        store: a group of arrays [T, H, W] or [T, C, H, W], or one such array.
        names: picks arrays of a group; without it a group gives all its arrays that share the largest shape.

    Raises:
        ValueError: the store holds no such fields.
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
        dtypes=tuple(str(array.dtype) for array in arrays),
        mean=torch.tensor(mean, dtype=torch.float32),
        std=torch.tensor(std, dtype=torch.float32),
    )


def inspect_planes(store: str, names: Sequence[str] | None = None) -> Source:
    """The same for programs that take a group of [T, H, W] arrays only, whose statistics the reader applies.

    Raises:
        ValueError: the store holds something else.
    """
    source = inspect(store, names)
    if source.dims != 3 or not source.arrays or len(set(source.dtypes)) > 1:
        raise ValueError(f"{store}: a group of arrays [T, H, W] of one data type is needed")
    return source


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
