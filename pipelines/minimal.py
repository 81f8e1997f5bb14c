"""Prints a few batches of a Zarr store, read through DALI by fn.readers.zarr.

python pipelines/minimal.py data/demo.zarr --arrays t2m msl --window 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
from nvidia.dali import backend, pipeline_def

import zarr_dali  # noqa: F401  registers fn.readers.zarr


@pipeline_def
def batches(options: dict[str, Any]) -> Any:
    """The whole pipeline: one reader, whose outputs (one per array) are the pipeline's outputs."""
    outputs = fn.readers.zarr(name="reader", **options)
    return tuple(outputs) if isinstance(outputs, list) else outputs


def chosen_device(name: str) -> str:
    """`name`, or for `auto` the GPU when the driver shows one and else the CPU."""
    if name != "auto":
        return name
    return "gpu" if backend.GetCUDADeviceCount() > 0 else "cpu"


def describe(values: np.ndarray) -> str:
    """Shape, data type and the range of the values that are not NaN."""
    text = f"{list(values.shape)} {values.dtype}"
    finite = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if finite.size == 0:
        return f"{text}  no values"
    low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean(dtype=np.float64))
    return f"{text}  min {low:.6g}  max {high:.6g}  mean {mean:.6g}"


def run(args: argparse.Namespace) -> None:
    """Builds the pipeline from the command line's arguments and prints what it delivers."""
    device = chosen_device(args.device)
    options: dict[str, Any] = {
        "device": device,
        "path": args.store,
        "random_shuffle": args.shuffle,
        "shard_id": args.shard_id,
        "num_shards": args.num_shards,
    }
    # An argument that is not given keeps the operator's own default.
    for name in ("arrays", "window", "stride", "seed", "missing_chunks", "decode"):
        value = getattr(args, name)
        if value is not None:
            options[name] = value
    pipe = batches(
        options, batch_size=args.batch_size, num_threads=1, device_id=0 if device == "gpu" else None
    )
    pipe.build()
    meta = pipe.reader_meta("reader")
    print(
        f"{args.store}: {meta['epoch_size']} samples, reader shard {args.shard_id} of {args.num_shards}, "
        f"device {device}"
    )
    for index in range(args.batches):
        print(f"batch {index}")
        for name, output in zip(args.arrays or [""], pipe.run(), strict=True):
            on_host = output.as_cpu() if device == "gpu" else output
            layout = f"  layout {on_host.layout()}" if on_host.layout() else ""
            print(f"  {name or 'array'}: {describe(on_host.as_array())}{layout}")
            for sample in on_host:
                print(f"    {sample.source_info()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Print a few batches of a Zarr store, read through DALI.")
    parser.add_argument("store", help="path of a Zarr array, or of a group together with --arrays")
    parser.add_argument("--arrays", nargs="+", metavar="NAME", help="arrays of a group, one output each")
    parser.add_argument(
        "--window",
        type=int,
        nargs="+",
        metavar="N",
        help="extent of a sample along the leading dimensions (default: one index of the first dimension)",
    )
    parser.add_argument(
        "--stride", type=int, nargs="+", metavar="N", help="step between the starts of neighbouring samples"
    )
    parser.add_argument("--batch-size", type=int, default=4, help="samples in a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=3, help="batches to print (default: %(default)s)")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU when one can be used"
    )
    parser.add_argument("--shuffle", action="store_true", help="read the samples in random order")
    parser.add_argument("--seed", type=int, help="order of --shuffle")
    parser.add_argument("--shard-id", type=int, default=0, help="this reader's shard (default: %(default)s)")
    parser.add_argument(
        "--num-shards", type=int, default=1, help="number of reader shards (default: %(default)s)"
    )
    parser.add_argument("--missing-chunks", choices=("fill", "error"), help="what a missing chunk gives")
    parser.add_argument("--decode", choices=("auto", "gpu", "cpu"), help="where chunks are decoded")
    args = parser.parse_args(argv)
    try:
        run(args)
    except (RuntimeError, ValueError) as error:
        print(f"minimal.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
