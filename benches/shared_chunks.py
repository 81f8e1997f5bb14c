"""Reads a store whose chunks hold several steps: what it costs that samples share chunks.

    python benches/shared_chunks.py --device gpu

Writes 64 steps of 6 ERA5-like variables, 640 x 1280, zstd, in chunks of (8, 1, 320, 640), and reads them in
batches of 8: in order and in random order, single steps and windows of 4, with the memory that the reader
chooses and with less.
Prints GB/s of samples and how often each chunk was decoded in an epoch.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr
from nvidia.dali import Pipeline, fn

import zarr_dali

SHAPE, CHUNKS = (64, 6, 640, 1280), (8, 1, 320, 640)
BATCH = 8
PADDED = {"pad_last_batch": True}
"""So that an epoch is a whole number of batches."""


def write(path: Path) -> None:
    """Fields that are smooth in space and packed to 16 bits, as in era5_like.py but made faster."""
    random = np.random.default_rng(0)
    array = zarr.create_array(
        str(path), shape=SHAPE, chunks=CHUNKS, dtype="float32", compressors=zarr.codecs.ZstdCodec(level=0)
    )
    base = np.cumsum(np.cumsum(random.normal(size=SHAPE[1:]), axis=-1), axis=-2)
    base = (base - base.min()) / np.ptp(base)
    for start in range(0, SHAPE[0], CHUNKS[0]):
        steps = np.stack([np.roll(base, 7 * step, axis=-1) for step in range(start, start + CHUNKS[0])])
        noise = random.integers(0, 64, steps.shape)
        array[start : start + CHUNKS[0]] = np.round(steps * 65535 + noise).astype("float32") / 65535


def measure(path: Path, device: str, epochs: int, **arguments) -> tuple[float, float]:
    """GB/s of samples, and decodes of a chunk in each epoch."""
    pipe = Pipeline(batch_size=BATCH, num_threads=2, device_id=0 if device == "gpu" else None)
    with pipe:
        reader = fn.readers.zarr(path=str(path), device=device, name="reader", seed=1, **PADDED, **arguments)
        pipe.set_outputs(reader)
    pipe.build()
    batches = -(-pipe.reader_meta("reader")["epoch_size"] // BATCH)
    for _ in range(batches):  # warm: files, kernels, frames that are known
        (output,) = pipe.run()
    before, start = zarr_dali.stats(pipe), time.perf_counter()
    for _ in range(batches * epochs):
        (output,) = pipe.run()
    seconds = time.perf_counter() - start
    decoded = zarr_dali.stats(pipe)["chunks_decoded"] - before["chunks_decoded"]
    bytes_of_batch = BATCH * int(np.prod(output[0].shape())) * 4
    chunks = int(np.prod([-(-s // c) for s, c in zip(SHAPE, CHUNKS)]))
    return batches * epochs * bytes_of_batch / seconds / 1e9, decoded / chunks / epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    write(folder / "store.zarr")
    least = "device_memory_budget" if options.device == "gpu" else "host_memory_budget"
    print("| samples | order | memory | GB/s | decodes of a chunk in an epoch |\n|---|---|---|---|---|")
    for window in (None, [4]):
        for shuffle in (False, True):
            for budget in (None, 8 << 30, 4 << 30):
                arguments = {"window": window, "random_shuffle": shuffle} | (
                    {least: budget} if budget else {}
                )
                speed, decodes = measure(folder / "store.zarr", options.device, options.epochs, **arguments)
                names = (
                    "single steps" if window is None else "windows of 4",
                    "random" if shuffle else "in order",
                )
                memory = "chosen by the reader" if budget is None else f"{budget >> 30} GiB"
                print(f"| {names[0]} | {names[1]} | {memory} | {speed:.1f} | {decodes:.2f} |", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
