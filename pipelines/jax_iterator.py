"""Trains with JAX on batches that DALI's JAX iterator hands over.

    python pipelines/jax_iterator.py                              # writes and uses a small ERA5-like store
    python pipelines/jax_iterator.py --store era5.zarr --arrays t2m msl --batch-size 32

The arrays [T, H, W] of a group are stacked to windows of two steps [2, C, H, W], normalized by the reader. A
small convolutional net predicts the second step from the first. Needs `pip install jax`, with a GPU
`pip install "jax[cuda13]"`.

With several GPUs each has a pipeline of its own, which reads its own part of the samples, and the iterator
joins what they give to arrays that are sharded over the GPUs along the batch; JAX does the rest. --batch-size
is that of a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import nvidia.dali.fn as fn
from nvidia.dali import Pipeline, pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

import program
import zarr_dali  # noqa: F401  registers fn.readers.zarr
from fields import Source, inspect_planes
from program import positive

MOMENTUM = 0.9


@pipeline_def
def step_pairs(device: str, options: dict[str, Any]) -> Any:
    """Samples [2, C, H, W] float32; `options` go to the reader."""
    return fn.readers.zarr(
        name="reader",
        device=device,
        window=[2],
        random_shuffle=True,
        # Every epoch then ends with the reader shard's own samples, which DROP needs to cut exactly.
        pad_last_batch=True,
        **options,
    )


def pipelines(args: argparse.Namespace, source: Source, gpus: int) -> list[Pipeline]:
    """One pipeline for each GPU, or one on the CPU."""
    count = max(1, gpus)
    return [
        step_pairs(
            "gpu" if gpus else "cpu",
            {
                "path": source.store,
                "arrays": source.arrays,
                "stack": True,
                "mean": source.mean.tolist(),
                "std": source.std.tolist(),
                "seed": args.seed,
                "shard_id": shard,
                "num_shards": count,
            },
            batch_size=args.batch_size,
            num_threads=2,
            device_id=shard if gpus else None,
        )
        for shard in range(count)
    ]


def initial(key: Any, channels: int, width: int) -> list[Any]:
    """Kernels [out, in, 3, 3] of the net; the last one is 0, so that it starts as persistence."""
    import jax
    import jax.numpy as jnp

    first, second = jax.random.split(key)
    return [
        jax.random.normal(first, (width, channels, 3, 3)) * (2 / (9 * channels)) ** 0.5,
        jax.random.normal(second, (width, width, 3, 3)) * (2 / (9 * width)) ** 0.5,
        jnp.zeros((channels, width, 3, 3)),
    ]


def predicted(kernels: list[Any], x: Any) -> Any:
    """The next step [B, C, H, W] of a step [B, C, H, W]."""
    import jax

    change = x
    for number, kernel in enumerate(kernels):
        change = jax.lax.conv(change if number == 0 else jax.nn.relu(change), kernel, (1, 1), "SAME")
    return x + change


def make_step(lr: float) -> Any:
    """A compiled step: kernels, velocities and fields [B, 2, C, H, W] to the new ones and the loss."""
    import jax
    import jax.numpy as jnp

    def loss_of(kernels: list[Any], fields: Any) -> Any:
        return jnp.mean((predicted(kernels, fields[:, 0]) - fields[:, 1]) ** 2)

    @jax.jit
    def step(kernels: list[Any], velocities: list[Any], fields: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(kernels, jnp.nan_to_num(fields))
        velocities = [MOMENTUM * v + g for v, g in zip(velocities, gradients)]
        return [k - lr * v for k, v in zip(kernels, velocities)], velocities, loss

    return step


def run(args: argparse.Namespace) -> None:
    """Trains and prints the summary."""
    # Both before JAX looks for devices. DALI needs GPU memory too, all of which JAX would otherwise take.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if args.device == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import jax
    except ModuleNotFoundError as error:
        raise ImportError('JAX is missing: pip install jax, with a GPU pip install "jax[cuda13]"') from error
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from nvidia.dali.plugin.jax import DALIGenericIterator

    on_gpu = args.device != "cpu" and jax.default_backend() == "gpu"
    if args.device == "gpu" and not on_gpu:
        raise ValueError(f'--device gpu: JAX sees only {jax.devices()}; pip install "jax[cuda13]"')
    devices = jax.local_devices() if on_gpu else jax.devices("cpu")[:1]
    source = inspect_planes(args.store or program.demo_store(args.data_dir, quick=args.quick), args.arrays)
    print(f"{source.store}: {source.channels} variables, training with JAX {jax.__version__} on {devices}")

    mesh = Mesh(devices, "batch")
    along_batch, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("batch",), ()))
    iterator = DALIGenericIterator(
        pipelines(args, source, len(devices) if on_gpu else 0),
        ["fields"],
        reader_name="reader",
        # JAX compiles for one shape, so that the iterator has no smaller last batch.
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
        sharding=along_batch,
    )
    if len(iterator) == 0:
        raise ValueError(
            f"{source.steps - 1} samples do not fill a batch of {args.batch_size} on each device"
        )
    kernels = jax.device_put(initial(jax.random.key(args.seed), source.channels, args.width), everywhere)
    velocities = jax.tree.map(jnp.zeros_like, kernels)
    step = make_step(args.lr)

    losses: list[Any] = []
    samples, epochs, began = 0, 0, time.perf_counter()
    with program.progress(args.steps, quiet=args.quiet) as bar:
        while len(losses) < args.steps:
            for batch in iterator:
                kernels, velocities, loss = step(kernels, velocities, batch["fields"])
                losses.append(loss)
                bar.update()
                if len(losses) == 1:
                    # What was compiled is not timed.
                    loss.block_until_ready()
                    began = time.perf_counter()
                else:
                    samples += len(batch["fields"])
                if len(losses) == args.steps:
                    break
            else:
                epochs += 1
    curve = [float(loss) for loss in losses]
    seconds = time.perf_counter() - began
    few = max(1, min(5, len(curve) // 2))
    summary = {
        "devices": len(devices),
        "steps": len(curve),
        "epochs": epochs,
        "samples_per_s": samples / seconds,
        "first_loss": sum(curve[:few]) / few,
        "last_loss": sum(curve[-few:]) / few,
    }
    program.print_summary(
        "jax_iterator.py",
        {
            "devices": str(len(devices)),
            "steps": f"{len(curve)}, {epochs} whole epochs",
            "speed": f"{summary['samples_per_s']:.1f} samples/s",
            "loss": f"{summary['first_loss']:.3f} -> {summary['last_loss']:.3f}",
        },
    )
    program.write_json(args.json, summary)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = program.parser("Train with JAX on batches that DALI's JAX iterator hands over.", batch_size=16)
    program.add_quick(line)
    add = line.add_argument
    add("--arrays", nargs="+", metavar="NAME", help="arrays of the group (default: all of the largest shape)")
    add("--steps", type=positive, help="training steps (default: 100, quick: 12)")
    add("--lr", type=float, default=0.02, help="learning rate (default: %(default)s)")
    add("--width", type=positive, default=32, help="channels inside the model (default: %(default)s)")
    args = line.parse_args(argv)
    args.steps = args.steps or (12 if args.quick else 100)
    return program.run("jax_iterator.py", lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
