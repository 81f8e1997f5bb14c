"""Trains a U-Net to predict the next time step from a Zarr store, on one or many GPUs.

    python pipelines/train_unet.py                                  # writes and uses a small ERA5-like store
    python pipelines/train_unet.py --store era5.zarr --arrays t2m msl z500 --batch-size 16 --epochs 2
    torchrun --nproc-per-node 4 pipelines/train_unet.py --store era5.zarr           # four GPUs
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        pipelines/train_unet.py --store /shared/era5.zarr           # the same on each of two nodes

The store is a group of arrays [T, H, W] or [T, C, H, W], or one such array; all variables and levels become
the channels of one image. A sample is a window of two steps: the first is the input, the second the target.
The model is the U-Net of segmentation-models-pytorch with a ResNet-18 encoder and scSE attention, trained
from scratch.

- With torchrun each rank reads its own part of the samples and trains a replica (DistributedDataParallel);
  --batch-size is that of a rank.
- `--checkpoint FILE` keeps model, optimiser and the place in the data together; `--resume` goes on with the
  sample behind the last one that the checkpoint has seen. The number of ranks may be another one then.
- `--loader` puts another loader in the reader's place: `synthetic` trains on a batch that stays on the
  device, the speed that no loader can exceed; `torch`, `external-source` and `kvikio` are what people use
  today; `memory` holds the whole store in memory.

The summary says how much of the time went into waiting for data: the time that next(loader) blocked, on a GPU
only as far as the GPU had nothing to do meanwhile, read from CUDA events. Warm-up steps are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

import program
from fields import Source, inspect
from loaders import LOADERS, Loader, Wanted, default_workers
from program import Ranks, Waiting, positive

MOST_STEPS = 1_000_000
"""Of a training that ends by its time."""


class PaddedUnet(nn.Module):
    """U-Net from C to C channels for images of any size: pads to what the encoder needs, then crops."""

    STRIDE = 32
    # Below two positions at the bottleneck, batch normalization has nothing to average in a batch of one.
    SMALLEST = 64

    def __init__(self, channels: int, encoder: str = "resnet18") -> None:
        super().__init__()
        self.unet = smp.Unet(
            encoder,
            encoder_weights=None,
            decoder_attention_type="scse",
            in_channels=channels,
            classes=channels,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C, H, W]."""
        height, width = x.shape[-2:]
        down, right = (max(self.SMALLEST, -(-n // self.STRIDE) * self.STRIDE) - n for n in (height, width))
        if down or right:
            x = F.pad(x, (0, right, 0, down), mode="replicate")
        return self.unet(x)[..., :height, :width]


@dataclass(frozen=True)
class Summary:
    """What a run measured, without its warm-up steps; of all ranks together.

    Attributes:
        samples_per_s: of all ranks.
        wait_share, blocked_share: of the rank that waited longest.
        cpu_seconds_per_sample, busy_cores: CPU time of all processes on all ranks, workers included.
        host_bytes: of all processes on all ranks at the end, shared pages counted once.
        device_peak_bytes: what PyTorch had allocated at most on one GPU, which the reader's memory is not in.
        gpu_share: chunks that the GPU decoded, of those that were decoded; None for other loaders.
        losses: of each step, averaged over the ranks.
    """

    loader: str
    ranks: int
    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    wait_share: float
    blocked_share: float
    cpu_seconds_per_sample: float
    busy_cores: float
    host_bytes: int
    device_peak_bytes: int
    gpu_share: float | None
    first_step: int
    first_loss: float
    last_loss: float
    losses: list[float]


@dataclass
class Checkpoint:
    """A file with all that a training needs to go on: model, optimiser, place in the data, random numbers."""

    path: Path
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Loader

    def save(self, step: int) -> None:
        """Replaces the file; one that is being written is never taken for a checkpoint."""
        part = self.path.with_name(self.path.name + ".part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "step": step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "loader": self.loader.state_dict(),
                "random": torch.get_rng_state(),
            },
            part,
        )
        os.replace(part, self.path)

    def load(self, device: torch.device) -> int:
        """Restores everything; returns the number of steps that were done."""
        state = torch.load(self.path, map_location=device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"].cpu())
        return state["step"]


class History:
    """One line of JSON for each step of a rank: step, epoch, loss and the first time step of each sample."""

    def __init__(self, folder: Path | None, ranks: Ranks) -> None:
        self.file: IO[str] | None = None
        self.late: list[tuple[int, int, Tensor, Tensor]] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = (folder / f"rank{ranks.rank}.jsonl").open("a")

    def add(self, step: int, epoch: int, loss: Tensor, index: Tensor) -> None:
        """Keeps a step's figures; `loss` is on its way to the host, and `index` is sent there."""
        if self.file is not None:
            on_host = torch.empty(index.shape, dtype=index.dtype, pin_memory=index.is_cuda)
            on_host.copy_(index, non_blocking=True)
            self.late.append((step, epoch, loss, on_host))

    def write(self, keep: int = 0) -> None:
        """Writes the lines of all steps but the last ones, which the device may still be at."""
        while self.file is not None and len(self.late) > keep:
            step, epoch, loss, index = self.late.pop(0)
            line = {"step": step, "epoch": epoch, "loss": loss.item(), "samples": index.tolist()}
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def close(self) -> None:
        """Writes what is left; the device has to be idle."""
        self.write()
        if self.file is not None:
            self.file.close()


def loader_of(args: argparse.Namespace, source: Source, ranks: Ranks) -> Loader:
    """The loader that was asked for; ValueError or ImportError where it cannot run here."""
    options: dict[str, Any] = {}
    for name in ("decode", "prefetch_queue_depth", "cache_bytes", "num_threads"):
        if (value := getattr(args, name)) is not None:
            options[name] = value
    workers = args.workers
    if workers is None:
        workers = default_workers(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return LOADERS[args.loader](
        Wanted(
            source,
            args.batch_size,
            ranks.device,
            shuffle=args.shuffle,
            seed=args.seed,
            rank=ranks.rank,
            world_size=ranks.size,
            workers=workers,
            options=options,
        )
    )


def train(
    args: argparse.Namespace,
    source: Source,
    ranks: Ranks,
    after_step: Callable[[], None] = lambda: None,
) -> Summary:
    """Runs the training loop.

    Args:
        args: what `parser` gives.
        source: the fields to train on.
        ranks: this process and its device.
        after_step: called after each step.

    Returns:
        Its measurements, the same on all ranks.
    """
    loader = loader_of(args, source, ranks)
    try:
        return _train(args, source, ranks, loader, after_step)
    finally:
        loader.close()


def _train(
    args: argparse.Namespace,
    source: Source,
    ranks: Ranks,
    loader: Loader,
    after_step: Callable[[], None],
) -> Summary:
    device = ranks.device
    on_gpu = device.type == "cuda"
    torch.manual_seed(args.seed)
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = PaddedUnet(source.channels, args.encoder).to(device=device, memory_format=layout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    checkpoint = Checkpoint(args.checkpoint, model, optimizer, loader) if args.checkpoint else None
    first = 0
    if checkpoint and args.resume and args.checkpoint.exists():
        first = checkpoint.load(device)
    if ranks.reduced([first], "max") != [first]:
        raise ValueError(f"{args.checkpoint} is not there for all ranks: put it where every node sees it")
    replica: nn.Module = model
    if ranks.size > 1:
        # The decoder's last block has attention on a skip connection that it lacks: the same parameters stay
        # without gradients in every step.
        replica = DistributedDataParallel(
            model, device_ids=[device.index] if on_gpu else None, static_graph=True
        )
    mean, std = (t.to(device)[:, None, None] for t in (source.mean, source.std))
    bf16 = torch.autocast(device.type, torch.bfloat16) if args.amp else nullcontext()

    if args.steps is not None:
        last = args.steps
    elif args.seconds is not None:
        last = first + MOST_STEPS
    else:
        place = loader.state_dict()
        last = first + (args.epochs - place["epoch"]) * len(loader) - place["batch"]
    if last <= first:
        raise ValueError(f"{args.checkpoint} has {first} steps, there is nothing left to train")
    warmup = min(max(args.warmup, 0), last - first - 1)
    waiting = Waiting(device, warmup)
    cpu_before = program.cpu_seconds()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    # Losses travel to the host behind the step, so that showing them stops nothing.
    losses = torch.empty(last - first, pin_memory=on_gpu)
    history = History(args.history, ranks)
    step, over = first, False
    bar = program.progress(last if args.seconds is None else None, quiet=args.quiet, initial=first)
    while step < last and not over:
        batches = iter(loader)
        while step < last and not over:
            epoch = loader.state_dict()["epoch"]
            with record_function("next batch"):
                batch = waiting.next(batches)
            if batch is None:
                break
            # The search takes seconds for each shape: not for an epoch's last batch, which may be smaller.
            is_whole = len(batch["index"]) == args.batch_size
            torch.backends.cudnn.benchmark = on_gpu and args.kernel_search and is_whole
            with record_function("training step"):
                # Missing values become the channel's mean.
                fields = torch.nan_to_num((batch["fields"] - mean) / std, nan=0.0, posinf=0.0, neginf=0.0)
                x = fields[:, 0].contiguous(memory_format=layout)
                with bf16:
                    prediction = replica(x)
                loss = F.mse_loss(prediction.float(), fields[:, 1])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                place = step - first
                losses[place].copy_(loss.detach(), non_blocking=True)
                history.add(step, epoch, losses[place], batch["index"])
                # Waits for the step before this one on a GPU, whose figures are on the host then.
                waiting.stepped(len(x))
            history.write(keep=int(on_gpu))
            if (seen := place - on_gpu) >= 0:
                bar.set_postfix(loss=f"{losses[seen]:.3f}", refresh=False)
            step += 1
            bar.update()
            after_step()
            if waiting.steps == warmup:
                cpu_before = program.cpu_seconds()
            if checkpoint and (step % args.checkpoint_every == 0 or step == last) and ranks.is_first:
                checkpoint.save(step)
            over = args.seconds is not None and place >= warmup and waiting.seconds > args.seconds
        if args.steps is None and args.seconds is None and loader.state_dict()["epoch"] >= args.epochs:
            break
    bar.close()
    seconds = waiting.finish()
    history.close()
    losses = losses[: step - first]
    cpu = program.cpu_seconds() - cpu_before
    counted = loader.stats()
    # Nobody leaves before the first rank has written its checkpoint.
    ranks.wait()
    samples, cpu, host, *curve = ranks.reduced(
        [waiting.samples, cpu, program.host_bytes(), *(losses / ranks.size).tolist()]
    )
    seconds, waited, blocked, peak = ranks.reduced(
        [
            seconds,
            waiting.waited / seconds,
            waiting.blocked / seconds,
            torch.cuda.max_memory_allocated(device) if on_gpu else 0,
        ],
        "max",
    )
    few = max(1, min(5, len(curve) // 2))
    decoded = counted.get("chunks_decoded", 0)
    return Summary(
        loader=args.loader,
        ranks=ranks.size,
        steps=step - first - warmup,
        samples=int(samples),
        seconds=seconds,
        samples_per_s=samples / seconds,
        wait_share=waited,
        blocked_share=blocked,
        cpu_seconds_per_sample=cpu / samples,
        busy_cores=cpu / seconds,
        host_bytes=int(host),
        device_peak_bytes=int(peak),
        gpu_share=counted["chunks_decoded_gpu"] / decoded if decoded else None,
        first_step=first,
        first_loss=sum(curve[:few]) / few,
        last_loss=sum(curve[-few:]) / few,
        losses=curve,
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = program.parser(
        "Train a U-Net (ResNet-18, scSE) to predict the next time step from a Zarr store, read through DALI. "
        "Without --store a small ERA5-like store is written and used. Several GPUs: torchrun."
    )
    add = result.add_argument
    add("--arrays", nargs="+", metavar="NAME", help="arrays of the group (default: all of the largest shape)")
    add("--loader", choices=tuple(LOADERS), default="ours", help="what reads the data (default: %(default)s)")
    add(
        "--synthetic",
        action="store_const",
        dest="loader",
        const="synthetic",
        help="the same as --loader synthetic",
    )
    add(
        "--workers", type=int, help="worker processes of the loaders that have them (default: from the cores)"
    )
    add("--epochs", type=positive, default=2, help="passes over the store (default: %(default)s)")
    add("--steps", type=positive, help="stop after so many steps instead, however many epochs that takes")
    add("--seconds", type=float, help="stop so long after the warm-up instead; of one rank only")
    add("--warmup", type=int, default=4, help="steps left out of the timing (default: %(default)s)")
    add(
        "--shuffle",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="read the samples in random order (default: yes)",
    )
    add("--lr", type=float, default=1e-3, help="AdamW's learning rate (default: %(default)s)")
    add("--encoder", default="resnet18", help="of the U-Net, such as resnet101 (default: %(default)s)")
    add("--amp", action=argparse.BooleanOptionalAction, help="bf16 autocast (default: on a GPU)")
    add(
        "--kernel-search",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="time cuDNN's kernels in the first step, which takes seconds (default: yes)",
    )
    add("--checkpoint", type=Path, metavar="FILE", help="keep model, optimiser and place in the data there")
    add(
        "--checkpoint-every",
        type=positive,
        default=100,
        metavar="STEPS",
        help="how often; at the end in any case (default: %(default)s)",
    )
    add("--resume", action="store_true", help="go on where --checkpoint ends, if it is there")
    add("--history", type=Path, metavar="FOLDER", help="a line for each step of each rank: loss and samples")
    add("--decode", choices=("auto", "gpu", "cpu"), help="where chunks are decoded (default: the reader's)")
    add("--prefetch-queue-depth", type=positive, metavar="N", help="batches the reader keeps ready")
    add("--cache-bytes", type=positive, metavar="N", help="memory for chunks that stay from epoch to epoch")
    add("--num-threads", type=positive, help="DALI's CPU threads (default: 2)")
    return result


def check(line: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the program where arguments do not fit together."""
    if args.resume and args.checkpoint is None:
        line.error("--resume needs --checkpoint")
    if args.seconds is not None and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        line.error("--seconds: several ranks have to take the same number of steps; give --steps")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    line = parser()
    args = line.parse_args(argv)
    check(line, args)
    return program.run("train_unet.py", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Trains and prints the summary."""
    ranks = program.join_ranks(args.device)
    args.quiet = args.quiet or not ranks.is_first
    args.amp = ranks.device.type == "cuda" if args.amp is None else args.amp
    if args.store is None:
        args.store = program.demo_store(args.data_dir, write=ranks.is_first)
    ranks.wait()
    source = inspect(args.store, args.arrays)
    if ranks.is_first:
        print(
            f"{source.store}: {source.channels} channels on {source.height} x {source.width}, "
            f"{source.step_bytes / 1e6:.2f} MB a step as float32, training on {ranks.device}"
            + (f" and {ranks.size - 1} more" if ranks.size > 1 else "")
        )
    summary = train(args, source, ranks)
    if not ranks.is_first:
        return
    waited = f"{summary.wait_share:.2%} of the time"
    if ranks.device.type == "cuda":
        waited += f" (host blocked in next(): {summary.blocked_share:.2%})"
    facts = {
        "loader": summary.loader,
        "steps": f"{summary.steps} behind the warm-up, from step {summary.first_step}",
        "samples": f"{summary.samples} in {summary.seconds:.1f} s",
        "speed": f"{summary.samples_per_s:.1f} samples/s",
        "waiting for data": waited,
        "CPU": f"{summary.busy_cores:.1f} cores busy, {summary.cpu_seconds_per_sample * 1e3:.1f} ms a sample",
        "host memory": f"{summary.host_bytes / 1e9:.2f} GB",
        "loss": f"{summary.first_loss:.3f} -> {summary.last_loss:.3f}",
    }
    if ranks.size > 1:
        facts["ranks"] = str(ranks.size)
    if summary.gpu_share is not None:
        facts["decoded on the GPU"] = f"{summary.gpu_share:.0%} of the chunks"
    program.print_summary("train_unet.py", facts)
    program.write_json(args.json, asdict(summary))


if __name__ == "__main__":
    sys.exit(main())
