"""How fast a store's values reach the device: fn.readers.zarr beside the loaders that people use today.

Stores of the same ERA5-like values (pipelines/era5_like.py) in several layouts are read by each loader in
batches of consecutive steps. A pass reads every step once and ends with the float32 values on the device.
Reported are decoded bytes delivered per second of wall time, in 10^9 bytes, from a warm page cache. The
loaders, and how they are checked and timed, are those of `zarr-dali bench` (`zarr_dali._bench`).

- All loaders run side by side in one process, in rounds that interleave them, because the speed of a machine
  drifts; compare figures of one run only, and quote ratios.
- In each round a loader is opened anew, warmed up for at least one pass, and then timed over whole passes for
  a few seconds. What a reader prepared before the clock started is used up by then: the rate is the steady
  state.
- The outputs of fn.readers.zarr are consumed where DALI puts them, without another copy. Peers that return
  host arrays are copied to the GPU with .cuda(), as their users do.
- Before anything is timed, one pass of every loader is compared bit by bit with what zarr-python reads.

    python benches/read_table.py                    # raw, zstd and sharded; a GPU if there is one
    python benches/read_table.py --quick --device cpu
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zarr_dali._bench.loaders import KEYS, NPY_PEERS, Loader, NpyCopies, ZarrDali, peers
from zarr_dali._bench.machine import machine, versions
from zarr_dali._bench.timing import Expected, Row, time_all, verify_all
from zarr_dali._bench.work import Work

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "pipelines"))

import era5_like  # noqa: E402  a neighbour, not a package
from common import revision, without_places  # noqa: E402  another

# 1.26 GB of values, 19.7 MB a step; the quick ones only show that everything runs.
STEPS, GRID = 64, (640, 1280)
QUICK_STEPS, QUICK_GRID = 16, (80, 160)

COPIED = {peer.key for peer in NPY_PEERS}
"""Peers that read raw copies of the values, and so belong to the store `raw` only."""


def measure(
    loaders: dict[str, Loader],
    rows: dict[str, Row],
    store: Path,
    args: argparse.Namespace,
    keep: Callable[[], None],
) -> None:
    """Verifies and times all loaders on one store, filling `rows`; `keep` is called after each round."""
    work = Work.of(store, batch_size=args.batch_size)

    def said(text: str) -> None:
        print(f"{store.name}: {text}", file=sys.stderr)

    def round_is_done(number: int) -> None:
        rates = {name: row.gb_per_s[number] for name, row in rows.items() if len(row.gb_per_s) > number}
        shown = ", ".join(f"{name} {rate:.2f}" for name, rate in rates.items())
        print(f"{store.name}, round {number + 1} of {args.rounds}: {shown}", flush=True)
        keep()

    for _ in verify_all(loaders, rows, work, Expected(work), work.batches, said):
        pass
    last = 0
    for number, _ in time_all(loaders, rows, work, args.rounds, args.seconds, said):
        if number > last:
            round_is_done(last)
        last = number
    round_is_done(last)


def loaders_of(args: argparse.Namespace, device: str) -> tuple[dict[str, Loader], dict[str, Row]]:
    """The loaders that can be made, and a row for each with the reason where there is none."""
    ours: list[Loader] = [ZarrDali(device, decode=decode) for decode in args.decode]
    if args.shuffle:
        ours.append(ZarrDali(device, shuffle=True))
    loaders = {loader.name: loader for loader in ours}
    rows = {name: Row() for name in loaders}
    if args.peers:
        args.data_dir.mkdir(parents=True, exist_ok=True)
        for name, loader, problem in peers(device, args.peer, NpyCopies(args.data_dir)):
            rows[name] = Row(problem=problem)
            if loader is not None:
                loaders[name] = loader
            else:
                print(f"{name}: {problem}", file=sys.stderr)
    return loaders, rows


def markdown(table: dict[str, dict[str, Row]], result: dict[str, Any]) -> str:
    """The table, one row a loader and one column a store, under a line that says what it is."""
    stores = result["stores"]
    columns = list(stores)
    where = ", ".join(result["machine"]["gpus"]) or result["machine"]["cpu"]
    work = result["work"]
    lines = [
        f"GB/s of decoded bytes on the {work['device']}, median (min to max) of {work['rounds']} rounds; "
        f"{work['steps']} steps of 6 x {work['grid'][0]} x {work['grid'][1]} float32 in batches of "
        f"{work['batch_size']}; {where}, {result['machine']['cores']} cores; {result['date']}.",
        "",
        "| | " + " | ".join(f"{name} (ratio {stores[name]['ratio']:.2f})" for name in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for loader in table[columns[0]]:
        lines.append(f"| {loader} | " + " | ".join(table[name][loader].cell() for name in columns) + " |")
    cells = []
    for name in columns:
        times, peer = stores[name]["times_best_peer"], stores[name]["best_peer"]
        cells.append(f"{times:.2f} x {peer}" if times else "")
    lines.append("| **zarr-dali / best peer** | " + " | ".join(cells) + " |")
    if work["quick"]:
        lines += ["", "A quick run: it shows that everything works, the figures mean nothing."]
    return "\n".join(lines) + "\n"


def best_peer(rows: dict[str, Row], loaders: dict[str, Loader]) -> tuple[str | None, float | None]:
    """The fastest peer by median, and how many times faster the first of our own rows is."""
    medians = {name: row.median for name, row in rows.items() if row.median is not None}
    peers = {name: median for name, median in medians.items() if loaders[name].peer}
    ours = [median for name, median in medians.items() if not loaders[name].peer]
    if not peers:
        return None, None
    best = max(peers, key=peers.__getitem__)
    return best, ours[0] / peers[best] if ours else None


def run(args: argparse.Namespace) -> int:
    """Writes the stores if need be, measures, prints the table and keeps the results."""
    device = args.device
    if device == "auto":
        from nvidia.dali import backend

        device = "gpu" if backend.GetCUDADeviceCount() > 0 else "cpu"
    folder = args.data_dir / "x".join(map(str, (args.steps, *args.grid)))
    stores = {name: folder / f"{name}.zarr" for name in args.stores}
    era5_like.ensure_stores(stores, steps=args.steps, grid=tuple(args.grid), arrangement="stacked")

    loaders, rows = loaders_of(args, device)
    table = {store: {name: Row(problem=row.problem) for name, row in rows.items()} for store in stores}
    now = datetime.datetime.now(datetime.timezone.utc)
    result: dict[str, Any] = {
        "what": "decoded bytes delivered to the device per second, by loader and store",
        "command": without_places(["python", "benches/read_table.py", *args.command]),
        "date": now.date().isoformat(),
        "written": now.isoformat(timespec="seconds"),
        "revision": args.revision or revision(),
        "machine": machine(),
        "versions": versions(),
        "work": {
            "device": device,
            "steps": args.steps,
            "grid": list(args.grid),
            "batch_size": args.batch_size,
            "rounds": args.rounds,
            "seconds_per_round": args.seconds,
            "page_cache": "warm",
            "quick": args.quick,
        },
        "stores": {},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    where = (result["machine"]["gpus"] or ["gpu"])[0].lower().replace(" ", "-") if device == "gpu" else "cpu"
    kept = args.out / f"read_table{'_quick' if args.quick else ''}-{result['date']}-{where}-{now:%H%M%S}"

    def keep(name: str, path: Path) -> None:
        """After every round, so that a run that is cut short leaves what it measured."""
        peer, times = best_peer(table[name], loaders)
        values = args.steps * len(era5_like.VARIABLES) * args.grid[0] * args.grid[1] * 4
        size = era5_like.stored_bytes(path)
        result["stores"][name] = {
            "decoded_bytes": values,
            "stored_bytes": size,
            "ratio": values / size,
            "loaders": {loader: row.as_json() for loader, row in table[name].items()},
            "best_peer": peer,
            "times_best_peer": times,
        }
        Path(f"{kept}.json").write_text(json.dumps(result, indent=2) + "\n")
        Path(f"{kept}.md").write_text(markdown(table, result))

    for name, path in stores.items():
        chosen = {key: one for key, one in loaders.items() if name == "raw" or one.key not in COPIED}
        measure(chosen, table[name], path, args, partial(keep, name, path))
    text = markdown(table, result)
    print("\n" + text)
    print(f"kept in {kept}.json and .md")
    return 1 if any(row.failed for rows in table.values() for row in rows.values()) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status, 1 when a loader failed or read wrong values."""
    parser = argparse.ArgumentParser(
        description="Read ERA5-like Zarr stores with fn.readers.zarr and with other loaders, side by side; "
        "print a table of GB/s and keep it as JSON."
    )
    add = parser.add_argument
    add(
        "--stores",
        nargs="+",
        choices=era5_like.LAYOUTS,
        default=["raw", "zstd", "sharded"],
        help="layouts of the stores (default: raw zstd sharded)",
    )
    add(
        "--data-dir",
        type=Path,
        default=Path("data/bench"),
        help="where the stores are kept (default: %(default)s)",
    )
    add(
        "--out",
        type=Path,
        default=ROOT / "benches" / "results",
        help="for the results (default: benches/results)",
    )
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="auto: a GPU when one can be used")
    add("--batch-size", type=int, default=8, help="steps in a batch (default: %(default)s)")
    add("--shuffle", action="store_true", help="another row: fn.readers.zarr in random order")
    add(
        "--decode",
        nargs="+",
        choices=("auto", "gpu", "cpu"),
        default=["auto"],
        help="a row of fn.readers.zarr for each of these (default: auto)",
    )
    add(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the other loaders; --no-peers leaves them out",
    )
    add("--peer", nargs="+", choices=KEYS, default=KEYS, help="only these other loaders (default: all)")
    add("--rounds", type=int, help="interleaved rounds (default: 5, quick: 2)")
    add(
        "--seconds",
        type=float,
        help="timed seconds a loader, store and round, rounded up to whole passes (default: 2)",
    )
    add("--steps", type=int, help=f"time steps of the stores (default: {STEPS})")
    add(
        "--grid",
        type=int,
        nargs=2,
        metavar=("H", "W"),
        help=f"grid of the stores (default: {GRID[0]} {GRID[1]})",
    )
    add("--revision", help="the commit, for the results (default: what git says)")
    add("--quick", action="store_true", help="small stores and short rounds, to see that everything runs")
    args = parser.parse_args(argv)
    args.command = list(sys.argv[1:] if argv is None else argv)
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.seconds = args.seconds or (0.2 if args.quick else 2.0)
    args.steps = args.steps or (QUICK_STEPS if args.quick else STEPS)
    args.grid = args.grid or (QUICK_GRID if args.quick else GRID)
    if args.batch_size < 1 or args.steps % args.batch_size:
        parser.error(
            f"--batch-size {args.batch_size} does not divide the {args.steps} steps; a pass reads each once"
        )
    try:
        return run(args)
    except ValueError as error:
        print(f"read_table.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
