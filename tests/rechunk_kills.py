"""Kills `rechunk` at random moments and starts two runs at once, and looks at what is left after each.

    python tests/rechunk_kills.py --kills 200
    python tests/rechunk_kills.py --kills 0 --races 48 --seed 7

A kill is a SIGKILL, at a random time or before or after one of the calls that change files: any, one in the
part that gives the copy its name, or one that renames there (each of these first). A killed run is followed
by more of them and by one that is not killed, with `resume`, `overwrite` or both; in some trials the source
changes in between. In a race two runs copy different sources to one destination, with every pair of flags,
and in a third of them one is killed. After each run:

- the destination is absent (only where nothing was there, or where names could not be exchanged), or holds
  the old store or a new one, whole, value for value
- a run that reported success has left its copy there, where no later one did
- a run that was not killed and may not fail has not failed; of two in a race, one at least
- files beside it, and in folders with similar names, are untouched
- after the last run nothing is left beside the destination

Every run is a process of its own, forked from one that has imported everything.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import zarr

from zarr_dali._rechunk import copying, journal, publishing, rechunk, regions

SHAPE = (24, 4, 5)
ARGUMENTS = {"chunks": {"t": 1}, "shards": {"t": 4}, "codec": "zstd", "workers": 2}
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "overwrite": {"overwrite": True},
    "resume": {"resume": True},
    "both": {"resume": True, "overwrite": True},
}
STEPS = ("write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate")
RENAMES = ("rename", "replace", "exchange")
PARTS = ("all", "publishing", "renames")
FOREIGN = ("copy.zarr.txt", "copy.zarr.partial.txt", "copy.zarr.old/notes", "copy/zarr.json", "partial/x")
KILLED, PATIENCE_S = "killed", 60


@dataclass
class Outcome:
    """What a run came to: "success", "killed", or an error's type and text."""

    kind: str
    text: str = ""


@dataclass
class Kill:
    """When a run is killed: at a step of its part, or at a time."""

    step: int | None = None
    after: bool = False
    part: str = "all"
    """Which steps count, of `PARTS`."""
    seconds: float = 0.0


@dataclass
class Report:
    """Counts, and what was wrong."""

    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def as_text(self, seconds: float) -> str:
        lines = ["| trial | what was found | times |", "|---|---|---|"]
        lines += [f"| {trial} | {what} | {count} |" for (trial, what), count in sorted(self.counts.items())]
        lines += ["", f"wrong: {len(self.wrong)}, {seconds:.0f} s", *self.wrong]
        return "\n".join(lines)


def values(name: str) -> np.ndarray:
    """Of the source with such a name; parts are of the fill value."""
    found = np.random.default_rng(list(name.encode())).normal(size=SHAPE).astype("float32")
    found[8:12] = 0
    return found


def write_source(folder: Path, name: str) -> None:
    """A group of two arrays, the second one sharded."""
    root = zarr.open_group(str(folder), mode="w", zarr_format=3)
    for array, shards in (("u", None), ("v", (4, 4, 5))):
        made = root.create_array(
            array,
            shape=SHAPE,
            chunks=(2, 4, 5),
            shards=shards,
            dtype="float32",
            dimension_names=["t", "y", "x"],
        )
        made[...] = values(name + array)
    root.attrs["name"] = name
    zarr.consolidate_metadata(str(folder))


def change_source(folder: Path, name: str) -> None:
    """Some chunks of the first array with the values of another source."""
    array = zarr.open_array(str(folder / "u"), mode="r+")
    array[4:8] = values(name + "u")[4:8]


def found_in(folder: Path) -> str:
    """The name of the source whose whole copy a folder is; "absent", or what is wrong."""
    if not os.path.lexists(folder):
        return "absent"
    try:
        root = zarr.open_group(str(folder), mode="r")
        name = root.attrs["name"]
        assert root.metadata.consolidated_metadata is not None
        assert (folder / "u" / "zarr.json").exists() and (folder / "v" / "zarr.json").exists()
        for array in "uv":
            wanted = values(name.removesuffix("+") + array)
            found = root[array][...]
            if array == "u" and not np.array_equal(found, wanted):
                name += "+"
                wanted[4:8] = values("other" + array)[4:8]
            assert np.array_equal(found, wanted), f"other values in {array}"
            assert not list((folder / array).rglob("*.partial")), "halves of files"
    except Exception:
        return "WRONG " + traceback.format_exc(limit=1).splitlines()[-1]
    return name


