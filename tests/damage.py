"""Breaks chunks in a thousand ways and compares what the reader makes of them with zarr-python.

    python tests/damage.py --device gpu --jobs 8 --out benches/results/damage-DATE-gpu.json
    python tests/damage.py --device cpu --chains 'blosc.*' --mutations 100
    python tests/damage.py --device cpu --replay zstd.3 17

Every mutation breaks one chunk of a small array, which is then read whole by one pipeline. Workers do that
in processes of their own: one that ends or stands still costs its mutation only, and the report tells so.
What comes of a mutation:

- `error`: both refuse the chunk, and our error names it and its file
- `same`: both hand out the same values
- `we-refuse-they-accept`, `we-accept-they-refuse`: one of both is stricter
- and those that must not be, in `BUGS`

On a GPU each mutation is read by the CPU backend too; what only that one notices, or reads as other values,
is a bug as well. To look for memory errors there:

    compute-sanitizer --target-processes all python tests/damage.py --device gpu --jobs 1 --mutations 20 \\
        --patience 600
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent / "python"))

import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.abc import Codec

import mutations
import reading
import writers
from chains import CHAINS
from mutations import Index, followed_by, preceded_by, repair_crc32c
from stores import chunk_files, read_array, snappy_decode

BUGS = ("differs-both-accept", "checksum-missed", "unnamed-error", "crash", "hang", "poisoned")
"""Both accept and the values are not the same; a checksum that zarr-python found wrong; an error that does
not say which chunk; the end of the process; no end; then the intact array is not read any more."""
SETTINGS = {"num_io_threads": 1, "prefetch_queue_depth": 1, "host_memory_budget": 8 << 20}
DEVICE_MEMORY_BYTES = 256 << 20
PATIENCE_S, START_S = 20, 180
REFERENCE_PATIENCE_S = 5
"""numcodecs never comes to an end of some damaged zstd frames."""
GRACE_S = 2
"""For what came while the machine itself stood still."""
STACK_SIGNAL, STACK = signal.SIGUSR1, "stack.txt"
TASK = 50
"""Mutations that a worker takes at a time; it reads the intact store after them."""
CHECKSUM = re.compile(r"checksum|crc|adler|fletcher|data check", re.IGNORECASE)


# --- chains ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A chain to break, where its chunks have fields, and how to make its outer checksum right again."""

    chain: str
    fields: Callable
    repair: Callable | None = None
    zarr_format: int = 3
    large: bool = False
    """Chunks of several zstd blocks."""

    @property
    def layout(self):
        """Extents of the array, of its read chunks and of its sharded chunks."""
        if self.large:
            return (2, 120_000), (1, 120_000), None
        return (8, 1500), (1, 750) if self.sharded else (2, 1500), (4, 1500)

    @property
    def sharded(self):
        return CHAINS[self.chain].sharding is not None


def _sharded(chain, inner):
    sharding = CHAINS[chain].sharding
    index = Index(8, sharding.location == "start", sharding.checksum)
    return Target(chain, index.fields(inner), index.repair if sharding.checksum else None)


