"""Fills the tables of results in README.md and docs/performance.md, draws the charts, and keeps the history.

    python benches/report.py            # charts, tables, and a line for each new run in results/history.csv
    python benches/report.py --check    # exit status 1 if something of that is missing or stale
    python benches/report.py --print    # only shows the section of docs/performance.md

A table is of one run: every file in benches/results/ that is not of a quick run gets one of its own, with the
command, the commit and the day. Charts are drawn from the run that measured the most.
Drawing needs matplotlib, the rest does not.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import training

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
NOTE = "<!-- Written by `python benches/report.py` from benches/results/. -->"
FIGURES = {
    "beside_training": ("share_of_alone", "of the speed alone"),
    "budgets": ("delivered_gb_per_s", "GB/s"),
    "cold": ("delivered_gb_per_s", "GB/s"),
    "cpu_backend": ("zarr-dali", "GB/s"),
    "gds": ("delivered_gb_per_s", "GB/s"),
    "hungry": ("share_of_synthetic", "of the synthetic speed"),
    "overlap": ("hidden", "hidden"),
    "read_table": ("delivered_gb_per_s", "GB/s"),
    "rechunk": ("delivered_gb_per_s", "GB/s"),
    "rechunk_cluster": ("gb_per_s", "GB/s"),
    "remote": ("wire_gb_per_s", "GB/s on the wire"),
    "scaling": ("delivered_gb_per_s", "GB/s"),
    "training": ("samples_per_s", "samples/s"),
}
"""What the history says of each point of a benchmark, and its unit."""
ON_ANY_DEVICE = ("cpu_backend", "rechunk")
"""Benchmarks whose runs without a GPU are shown, too."""
HISTORY = "history.csv"
COLUMNS = ("benchmark", "date", "machine", "cores", "commit", "file", "unit", "figures")
EMPTY_QUEUE = 0.9
"""Below this share of supplied batches a reader is said to have run empty."""


@dataclass
class Found:
    """A run of a benchmark.

    Attributes:
        run: the whole result.
        file: the name of its file.
        drawn: whether the charts are of this run.
    """

    run: dict[str, Any]
    file: str
    drawn: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All points; of read_table.py the stores, with the reader's own figure."""
        if "stores" not in self.run:
            return self.run["rows"]
        loaders = {store: row["loaders"].get("zarr-dali", {}) for store, row in self.run["stores"].items()}
        return [
            {"point": name, "delivered_gb_per_s": row.get("median_gb_per_s")} for name, row in loaders.items()
        ]

    def good(self, section: str | None = None) -> list[dict[str, Any]]:
        """Rows with figures, of one section if there are several."""
        return [
            row
            for row in self.rows
            if "problem" not in row and (section is None or row.get("section") == section)
        ]


def written(result: dict[str, Any]) -> str:
    """What results are ordered by: when they were written, or the day where only that is known."""
    return result.get("written") or result["date"]


def kind_of(name: str, result: dict[str, Any]) -> str:
    """The benchmark: results of read_table.py tell it by their file's name only."""
    return result.get("kind") or name.partition("-")[0]


