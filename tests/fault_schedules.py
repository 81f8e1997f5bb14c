"""Reads stores from a server that misbehaves in random ways, and says what came of it.

    python tests/fault_schedules.py --count 2000 --out benches/results/faults-DATE.md
    python tests/fault_schedules.py --only 17 1203 --verbose

A schedule follows from its seed: a store, how it is read, and what goes wrong meanwhile
(`python/fault_plans.py`, `python/fault_server.py`). What is right:

- `bits`: all samples are those of the folder
- `error`: an exception that names the store by its URL, the object or the range of it, and the cause, and
  shows no secret, if something went wrong that repeating requests does not mend

and what is not: `hang`, `abort`, `wrong values`, `memory` (more than the reader's budget, a quarter of it,
and `CONSTANT_BYTES`), `requests` (more than 256 at once), `secret`, `unclear error`, and `gave up` (an error
although all faults pass).

Schedules run in processes that run one after the other, `--jobs` of them, each with a server of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "python"))

import numpy as np
from damage import essence
from hostile import NOT_MEANT, UNCLEAR

import fault_plans
import fault_server
import reading
import zarr_dali
from bounded import memory
from cases import MIB

CONSTANT_BYTES = 64 * MIB
"""What a process may take beside a reader's budget."""
MOST_REQUESTS = 256
MOST_DOUBLED = 1.1
"""A server sees some more, for requests that are late are made again."""
PATIENCE_S, START_S = 60, 120
GOOD = ("bits", "error")
NO_PART = r"for a part of an object"
DAMAGED = r"decod|damaged|not valid|JSON|expected value|bytes|zip|encoded"
CAUSES = {
    **{kind: rf"\b{status}\b" for kind, (status, _) in fault_server.STATUS.items()},
    # The answer to a HEAD has no body; then it is asked for in another way.
    "no-bucket": "NoSuchBucket|changed while",
    **dict.fromkeys(
        fault_server.TRANSPORT, r"request or response body|error sending request|connection|timed out"
    ),
    "whole": NO_PART,
    **dict.fromkeys(
        ("range-moved", "range-longer", "total"), r"Requested \d+\.\.\d+, got|end past|changed while"
    ),
    **dict.fromkeys(("range-none", "range-unread"), "(?i)content-range|content_range"),
    **dict.fromkeys(("tag-other", "other-object"), "changed while"),
    "tag-none": "(?i)changed while|etag",
    "redirect": "redirect",
    "redirect-loop": "redirect",
    "redirect-bare": "redirect",
    "redirect-away": "error sending request|127.0.0.2",
    "gzip": "(?i)content-encoding|for a part of an object",
    "transcoded": f"(?i)content-encoding|content-length|{NO_PART}",
    # The answer to a HEAD is that length alone.
    "endless": rf"at most|no more than|{NO_PART}|\b416\b",
    "no-length": "(?i)content-length",
    "page": rf"{DAMAGED}|{NO_PART}|Last-Modified Header missing|sent a web page",
    "no-http": "error sending request|invalid HTTP",
}
"""What an error says of a fault."""
PLACE = (
    r"c/\d|/\d+\.\d+|\d+\.\d+\.\d+|zarr\.json|\.zarray|\.zgroup|\.zattrs|\.zmetadata|zarr metadata|"
    r"bytes \d+|\.zip"
)
"""What an error says of the place, beside the URL."""


@dataclass
class Outcome:
    """What came of one schedule."""

    seed: int
    verdict: str
    detail: str = ""
    about: str = ""
    seconds: float = 0.0
    destroyed_s: float = 0.0
    grown_bytes: int = 0
    requests: int = 0
    faults: dict | None = None

    @property
    def good(self):
        return self.verdict in GOOD


# --- in a process of its own ----------------------------------------------------------------------


def work(folder):
    """Runs the schedules whose seeds come as lines, and prints an outcome for each."""
    with fault_server.running() as server:
        for plan in (fault_plans.plan(seed, folder) for seed in (0, 2)):
            read(plan, plan.local(folder))  # so that libraries are loaded
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(asdict(run_schedule(int(line), folder, server))), flush=True)


