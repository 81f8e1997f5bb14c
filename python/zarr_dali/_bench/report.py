"""Results as tables for a terminal, as a dict for JSON, and as a chart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zarr_dali._advice import size
from zarr_dali._bench import verdict
from zarr_dali._bench.ceilings import Ceiling
from zarr_dali._bench.cold import Cold
from zarr_dali._bench.timing import Row
from zarr_dali._bench.verdict import Gains
from zarr_dali._bench.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PEER, LIMIT = "#3b7a1f", "#9a9a9a", "#b03a2e"
"""Colours of the chart."""


@dataclass
class Result:
    """All that a run has measured so far."""

    work: Work
    device: str
    stored_bytes: int
    """Of the chunk files that are read."""
    about: dict[str, Any]
    """Date, machine, versions and options."""
    rows: dict[str, Row]
    """By the loader's name; our own first."""
    peers: frozenset[str]
    """Names of the rows that are peers'."""
    cold: Cold | None = None
    ceilings: list[Ceiling] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else the reader of the tables has to know."""

    @property
    def ours(self) -> Row:
        """The row that everything is compared with."""
        return next(row for name, row in self.rows.items() if name not in self.peers)

    @property
    def ratio(self) -> float:
        """Decoded bytes for each stored one."""
        return self.work.decoded_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def gains(self) -> Gains:
        """Delivered bytes for each byte that moves."""
        return Gains.of(self.ours, self.ratio, self.device == "gpu")

    def best_peer(self) -> tuple[str, float] | None:
        """The fastest peer and its GB/s."""
        medians = {name: self.rows[name].median for name in self.peers}
        timed = {name: median for name, median in medians.items() if median is not None}
        return max(timed.items(), key=lambda pair: pair[1]) if timed else None

    def verdict(self) -> str:
        """What limits, in one sentence."""
        rate = self.ours.median
        if rate is None:
            return f"zarr-dali could not be timed: {self.ours.problem}."
        cores = self.about["machine"]["cores"]
        sentence = verdict.warm(rate, self.ours, self.ceilings, self.gains, cores)
        # Of other stores than folders the page cache has nothing.
        sentence = f"Warm, {sentence}" if self.work.is_folder else sentence[0].upper() + sentence[1:]
        cold = self.cold
        if cold is not None and cold.median is not None:
            words = verdict.cold(cold.median, rate, self.ceilings, self.gains, cold.with_opening)
            sentence += f"; cold, {words}"
        elif cold is not None:
            sentence += f"; cold was not measured: {cold.problem}"
        return sentence + "."

    def as_json(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and texts."""
        best, ours, gains = self.best_peer(), self.ours.median, self.gains
        return {
            "what": "decoded bytes delivered to the device per second, by loader",
            **self.about,
            "store": self.work.shown,
            "arrays": [
                {
                    "name": report.name,
                    "shape": list(report.shape),
                    "data_type": report.data_type,
                    "chunk": list(report.chunk),
                    "inner_chunk": report.inner_chunk and list(report.inner_chunk),
                    "chain": report.chain,
                }
                for report in self.work.reports
            ],
            "work": {
                "device": self.device,
                "window": self.work.window and list(self.work.window),
                "batch_size": self.work.batch_size,
                "samples": self.work.samples,
                "steps": self.work.steps,
                "pass_bytes": self.work.pass_bytes,
                "decoded_bytes": self.work.decoded_bytes,
                "stored_bytes": self.stored_bytes,
                "ratio": self.ratio,
            },
            "loaders": {name: row.as_json() for name, row in self.rows.items()},
            "best_peer": best and best[0],
            "times_best_peer": ours / best[1] if best and ours else None,
            "cold": self.cold and self.cold.as_json(),
            "ceilings": [
                one.as_json() | {"delivered_gb_per_s": verdict.delivered(one, gains)} for one in self.ceilings
            ],
            "notes": self.notes,
            "verdict": self.verdict(),
        }

    def keep(self, file: Path) -> None:
        """Writes the JSON file; what was there is replaced at once."""
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(self.as_json(), indent=2) + "\n")
        part.replace(file)


def render(result: Result) -> RenderableType:
    """Tables and the sentence for a console of rich."""
    parts: list[RenderableType] = [_title(result), _loaders(result)]
    if result.ceilings:
        parts.append(_ceilings(result))
    parts += [Text(note) for note in result.notes]
    parts.append(Text(result.verdict(), style="bold"))
    return Group(*parts)