def results_of(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """All JSON results of a folder that are not of quick runs, with their files' names."""
    found = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if isinstance(result, dict) and "date" in result and not result.get("work", {}).get("quick", True):
            found.append((path.name, result))
    return found


def runs_of(results: Sequence[tuple[str, dict[str, Any]]], kind: str) -> list[Found]:
    """The runs of a benchmark: first the one that measured the most, which is drawn, then the newest."""
    found = [
        Found(result, name)
        for name, result in results
        if kind_of(name, result) == kind and (kind in ON_ANY_DEVICE or result["work"]["device"] == "gpu")
    ]
    found = [one for one in found if one.good()]
    found.sort(key=lambda one: written(one.run), reverse=True)
    found.sort(key=lambda one: len(one.good()), reverse=True)
    for one in found[:1]:
        one.drawn = True
    return found[:1] + sorted(found[1:], key=lambda one: written(one.run), reverse=True)


def in_order_of_stores(name: str) -> tuple[int, str]:
    """What names of stores are sorted by."""
    order = list(common.STORES)
    return (order.index(name) if name in order else len(order)), name


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def caption(found: Found, folder: str) -> str:
    """How the figures came about: command, commit, machine, day and the file that holds them."""
    run = found.run
    machine = run["machine"]
    where = ", ".join(machine["gpus"]) if run["work"]["device"] == "gpu" else machine["cpu"]
    commit = f"commit `{run['revision'][:7]}`, " if run.get("revision") else ""
    note = f" {machine['note'][0].upper()}{machine['note'][1:]}." if "note" in machine else ""
    return (
        f"`{' '.join(without_revision(common.without_places(run['command'])))}`: {commit}{where}, "
        f"{machine['cores']} cores, {run['work']['page_cache']} page cache, {run['date']} "
        f"([figures]({folder}/{found.file})).{note}"
    )


def without_revision(command: Sequence[str]) -> list[str]:
    """A command without the option that only names the commit."""
    words = list(command)
    if "--revision" in words:
        at = words.index("--revision")
        del words[at : at + 2]
    return words


def picture(found: Found, name: str, text: str, folder: str) -> list[str]:
    """The Markdown of a chart behind an empty line; nothing for a run that is not drawn."""
    return ["", f"![{text}]({folder}/{name}.png)"] if found.drawn else []


def percent(share: float | None, digits: int = 1) -> str:
    """A share in words; nothing where there is none."""
    return "" if share is None else f"{100 * share:.{digits}f} %"


def kilo(count: float) -> str:
    """Bytes with a decimal prefix and three digits at most."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("the last unit ends the loop")


def distinct(rows: Iterable[dict[str, Any]], key: str) -> list[Any]:
    """The values of a key in rows, each once: in order, but stores always in that of the benchmarks."""
    found = list(dict.fromkeys(row[key] for row in rows))
    return sorted(found, key=in_order_of_stores) if key in ("store", "codec") else found


def problems(found: Found) -> list[str]:
    """A list of the points that were refused or failed, behind an empty line; nothing if there are none."""
    lines = [f"- {row['point']}: {row['problem']}" for row in found.rows if "problem" in row]
    return ["", *lines] if lines else []


def read_table_lines(found: Found, folder: str) -> list[str]:
    """The table of read_table.py: loaders and stores."""
    names = sorted(found.run["stores"], key=in_order_of_stores)
    stores = [found.run["stores"][name] for name in names]
    loaders = dict.fromkeys(loader for store in stores for loader in store["loaders"])

    def cell(store: dict[str, Any], loader: str) -> str:
        row = store["loaders"].get(loader, {})
        return f"{row['median_gb_per_s']:.1f}" if "median_gb_per_s" in row else row.get("problem", "")

    rows = [[loader, *(cell(store, loader) for store in stores)] for loader in loaders]
    times = [store["times_best_peer"] for store in stores]
    if any(times):
        rows.append(["**times the fastest other row**", *(f"**{n:.1f}**" if n else "" for n in times)])
    work = found.run["work"]
    rounds = "one round" if work["rounds"] == 1 else f"median of {work['rounds']} rounds"
    return [
        f"GB/s of decoded values on the GPU; batches of {work['batch_size']} steps of "
        f"6 x {work['grid'][0]} x {work['grid'][1]} float32, {rounds}. A chunk is a step, of `zstd` one "
        "of its six fields; `sharded`: zstd in inner chunks of 0.4 MB.",
        "",
        *table(["", *names], rows),
        "",
        caption(found, folder),
    ]


def scaling_lines(found: Found, folder: str) -> list[str]:
    """The three tables of scaling.py."""
    lines: list[str] = []
    if rows := found.good("windows"):
        columns = sorted({(row["batch_size"], row["window"], row["shuffled"]) for row in rows})
        cells = {(row["store"], row["batch_size"], row["window"], row["shuffled"]): row for row in rows}

        def cell(store: str, column: tuple[int, int, bool]) -> str:
            row = cells.get((store, *column))
            return f"{row['delivered_gb_per_s']:.1f} / {row['decoded_gb_per_s']:.1f}" if row else ""

        decodes = [row["decodes_per_epoch"] for row in rows]
        head = [f"batch {b}, window {w}{', shuffled' if s else ''}" for b, w, s in columns]
        body = [[store, *(cell(store, c) for c in columns)] for store in distinct(rows, "store")]
        lines += [
            "#### Batches and windows",
            "",
            "GB/s delivered / GB/s decoded: windows start at every step and overlap. A byte of the store was "
            f"decoded {min(decodes):.2f} to {max(decodes):.2f} times an epoch.",
            "",
            *table(["", *head], body),
            *picture(found, "scaling-windows", "GB/s by batch, window and order", folder),
            "",
        ]
    if rows := found.good("chunks"):
        sizes = sorted({row["chunk_bytes"] for row in rows})
        rates = {(row["codec"], row["chunk_bytes"]): row["delivered_gb_per_s"] for row in rows}
        body = [
            [codec, *(f"{rates[codec, size]:.1f}" if (codec, size) in rates else "" for size in sizes)]
            for codec in distinct(rows, "codec")
        ]
        lines += [
            "#### Chunk sizes",
            "",
            "GB/s of the same values by decoded size of a chunk (sharded: of an inner chunk); "
            "batches of 8 steps.",
            "",
            *table(["", *map(kilo, sizes)], body),
            *picture(found, "scaling-chunks", "GB/s by chunk size", folder),
            "",
        ]
    if rows := found.good("cores"):
        counts = sorted({row["cores"] for row in rows})
        rates = {(row["store"], row["cores"]): row["delivered_gb_per_s"] for row in rows}
        body = [
            [store, *(f"{rates[store, n]:.1f}" if (store, n) in rates else "" for n in counts)]
            for store in distinct(rows, "store")
        ]
        lines += [
            "#### CPU cores",
            "",
            "GB/s by number of cores that the process may use; batches of 8 steps.",
            "",
            *table(["", *(f"{n} cores" for n in counts)], body),
            *picture(found, "scaling-cores", "GB/s by cores", folder),
            "",
        ]
    return [*lines, caption(found, folder), *problems(found)]


def budgets_lines(found: Found, folder: str) -> list[str]:
    """Speed and peak by budget."""
    rows = found.rows
    budgets = sorted({row["budget"] for row in rows})
    cells = {(row["store"], row["batch_size"], row["budget"]): row for row in rows}

    def cell(row: dict[str, Any] | None) -> str:
        if row is None:
            return ""
        return "refused" if "problem" in row else f"{row['delivered_gb_per_s']:.1f} ({kilo(row['peak'])})"

    body = [
        [f"{store}, batch {batch}", *(cell(cells.get((store, batch, budget))) for budget in budgets)]
        for store in distinct(rows, "store")
        for batch in distinct(rows, "batch_size")
    ]
    good = found.good()
    seen = " and ".join(distinct(good, "measured")) or "GPU"
    looks = max((row["look_ms"] for row in good), default=0.0)
    return [
        "GB/s at a `device_memory_budget`, and the growth of used memory: NVML's figure for "
        f"the {seen}, asked by another process every {looks:.0f} ms, less what was used before the reader "
        "was built, when CUDA and the decoders' kernels were loaded.",
        "",
        *table(["", *map(kilo, budgets)], body),
        *picture(found, "budgets", "Speed and peak of device memory by budget", folder),
        "",
        caption(found, folder),
        *problems(found),
    ]


def beside_lines(found: Found, folder: str) -> list[str]:
    """What a training keeps of its speed: the U-Net, or stacks of convolutions of some layers (hungry.py)."""
    rows = found.good()
    stores = distinct(rows, "store")
    cells = {(*_way(row), row["store"]): row for row in rows}
    empty = False

    def cell(row: dict[str, Any] | None) -> str:
        nonlocal empty
        if row is None:
            return ""
        text = percent(row.get("share_of_alone", row.get("share_of_synthetic")))
        if row["decode"] == "auto" and row["gpu_share"] is not None:
            text += f" (GPU {percent(row['gpu_share'], 0)})"
        if row["supplied"] < EMPTY_QUEUE:
            empty = True
            text += " †"
        return text

    # Those of the most cores first, else in the order of the run.
    ways = sorted(dict.fromkeys(map(_way, rows)), key=lambda way: -way[0])
    body = [[_way_in_words(*way), *(cell(cells.get((*way, store))) for store in stores)] for way in ways]
    work = found.run["work"]
    speeds = [row.get("alone_samples_per_s", row.get("synthetic_samples_per_s")) for row in rows]
    model = "stacks of convolutions keep" if "layers" in rows[0] else "a U-Net (ResNet-18, scSE, bf16) keeps"
    lines = [
        f"What {model} of the speed on synthetic data, "
        f"{statistics.median(speeds):.0f} samples/s, while the reader delivers a batch for each step: batch "
        f"{work['batch_size']}, shuffled windows of {work['window']} steps. In brackets how many of the "
        "chunks the GPU decoded." + waiting(rows, "decode", "auto", "waited_share", "`auto`"),
        "",
        *table(["", *stores], body),
    ]
    if empty:
        lines += ["", "† less was decoded than taken: the reader's queue was running empty."]
    drawn = "share_of_alone" in rows[0]
    return [
        *lines,
        *(picture(found, "beside_training", "Share of the training's speed alone", folder) if drawn else []),
        "",
        caption(found, folder),
        *problems(found),
    ]


def _way(row: dict[str, Any]) -> tuple[int, int | None, str, float | None]:
    """Cores, layers, decoder and GB of `device_memory_budget` of a point beside a training."""
    return row["cores"], row.get("layers"), row["decode"], row.get("budget_gb")


def _way_in_words(cores: int, layers: int | None, decode: str, budget: float | None) -> str:
    words = [f"{cores} cores", f"{layers} layers" if layers else "", f"`{decode}`"]
    return ", ".join(filter(None, [*words, f"{budget:g} GB" if budget else ""]))


def waiting(rows: Iterable[dict[str, Any]], key: str, value: str, share: str, what: str) -> str:
    """A sentence about the longest wait of rows with a value, if there are any."""
    shares = [row[share] for row in rows if row[key] == value]
    if not shares:
        return ""
    return f" With {what} the training waited for data for at most {percent(max(shares), 2)} of the time."


def training_lines(found: Found, folder: str) -> list[str]:
    """Whole trainings with each loader: the warm case by store, and what else was tried."""
    rows = found.good()
    loaded = [row for row in rows if row["loader"] not in training.SYNTHETIC]
    synthetic = [row for row in rows if row not in loaded and row["encoder"] == training.ENCODER]

    def cell(row: dict[str, Any] | None) -> str:
        if row is None:
            return ""
        share, cpu = percent(row["share_of_synthetic"]), f"{1e3 * row['cpu_seconds_per_sample']:.0f} ms"
        return f"{row['samples_per_s']:.1f} ({', '.join(filter(None, (share, cpu)))})"

    def cells(rows: Sequence[dict[str, Any]], key: str) -> list[str]:
        """A table of rows by number of cores and loader."""
        head = distinct(rows, key)
        by = {(row["cores"], row["loader"], row[key]): row for row in rows}
        lines = [
            (cores, loader)
            for cores in sorted(distinct(rows, "cores"), reverse=True)
            for loader in training.LOADERS
            if any((cores, loader, name) in by for name in head)
        ]
        body = [
            [f"{cores} cores, {loader}", *(cell(by.get((cores, loader, name))) for name in head)]
            for cores, loader in lines
        ]
        return table(["", *head], body)

    work = found.run["work"]
    warm = [row for row in loaded if row["case"] == "warm"]
    speeds = [row["samples_per_s"] for row in synthetic]
    alone = f" ({statistics.median(speeds):.0f} samples/s)" if speeds else ""
    lines = [
        f"Samples/s of the same U-Net, batch {work['batch_size']}, shuffled windows of 2 steps; in brackets "
        f"the share of a training on synthetic data{alone} and the CPU time of all processes for a sample."
        + waiting(warm, "loader", "ours", "wait_share", "zarr-dali (`ours`)"),
        "",
        *cells(warm, "store"),
        *picture(found, "training", "Share of the speed on synthetic data, and CPU time", folder),
    ]
    others = [{**row, "case, store": f"{row['case']}, {row['store']}"} for row in loaded if row not in warm]
    others.sort(key=lambda row: (row["case"], in_order_of_stores(row["store"])))
    if others:
        lines += [
            "",
            "The first epoch from a cold page cache, where the disk is the limit, and cases in which a "
            "reader can gain little: values cached by the loader, a larger model, tiny chunks.",
            "",
            *cells(others, "case, store"),
        ]
    return [*lines, "", caption(found, folder), *problems(found)]


def overlap_lines(found: Found, folder: str) -> list[str]:
    """How much of the reader's work is hidden behind training kernels."""
    names = (
        "hidden", "hidden_in_training", "copy_hidden", "decode_hidden", "copy_share", "decode_share",
        "training_share",
    )  # fmt: skip
    head = [
        "", "hidden", "with pauses", "copies hidden", "decoding hidden", "copies", "decoding", "training",
    ]  # fmt: skip
    body = [
        [f"{row['store']}, `{row['decode']}`", *(percent(row.get(name)) for name in names)]
        for row in found.good()
    ]
    return [
        "The part of the reader's copies and kernels during which a kernel of the training ran "
        "too (*with pauses*: or one ended and the next began within 30 us), and the share of the time in "
        "which each of the three was running; from CUPTI.",
        "",
        *table(head, body),
        *picture(found, "overlap", "What ran on the GPU during a few steps", folder),
        "",
        caption(found, folder),
        *problems(found),
    ]


def cold_lines(found: Found, folder: str) -> list[str]:
    """The reader and the disk."""
    rows = sorted(found.good(), key=lambda row: in_order_of_stores(row["store"]))
    body = [
        [label, *(shown(row) for row in rows)]
        for label, shown in (
            ("delivered, GB/s", lambda row: f"{row['delivered_gb_per_s']:.2f}"),
            ("the disk, GB/s", lambda row: f"{row['disk_gb_per_s']:.2f} ({row['disk_way']})"),
            ("compression ratio", lambda row: f"{row['ratio']:.2f}"),
            ("**of the disk's rate times the ratio**", lambda row: f"**{percent(row['share_of_disk'])}**"),
        )
    ]
    return [
        "The same files, dropped from the page cache before each reading, by the reader and "
        "by threads that do nothing else.",
        "",
        *table(["", *(row["store"] for row in rows)], body),
        "",
        caption(found, folder),
        *problems(found),
    ]


def gds_lines(found: Found, folder: str) -> list[str]:
    """The reader and bare loops of cuFileRead."""
    rows = found.good()
    body = [
        [label, *(shown(row) for row in rows)]
        for label, shown in (
            ('`io="gds"`, GB/s', lambda row: f"{row['delivered_gb_per_s']:.1f}"),
            (
                "a bare loop, GB/s of stored bytes",
                lambda row: f"{row['bare_gb_per_s']:.1f} ({row['bare_way']})",
            ),
            ("**of the loop's rate times the ratio**", lambda row: f"**{percent(row['share_of_bare'])}**"),
            ('`io="posix"`, GB/s', lambda row: f"{row['posix_gb_per_s']:.1f}"),
        )
    ]
    direct = any(row["direct"] for row in rows)
    return [
        f"GB/s with {'the direct path to the GPU' if direct else 'cuFile in its compatibility mode'}, beside "
        "threads that call cuFileRead for the same files and do nothing else.",
        "",
        *table(["", *(row["store"] for row in rows)], body),
        "",
        caption(found, folder),
        *problems(found),
    ]


def rechunk_lines(found: Found, folder: str) -> list[str]:
    """A copy, and what it is good for."""
    copy = next((row for row in found.rows if row["point"] == "copy"), {})
    both = [row for row in found.good() if row["point"] in ("before", "after")]
    lines: list[str] = []
    if "equal" in copy:
        lines += [
            f"`zarr-dali rechunk` on {copy['decoded_bytes'] / 1e9:.2f} GB in chunks of ten steps, as "
            "`--for-window 2 --batch 16` proposes: killed "
            f"{len(copy['regions_finished_at_kills'])} times and resumed, "
            f"{'equal' if copy['equal'] else '**not equal**'} value by value, {copy['seconds']:.0f} s, "
            f"{copy['peak'] / 1e6:.0f} MB of memory beside the program's own with a bound of "
            f"{copy['memory'] / 1e6:.0f} MB. Read in random order, windows of 2 steps in batches of 16:",
            "",
        ]
    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("chunks", lambda row: " x ".join(map(str, row["chunk"]))),
        ("delivered, GB/s", lambda row: f"{row['delivered_gb_per_s']:.1f}"),
        ("times that a byte is decoded in an epoch", lambda row: f"{row['decodes_per_epoch']:.2f}"),
    ]
    if both and all("samples_per_s" in row for row in both):
        columns.append(("samples/s of the U-Net", lambda row: f"{row['samples_per_s']:.1f}"))
    body = [[label, *(shown(row) for row in both)] for label, shown in columns]
    return [
        *lines,
        *table(["", *(row["point"] for row in both)], body),
        "",
        caption(found, folder),
        *problems(found),
    ]