class Child:
    """A function in a process of its own, which reports what it returns as text."""

    def __init__(self, work: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    text = str(work())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text.encode())
            os._exit(0)
        os.close(writing)
        self._reading = reading

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def result(self) -> str:
        """RuntimeError where it hangs."""
        watch = threading.Timer(PATIENCE_S, self.kill)
        watch.start()
        began, parts = time.monotonic(), []
        while part := os.read(self._reading, 1 << 16):
            parts.append(part)
        os.close(self._reading)
        _, status = os.waitpid(self.pid, 0)
        watch.cancel()
        if time.monotonic() - began >= PATIENCE_S:
            raise RuntimeError("a run hangs")
        return KILLED if os.WIFSIGNALED(status) else b"".join(parts).decode()


def count_steps(kill: Kill | None) -> Callable[[], int]:
    """Makes this process kill itself at a step; how many there have been."""
    part = kill.part if kill else "all"
    steps, active, last = itertools.count(1), [part == "all"], [0]

    def stepping(work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if not active[0] or (part == "renames" and name not in RENAMES):
                return work(*arguments, **named)
            number = last[0] = next(steps)
            if kill and number == kill.step and not kill.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = work(*arguments, **named)
            if kill and number == kill.step:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    for name in STEPS:
        setattr(os, name, stepping(getattr(os, name), name))
    publishing.exchange = stepping(publishing.exchange, "exchange")
    publish = publishing.publish

    def published(*arguments: Any) -> None:
        active[0] = True
        publish(*arguments)

    publishing.publish = published
    return lambda: last[0]


class Trials:
    """A folder with sources and a destination, where runs are started.

    Args:
        folder: For everything; it must be empty.
        seed: Of all that is drawn.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.report = folder, Random(seed), Report()
        self.copy, self.partial = folder / "copy.zarr", copying.partial_of(folder / "copy.zarr")
        for name in ("old", "one", "two"):
            Child(lambda name=name: write_source(folder / f"{name}.zarr", name)).result()
        for name in FOREIGN:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("foreign")
        began = time.monotonic()
        assert self.run("old", {}).kind == "success"
        self._seconds = time.monotonic() - began
        shutil.move(self.copy, folder / "before.zarr")
        cases = itertools.product((False, True), (False, True), PARTS)
        self._steps = {case: self._count(*case) for case in cases}

    def start(self, source: str, flags: dict[str, bool], kill: Kill | None = None, *, exchange=True) -> Child:
        def work() -> str:
            journal.FLUSH_SECONDS, regions.REGION_BYTES = 0, 0
            if not exchange:
                publishing.exchange = lambda one, other: False
            steps = count_steps(kill)
            rechunk(self.folder / f"{source.removesuffix('+')}.zarr", self.copy, **ARGUMENTS, **flags)
            return f"success: {steps()}"

        return Child(work)

    def run(self, source: str, flags: dict[str, bool], kill: Kill | None = None, *, exchange=True) -> Outcome:
        child = self.start(source, flags, kill, exchange=exchange)
        watch = None
        if kill and kill.step is None:
            watch = threading.Timer(kill.seconds, child.kill)
            watch.start()
        outcome = Outcome(*child.result().partition(": ")[::2])
        if watch:
            watch.cancel()
        return outcome

    def look(self) -> str:
        return Child(lambda: found_in(self.copy)).result()

    def reset(self, old: bool) -> None:
        for path in (self.copy, self.partial):
            shutil.rmtree(path, ignore_errors=True)
        if old:
            shutil.copytree(self.folder / "before.zarr", self.copy)

    def _count(self, old: bool, exchange: bool, part: str) -> int:
        """Steps of a run that is not killed."""
        self.reset(old)
        never = Kill(step=-1, part=part)
        return int(self.run("one", {"overwrite": True}, never, exchange=exchange).text)

    def drawn(self, old: bool, exchange: bool) -> Kill:
        draw = self.random
        if draw.random() < 0.25:
            return Kill(seconds=draw.uniform(0, 1.2 * self._seconds))
        part = draw.choice(PARTS)
        step = draw.randint(1, self._steps[old, exchange, part])
        return Kill(step, draw.random() < 0.5, part)

    def note(self, trial: str, what: str) -> None:
        self.report.counts[trial, what] += 1

    def wrong(self, trial: str, text: str) -> None:
        self.report.wrong.append(f"{trial}: {text}")

    def check_foreign(self, trial: str) -> None:
        for name in FOREIGN:
            if not (self.folder / name).exists() or (self.folder / name).read_text() != "foreign":
                self.wrong(trial, f"{name} was touched")

    def each_rename(self) -> Iterator[tuple[bool, bool, Kill]]:
        """Every step that renames while the copy gets its name, in every kind of trial."""
        for old, exchange in ((False, True), (True, True), (True, False)):
            for number in range(1, 1 + self._steps[old, exchange, "renames"]):
                for after in (False, True):
                    yield old, exchange, Kill(number, after, "renames")

    def kill(self, old: bool, exchange: bool, first: Kill | None = None) -> int:
        """One trial: kills until a run is through; how many kills there were.

        Args:
            old: Whether there is a store to replace.
            exchange: Whether names can be exchanged.
            first: The first kill; by default drawn like the others.
        """
        draw = self.random
        changing = draw.random() < 0.3
        trial = ("replaced" if exchange else "replaced by renaming aside") if old else "new"
        trial += ", source changed" if changing else ""
        self.reset(old)
        source, kills, finished = "one", 0, False
        before = "old" if old else "absent"
        flags = FLAGS["overwrite" if old else "plain"]
        left = draw.randint(1, 3)
        while True:
            plan = first or (self.drawn(old, exchange) if left > 0 else None)
            first = None
            outcome = self.run(source, flags, plan, exchange=exchange)
            left -= 1
            name = self.look()
            self.check_foreign(trial)
            if name not in (before, source) and (name, exchange) != ("absent", False):
                self.wrong(trial, f"{plan} left {name} where {before} was")
            if outcome.kind == "success" and name != source:
                self.wrong(trial, f"success, but {name} is there and not {source}")
            if outcome.kind == KILLED:
                kills += 1
                self.note(trial, f"killed, destination is {name.rstrip('+')}")
            elif outcome.kind != "success":
                self.wrong(trial, f"after a kill: {flags} {outcome}")
            if outcome.kind == "success":
                self.note(trial, "success, equal to the source")
                if os.path.lexists(self.partial):
                    self.wrong(trial, f"{os.listdir(self.partial)} is left")
                break
            if outcome.kind != KILLED:
                break
            if old and not exchange and name == "absent":
                self._look_at_both(trial, before)
            before = name if name != "absent" else before
            if draw.random() < 0.3:
                before = name = self._refused(trial, name, before, source, exchange)
            finished = finished or name == source
            if changing and not finished:
                source = self._changed()
                changing = False
            flags = FLAGS[
                draw.choice(["both", "overwrite"] if old or finished else ["resume", "both", "overwrite"])
            ]
        if source == "one+":
            Child(lambda: write_source(self.folder / "one.zarr", "one")).result()
        return kills

    def _look_at_both(self, trial: str, before: str) -> None:
        """The store that was there and the new one are whole, in the working folder."""
        (store,) = self.partial.glob("store-*")
        found = [
            Child(lambda path=path: found_in(path)).result()
            for path in (self.partial / publishing.REPLACED, store)
        ]
        if found[0] != before or found[1].removesuffix("+") != "one":
            self.wrong(trial, f"nothing under the name instead of {before}, and {found} in {self.partial}")

    def _refused(self, trial: str, name: str, before: str, source: str, exchange: bool) -> str:
        """A run without flags puts an old store back, and refuses unless nothing is there; what is then."""
        free = name == "absent" and not os.path.lexists(self.partial)
        outcome = self.run(source, {}, exchange=exchange)
        after = self.look()
        if outcome.kind == "success" and name == "absent" and after == source:
            return after  # nothing had been begun
        if outcome.kind != "ValueError" or free or after != (name if exchange else before):
            self.wrong(trial, f"a run without flags on {name}: {outcome}, then {after}")
        self.note(trial, "a run without flags refused")
        return after

    def race(self, first: str, second: str, number: int) -> None:
        """Two runs at once, of different sources."""
        draw = self.random
        before = ("absent", "old", "left")[number % 3]
        killing = draw.random() < 1 / 3
        self.reset(before == "old")
        if before == "left":
            self.run("one", {}, Kill(step=self._steps[False, True, "all"] // 2))
        trial = f"race, {before} before" + (", one killed" if killing else "")
        kill = self.drawn(before == "old", True) if killing else None
        children = [self.start("one", FLAGS[first], kill)]
        time.sleep(draw.choice([0, 0, 0.01, draw.uniform(0, 1.2 * self._seconds)]))
        children.append(self.start("two", FLAGS[second]))
        if kill and kill.step is None:
            threading.Timer(kill.seconds, lambda: _kill_if_there(children[0].pid)).start()
        outcomes = [Outcome(*child.result().partition(": ")[::2]) for child in children]
        name = self.look()
        self.check_foreign(trial)
        done = {source for source, one in zip(("one", "two"), outcomes) if one.kind == "success"}
        before = "absent" if before == "left" else before
        killed = outcomes[0].kind == KILLED
        allowed = done or {before}
        if killed:
            allowed = allowed | {"one"}
        if name not in allowed:
            self.wrong(trial, f"{first} and {second} came to {outcomes}, and {name} is there")
        if not done and not killing and self._both_may(first, second, number):
            self.wrong(trial, f"{first} and {second} came to {outcomes}, and none is through")
        for one in outcomes:
            if one.kind not in ("success", "ValueError", KILLED):
                self.wrong(trial, f"{first} and {second} came to {outcomes}")
        busy = any("another process" in one.text for one in outcomes)
        self.note(trial, f"{len(done)} of 2 succeeded" + (", one was told of the other" if busy else ""))
        if len(done) == 2 and os.path.lexists(self.partial):
            self.wrong(trial, f"{os.listdir(self.partial)} is left")

    def _both_may(self, first: str, second: str, number: int) -> bool:
        """Whether each of two runs in a race would succeed alone; what is left before is of the first one."""
        may = (
            (FLAGS, FLAGS),
            (("overwrite", "both"), ("overwrite", "both")),
            (("overwrite", "resume", "both"), ("overwrite",)),
        )[number % 3]
        return first in may[0] and second in may[1]

    def _changed(self) -> str:
        """Changes the first source in place; its name with a plus."""
        Child(lambda: change_source(self.folder / "one.zarr", "other")).result()
        return "one+"


def _kill_if_there(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def run(folder: Path, kills: int, races: int, seed: int) -> Report:
    """As many kills and races as are asked for, in an empty folder."""
    trials, done = Trials(folder, seed), 0
    draw, renames = trials.random, trials.each_rename()
    while done < kills:
        case = next(renames, None) or (draw.random() < 0.7, draw.random() < 0.6)
        done += trials.kill(*case)
    pairs = list(itertools.product(FLAGS, FLAGS))
    for number in range(races):
        trials.race(*pairs[number % len(pairs)], number)
    return trials.report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--races", type=int, default=144)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        report = run(Path(folder), args.kills, args.races, args.seed)
    print(f"{args.kills} kills, {args.races} races, seed {args.seed}, {datetime.date.today()}\n")
    print(report.as_text(time.monotonic() - began))
    return bool(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