def _targets():
    yield "raw", Target("raw", mutations.raw)
    yield "raw-crc32c", Target("raw-crc32c", followed_by(mutations.raw, "crc32c"), repair_crc32c)
    for level in ("-5", "3", "19", "3.checksum", "3.no-size", "3.checksum.no-size"):
        yield f"zstd.{level}", Target(f"zstd.{level}", mutations.zstd)
    yield "zstd.3.large", Target("zstd.3", mutations.zstd, large=True)
    for cname in ("lz4", "lz4hc", "zstd", "zlib", "snappy", "blosclz"):
        for shuffle in ("noshuffle", "shuffle", "bitshuffle"):
            name = f"blosc.{cname}.{shuffle}"
            yield name, Target(name, mutations.blosc)
        yield f"blosc.{cname}.blocks", Target(f"blosc.{cname}.bitshuffle.b300", mutations.blosc)
    yield "blosc.stored", Target("blosc.lz4.noshuffle.l0", mutations.blosc)
    for name, fields in (("gzip.5", mutations.gzip), ("zlib.9", mutations.zlib), ("lz4.1", mutations.lz4)):
        yield name, Target(name, fields)
    yield "snappy", Target("snappy", mutations.snappy, zarr_format=2)
    bases = {
        "zstd": mutations.zstd,
        "blosc.lz4": mutations.blosc,
        "gzip": mutations.gzip,
        "lz4": mutations.lz4,
    }
    for name, fields in bases.items():
        name = f"{name}-crc32c"
        yield name, Target(name, followed_by(fields, "crc32c"), repair_crc32c)
    yield "adler32", Target("adler32", preceded_by(mutations.raw, "adler32"))
    yield "fletcher32", Target("fletcher32", followed_by(mutations.raw, "fletcher32"))
    for name in ("adler32-zstd", "fletcher32-zstd", "shuffle-zstd", "delta-zstd"):
        yield name, Target(name, mutations.zstd)
    for name, inner in {
        "end.raw": mutations.raw,
        "end.raw-crc32c": followed_by(mutations.raw, "crc32c"),
        "end.zstd.3": mutations.zstd,
        "start.zstd.3.checksum": mutations.zstd,
        "no-crc.zstd.3": mutations.zstd,
        "end.blosc.lz4.noshuffle": mutations.blosc,
        "start.blosc.zstd.bitshuffle": mutations.blosc,
        "end.blosc.blosclz.shuffle": mutations.blosc,
        "end.gzip.5": mutations.gzip,
        "end.lz4.1": mutations.lz4,
        "start.fletcher32-zstd": mutations.zstd,
    }.items():
        name = f"sharded.{name}"
        if name in CHAINS:
            yield name, _sharded(name, inner)


TARGETS = dict(_targets())


class Snappy(Codec):
    """So that zarr-python has a verdict on chunks that it cannot read by itself."""

    codec_id = "snappy"

    def encode(self, buf):
        raise NotImplementedError

    def decode(self, buf, out=None):
        return numcodecs.compat.ndarray_copy(snappy_decode(bytes(buf)), out)


numcodecs.register_codec(Snappy)


# --- one mutation ---------------------------------------------------------------------------------