def _title(result: Result) -> Text:
    work = result.work
    arrays = ", ".join(work.names) or Path(work.shown).name
    window = "one step" if work.window is None else "windows of " + "x".join(map(str, work.window))
    text = (
        f"{arrays}: {work.samples:,} samples ({window}) in batches of {work.batch_size} to the "
        f"{result.device.upper()}; a pass delivers {size(work.pass_bytes)}, stored in "
        f"{size(result.stored_bytes)} (ratio {result.ratio:.2f})"
    )
    if work.steps < work.reports[0].shape[0]:
        text += f"; the first {work.steps:,} of {work.reports[0].shape[0]:,} steps"
    return Text(text)


def _loaders(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in (
        ("loader", False), ("GB/s", True), ("range", True), ("cores", True), ("zarr-dali is", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left")
    ours = result.ours.median
    for name, row in result.rows.items():
        if row.median is None:
            table.add_row(Text(name), "", Text(row.gist or "not timed", style="dim"), "", "")
            continue
        cores = f"{sum(row.cpu_cores) / len(row.cpu_cores):.1f}" if row.cpu_cores else ""
        ratio = ours / row.median if ours else 0.0
        times = f"{ratio:.{1 if ratio >= 1 else 2}f} times as fast" if name in result.peers else ""
        spread = f"{min(row.gb_per_s):.2f} to {max(row.gb_per_s):.2f}"
        table.add_row(
            Text(name, style="" if name in result.peers else "bold"),
            f"{row.median:.2f}",
            spread,
            cores,
            times,
        )
    if result.cold is not None:
        cold = result.cold
        if cold.median is None:
            table.add_row("zarr-dali, cold", "", Text(cold.problem, style="dim"), "", "")
        else:
            spread = f"{min(cold.gb_per_s):.2f} to {max(cold.gb_per_s):.2f}"
            table.add_row(Text("zarr-dali, cold", style="bold"), f"{cold.median:.2f}", spread, "", "")
    return table


def _ceilings(result: Result) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in (("ceiling", False), ("GB/s", True), ("GB/s delivered", True), ("", False)):
        table.add_column(name, justify="right" if right else "left")
    for one in result.ceilings:
        limit = verdict.delivered(one, result.gains)
        rate = "" if one.gb_per_s is None else f"{one.gb_per_s:.2f}"
        table.add_row(one.name, rate, "" if limit is None else f"{limit:.2f}", Text(one.note, style="dim"))
    return table


def chart(result: Result) -> Figure:
    """Bars for the loaders, lines for the ceilings, the sentence below."""
    from matplotlib.figure import Figure

    bars = [(name, row.median, name in result.peers) for name, row in result.rows.items() if row.median]
    if result.cold is not None and result.cold.median:
        bars.append(("zarr-dali, cold", result.cold.median, False))
    bars.sort(key=lambda bar: bar[1])
    figure = Figure(figsize=(9, 2.2 + 0.38 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    colours = [PEER if peer else OURS for _, _, peer in bars]
    axes.barh([name for name, _, _ in bars], [rate for _, rate, _ in bars], color=colours)
    for place, (_, rate, _) in enumerate(bars):
        axes.annotate(
            f"{rate:.2f}", (rate, place), (3, 0), textcoords="offset points", va="center", fontsize=8
        )
    # Ceilings far above every bar would squeeze the bars; those stay in the table.
    most = 2.5 * max((rate for _, rate, _ in bars), default=1.0)
    for one in result.ceilings:
        limit = verdict.delivered(one, result.gains)
        if limit is not None and limit <= most:
            axes.axvline(limit, color=LIMIT, linestyle="--", linewidth=1, zorder=0)
            axes.annotate(
                f"{one.name} {limit:.3g}", (limit, 0.02), (-2, 0), xycoords=("data", "axes fraction"),
                textcoords="offset points", rotation=90, va="bottom", ha="right", fontsize=7, color=LIMIT,
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5},
            )  # fmt: skip
    axes.set_xlabel(f"GB/s of decoded values on the {result.device.upper()}")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    arrays = ", ".join(result.work.names)
    axes.set_title(Path(result.work.shown).name + (f": {arrays}" if arrays else ""), loc="left", fontsize=10)
    figure.supxlabel(result.verdict(), fontsize=8, wrap=True)
    return figure