def cpu_lines(found: Found, folder: str) -> list[str]:
    """The CPU backend and zarrs."""
    rows = found.good()
    stores = distinct(rows, "store")
    cells = {(row["threads"], row["store"]): row for row in rows}
    names = [
        name
        for name in ("zarr-dali", "zarrs", "zarrs, one array", "zarrs, Rust")
        if any(name in row for row in rows)
    ]
    body = []
    for threads in sorted(distinct(rows, "threads")):
        here = [cells.get((threads, store), {}) for store in stores]
        body += [
            [f"{name}, {threads} threads", *(f"{row[name]:.1f}" if name in row else "" for row in here)]
            for name in names
        ]
        times = [row.get("of_best_zarrs") for row in here]
        body.append(["**times the best of zarrs**", *(f"**{n:.2f}**" if n else "" for n in times)])
    return [
        "GB/s of decoded values in host memory: the CPU backend beside zarrs, called from "
        "zarr-python and, where it is there, by a Rust program.",
        "",
        *table(["", *stores], body),
        "",
        caption(found, folder),
        *problems(found),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Found, str], list[str]]]] = {
    "read_table": ("Beside other loaders", read_table_lines),
    "training": ("Trainings", training_lines),
    "beside_training": ("Beside a training", beside_lines),
    "hungry": ("Beside trainings that take more data", beside_lines),
    "overlap": ("Overlap", overlap_lines),
    "scaling": ("How it scales", scaling_lines),
    "budgets": ("Device memory", budgets_lines),
    "cold": ("From the disk", cold_lines),
    "gds": ("With cuFile", gds_lines),
    "rechunk": ("Other chunks", rechunk_lines),
    "cpu_backend": ("Without a GPU", cpu_lines),
}


