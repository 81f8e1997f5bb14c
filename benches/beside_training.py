"""What a training loses while the reader works beside it in the same process.

The U-Net of pipelines/train_unet.py trains on one synthetic batch that stays on the device: its speed
alone. Then the same steps are timed while each of them also takes a batch from fn.readers.zarr and drops it,
so that the reader works at the rate of a training, but the model never touches what was read: shuffled
windows of two steps, bf16. The share of the speed alone is what the reader leaves to the model.

- One child process for each number of cores: it restricts itself to them before it imports anything, builds
  the model once and goes through stores and decoders.
- The speed alone is measured before and after each point, with no reader there; the share is of their mean.
- Before the clock starts, the reader fills its queue, and then some steps take from it, so that what is timed
  is the steady state of a queue that is refilled as fast as it is emptied; with --warm-steps 128 that is also
  behind the trial of the SM partition that the reader makes where it falls behind. `supplied` says whether
  it was: bytes decoded while timed, over the bytes that the batches needed. Below 1 the queue was running
  empty.

    python benches/beside_training.py --cores 16,4 --stores zstd,raw --decode auto,gpu,cpu
    python benches/beside_training.py --quick --device cpu
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import common

CORES = (16, 8, 4)
DECODERS = ("auto", "gpu", "cpu")
BATCH, QUICK_BATCH = 16, 2
WINDOW = 2
CHANNELS = 6
# Of the reader's statistics those that add up.
COUNTERS = ("batches", "bytes_", "cache_hits", "chunks_", "ms_waiting_")


class Training:
    """The U-Net with its optimiser, and steps on one synthetic batch [B, 2, C, H, W].

    Args:
        device: `gpu` or `cpu`.
        batch_size: samples in a batch.
        grid: H and W.
    """

    def __init__(self, device: str, batch_size: int, grid: Sequence[int]) -> None:
        import torch

        from train_unet import PaddedUnet

        torch.manual_seed(0)
        self.torch = torch
        self.device = torch.device("cuda", 0) if device == "gpu" else torch.device("cpu")
        self.layout = torch.channels_last if device == "gpu" else torch.contiguous_format
        torch.backends.cudnn.benchmark = device == "gpu"
        self.model = PaddedUnet(CHANNELS).to(device=self.device, memory_format=self.layout).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn((batch_size, WINDOW, CHANNELS, *grid), device=self.device)
        self.mean = torch.zeros((CHANNELS, 1, 1), device=self.device)
        self.std = torch.ones_like(self.mean)
        self.loss = torch.empty(1, pin_memory=device == "gpu")

    def step(self) -> int:
        """One training step as in train_unet.py, given to the device; returns its samples."""
        torch = self.torch
        fields = (self.batch - self.mean) / self.std
        fields = torch.nan_to_num(fields, nan=0.0, posinf=0.0, neginf=0.0)
        x = fields[:, 0].contiguous(memory_format=self.layout)
        # Processors without units for bf16 take many times as long for it.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            prediction = self.model(x)
        loss = torch.nn.functional.mse_loss(prediction.float(), fields[:, 1])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach(), non_blocking=True)
        return len(x)

    def step_with(self, batch: Any) -> int:
        """A step for which a batch was taken, which is dropped; None: none was taken."""
        del batch
        return self.step()

    def run(self, steps: int, batches: Iterator[Any] | None = None) -> dict[str, float]:
        """Times steps, each of which takes one of the batches and drops it.

        Args:
            steps: how many.
            batches: the loader; without it nothing is taken.

        Returns:
            `samples_per_s`, and of the time `waited_share` in which the training stood still for a batch and
            `blocked_share` in which the host was inside the loader.
        """
        from train_unet import Waiting

        batches = itertools.repeat(None) if batches is None else batches
        waiting = Waiting(self.device, warmup=0)
        for _ in range(steps):
            # Waiting takes None for the end of an epoch.
            batch, _ = waiting.next((batch, True) for batch in batches)
            waiting.stepped(self.step_with(batch))
        seconds = waiting.finish()
        return {
            "samples_per_s": waiting.samples / seconds,
            "waited_share": waiting.waited / seconds,
            "blocked_share": waiting.blocked / seconds,
        }


def loader(task: dict[str, Any], point: dict[str, Any]) -> tuple[Any, Iterator[Any]]:
    """The pipeline of a point, which reads shuffled windows, and its batches as torch tensors without end."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    budget_gb = point["budget_gb"]
    budget = {} if budget_gb is None else {"device_memory_budget": int(budget_gb * 1e9)}
    pipe = common.reader(
        task["stores"][point["store"]],
        task["device"],
        task["batch_size"],
        window=[WINDOW],
        stride=[1],
        random_shuffle=True,
        decode=point["decode"],
        **budget,
        **point["arguments"],
    )
    # Without a reader's name or a size there are no epochs.
    return pipe, iter(DALIGenericIterator(pipe, ["fields"]))


def beside(
    training: Training, pipe: Any, batches: Iterator[Any], task: dict[str, Any], store_bytes: int
) -> dict[str, Any]:
    """Times the training beside a reader that was just built: figures of both."""
    import zarr_dali

    samples = pipe.reader_meta("reader")["epoch_size"]
    next(batches)
    common.at_rest(pipe)
    training.run(task["warm_steps"], batches)
    before, cpu = common.counters(pipe), os.times()
    row: dict[str, Any] = training.run(task["timed_steps"], batches)
    spent, now = common.grown(before, common.counters(pipe)), os.times()
    used = now.user + now.system - cpu.user - cpu.system
    needed = task["timed_steps"] * task["batch_size"] / samples * store_bytes
    seconds = task["timed_steps"] * task["batch_size"] / row["samples_per_s"]
    return {
        **row,
        "gpu_share": common.share_gpu(spent),
        "supplied": spent["bytes_decoded"] / needed,
        "delivered_gb_per_s": row["samples_per_s"] * store_bytes * WINDOW / (samples + WINDOW - 1) / 1e9,
        "cpu_cores": used / seconds,
        "policy": zarr_dali.stats(pipe)["policy"],
        "reader": {name: value for name, value in spent.items() if name.startswith(COUNTERS)},
    }


