"""Lists of samples and weights, as `Loader` takes them and as the reader does: files of NumPy in memory."""

from __future__ import annotations

import hashlib
import json
import numbers
import os
from collections.abc import Mapping
from typing import Any

import numpy as np


class Samples:
    """Which samples an epoch has: the arguments `samples`, `weights` and `samples_per_epoch` of the reader.

    Equal if the numbers are. The files are there as long as the object.
    """

    def __init__(
        self, samples: Any = None, weights: Any = None, samples_per_epoch: int | None = None
    ) -> None:
        """Takes lists, arrays of NumPy, tensors, JSON or names of `.npy` files.

        Raises:
            ValueError: A list holds something else than numbers, or cannot be read.
        """
        if samples_per_epoch is not None and not isinstance(samples_per_epoch, numbers.Integral):
            raise ValueError(f"samples_per_epoch is {samples_per_epoch!r}, but has to be a whole number")
        if samples_per_epoch is not None and samples_per_epoch < 1:
            raise ValueError(f"samples_per_epoch is {samples_per_epoch}, but has to be 1 or more")
        self._lists = {"samples": _indices(samples), "weights": _weights(weights)}
        self._per_epoch = samples_per_epoch
        self._files = {name: _File(values) for name, values in self._lists.items() if values is not None}
        self._digest = self._digest_of_all()
        self._lists = {}

    @property
    def arguments(self) -> dict[str, Any]:
        """As arguments of the reader; those that are not given are None."""
        paths = {name: file.path for name, file in self._files.items()}
        return {"samples": None, "weights": None, "samples_per_epoch": self._per_epoch} | paths

    def _digest_of_all(self) -> bytes:
        digest = hashlib.blake2b(repr(self._per_epoch).encode())
        for name, values in self._lists.items():
            digest.update(f"{name} {None if values is None else values.shape}".encode())
            if values is not None:
                digest.update(values.data)
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Samples) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


def taken_from(arguments: Mapping[str, Any]) -> tuple[Samples, dict[str, Any]]:
    """What is said of samples, and the arguments that are left."""
    names = ("samples", "weights", "samples_per_epoch")
    others = {name: value for name, value in arguments.items() if name not in names}
    return Samples(*(arguments.get(name) for name in names)), others


def _indices(samples: Any) -> np.ndarray | None:
    if samples is None:
        return None
    values = _array("samples", samples)
    if values.size == 0:
        values = values.astype("int64")
    if values.dtype.kind not in "iu":
        raise ValueError(
            f"samples: they are named by indices, not by {values.dtype}; give integers as `return_index` "
            "gives them"
        )
    if values.size and values.dtype.kind == "u" and values.max() > np.iinfo("int64").max:
        raise ValueError(f"samples: {values.max()} is no index")
    return _checked("samples", np.ascontiguousarray(values, dtype="<i8"))


def _weights(weights: Any) -> np.ndarray | None:
    if weights is None:
        return None
    values = _array("weights", weights)
    if values.dtype.kind not in "iufb":
        raise ValueError(f"weights: they hold {values.dtype}; give one number for each sample")
    return _checked("weights", np.ascontiguousarray(values, dtype="<f8"))


def _array(name: str, values: Any) -> np.ndarray:
    if isinstance(values, (str, os.PathLike)):
        text = os.fspath(values)
        try:
            is_json = text.lstrip().startswith("[")
            values = json.loads(text) if is_json else np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            problem = f"{name}: {text!r:.200} is no list in JSON and no .npy file ({error})"
            raise ValueError(problem) from error
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: its rows are not alike ({error})") from error


def _checked(name: str, values: np.ndarray) -> np.ndarray:
    if values.ndim not in (1, 2):
        raise ValueError(f"{name}: it has the shape {values.shape}; give one row or number for each sample")
    return values


class _File:
    """A file of NumPy that is in memory only, and has a path for this process."""

    def __init__(self, values: np.ndarray) -> None:
        self._descriptor = os.memfd_create("zarr-dali")
        with open(self._descriptor, "wb", closefd=False) as file:
            np.lib.format.write_array(file, values, allow_pickle=False)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def __del__(self, close: Any = os.close) -> None:
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            close(descriptor)
