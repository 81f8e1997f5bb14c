"""Stores behind a web server: fn.readers.zarr beside bare readers of the same bytes and beside other clients.

A server of ours (`range_server.rs`) sends files from the page cache. It runs on the second half of this
machine's cores, all that reads on the first half, so that neither takes time from the other; `--client-cores`
and `--server-cores` say otherwise. It also delays and refuses answers. Bare readers (`range_readers.rs`) ask
for the same objects and drop the bytes.

| point | what is measured |
|---|---|
| `raw/http`, `raw/https` | bytes a second and CPU time beside bare readers, which drop or keep what comes |
| `raw/http/12.5GB` | the same where all connections together give 12.5 GB/s, as 100 Gbit/s do |
| `latency/30`, `latency/100` | the rate with 30 and 100 ms to the first byte, beside that without, in turn |
| `memory-bound` | the rate at 100 ms with a small budget, beside what that allows; memory that was taken |
| `concurrency` | bare readers with 16 to 512 connections, and ours: 2.5 GB/s in all, 90 MB/s each, 50 ms |
| `late` | 1 % of requests are 2 s late, beside none |
| `busy` | 5 % of requests are answered 503, beside none, and how long it takes until the rate is back |
| `sharded` | the main sharded store, shuffled, windows of 2: useful bytes and requests |
| `stores/NAME` | GB/s of decoded values beside other clients of the same URL, and what bare readers get |
| `unet` | the U-Net of pipelines/train_unet.py at 50 ms beside the same from the local folder |
| `disk-cache` | an epoch from `cache_dir` beside one from the local folder, both not in the page cache |

Rates are those of the steady state, behind a warm-up. "The wire" is the loopback interface.

    cargo build --release --example range_server --example range_readers
    python benches/remote.py
    python benches/remote.py --quick --device cpu
    python benches/remote.py --points 'raw/*' --programs DIR
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import remote_table
import serving
from remote_reading import BATCH, Reading, joined_ranges

CONNECTIONS = (8, 32)
"""Of bare readers, tried in turn; the best counts."""
KEPT_MIB = 640
"""Memory that bare readers of hyper copy to: about what our requests have in flight."""
COMPRESSED = tuple(name for name in common.STORES if name != "raw")
RAW, TIMES_LONGER = "raw-long", 8
"""The name of the uncompressed store, and how many times as many steps it has as the compressed stores. A
reader requests at most one epoch ahead, and at 25 GB/s half of an epoch of 256 steps comes within 100 ms."""
POINTS = (
    "raw/http",
    "raw/https",
    f"raw/http/{remote_table.NETWORK_MB / 1000}GB",
    "latency/30",
    "latency/100",
    "memory-bound",
    "concurrency",
    "late",
    "busy",
    "sharded",
    *(f"stores/{name}" for name in COMPRESSED),
    "disk-cache",
    "unet",
)
AMPLE_WARM_UP_S = 7.0
"""Pinned memory for answers, three quarters of a quarter of the budget, grows by some 4 GB/s at most."""
ROUNDS = 3
"""How often rates with a fault of the server and without are measured in turn; the last one is with it."""
WINDOWS = {"late": 3.0, "busy": 2.0, "sharded": 6.0}
"""Seconds of one measurement; in a quick run a quarter."""


# --- in a child -----------------------------------------------------------------------------------


class Points:
    """Measures points.

    Args:
        task: what the parent asked for.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.task = task
        self.seconds: float = task["seconds"]
        self.quick: bool = task["quick"]
        self.programs = Path(task["programs"])
        self.budget: int = task["budget"]

    def measured(self, point: str) -> dict[str, Any]:
        """The row of a point."""
        kind, _, rest = point.partition("/")
        if kind == "raw":
            return self.raw(rest)
        if kind == "latency":
            return self.latency(int(rest))
        if kind == "stores":
            return self.store(rest)
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "memory-bound": self.memory_bound,
            "concurrency": self.concurrency, "late": self.late, "busy": self.busy, "sharded": self.sharded,
            "disk-cache": self.disk_cache, "unet": self.unet,
        }  # fmt: skip
        return ways[kind]()

    def url(self, store: str, scheme: str = "http") -> str:
        """Where a store is."""
        return f"{self.task[scheme]}/{store}.zarr"

    def path(self, store: str) -> Path:
        """Its folder."""
        return Path(self.task["stores"][store])

    def bare(self, store: str, scheme: str = "http", **how: Any) -> dict[str, Any]:
        """Bare readers of all chunks of a store, with the best number of connections."""
        folder = self.path(store)
        keys = [str(file.relative_to(folder)) for file in common.chunk_files(folder)]
        requests = Path(self.task["scratch"]) / f"{store}.requests"
        requests.write_text("\n".join(keys) + "\n")
        authority = self.task["authority"] if scheme == "https" else None
        counts = how.pop("connections", CONNECTIONS)
        tried = [
            serving.read_bare(
                self.programs, self.url(store, scheme), requests, connections, self.seconds / 2,
                authority=authority, **how,
            )
            for connections in counts
        ]  # fmt: skip
        return max(tried, key=lambda one: one["gb_per_s"])

    def raw(self, how: str) -> dict[str, Any]:
        """Beside bare readers."""
        scheme, _, network = how.partition("/")
        limit = {"mb_per_s": remote_table.NETWORK_MB} if network else {}
        with serving.answering(self.task[scheme], self.task["authority"], **limit):
            bare = self.bare(RAW, scheme)
            reading = Reading(self.task, self.url(RAW, scheme), host_memory_budget=self.budget)
            ours = reading.rate(self.seconds)
            threads = sum(name.startswith("zarr net") for name, _ in common.thread_times())
            del reading
            hyper = self.bare(RAW, scheme, hyper=threads)
            kept = self.bare(RAW, scheme, hyper=threads, kept_mib=KEPT_MIB)
        return {
            "share_of_bare": ours["wire_gb_per_s"] / bare["gb_per_s"],
            "share_of_hyper": ours["wire_gb_per_s"] / hyper["gb_per_s"],
            "cpu_of_hyper": ours["net_cpu_s_per_gb"] / hyper["cpu_s_per_gb"],
            "cpu_of_hyper_kept": ours["net_cpu_s_per_gb"] / kept["cpu_s_per_gb"],
            **ours,
            "network_threads": threads,
            "bare": bare,
            "hyper": hyper,
            "hyper_kept": kept,
        }

    def in_turn(
        self,
        reading: Reading,
        fault: dict[str, float],
        without: dict[str, float],
        seconds: float,
        warm_up: float,
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The rates with a fault of the server and without, in turn, each behind a warm-up of its own.

        Args:
            reading: the reader.
            fault: settings of the server.
            without: the settings that end it.
            seconds: of each measurement.
            warm_up: seconds, in which what was asked for before is answered.

        Returns:
            What is told of both, and the rows with the fault.
        """
        rows, others = [], []
        for turn in range(1 if self.quick else ROUNDS):
            ways = [(others, without), (rows, fault)]
            for kept, settings in ways if turn % 2 == 0 else reversed(ways):
                serving.tell(self.task["http"], None, **settings)
                kept.append(reading.rate(seconds, warm_up=warm_up))
        rates, rates_without = ([row["wire_gb_per_s"] for row in one] for one in (rows, others))
        told = {
            "share_of_rate_without": sum(rates) / sum(rates_without),
            "wire_gb_per_s": statistics.mean(rates),
            "wire_gb_per_s_without": statistics.mean(rates_without),
            "rates": rates,
            "rates_without": rates_without,
        }
        return told, rows

    def latency(self, ms: int) -> dict[str, Any]:
        """With and without a time to the first byte, and with more memory than that wants."""
        with serving.answering(self.task["http"]):
            reading = Reading(self.task, self.url(RAW), host_memory_budget=self.task["ample_budget"])
            reading.warm_up(AMPLE_WARM_UP_S)
            told, rows = self.in_turn(reading, {"ms": ms}, {"ms": 0}, self.seconds, self.seconds)
        return {
            **told,
            "net_cpu_s_per_gb": statistics.mean(row["net_cpu_s_per_gb"] for row in rows),
            "requests_in_flight_peak": rows[-1]["requests_in_flight_peak"],
        }

    def memory_bound(self) -> dict[str, Any]:
        """With less memory than latency wants. A quarter of the budget is for what is in flight or waits."""
        ms = 100
        budget = self.task["small_budget"]
        without = Reading(self.task, self.url(RAW), host_memory_budget=self.budget).rate(self.seconds)
        with serving.answering(self.task["http"], ms=ms):
            ours = Reading(self.task, self.url(RAW), host_memory_budget=budget).rate(self.seconds)
        bound = budget / 4 / (ms / 1000) / 1e9
        return {
            "share_of_bound": ours["wire_gb_per_s"] / min(bound, without["wire_gb_per_s"]),
            "bound_gb_per_s": bound,
            "budget_bytes": budget,
            "rss_share_of_budget": ours["rss_bytes"] / budget,
            **ours,
        }

    def concurrency(self) -> dict[str, Any]:
        """Whether more requests at once than are enough cost anything, or fewer would."""
        with serving.answering(self.task["http"], ms=50, mb_per_s=2500, connection_mb_per_s=90):
            bare = {
                connections: self.bare(RAW, connections=(connections,), hyper=4)["gb_per_s"]
                for connections in (16, 64, 256, 512)
            }
            ours = Reading(self.task, self.url(RAW), host_memory_budget=self.budget).rate(self.seconds)
        best = max(bare, key=bare.__getitem__)
        return {
            "share_of_best": ours["wire_gb_per_s"] / bare[best],
            "best_connections": best,
            "bare_gb_per_s": bare,
            **ours,
        }

    def late(self) -> dict[str, Any]:
        """1 % of the answers begin after 2 s."""
        with serving.answering(self.task["http"], ms=30):
            reading = Reading(self.task, self.url(RAW), host_memory_budget=self.budget)
            reading.warm_up()
            window = self.task["windows"]["late"]
            # Behind the last late answers.
            told, rows = self.in_turn(reading, {"late": 0.01}, {"late": 0}, window, 1.25 * self.seconds)
        asked, more = (
            sum(row[name] for row in rows for name in names)
            for names in (["requests"], ["requests_hedged", "requests_retried"])
        )
        return {**rows[-1], **told, "more_requests": more / asked}

    def busy(self) -> dict[str, Any]:
        """5 % of the answers are 503; then none."""
        url = self.task["http"]
        with serving.answering(url, ms=30):
            reading = Reading(self.task, self.url(RAW), host_memory_budget=self.budget)
            reading.warm_up()
            window = self.task["windows"]["busy"]
            told, rows = self.in_turn(reading, {"busy": 0.05}, {"busy": 0}, window, self.seconds)
            serving.tell(url, None, busy=0)
            back, began = None, time.perf_counter()
            after = []
            while back is None and time.perf_counter() - began < 8:
                second = reading.rate(self.seconds / 4, warm_up=0.0)
                after.append(second["wire_gb_per_s"])
                if second["wire_gb_per_s"] >= 0.95 * told["wire_gb_per_s_without"]:
                    back = time.perf_counter() - began
        return {**rows[-1], **told, "back_after_s": back, "gb_per_s_after": after}

    def sharded(self) -> dict[str, Any]:
        """Useful bytes and requests in the steady state, of shuffled windows."""
        reading = Reading(
            self.task, self.url("sharded"), host_memory_budget=self.budget, window=[2], random_shuffle=True
        )
        # Long enough that what waits for its batch at the beginning and at the end does not matter.
        ours = reading.rate(self.task["windows"]["sharded"])
        joined, shard_bytes = joined_ranges(self.path("sharded"), self.budget // 4 // 16)
        by_rule = ours["bytes_fetched"] / shard_bytes * joined
        return {
            "useful_of_wire": ours["bytes_fetched_useful"] / max(ours["bytes_fetched"], 1),
            "requests_of_rule": ours["requests"] / by_rule,
            "joined_ranges_a_shard": joined,
            **ours,
        }

    def store(self, name: str) -> dict[str, Any]:
        """Decoded GB/s beside other clients, all on the same cores."""
        import remote_peers

        bare = self.bare(name)
        ours = Reading(self.task, self.url(name), host_memory_budget=self.budget).rate(self.seconds)
        rows = remote_peers.timed(
            self.task["device"], self.url(name), self.path(name), BATCH, self.seconds, self.task["peers"]
        )
        rates = {name: row["gb_per_s"] for name, row in rows.items() if "gb_per_s" in row}
        best = max(rates, key=rates.__getitem__) if rates else None
        return {
            "times_best_peer": ours["delivered_gb_per_s"] / rates[best] if best else None,
            "best_peer": best,
            "server_of_taken": bare["gb_per_s"] / ours["wire_gb_per_s"],
            **ours,
            "bare": bare,
            "peers": rows,
        }

    def disk_cache(self) -> dict[str, Any]:
        """An epoch from the cache on the disk beside one of the local folder, in turns."""
        from remote_cache import from_disk

        return from_disk(self.task, self.url("zstd"), self.path("zstd"), BATCH)

    def unet(self) -> dict[str, Any]:
        """A short training, from the folder and at 50 ms."""
        sys.path.insert(0, str(common.ROOT / "pipelines"))
        import program
        import train_unet
        from fields import inspect

        ranks = program.Ranks(0, 1, program.chosen_device("cuda" if self.task["device"] == "gpu" else "cpu"))
        batch = 4 if self.quick else 16
        rows = {}
        # The first one chooses kernels, so that it is made twice.
        with serving.answering(self.task["http"], ms=50):
            for name, store in (
                ("first", str(self.path("zstd"))),
                ("local", str(self.path("zstd"))),
                ("remote", self.url("zstd")),
            ):
                steps = 64 // batch
                line = [
                    "--store",
                    store,
                    "--batch-size",
                    batch,
                    "--quiet",
                    "--seconds",
                    self.task["training_s"],
                ]
                line += ["--warmup", 2 if name == "first" else 2 * steps]
                if name == "first":
                    line[-3] = 0.5
                args = train_unet.parser().parse_args([str(part) for part in line])
                args.amp = ranks.device.type == "cuda"
                summary = train_unet.train(args, inspect(store), ranks)
                rows[name] = {"samples_per_s": summary.samples_per_s, "wait_share": summary.wait_share}
        return {
            "wait_share": rows["remote"]["wait_share"],
            "share_of_local": rows["remote"]["samples_per_s"] / rows["local"]["samples_per_s"],
            "samples_per_s": rows["remote"]["samples_per_s"],
            "local": rows["local"],
        }


def longer(store: Path, times: int) -> Path:
    """Makes a store of `times` as many steps, whose chunks are links to those of `store`, of one step each.

    Returns:
        Its folder, beside that of `store`.
    """
    folder = store.with_name(f"{RAW}.zarr")
    shutil.rmtree(folder, ignore_errors=True)
    metadata = json.loads((store / "zarr.json").read_text())
    steps = metadata["shape"][0]
    if metadata["chunk_grid"]["configuration"]["chunk_shape"][0] != 1:
        raise ValueError(f"a chunk of {store} has more than one step")
    metadata["shape"][0] = steps * times
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps(metadata))
    for chunk in (store / "c").iterdir():
        for step in range(int(chunk.name), steps * times, steps):
            shutil.copytree(chunk, folder / "c" / str(step), copy_function=os.link)
    return folder


def child() -> None:
    """Goes through points on the client's cores."""
    task = common.child_task()
    os.sched_setaffinity(0, task["client_cores"])
    points = Points(task)
    for point in task["points"]:
        try:
            row = points.measured(point["point"])
        except Exception as error:
            row = {"problem": f"{type(error).__name__}: {common.gist(error)}"}
        common.hand_over(row)


# --- the parent -----------------------------------------------------------------------------------


def halves() -> tuple[list[int], list[int]]:
    """This machine's cores: those of the client, those of the server. The same one, if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    half = (len(cores) + 1) // 2
    return cores[:half], cores[half:] or cores


def default_programs() -> Path:
    """Where cargo puts examples."""
    target = os.environ.get("CARGO_TARGET_DIR")
    return (Path(target) if target else common.ROOT / "target") / "release" / "examples"


def cores_of(text: str) -> list[int]:
    """Cores as taskset writes them, such as `0-3,8`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    # More chunks than are in flight: one that two epochs need would be requested once for both.
    line = common.parser("Time readers of stores behind a web server.", 2.0, quick_seconds=0.6, steps=256)
    client, server = halves()
    line.add_argument(
        "--client-cores", type=cores_of, default=client, help="such as 0-7 (default: the first half)"
    )
    line.add_argument(
        "--server-cores", type=cores_of, default=server, help="such as 8-15 (default: the others)"
    )
    line.add_argument(
        "--programs", type=Path, default=default_programs(), help="folder of range_server and range_readers"
    )
    line.add_argument("--peers", type=common.list_of(str), default=None, help="only these peers")
    args = common.parse(line, argv)
    points = common.chosen(line, args, [{"point": name} for name in POINTS])
    stores = common.ensure_stores(args, common.STORES)
    stores[RAW] = longer(stores["raw"], TIMES_LONGER)
    scratch = store_scratch(args)
    results = common.Results(
        "remote",
        "stores behind a web server of this machine, read by fn.readers.zarr, bare readers and other clients",
        args,
        seconds=args.seconds,
        batch_size=BATCH,
        client_cores=args.client_cores,
        server_cores=args.server_cores,
        raw_steps=args.steps * TIMES_LONGER,
        siblings=siblings(args.client_cores),
    )
    root = next(iter(stores.values())).parent.resolve()
    both, trusted = serving.certificate(scratch)
    servers = {
        scheme: serving.Server(args.programs, root, args.server_cores, pem)
        for scheme, pem in (("http", None), ("https", both))
    }
    on_gpu = args.device == "gpu"
    task = {
        "device": args.device,
        "seconds": args.seconds,
        "quick": args.quick,
        "programs": str(args.programs.resolve()),
        "client_cores": args.client_cores,
        "authority": str(trusted.resolve()),
        "stores": {name: str(path.resolve()) for name, path in stores.items()},
        "scratch": str(scratch.resolve()),
        "budget": 16 << 30 if on_gpu else 2 << 30,
        "ample_budget": 32 << 30 if on_gpu else 2 << 30,
        "small_budget": 1 << 30 if on_gpu else 256 << 20,
        "windows": {name: seconds / 4 if args.quick else seconds for name, seconds in WINDOWS.items()},
        "training_s": 1 if args.quick else 5,
        "peers": args.peers,
        **{scheme: one.url for scheme, one in servers.items()},
    }
    progress = common.Progress(len(points))
    try:
        # A process of its own for the training, whose library takes memory and threads.
        for chosen in (
            [p for p in points if p["point"] != "unet"],
            [p for p in points if p["point"] == "unet"],
        ):
            for point, row in common.in_child(__file__, task, chosen, limit_s=120) if chosen else ():
                results.add({**point, **row})
                progress.show(point, row)
    finally:
        for one in servers.values():
            one.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n" + remote_table.markdown(results.content))
    return results.finish()


def store_scratch(args: Any) -> Path:
    """A folder on the disk of the stores for what is thrown away; empty."""
    folder = common.store_folder(args).parent / "remote-scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def siblings(cores: Sequence[int]) -> list[str]:
    """Which cores share a physical one with the client's, as the kernel says."""
    places = [Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in cores]
    return [place.read_text().strip() for place in places if place.exists()]


if __name__ == "__main__":
    sys.exit(child() if "--child" in sys.argv else main())
