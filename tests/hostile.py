"""Reads exotic and hostile stores, each in a process of its own, and says what came of them.

    python tests/hostile.py --backend cpu --out benches/results/hostile-DATE-cpu.md
    python tests/hostile.py --backend gpu --jobs 4
    python tests/hostile.py --only 'bomb-*' 'fifo-*'

The stores are in `python/exotic.py` and `python/hostile_*.py`. A process writes a store; others, which have
nothing but libraries in memory, read it: through the operator in a pipeline, with `zarr_dali.info`, and some
with `Loader` and `rechunk`. Their memory is watched and their time is limited. What is right:

- `values`: those that were written, or that zarr-python reads
- `error`: an exception that names the store, array or chunk, and that says what it should
- `answer`: of `info`, whatever it says in clear words

and what is not: `abort` (a signal), `hang`, `memory` (above what the process had before, more than the
reader's `host_memory_budget` and the constant of the backend, `CONSTANT_BYTES`), `wrong values`, `unclear
error`, `refused` (an error for a valid store), `accepted` (values for a store that has to be refused) and
`unsaid` (an error that lacks what it should say).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import math
import mmap
import os
import pickle
import platform
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "python"))

import numpy as np
import nvidia.dali
import pytest
import zarr
from damage import essence

import cases
import exotic  # noqa: F401  its cases
import hostile_changes  # noqa: F401
import hostile_chunks
import hostile_files  # noqa: F401
import hostile_metadata  # noqa: F401
import reading
import zarr_dali
import zarr_dali._report  # before a process is another user, who may not read files of libraries
from cases import CASES, MIB
from stores import read_array

CONSTANT_BYTES = {"cpu": 256 * MIB, "gpu": 1024 * MIB}
"""What a process may take beside the reader's budget: DALI, threads, code that is used for the first time."""
DEVICE_LEAST_BYTES = 32 * MIB
BACKSTOP_BYTES = 8 << 30
"""Private memory of a process that is CPU only, so that what the watcher is too slow for hurts nobody."""
PATIENCE_S, START_S = 20, 120
POLL_S = 0.005
NOBODY = 65534
GOOD = ("values", "error", "answer")
UNCLEAR = re.compile(
    r"internal error|this is a bug|bug of zarr-dali|untagged enum|panicked|RUST_BACKTRACE|std::bad_alloc|"
    r"Traceback \(most recent"
)
NOT_MEANT = (AttributeError, IndexError, KeyError, MemoryError, RecursionError, UnicodeError, AssertionError)
"""Exceptions that nobody raised on purpose."""


# --- in a process of its own ----------------------------------------------------------------------


def through_operator(case, read, backend, folder):
    """Reads with one pipeline, or with one after the other as long as the case says."""
    end = time.monotonic() + case.repeat_s
    while True:
        try:
            for verdict, detail in _one_pipeline(case, read, backend):
                yield verdict, detail
        except Exception as error:
            verdict, detail = judged(error, case)
            if verdict != "error" or time.monotonic() > end:
                raise
            # What is left of the pipeline goes with the error, which can take until the end is over.
            continue
        if verdict not in GOOD or time.monotonic() > end:
            return


def _one_pipeline(case, read, backend):
    """Builds a pipeline and runs it for an epoch, or as many batches as are asked for."""
    pipe = reading.build(
        backend,
        read.path,
        batch_size=read.batch_size,
        pipeline={"num_threads": 1, "prefetch_queue_depth": 1},
        **_at_position(read, backend, _settings(case, read, backend)),
    )
    count = pipe.reader_meta("reader")["epoch_size"]
    samples = []
    for number in range(read.batches or math.ceil(count / read.batch_size)):
        batch = reading.to_samples(pipe.run()[0])
        if case.accepts and (problems := list(filter(None, map(case.accepts, batch)))):
            yield "wrong values", f"batch {number}: {problems[0]}"
            return
        samples += [] if case.accepts else batch
        if number == 0 and case.midway:
            case.midway(read)
    # The last batch of an epoch goes on into the next one.
    yield _compared(read, samples if read.batches else samples[:count], count)
    del pipe