def page_section(results: Path, folder: str) -> str:
    """What docs/performance.md says of all runs, without its markers.

    Args:
        results: where the JSON files are.
        folder: the same as links have it.
    """
    all_results = results_of(results)
    parts = [NOTE]
    for kind, (title, lines) in SECTIONS.items():
        if found := runs_of(all_results, kind):
            parts.append(f"### {title}")
            parts += ["\n".join(lines(run, folder)) for run in found]
    return "\n".join(wrapped("\n\n".join(parts).splitlines())) + "\n"


def readme_section(results: Path, folder: str) -> str:
    """The README's table, without its markers: this reader beside others."""
    parts = [NOTE]
    for run in runs_of(results_of(results), "read_table")[:1]:
        parts.append("\n".join(read_table_lines(run, folder)))
    return "\n".join(wrapped("\n\n".join(parts).splitlines())) + "\n"


def with_history(results: Path, text: str) -> str:
    """The history with a line for each result that it does not have, under the heads of its columns.

    Args:
        results: where the JSON files are.
        text: the history as it is; may be empty.
    """
    known = {line["file"] for line in csv.DictReader(io.StringIO(text))}
    new = io.StringIO(newline="")
    lines = csv.writer(new, lineterminator="\n")
    if not text:
        lines.writerow(COLUMNS)
    for name, run in sorted(results_of(results), key=lambda item: (written(item[1]), item[0])):
        if name not in known:
            lines.writerow(history_line(name, run))
    return text + new.getvalue()