def child() -> None:
    """Goes through the points of one number of cores."""
    task = common.child_task()
    common.hold_to(task["cores"])
    training = Training(task["device"], task["batch_size"], task["grid"])
    training.run(task["warm_steps"])
    before = training.run(task["alone_steps"])
    for point in task["points"]:
        row: dict[str, Any] = {}
        pipe = batches = None
        try:
            pipe, batches = loader(task, point)
            row = beside(training, pipe, batches, task, task["store_bytes"])
        except (RuntimeError, ValueError) as error:
            row = {"problem": common.gist(error)}
        pipe = batches = None
        gc.collect()
        after = training.run(task["alone_steps"])
        if "problem" not in row:
            alone = statistics.mean([before["samples_per_s"], after["samples_per_s"]])
            row["alone_samples_per_s"] = alone
            row["alone_drift"] = after["samples_per_s"] / before["samples_per_s"] - 1
            row["share_of_alone"] = row["samples_per_s"] / alone
        before = after
        common.hand_over(row)


def points_of(args: Any) -> list[dict[str, Any]]:
    """All points, those of one number of cores together."""
    cores = common.cores_here(args.cores) or [len(os.sched_getaffinity(0))]
    return [
        {
            **reader,
            "point": f"{n}/{store}/{reader['point']}",
            "cores": n,
            "store": store,
        }
        for n in cores
        for store in args.stores
        for reader in readers(args)
    ]


def readers(args: Any) -> list[dict[str, Any]]:
    """What a point says of its reader: the end of its name, decoder, budget and further arguments."""
    return [
        {
            "point": "/".join(
                [decode, *([] if budget is None else [f"{budget:g}GB"]), *([name] if name else [])]
            ),
            "decode": decode,
            "budget_gb": budget,
            "arguments": arguments,
        }
        for budget in args.budgets
        for decode in args.decode
        for name, arguments in (args.readers or {"": {}}).items()
    ]


def add_arguments(line: Any) -> None:
    """What overlap.py takes as well."""
    common.add_stores(line)
    line.add_argument("--batch-size", type=int, help=f"samples in a batch (default: {BATCH})")


def add_choices(line: Any, cores: Sequence[int], decode: Sequence[str] | None = None) -> None:
    """Cores, decoders and steps that a command line can choose; `cores` and `decode` are the defaults."""
    line.add_argument(
        "--cores",
        type=common.list_of(int),
        default=list(cores),
        metavar="N,...",
        help=f"numbers of cores to hold the process to (default: those of {','.join(map(str, cores))} "
        "that the machine has)",
    )
    line.add_argument(
        "--warm-steps", type=int, metavar="N", help="behind a full queue (default: half of the timed ones)"
    )
    chosen = ",".join(decode) if decode else "auto,gpu,cpu; on the CPU backend auto,cpu"
    line.add_argument(
        "--decode",
        type=common.list_of(str, DECODERS),
        default=decode,
        metavar="NAMES",
        help=f"who decodes (default: {chosen})",
    )
    line.add_argument(
        "--budgets",
        type=common.list_of(lambda text: None if text == "default" else float(text)),
        default=[None],
        metavar="GB,...",
        help="the reader's device_memory_budget in GB, or `default` (default: default)",
    )
    line.add_argument(
        "--readers",
        type=json.loads,
        metavar="JSON",
        help="readers to compare: an object of their names, each with further arguments of fn.readers.zarr",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = common.parser("Time a training alone and with the reader beside it.", 3.0, quick_seconds=0.3)
    add_arguments(line)
    add_choices(line, CORES)
    args = common.parse(line, argv)
    if args.child:
        child()
        return 0
    args.batch_size = args.batch_size or (QUICK_BATCH if args.quick else BATCH)
    args.decode = args.decode or [d for d in DECODERS if d != "gpu" or args.device == "gpu"]
    # A step of batch 16 takes 125 ms on an H200; elsewhere the number of steps stays what it is there.
    timed_steps = max(3, round(args.seconds * 8))
    points = common.chosen(line, args, points_of(args))
    stores = common.ensure_stores(args, sorted({point["store"] for point in points}))
    task = {
        "device": args.device,
        "batch_size": args.batch_size,
        "grid": args.grid,
        "stores": {name: str(path) for name, path in stores.items()},
        "store_bytes": common.decoded_bytes(args),
        "timed_steps": timed_steps,
        "warm_steps": args.warm_steps or max(2, timed_steps // 2),
        "alone_steps": max(2, timed_steps // 3),
    }
    results = common.Results(
        "beside_training",
        "samples/s of a U-Net on synthetic data while the reader works beside it at the training's own rate, "
        "and the share of its speed alone",
        args,
        window=WINDOW,
        random_shuffle=True,
        **{name: task[name] for name in ("batch_size", "timed_steps", "warm_steps", "alone_steps")},
    )
    progress = common.Progress(len(points))
    for cores, group in itertools.groupby(points, key=lambda point: point["cores"]):
        for point, row in common.in_child(__file__, {**task, "cores": cores}, list(group), limit_s=250):
            results.add({**point, **row})
            progress.show(point, row)
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