def through_info(case, read, backend, folder):
    """Asks what a reader would do, as text too."""
    arguments = _settings(case, read, backend)
    info = zarr_dali.info(
        read.path,
        arguments.pop("arrays", None),
        device=backend.device,
        batch_size=read.batch_size,
        **arguments,
    )
    text = str(info)
    problems = [info.problem, *(array.problem for array in info.arrays)]
    problems += [array.reason for array in info.arrays if array.decode_path == "refused"]
    problems = [problem for problem in problems if problem]
    if unclear := [problem for problem in (*problems, text) if UNCLEAR.search(problem)]:
        yield "unclear error", unclear[0]
    elif case.expect == "values" and problems:
        yield "refused", problems[0]
    else:
        yield "answer", problems[0] if problems else ""


def through_loader(case, read, backend, folder):
    """One epoch of torch tensors."""
    arguments = _settings(case, read, backend)
    device = "cpu" if backend.device == "cpu" else "cuda"
    names = arguments.pop("arrays", None) or ()
    loader = zarr_dali.Loader(read.path, names, read.batch_size, device=device, **arguments)
    samples = []
    for number, batch in enumerate(loader):
        samples += [sample.cpu().numpy().copy() for sample in next(iter(batch.values()))]
        if number == 0 and case.midway:
            case.midway(read)
        if number + 1 == read.batches:
            break
    yield _compared(read, samples, len(samples))
    del loader


def through_rechunk(case, read, backend, folder):
    """Copies the store; zarr-python reads the copy."""
    copy = folder / "copy.zarr"
    links = {name: value for name, value in read.arguments.items() if name == "follow_links"}
    zarr_dali.rechunk(read.path, copy, codec="zstd", memory=case.budget_bytes, workers=1, **links)
    if read.samples is None:
        yield "values", ""
        return
    names = read.arguments.get("arrays")
    values = read_array(copy, names[0] if names else None)
    samples = cases.samples_of(values, read.arguments.get("window"), read.arguments.get("stride"))
    yield _compared(read, samples, len(samples))


INTERFACES = {
    "operator": through_operator,
    "info": through_info,
    "loader": through_loader,
    "rechunk": through_rechunk,
}


def _at_position(read, backend, settings):
    """A position given as a dict is what is changed in one that such a reader tells."""
    change = settings.get("position")
    if not isinstance(change, dict):
        return settings
    del settings["position"]
    pipe = reading.build(backend, read.path, batch_size=read.batch_size, **settings)
    position = zarr_dali.stats(pipe, "reader")["position"]
    return settings | {"position": json.dumps(position | change)}


def _settings(case, read, backend):
    settings = {"num_io_threads": 2, "host_memory_budget": case.budget_bytes}
    if backend.device == "gpu":
        settings["device_memory_budget"] = max(DEVICE_LEAST_BYTES, 4 * case.budget_bytes)
    return settings | read.arguments


def _compared(read, samples, count):
    """Verdict and detail for the samples that were read."""
    if read.samples is None:
        return "values", "not compared"
    known = [read.samples, *read.alternatives]
    if read.batches is None and count != len(read.samples):
        return "wrong values", f"{count} samples, not {len(read.samples)}"
    for number, sample in enumerate(samples):
        if not any(_same(sample, samples[number], read.any_nan) for samples in known):
            return "wrong values", _difference(number, sample, read.samples[number])
    return "values", ""


def _same(sample, expected, any_nan):
    if sample.dtype != expected.dtype or sample.shape != expected.shape:
        return False
    if any_nan and sample.dtype.kind == "f":
        nan = sample.dtype.type(np.nan)
        sample, expected = (np.where(np.isnan(it), nan, it) for it in (sample, expected))
    return np.array_equal(reading.bits(sample), reading.bits(expected))


def _difference(number, sample, expected):
    if sample.dtype != expected.dtype or sample.shape != expected.shape:
        return (
            f"sample {number} is {sample.dtype}{list(sample.shape)}, not "
            f"{expected.dtype}{list(expected.shape)}"
        )
    differ = reading.bits(sample) != reading.bits(expected)
    first = tuple(np.argwhere(differ)[0])
    return (
        f"sample {number}: {differ.sum()} of {differ.size} elements differ, the first is {sample[first]}, "
        f"not {expected[first]}"
    )