def run_schedule(seed, folder, server):
    plan = fault_plans.plan(seed, folder)
    expected, _, _ = read(plan, plan.local(folder))
    Path("/proc/self/clear_refs").write_text("5")
    before, began = memory("VmRSS"), time.monotonic()
    error, found, stats, destroyed_s = None, None, {}, 0.0
    with server.schedule(f"s{seed}", plan.schedule) as (url, came):
        store, options = plan.url(url)
        try:
            found, stats, destroyed_s = read(plan, store, storage_options=options)
        except Exception as caught:
            error = caught
            traceback_of_reader_goes(error)
        seconds = time.monotonic() - began
    outcome = Outcome(
        seed,
        *judged(plan, store, expected, found, error, came),
        about=f"{plan.store} {plan.scheme} {plan.kinds}",
        seconds=seconds,
        destroyed_s=destroyed_s,
        grown_bytes=memory("VmHWM") - before,
        requests=came["requests"],
        faults=came["faults"],
    )
    if outcome.good and outcome.grown_bytes > (most := most_bytes(plan)):
        outcome.verdict = "memory"
        outcome.detail = f"{outcome.grown_bytes // MIB} MiB, more than {most // MIB}; {outcome.detail}"
    peak = max(stats.get("requests_in_flight_peak", 0), came["peak"] / MOST_DOUBLED)
    if outcome.good and peak > MOST_REQUESTS:
        outcome.verdict, outcome.detail = "requests", f"{came['peak']} at once"
    return outcome


def traceback_of_reader_goes(error):
    """What an exception's frames hold is a pipeline, which reads on."""
    error.__traceback__ = None
    gc.collect()


def most_bytes(plan):
    budget = plan.reader["host_memory_budget"] or 16 * MIB
    return budget + budget // 4 + CONSTANT_BYTES


def read(plan, path, **arguments):
    """Batches of a reader, its statistics, and the seconds that it took to be destroyed."""
    pipe = reading.build(
        reading.CPU,
        path,
        batch_size=plan.batch_size,
        pipeline={"num_threads": 1, "prefetch_queue_depth": 1},
        **plan.reader,
        **arguments,
    )
    samples = [sample for _ in range(plan.batches) for sample in reading.to_samples(pipe.run()[0])]
    stats = zarr_dali.stats(pipe)
    began = time.monotonic()
    del pipe
    return samples, stats, time.monotonic() - began


def judged(plan, url, expected, found, error, came):
    """Verdict and detail."""
    if error is None:
        for number, (sample, right) in enumerate(zip(found, expected, strict=True)):
            if not np.array_equal(reading.bits(sample), reading.bits(right)):
                wrong = reading.bits(sample) != reading.bits(right)
                first = tuple(np.argwhere(wrong)[0].tolist())
                return "wrong values", f"sample {number}{list(first)} is {sample[first]}, not {right[first]}"
        return "bits", ""
    if fault_server.SECRET in str(error):
        return "secret", str(error)
    text = re.sub(r"\s+", " ", essence(str(error)))
    if isinstance(error, NOT_MEANT) or UNCLEAR.search(text):
        return "unclear error", f"{type(error).__name__}: {text}"
    if url not in text:
        return "unclear error", f"it does not name {url}: {text}"
    if not re.search(PLACE, text.replace(url, "", 1)):
        return "unclear error", f"it does not say where: {text}"
    kinds = [*came["faults"], *plan.causes]
    # A page in answer to the request for the rest of a body has another entity tag.
    if "page" in kinds and not {"hang-body", "reset-body", "short"}.isdisjoint(kinds):
        kinds.append("tag-other")
    if not any(re.search(CAUSES[kind], text) for kind in kinds):
        return "unclear error", f"it does not say the cause ({kinds}): {text}"
    if plan.passes:
        return "gave up", text
    return "error", text


# --- outside of it --------------------------------------------------------------------------------