def history_line(name: str, run: dict[str, Any]) -> list[str]:
    """What the history says of a run, by `COLUMNS`."""
    kind = kind_of(name, run)
    machine = run["machine"]
    key, unit = FIGURES[kind]
    figures = [
        f"{row['point']} {row[key]:.3g}" if row.get(key) is not None else f"{row['point']} failed"
        for row in Found(run, name).rows
        if "problem" in row or row.get(key) is not None
    ]
    where = " + ".join(machine["gpus"]) if run["work"]["device"] == "gpu" else machine["cpu"]
    commit = (run.get("revision") or "")[:7]
    return [kind, run["date"], where, str(machine["cores"]), commit, name, unit, "; ".join(figures)]


def wrapped(lines: Iterable[str]) -> Iterator[str]:
    """The lines with prose folded; tables, headings, lists and the like stay as they are."""
    for line in lines:
        if not line or line[0] in "|#!-<":
            yield line
        else:
            yield from textwrap.wrap(line, 118, break_long_words=False, break_on_hyphens=False)


def filled(text: str, content: str) -> str:
    """A page with its section of results replaced; ValueError where it has no markers."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"there is no section between {BEGIN} and {END}; write these two lines where it should be"
        )
    return f"{head}{BEGIN}\n{content}{END}{tail}"


def plot_style() -> Any:
    """matplotlib.pyplot, set up for files: plain, light, with a grid."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": "#dddddd",
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "legend.frameon": False,
            "savefig.dpi": 110,
            "savefig.bbox": "tight",
        }
    )
    return plt