def clear(text, case):
    """What is not clear about an error; None if all is."""
    if found := UNCLEAR.search(text):
        return f'it says "{found[0]}"'
    if not re.search(case.names, text):
        return f"it does not name {case.names!r}"
    return None


def judged(error, case):
    """Verdict and detail for an exception."""
    text = essence(str(error))
    if isinstance(error, NOT_MEANT) or not isinstance(error, Exception):
        return "unclear error", f"{type(error).__name__}: {text}"
    if problem := clear(text, case):
        return "unclear error", f"{problem}: {type(error).__name__}: {text}"
    if case.expect == "values":
        return "refused", text
    if not re.search(case.says, text, re.IGNORECASE | re.DOTALL):
        return "unsaid", f"it does not say {case.says!r}: {text}"
    return "error", text


def write_store(case, folder, seed):
    """Makes the store of a case; what is read of it goes into a file."""
    hostile_chunks.SEED = seed
    made = case.make(folder)
    (folder / "read.pickle").write_bytes(pickle.dumps(made))
    return "made", ""


def use_store(case, interface, folder, device, ready):
    """Reads the store of a case; yields the verdict, and then destroys what it read with."""
    read = pickle.loads((folder / "read.pickle").read_bytes())
    backend = reading.GPU if device == "gpu" else reading.CPU
    if device == "gpu" and interface != "rechunk":
        _warm_up(backend, folder)
    if device == "cpu":
        limit = _status("VmData") + BACKSTOP_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if case.unprivileged and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    ready()
    # A verdict is told before the reader is destroyed, which may hang.
    for verdict, detail in INTERFACES[interface](case, read, backend, folder):
        if verdict == "values" and case.expect == "error":
            verdict = "accepted"
        yield verdict, detail


def _warm_up(backend, folder):
    """Reads something, since CUDA and its libraries take more memory than readers."""
    path = folder / "warm-up.zarr"
    cases.put(path, cases.metadata([4, 8], [2, 8], cases.raw_v3()), {"c/0/0": bytes(64)})
    pipe = reading.build(backend, str(path), batch_size=1)
    pipe.run()
    del pipe
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew


def _status(field, pid="self"):
    """A figure of /proc/PID/status in bytes; 0 of a process that ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


# --- outside of it --------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of one store through one interface."""

    case: cases.Case
    interface: str
    verdict: str
    detail: str = ""
    peak_bytes: int = 0
    seconds: float = 0.0

    @property
    def good(self):
        return self.verdict in GOOD or self.verdict == "skipped"