class Worker:
    """A process that runs schedules, one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self.process = None

    def run(self, seed, patience_s):
        if self.process is None:
            self._start()
        began = time.monotonic()
        timer = threading.Timer(patience_s, self._kill, [signal.SIGABRT])
        timer.start()
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        timer.cancel()
        seconds = time.monotonic() - began
        if line.startswith("{"):
            return Outcome(**json.loads(line))
        status = self.process.wait()
        words = self.errors.read_text(errors="replace")[-1500:]
        self.end()
        verdict = "hang" if seconds >= patience_s else "abort"
        plan = fault_plans.plan(seed, self.folder)
        about = f"{plan.store} {plan.scheme} {plan.kinds}"
        return Outcome(seed, verdict, f"exit status {status} {words}", about, seconds)

    def _start(self):
        self.errors = self.folder / f"errors-{id(self)}.txt"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", __file__, "--work", self.folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        timer = threading.Timer(START_S, self._kill, [signal.SIGKILL])
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line != "ready\n":
            raise RuntimeError(f"a worker did not start: {self.errors.read_text()}")

    def _kill(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end(self):
        """Ends the process and its server."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


def run(seeds, jobs=1, patience_s=PATIENCE_S, tell=lambda outcome: None):
    """Runs the schedules of these seeds; returns the outcomes in the order of the seeds."""
    outcomes, waiting, lock = {}, iter(list(seeds)), threading.Lock()

    def runs(worker):
        try:
            while True:
                with lock:
                    seed = next(waiting, None)
                if seed is None:
                    return
                outcome = worker.run(seed, patience_s)
                with lock:
                    outcomes[seed] = outcome
                    tell(outcome)
        finally:
            worker.end()

    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        fault_plans.write_stores(Path(folder))
        threads = [threading.Thread(target=runs, args=[Worker(Path(folder))]) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [outcomes[seed] for seed in sorted(outcomes)]


def as_markdown(outcomes, about):
    """The report: what came of each kind of fault."""
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    columns = [*GOOD, *sorted(set(verdicts) - set(GOOD))]
    lines = [
        "# Random faults of remote stores",
        "",
        *(f"- {key}: {value}" for key, value in about.items()),
        "",
    ]
    lines += [
        f"| fault that occurred | schedules | {' | '.join(columns)} |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for kind in ("none", *fault_server.KINDS, "all"):
        these = [it for it in outcomes if kind == "all" or kind in (it.faults or {"none": 1})]
        counts = Counter(outcome.verdict for outcome in these)
        if these:
            lines.append(f"| {kind} | {len(these)} | {' | '.join(str(counts[name]) for name in columns)} |")
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    most = max(outcomes, key=lambda outcome: outcome.grown_bytes)
    lines += [
        "",
        f"{sum(outcome.requests for outcome in outcomes)} requests. The longest schedule took "
        f"{slowest.seconds:.1f} s (seed {slowest.seed}); the most memory that a reader took was "
        f"{most.grown_bytes / MIB:.0f} MiB (seed {most.seed}).",
        "",
        f"{sum(not outcome.good for outcome in outcomes)} failures.",
        *(told(outcome) for outcome in outcomes if not outcome.good),
    ]
    return "\n".join(lines) + "\n"


def told(outcome):
    detail = re.sub(r"\s+", " ", outcome.detail)
    return f"- seed {outcome.seed}, {outcome.about}: {outcome.verdict}: {detail}"


def revision():
    command = ["git", "describe", "--always", "--dirty"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return told.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=2000, help="schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", nargs="+", type=int, metavar="SEED", help="instead of --count and --first")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds until a schedule hangs")
    parser.add_argument("--verbose", action="store_true", help="tell every outcome, not only failures")
    parser.add_argument("--out", type=Path, help="the report as Markdown")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return 0
    seeds = arguments.only or range(arguments.first, arguments.first + arguments.count)

    def tell(outcome):
        if arguments.verbose or not outcome.good:
            print(f"{told(outcome)} ({outcome.seconds:.1f} s, {outcome.grown_bytes // MIB} MiB)", flush=True)

    began = time.monotonic()
    outcomes = run(seeds, min(arguments.jobs, len(seeds)), arguments.patience, tell)
    about = {
        "revision": revision(),
        "seeds": " ".join(map(str, seeds)) if arguments.only else f"{seeds.start} to {seeds.stop - 1}",
        "machine": f"{os.cpu_count()} cores, {arguments.jobs} schedules at a time",
        "seconds": f"{time.monotonic() - began:.0f}",
    }
    text = as_markdown(outcomes, about)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