class Store:
    """An array of a chain on disk, intact but for the chunk that is being broken."""

    def __init__(self, name, folder):
        self.target = TARGETS[name]
        self.path = Path(folder, name)
        self.values = self._write()
        self.files = chunk_files(self.path)
        self.chunks = [file.read_bytes() for file in self.files]

    def _write(self):
        target = self.target
        shape, chunks, shards = target.layout
        chain = CHAINS[target.chain]
        rng = np.random.default_rng(7)
        # Every chunk has noise, slow change and stretches of one value.
        values = (np.cumsum(rng.integers(-9, 10, shape), axis=1) // 4).astype("int32")
        kind = np.repeat(rng.integers(0, 4, (shape[0], shape[1] // 125)), 125, axis=1)
        noise = rng.integers(-(1 << 31), 1 << 31, shape, dtype="int32")
        values = np.where(kind == 0, noise, np.where(kind == 1, values[:, :1], values)).astype("int32")
        writer = next(writer for in_format, writer in chain.places() if in_format == target.zarr_format)
        what = writers.Description(target.zarr_format, chain, "int32", shape, chunks, shards)
        with patch("time.time", return_value=0.0):  # which gzip writes down
            writers.write(writer, self.path, values, what)
        return values

    def intact_problem(self, backend):
        """What is wrong with how the intact array is read; None for nothing."""
        verdict = ours(backend, self)
        if verdict.problem is None and not np.array_equal(verdict.values, self.values):
            return "other values"
        return verdict.problem

    def coords(self, file):
        """The place in the chunk grid, as errors have it."""
        key = str(file.relative_to(self.path)).removeprefix("c/")
        return f"chunk [{', '.join(re.split('[./]', key))}]"

    def mutation(self, name, seed, number):
        """(file, its intact bytes, its damaged bytes, kind)."""
        random = Random(f"{name} {seed} {number}")
        which, other = random.sample(range(len(self.files)), 2)
        damaged, kind = mutations.mutate(
            random, self.chunks[which], self.chunks[other], self.target.fields, self.target.repair
        )
        return self.files[which], self.chunks[which], damaged, kind


@dataclass
class Verdict:
    """Values, or what was said instead of them; neither if nobody could say."""

    values: np.ndarray | None = None
    problem: str | None = None

    def same(self, other):
        return self.values.shape == other.values.shape and np.array_equal(self.values, other.values)


def ours(backend, store):
    settings = SETTINGS | ({"device_memory_budget": DEVICE_MEMORY_BYTES} if backend.device == "gpu" else {})
    rows = store.target.layout[0][0]
    pipeline = {"num_threads": 1, "prefetch_queue_depth": 1}
    try:
        pipe = reading.build(backend, store.path, batch_size=rows, pipeline=pipeline, **settings)
        (output,) = pipe.run()
        return Verdict(values=np.stack(reading.to_samples(output)))
    except (RuntimeError, ValueError) as error:
        return Verdict(problem=essence(str(error)))


def essence(text):
    """Our own sentence, without DALI's words around it."""
    return text.split("encountered:")[-1].split("Current pipeline object")[0].strip()


def theirs(store):
    if CHAINS[store.target.chain].read_by_zarr_python or store.target.chain == "snappy":
        settings = {}
    elif has_zarrs():
        settings = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
    else:
        return Verdict()
    try:
        with zarr.config.set(settings):
            return Verdict(values=read_array(store.path))
    except Exception as error:
        return Verdict(problem=f"{type(error).__name__}: {error}")


@lru_cache
def has_zarrs():
    try:
        import zarrs  # noqa: F401
    except ImportError:
        return False
    return True


def outcome(mine, reference, store, file):
    """What the verdicts say together, and a sentence on it."""
    if mine.problem is not None:
        if store.coords(file) not in mine.problem or str(file) not in mine.problem:
            return "unnamed-error", mine.problem
        return ("error" if reference.values is None else "we-refuse-they-accept"), mine.problem
    if reference.problem is not None:
        missed = CHECKSUM.search(reference.problem)
        return ("checksum-missed" if missed else "we-accept-they-refuse"), reference.problem
    if reference.values is None:
        same = np.array_equal(mine.values, store.values)
        return ("same" if same else "no-reference"), ""
    if not mine.same(reference):
        return "differs-both-accept", f"{np.sum(mine.values != reference.values)} elements differ"
    return "same", ""


def roads(gpu, cpu):
    """Where the two backends disagree; None where they do not."""
    if (gpu.problem is None) != (cpu.problem is None):
        return (
            f"gpu refuses, cpu accepts: {gpu.problem}"
            if gpu.problem
            else f"gpu accepts, cpu refuses: {cpu.problem}"
        )
    return "the values differ" if gpu.problem is None and not gpu.same(cpu) else None


# --- workers --------------------------------------------------------------------------------------


def work(connection, device, seed, folder, faults):
    """Takes (chain, numbers) from the connection; sends what it is about to do and what came of it."""
    # Crashes are counted, not kept.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.register(STACK_SIGNAL, os.open(Path(folder, STACK), os.O_CREAT | os.O_WRONLY))
    backend = reading.GPU if device == "gpu" else reading.CPU
    stores = {}
    connection.send(("ready",))
    while (task := connection.recv()) is not None:
        name, numbers = task
        if name not in stores:
            try:
                stores[name] = Store(name, folder)
            except (Exception, pytest.skip.Exception) as error:
                connection.send(("unusable", f"it cannot be written: {error}"))
                continue
            if problem := stores[name].intact_problem(backend):
                del stores[name]
                connection.send(("unusable", f"the intact array is not read: {problem}"))
                continue
        for number in numbers:
            one(connection, backend, stores[name], name, seed, number, faults.get(number))
        connection.send(("start", None, "intact"))
        connection.send(("idle", stores[name].intact_problem(backend)))


def one(connection, backend, store, name, seed, number, fault=None):
    """One mutation; `fault` tries the tool itself."""
    file, intact, damaged, kind = store.mutation(name, seed, number)
    connection.send(("start", number, kind))
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    while fault == "hang":
        time.sleep(1)
    file.write_bytes(damaged)
    try:
        mine = ours(backend, store)
        connection.send(("ours", number, mine.problem))
        reference = theirs(store)
        result, detail = outcome(mine, reference, store, file)
        disagreement = roads(mine, ours(reading.CPU, store)) if backend.device == "gpu" else None
        connection.send(("done", number, {"outcome": result, "detail": detail, "roads": disagreement}))
    finally:
        file.write_bytes(intact)


class Worker:
    """A process, and what it is busy with."""

    def __init__(self, device, seed, folder, faults):
        context = multiprocessing.get_context("spawn")
        self.folder = folder
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, device, seed, folder, faults), daemon=True)
        self.process.start()
        theirs.close()
        self.task = None
        self.finished = False
        self.busy = None
        """Number and kind of the mutation that it is at, and what our reader said of it if that is known."""
        self.deadline = time.monotonic() + START_S

    def take(self, tasks):
        """Gives it the next task, if there is one."""
        self.task, self.busy = (tasks.popleft() if tasks else None), None
        self.finished = self.task is None
        if self.task:
            self.connection.send(self.task)
        self.deadline = time.monotonic() + START_S

    def where(self):
        """Where a process is that stands still, as far as Python knows."""
        os.kill(self.process.pid, STACK_SIGNAL)
        time.sleep(0.5)
        lines = re.findall(r'/(tests|nvidia)/\S*?([\w.]+)", line (\d+)', Path(self.folder, STACK).read_text())
        return ", ".join(f"{file}:{line}" for _, file, line in lines) or "nowhere in Python"

    def end(self):
        self.process.join(1)  # one that is about to end tells how
        self.process.kill()
        self.process.join()
        self.connection.close()


# --- the run --------------------------------------------------------------------------------------


class Report:
    """Outcomes by chain and kind, with the numbers of those that somebody should look at."""

    def __init__(self):
        self.counts = defaultdict(lambda: defaultdict(Counter))
        self.suspicious = defaultdict(list)
        self.stricter = defaultdict(lambda: defaultdict(Counter))
        self.roads = defaultdict(Counter)
        self.disagreements = Counter()
        """What only the CPU backend noticed, or values that only one backend hands out."""
        self.unusable = {}

    def add(self, chain, number, kind, outcome, detail="", roads=None):
        self.counts[chain][kind][outcome] += 1
        if outcome in (*BUGS, "reference-crash", "reference-hang", "no-reference"):
            entry = {"number": number, "kind": kind, "outcome": outcome, "detail": without_folder(detail)}
            self.suspicious[chain].append(entry)
        elif outcome.startswith("we-"):
            self.stricter[chain][outcome][without_numbers(detail)] += 1
        if roads:
            self.roads[chain][without_numbers(roads)] += 1
            if not roads.startswith("gpu refuses"):
                self.disagreements[chain] += 1
                entry = {"number": number, "kind": kind, "outcome": "roads", "detail": without_folder(roads)}
                self.suspicious[chain].append(entry)

    def total(self, chain):
        return sum(self.counts[chain].values(), Counter())

    def bugs(self, chain=None):
        """How many mutations of a chain, or of all, ended as none should."""
        chains = [chain] if chain else list(self.counts)
        return sum(self.disagreements[name] + sum(self.total(name)[bug] for bug in BUGS) for name in chains)

    def as_json(self):
        unusable = {name: {"not run": reason} for name, reason in self.unusable.items()}
        return unusable | {
            name: {
                "mutations": self.total(name).total(),
                "outcomes": dict(self.total(name).most_common()),
                "by_kind": {kind: dict(self.counts[name][kind]) for kind in sorted(self.counts[name])},
                "suspicious": sorted(self.suspicious[name], key=lambda entry: entry["number"] or 0),
                "stricter": {who: dict(what.most_common(20)) for who, what in self.stricter[name].items()},
                "roads": dict(self.roads[name].most_common(20)),
            }
            for name in self.counts
        }

    def as_markdown(self, about):
        outcomes = sorted({outcome for name in self.counts for outcome in self.total(name)})
        lines = [f"# Damage on the {about['device'].upper()}", ""]
        lines += [f"- {key}: {value}" for key, value in about.items()]
        lines += ["", f"| chain | mutations | {' | '.join(outcomes)} |", "|---" * (2 + len(outcomes)) + "|"]
        for name in self.counts:
            total = self.total(name)
            lines.append(
                f"| {name} | {total.total()} | {' | '.join(str(total[each]) for each in outcomes)} |"
            )
        lines += ["", f"{self.bugs()} bugs."]
        lines += [f"- {name}: not run, {reason}" for name, reason in self.unusable.items()]
        for name in self.counts:
            entries = [entry for entry in self.suspicious[name] if entry["outcome"] in (*BUGS, "roads")]
            lines += [
                f"- {name} {it['number']} ({it['kind']}): {it['outcome']}: {it['detail']}" for it in entries
            ]
        others = ((name, each) for name in self.counts for each in outcomes if each not in BUGS)
        for name, outcome in others:
            numbers = [it["number"] for it in self.suspicious[name] if it["outcome"] == outcome]
            if numbers:
                lines.append(f"- {name}: {outcome} at {', '.join(map(str, sorted(numbers)))}")
        for name in self.roads:
            lines += [
                f"- {name}: the backends disagree {count} times: {what}"
                for what, count in self.roads[name].items()
            ]
        return "\n".join(lines) + "\n"


def without_folder(text):
    return re.sub(r"/\S*/damage-\w+/\d+/", "", text)[:500]


def without_numbers(text):
    """A sentence about a chunk without the chunk, so that sentences of one kind are counted together."""
    text = re.sub(r'"[^"]*/[^"]*"', "PATH", text.split("\n")[0])
    text = re.sub(
        r"^((inner )?chunk \[[^\]]*\],? ?(of )?)*(array PATH, )?(file PATH, )?(bytes \d+\.\.\d+: )?", "", text
    )
    return re.sub(r"-?\d+", "N", text)[:200]


def run(device, chains, count, seed=1, jobs=1, patience_s=PATIENCE_S, faults=None, tell=lambda text: None):
    """Breaks `count` chunks of every chain; returns the report. `faults` tries the tool itself, see `one`."""
    report = Report()
    tasks = deque((name, range(at, min(at + TASK, count))) for name in chains for at in range(0, count, TASK))
    with tempfile.TemporaryDirectory(prefix="damage-") as root:
        folders = iter(range(1 << 30))

        def start():
            folder = Path(root, str(next(folders)))
            folder.mkdir()
            return Worker(device, seed, folder, faults or {})

        pool = [start() for _ in range(min(jobs, len(tasks)))]
        while pool:
            soonest = min(worker.deadline for worker in pool)
            ready = wait([worker.connection for worker in pool], max(0.0, soonest - time.monotonic()))
            for worker in list(pool):
                problem = None
                if worker.connection in ready:
                    problem = listen(worker, tasks, report, patience_s, tell)
                elif time.monotonic() > worker.deadline and not worker.connection.poll(GRACE_S):
                    problem = f"hang: {worker.where()}"
                if problem:
                    bury(worker, problem, tasks, report)
                    pool.remove(worker)
                    if tasks:
                        pool.append(start())
                elif worker.finished:
                    worker.connection.send(None)
                    worker.end()
                    pool.remove(worker)
    return report


def listen(worker, tasks, report, patience_s, tell):
    """Takes one message of a worker; returns what became of the worker if there is none."""
    try:
        message, *rest = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        return "crash"
    worker.deadline = time.monotonic() + patience_s
    if message == "start":
        worker.busy = (*rest, None)
    elif message == "ours":
        worker.busy = (*worker.busy[:2], rest[1] or "values")
        worker.deadline = time.monotonic() + min(patience_s, REFERENCE_PATIENCE_S)
    elif message == "done":
        name, numbers = worker.task
        number, result = rest
        report.add(name, number, worker.busy[1], **result)
        worker.task = (name, numbers[numbers.index(number) + 1 :])
        worker.busy = None
    elif message == "ready":
        worker.take(tasks)
    elif message == "unusable":
        name, _ = worker.task
        report.unusable[name] = rest[0]
        worker.take(tasks)
    else:
        name, _ = worker.task
        if rest[0]:
            return f"poisoned: {rest[0]}"
        tell(f"{name}: {dict(report.total(name).most_common())}")
        worker.take(tasks)
    return None


def bury(worker, problem, tasks, report):
    """Ends a worker, writes down what it was at, and gives back what it had left to do."""
    worker.end()
    if worker.busy is None:
        # It was at none: it started, or wrote a store.
        code = worker.process.exitcode
        raise RuntimeError(f"a worker ended by itself ({problem}, exit code {code}, task {worker.task})")
    name, numbers = worker.task
    number, kind, said = worker.busy
    problem, _, detail = problem.partition(": ")
    detail = detail or f"exit code {worker.process.exitcode}"
    if said is not None:
        problem, detail = f"reference-{problem}", f"{detail}; ours: {said}"
    report.add(name, number, kind, problem, detail)
    if number is not None and len(left := numbers[numbers.index(number) + 1 :]):
        tasks.appendleft((name, left))


def replay(device, name, seed, number):
    """One mutation in this process, told step by step; its store is kept."""
    folder = tempfile.mkdtemp(prefix="damage-replay-")
    store = Store(name, folder)
    file, intact, damaged, kind = store.mutation(name, seed, number)
    file.write_bytes(damaged)
    places = [i for i, (a, b) in enumerate(zip(intact, damaged)) if a != b]
    print(f"{name} {number}: {kind}, {file}: {len(intact)} bytes -> {len(damaged)}")
    if places:
        print(f"first differences at {places[:16]}, {len(places)} bytes in all")
    for who, read in (
        ("ours", lambda: ours(reading.GPU if device == "gpu" else reading.CPU, store)),
        ("on the CPU", lambda: ours(reading.CPU, store)),
        ("reference", lambda: theirs(store)),
    ):
        verdict = read()
        if verdict.values is None:
            print(f"{who}: {verdict.problem}", flush=True)
        else:
            changed = int(np.sum(verdict.values != store.values))
            print(f"{who}: values, {changed} of them not those that were written", flush=True)


def about(arguments):
    """What the report is of."""
    version = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "device": arguments.device,
        "date": datetime.date.today().isoformat(),
        "revision": version.stdout.strip() or "unknown",
        "zarr-python": zarr.__version__,
        "numcodecs": numcodecs.__version__,
        "mutations per chain": arguments.mutations,
        "seed": arguments.seed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--chains", nargs="+", default=["*"], help="names or patterns; see --list")
    parser.add_argument("--mutations", type=int, default=1000, help="of each chain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds until a mutation hangs")
    parser.add_argument("--out", type=Path, help="the report as JSON; a table goes beside it")
    parser.add_argument("--replay", nargs=2, metavar=("CHAIN", "NUMBER"), help="run one mutation alone")
    parser.add_argument("--list", action="store_true", help="tell the chains")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(TARGETS))
        return 0
    if arguments.replay:
        name, number = arguments.replay
        replay(arguments.device, name, arguments.seed, int(number))
        return 0
    chains = [name for name in TARGETS if any(fnmatchcase(name, pattern) for pattern in arguments.chains)]
    if not chains:
        parser.error(f"no chain is called {' or '.join(arguments.chains)}; --list tells their names")
    began = time.monotonic()
    report = run(
        arguments.device,
        chains,
        arguments.mutations,
        arguments.seed,
        arguments.jobs,
        arguments.patience,
        tell=lambda text: print(text, flush=True),
    )
    facts = about(arguments) | {"seconds": round(time.monotonic() - began, 1), "jobs": arguments.jobs}
    print(report.as_markdown(facts))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"about": facts, "chains": report.as_json()}, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(report.as_markdown(facts))
    return 1 if report.bugs() or report.unusable else 0


if __name__ == "__main__":
    sys.exit(main())