class Process:
    """A forked child that writes a store (`interface` is None) or reads it."""

    def __init__(self, case, interface, folder, device, seed, patience_s):
        self.case, self.interface, self.folder = case, interface, folder
        self.device = device
        self.output = folder / f"{interface or 'write'}.txt"
        # The resident bytes before it reads, and whether it has told its verdict.
        self.shared = mmap.mmap(-1, 16)
        self.reply = folder / f"{interface or 'write'}.json"
        self.patience_s = (START_S if interface is None else patience_s) * case.patience
        self.limit_bytes = case.budget_bytes + CONSTANT_BYTES[device]
        self.started = self.since = time.monotonic()
        self.peak_bytes = 0
        self.killed = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(device, seed)

    def _child(self, device, seed):
        try:
            output = os.open(self.output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
            os.dup2(output, 1)
            os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            self.reply.touch()
            self.reply.chmod(0o666)
            self._work(device, seed)
        finally:
            os._exit(0)

    def _work(self, device, seed):
        try:
            if self.interface is None:
                self._tell(*write_store(self.case, self.folder, seed))
                return
            for verdict in use_store(self.case, self.interface, self.folder, device, self._ready):
                self._tell(*verdict)
        except pytest.skip.Exception as skip:
            self._tell("skipped", str(skip))
        except BaseException as error:
            if self.interface is None:
                self._tell("not made", f"{type(error).__name__}: {error}")
            else:
                self._tell(*judged(error, self.case))
        gc.collect()

    def _ready(self):
        struct.pack_into("Q", self.shared, 0, max(1, _status("VmRSS")))

    def _tell(self, verdict, detail):
        self.reply.write_text(json.dumps([verdict, detail]))
        struct.pack_into("Q", self.shared, 8, 1)

    def ended(self):
        """The outcome, or None while the process runs."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        (baseline,) = struct.unpack_from("Q", self.shared, 0)
        if pid:
            if baseline and self.device == "cpu":
                self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024 - baseline)
            return self._outcome(status)
        if self.killed is None:
            if baseline:
                if self.since == self.started:
                    self.since = time.monotonic()
                self.peak_bytes = max(self.peak_bytes, _status("VmHWM", self.pid) - baseline)
            patience_s = self.patience_s if baseline else START_S
            if self.peak_bytes > self.limit_bytes:
                self.kill("memory", "and it went on growing")
            elif time.monotonic() - self.since > patience_s:
                self.kill("hang", f"after {patience_s:.0f} s")
        return None

    def kill(self, verdict, detail):
        self.killed = verdict, detail
        os.kill(self.pid, signal.SIGKILL)

    def _outcome(self, status):
        told = struct.unpack_from("Q", self.shared, 8)[0]
        verdict, detail = json.loads(self.reply.read_text()) if told else ("abort", "nothing was said")
        said = f"; it had said {verdict}: {detail}" if told else ""
        if self.killed:
            verdict, detail = self.killed
            detail += f", while the reader was destroyed{said}" if told else ""
        elif os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            verdict, detail = "abort", f"{name}: {self._last_words()}{said}"
        elif not told:
            detail = f"exit code {os.waitstatus_to_exitcode(status)}: {self._last_words()}"
        # rechunk decodes with the zarrs package, whose panics it turns into errors.
        elif verdict in GOOD and self.interface != "rechunk" and "panicked" in self._words():
            verdict, detail = "unclear error", f"a thread panicked: {self._last_words()}; {detail}"
        if verdict in (*GOOD, "memory") and self.interface and self.peak_bytes > self.limit_bytes:
            verdict = "memory"
            detail = f"more than {self.limit_bytes // MIB} MiB, {detail or 'then it ended'}"
        seconds = time.monotonic() - self.started
        return Outcome(self.case, self.interface or "write", verdict, detail, self.peak_bytes, seconds)

    def _words(self):
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def _last_words(self):
        lines = [line.strip() for line in self._words().splitlines() if line.strip()]
        telling = [line for line in lines if re.search("panicked|allocation|abort|terminate", line)]
        return " | ".join((telling or lines)[-2:])[:300]


def run(chosen, device="cpu", jobs=1, seed=1, patience_s=PATIENCE_S, tell=lambda outcome: None):
    """Writes and reads the stores of the cases; returns the outcomes in the order of their ends."""
    # PyTorch is imported once, for the last cases only: it makes a fork several times as slow.
    waiting = deque(sorted(chosen, key=lambda case: "loader" in case.interfaces))
    outcomes, running = [], []
    gc.freeze()
    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    root.chmod(0o755)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.popleft()
                if "loader" in case.interfaces and "torch" not in sys.modules:
                    _import_torch()
                folder = root / re.sub(r"\W", "-", case.name)
                folder.mkdir()
                folder.chmod(0o777)
                running.append(
                    (Process(case, None, folder, device, seed, patience_s), deque(case.interfaces))
                )
            for process, interfaces in list(running):
                if (outcome := process.ended()) is None:
                    continue
                running.remove((process, interfaces))
                if outcome.verdict != "made":
                    outcomes.append(outcome)
                    tell(outcome)
                    if process.interface is None:
                        interfaces.clear()
                if interfaces:
                    following = Process(
                        process.case, interfaces.popleft(), process.folder, device, seed, patience_s
                    )
                    running.append((following, interfaces))
                else:
                    _remove(process.folder)
            time.sleep(POLL_S)
    finally:
        for process, _ in running:
            process.kill("hang", "")
            os.waitpid(process.pid, 0)
        _remove(root)
    return outcomes


def _import_torch():
    import torch  # noqa: F401
    from nvidia.dali.plugin import pytorch  # noqa: F401

    gc.freeze()  # or each process would go through all objects, and copy their pages


def _remove(folder):
    """Removes a folder whose permissions may be any."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(inner := os.path.join(path, name)):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


# --- what is told ---------------------------------------------------------------------------------


@dataclass
class Report:
    """All outcomes of a run."""

    outcomes: list = field(default_factory=list)

    @property
    def failures(self):
        return [outcome for outcome in self.outcomes if not outcome.good]

    def as_markdown(self, about):
        verdicts = [outcome.verdict for outcome in self.outcomes]
        columns = [name for name in (*GOOD, "skipped") if name in verdicts]
        columns += sorted(set(verdicts) - set(columns))
        lines = [f"# Exotic and hostile stores on the {about['backend'].upper()}", ""]
        lines += [f"- {key}: {value}" for key, value in about.items()]
        lines += ["", f"| kind | stores | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
        kinds = dict.fromkeys(outcome.case.kind for outcome in sorted(self.outcomes, key=_place))
        for kind in (*kinds, None):
            these = [outcome for outcome in self.outcomes if kind in (outcome.case.kind, None)]
            counts = Counter(outcome.verdict for outcome in these)
            stores = len({outcome.case.name for outcome in these})
            figures = " | ".join(str(counts[column]) for column in columns)
            lines.append(f"| {kind or 'all'} | {stores} | {figures} |")
        most = max(self.outcomes, key=lambda outcome: outcome.peak_bytes if outcome.good else 0, default=None)
        if most:
            lines += [
                "",
                f"The most memory that was taken within the limits: {most.peak_bytes / MIB:.0f} MiB, "
                f"{most.case.name}, {most.interface}.",
            ]
        failed = len({outcome.case.name for outcome in self.failures})
        lines += ["", f"{len(self.failures)} failures of {failed} stores."]
        lines += [
            f"- {it.case.name}, {it.interface}: {it.verdict}: {_shortened(it.detail)}"
            for it in sorted(self.failures, key=_place)
        ]
        return "\n".join(lines) + "\n"


def _place(outcome):
    return list(CASES).index(outcome.case.name) if outcome.case.name in CASES else -1


def _shortened(text):
    text = re.sub(r"/\S*/hostile-[^/\s]+/[^/\s]+/", "", text)
    text = re.sub(r"\s+", " ", text).replace("|", "/")
    return text if len(text) < 400 else f"{text[:250]} ... {text[-130:]}"


def about(arguments):
    """What the report is of."""
    version = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "backend": arguments.backend,
        "date": datetime.date.today().isoformat(),
        "revision": version.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "versions": f"Python {platform.python_version()}, DALI {nvidia.dali.__version__}, "
        f"zarr-python {zarr.__version__}",
        "limits": f"{arguments.patience:.0f} s; the reader's budget, mostly 64 MiB, and "
        f"{CONSTANT_BYTES[arguments.backend] // MIB} MiB",
        "seed": arguments.seed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names; see --list")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--seed", type=int, default=1, help="of the damage to chunks")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds until a store hangs")
    parser.add_argument("--list", action="store_true", help="tell the cases")
    parser.add_argument("--verbose", action="store_true", help="tell every outcome, not only failures")
    parser.add_argument("--out", type=Path, help="the report as Markdown")
    arguments = parser.parse_args()
    chosen = [case for name, case in CASES.items() if any(fnmatchcase(name, one) for one in arguments.only)]
    if not chosen:
        parser.error(f"no case is called {' or '.join(arguments.only)}; --list tells their names")
    if arguments.list:
        print("\n".join(f"{case.kind:16} {case.expect:8} {case.name}" for case in chosen))
        print(f"{len(chosen)} cases")
        return 0
    warnings.simplefilter("ignore")

    def tell(outcome):
        if arguments.verbose or not outcome.good:
            print(
                f"{outcome.case.name}, {outcome.interface}: {outcome.verdict} ({outcome.seconds:.1f} s, "
                f"{outcome.peak_bytes // MIB} MiB): {_shortened(outcome.detail)}",
                flush=True,
            )

    began = time.monotonic()
    report = Report(run(chosen, arguments.backend, arguments.jobs, arguments.seed, arguments.patience, tell))
    facts = about(arguments) | {"seconds": f"{time.monotonic() - began:.0f}, {arguments.jobs} at a time"}
    text = report.as_markdown(facts)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