def legend_above(figure: Any, axes: Any) -> None:
    """One legend for panels that show the same series, above them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))


def bars(axes: Any, groups: Sequence[str], series: dict[str, Sequence[float | None]]) -> None:
    """Grouped bars: one group for each label, one colour for each series; None leaves a gap."""
    width = 0.8 / max(1, len(series))
    for number, (label, values) in enumerate(series.items()):
        places = [n - 0.4 + (number + 0.5) * width for n in range(len(groups))]
        axes.bar(places, [value or 0.0 for value in values], width, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="x", visible=False)


def draw_read_table(plt: Any, found: Found) -> Any:
    """This reader and the best of the others."""
    rows = found.run["stores"]
    stores = [name for name in sorted(rows, key=in_order_of_stores) if rows[name].get("best_peer")]
    figure, axes = plt.subplots(figsize=(8, 3.2))
    ours = [rows[name]["loaders"]["zarr-dali"]["median_gb_per_s"] for name in stores]
    best = [rows[name]["loaders"][rows[name]["best_peer"]]["median_gb_per_s"] for name in stores]
    bars(axes, stores, {"zarr-dali": ours, "the fastest other loader": best})
    for drawn in axes.containers:
        axes.bar_label(drawn, fmt="%.1f")
    axes.set_ylabel("GB/s on the GPU")
    axes.legend()
    return figure


def draw_windows(plt: Any, found: Found) -> Any:
    rows = found.good("windows")
    batches, stores = sorted(distinct(rows, "batch_size")), distinct(rows, "store")
    figure, panels = plt.subplots(
        1, len(batches), figsize=(6 * len(batches), 3.8), sharey=True, squeeze=False
    )
    for axes, batch in zip(panels[0], batches):
        cells = {(r["store"], r["window"], r["shuffled"]): r for r in rows if r["batch_size"] == batch}
        bars(
            axes,
            stores,
            {
                f"windows of {window}, {'shuffled' if shuffled else 'in order'}": [
                    cells.get((store, window, shuffled), {}).get("delivered_gb_per_s") for store in stores
                ]
                for window in sorted(distinct(rows, "window"))
                for shuffled in (False, True)
            },
        )
        axes.set_title(f"batches of {batch}")
    panels[0][0].set_ylabel("delivered, GB/s")
    legend_above(figure, panels[0][0])
    return figure


def draw_lines(
    plt: Any, rows: Sequence[dict[str, Any]], of: str, along: str, label: str, scale: float = 1.0
) -> Any:
    """Delivered GB/s along a quantity on a logarithmic axis, a line for each value of `of`."""
    figure, axes = plt.subplots(figsize=(6, 3.8))
    for name in distinct(rows, of):
        points = sorted((row[along] / scale, row["delivered_gb_per_s"]) for row in rows if row[of] == name)
        axes.plot(*zip(*points), marker="o", label=name)
    ticks = sorted({row[along] / scale for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label)
    axes.set_ylabel("delivered, GB/s")
    axes.legend()
    return figure


def draw_budgets(plt: Any, found: Found) -> Any:
    figure, (speed, peak) = plt.subplots(1, 2, figsize=(11, 3.8))
    rows = found.good()
    for store in distinct(rows, "store"):
        for batch in distinct(rows, "batch_size"):
            points = sorted(
                (row["budget"] / 1e9, row["delivered_gb_per_s"], row["peak"] / 1e9)
                for row in rows
                if (row["store"], row["batch_size"]) == (store, batch)
            )
            if points:
                budgets, rates, peaks = zip(*points)
                speed.plot(budgets, rates, marker="o", label=f"{store}, batch {batch}")
                peak.plot(budgets, peaks, marker="o")
    ticks = sorted({row["budget"] / 1e9 for row in rows})
    peak.plot(ticks, ticks, color="black", linestyle="--", label="the budget")
    peak.set_yscale("log")
    peak.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    for axes in (speed, peak):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("device_memory_budget, GB")
    speed.set_ylim(bottom=0)
    speed.set_ylabel("delivered, GB/s")
    peak.set_ylabel("peak of used memory, GB")
    peak.legend()
    legend_above(figure, speed)
    return figure


def draw_beside(plt: Any, found: Found) -> Any:
    rows = found.good()
    cores, stores = sorted(distinct(rows, "cores"), reverse=True), distinct(rows, "store")
    figure, panels = plt.subplots(1, len(cores), figsize=(5 * len(cores), 3.8), sharey=True, squeeze=False)
    for axes, count in zip(panels[0], cores):
        cells = {(*_way(row), row["store"]): row["share_of_alone"] for row in rows}
        for way in dict.fromkeys(_way(row) for row in rows if row["cores"] == count):
            shown = [(store, 100 * cells[(*way, store)]) for store in stores if (*way, store) in cells]
            places = [stores.index(store) for store, _ in shown]
            label = _way_in_words(*way).partition(", ")[2].replace("`", "")
            axes.plot(places, [share for _, share in shown], "o", label=label, alpha=0.8)
        axes.set_xticks(range(len(stores)), stores, rotation=20)
        axes.axhline(100, color="black", linewidth=0.8)
        axes.set_title(f"{count} cores")
    panels[0][0].set_ylabel("share of the speed alone, %")
    legend_above(figure, panels[0][0])
    return figure


def draw_training(plt: Any, found: Found) -> Any:
    return training.chart(plt, found.good())


def draw_overlap(plt: Any, found: Found) -> Any:
    rows = [row for row in found.good() if row.get("timeline")]
    figure, panels = plt.subplots(len(rows), 1, figsize=(11, 1.9 * len(rows) + 0.4), squeeze=False)
    kinds = {"training": "tab:blue", "decode": "tab:orange", "copy": "tab:green"}
    for (axes,), row in zip(panels, rows):
        for place, (kind, color) in enumerate(kinds.items()):
            spans = [(start, end - start) for start, end in row["timeline"][kind]]
            axes.broken_barh(spans, (place - 0.35, 0.7), color=color, linewidth=0)
        for end in row["timeline"]["step_ends"]:
            axes.axvline(end, color="black", linewidth=0.8)
        axes.set_yticks(range(len(kinds)), list(kinds))
        axes.grid(axis="y", visible=False)
        axes.set_title(f'{row["store"]}, decode="{row["decode"]}"', loc="left")
    panels[-1][0].set_xlabel("ms; lines are ends of training steps")
    return figure


def draw(results: Path) -> list[Path]:
    """Writes the charts of the results that are there; returns their files.

    Raises:
        ImportError: matplotlib is missing.
    """
    plt = plot_style()
    all_results = results_of(results)
    found = {kind: one for kind in SECTIONS for one in runs_of(all_results, kind)[:1]}
    charts: list[tuple[str, Any]] = []
    if scaling := found.get("scaling"):
        if scaling.good("windows"):
            charts.append(("scaling-windows", draw_windows(plt, scaling)))
        if rows := scaling.good("chunks"):
            figure = draw_lines(plt, rows, "codec", "chunk_bytes", "decoded bytes of a chunk, MB", 1e6)
            charts.append(("scaling-chunks", figure))
        if rows := scaling.good("cores"):
            charts.append(("scaling-cores", draw_lines(plt, rows, "store", "cores", "CPU cores")))
    for kind, drawn in (
        ("read_table", draw_read_table),
        ("budgets", draw_budgets),
        ("training", draw_training),
        ("beside_training", draw_beside),
        ("overlap", draw_overlap),
    ):
        if kind in found:
            charts.append((kind, drawn(plt, found[kind])))
    paths = []
    for name, figure in charts:
        path = results / f"{name}.png"
        figure.savefig(path)
        plt.close(figure)
        paths.append(path)
    return paths


def charts_in(text: str, page: Path) -> list[Path]:
    """The files of the charts that a page shows."""
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    return [page.parent / link for link in links if link.endswith(".png") and "://" not in link]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Draw charts, fill README.md and docs/performance.md, and keep the history of results."
    )
    add = parser.add_argument
    add("--results", type=Path, default=common.RESULTS, help="where the JSON files are")
    add("--readme", type=Path, default=common.ROOT / "README.md", help="gets one table")
    add("--page", type=Path, default=common.ROOT / "docs" / "performance.md", help="gets all tables")
    add("--check", action="store_true", help="write nothing; exit status 1 if anything is missing or stale")
    add("--print", action="store_true", help="write nothing; print the section of the page")
    args = parser.parse_args(argv)

    def linked(page: Path) -> str:
        return Path(os.path.relpath(args.results.resolve(), page.resolve().parent)).as_posix()

    if args.print:
        print(page_section(args.results, linked(args.page)), end="")
        return 0
    old: dict[Path, str] = {}
    new: dict[Path, str] = {}
    for path, section in ((args.readme, readme_section), (args.page, page_section)):
        try:
            old[path] = path.read_text()
            new[path] = filled(old[path], section(args.results, linked(path)))
        except (OSError, ValueError) as error:
            print(f"report.py: {path.name}: {error}", file=sys.stderr)
            return 1
    history = args.results / HISTORY
    old[history] = history.read_text() if history.exists() else ""
    new[history] = with_history(args.results, old[history])
    if args.check:
        wrong = [f"{path.name} is not what the results say" for path in new if new[path] != old[path]]
        charts = [chart for page in (args.readme, args.page) for chart in charts_in(new[page], page)]
        wrong += [f"{chart.name} is missing" for chart in charts if not chart.exists()]
        if wrong:
            print(f"report.py: {wrong[0]}; run python benches/report.py", file=sys.stderr)
        return 1 if wrong else 0
    try:
        charts = draw(args.results)
    except ImportError as error:
        print(f"report.py: {error}; pip install matplotlib", file=sys.stderr)
        return 1
    for path, text in new.items():
        path.write_text(text)
    names = ", ".join(chart.name for chart in charts) or "no charts"
    print(f"filled {args.readme.name} and {args.page.name}, wrote {history.name} and drew {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
