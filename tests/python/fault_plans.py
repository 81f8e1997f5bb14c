"""What `../fault_schedules.py` does under a seed: a store, how it is read, and what goes wrong meanwhile."""

import json
import random
import zipfile
from dataclasses import dataclass, field

import numpy as np
import zarr

from fault_server import ANSWERS, PASSING, SECRET, STATUS, TRANSPORT, Fault, Schedule

SHAPE = (24, 12, 36)
LARGE_SHAPE = (3, 2200, 2000)
"""Chunks of 17.6 MB, which are fetched in parts."""
FILL = -1.0
MIB = 1 << 20


def _v3(**options):
    return {"zarr_format": 3, "chunks": (2, 6, 36), "compressors": None} | options


STORES = {
    "raw": _v3(),
    "zstd": _v3(compressors=zarr.codecs.ZstdCodec(checksum=True)),
    "blosc": _v3(compressors=zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")),
    "gzip-crc32c": _v3(compressors=[zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]),
    "v2": {"zarr_format": 2, "chunks": (2, 12, 36), "compressors": "auto"},
    "v2-raw": {"zarr_format": 2, "chunks": (3, 5, 36), "compressors": None},
    "sharded": _v3(shards=(4, 12, 36), compressors=zarr.codecs.ZstdCodec(checksum=True)),
    "sharded-raw": _v3(shards=(4, 12, 36)),
    "large": _v3(chunks=(1, *LARGE_SHAPE[1:])),
}
ZIPPED = ("raw", "zstd", "sharded")
NAMES = (*(name for name in STORES if name != "large"), *(f"zip-{name}" for name in ZIPPED))


def write_stores(folder):
    """Writes all stores below `folder/bucket`. Of each some chunks are missing: they read as `FILL`."""
    rng = np.random.default_rng(7)
    (folder / "bucket").mkdir(parents=True)
    for name, options in STORES.items():
        shape = LARGE_SHAPE if name == "large" else SHAPE
        data = rng.integers(0, 1000, shape).astype("f4")
        if name != "large":
            data[4:8] = FILL
            data[16:18, :6] = FILL
        path = folder / "bucket" / f"{name}.zarr"
        array = zarr.create_array(store=path, shape=shape, dtype="f4", fill_value=FILL, **options)
        array[:] = data
        if name in ZIPPED:
            with zipfile.ZipFile(folder / "bucket" / f"zip-{name}.zip", "w") as archive:
                for file in sorted(path.rglob("*")):
                    if file.is_file():
                        archive.write(file, file.relative_to(path))


@dataclass
class Plan:
    """One schedule."""

    seed: int
    store: str
    scheme: str
    options: dict
    reader: dict
    batch_size: int
    batches: int
    schedule: Schedule
    passes: bool = False
    """Whether all of it passes when requests are repeated: an error is none that has to be."""
    causes: list = field(default_factory=list)
    """What may be the cause of an error beside the faults that a server counts."""

    @property
    def key(self):
        """Path of the store in its bucket."""
        return f"{self.store}.zip" if self.store.startswith("zip-") else f"{self.store}.zarr"

    def local(self, folder):
        return str(folder / "bucket" / self.key)

    def url(self, server):
        """URL of the store, and its options."""
        of = {
            "http": (f"{server}/bucket", {"headers": {"authorization": f"Bearer {SECRET}"}}),
            "s3": ("s3://bucket", {"endpoint_url": server, "region": "eu-west-1"}),
            "gs": ("gs://bucket", {"endpoint_url": server, "token": "anon"}),
            "az": ("az://bucket", {"endpoint_url": server, "account_name": "account"}),
        }
        parent, options = of[self.scheme]
        if self.scheme == "s3":
            signed = self.seed % 2
            options |= {"key": f"K{SECRET}", "secret": SECRET, "token": SECRET} if signed else {"anon": True}
        if self.scheme == "az":
            options |= {"sas_token": f"sv=2024&sig={SECRET}"} if self.seed % 2 else {"anon": True}
        return f"{parent}/{self.key}", json.dumps(options | self.options)

    @property
    def kinds(self):
        return "+".join(fault.kind for fault in self.schedule.faults) or "none"


def plan(seed, folder):
    """The plan of a seed."""
    chance = random.Random(seed)
    large = chance.random() < 0.02
    store = "large" if large else chance.choice(NAMES)
    scheme = chance.choice(("http", "s3", "s3", "gs", "az"))
    faults = [_fault(chance) for _ in range(chance.choice((0, *[1] * 8, *[2] * 5, 3, 3)))]
    if scheme == "http":
        # What a web server has no page for is absent.
        for fault in faults:
            fault.kind = "405" if fault.kind == "no-bucket" else fault.kind
    passing = all(fault.kind in (*PASSING, *TRANSPORT) and fault.times == 1 for fault in faults)
    forbidden = chance.random() < 0.15
    missing = "fill-403" if forbidden and chance.random() < 0.7 else "fill"
    if missing == "fill-403":
        # A store that denies an object of its own cannot be told from one that has none.
        for fault in faults:
            if fault.kind == "403":
                fault.kind = chance.choice(("403-archived", "clock", "signature"))
    schedule = Schedule(
        str(folder),
        seed,
        faults,
        latency_s=chance.choice((0, 0, 0, 0.002, 0.01)),
        bytes_per_s=0 if large else chance.choice((0, 0, 0, 2e6)),
        absent=403 if forbidden else 404,
        # The clouds of Google and Microsoft always have strong ones.
        tags="strong" if scheme in ("gs", "az") else chance.choice(("strong", "strong", "weak", "none")),
    )
    hangs = any(fault.kind.startswith("hang") for fault in faults)
    options = {"read_timeout": "500ms" if hangs else "20s", "connect_timeout": "5s"}
    if not passing:
        options["retry_config"] = {
            "max_retries": chance.choice((0, 1, 3)),
            "retry_timeout": chance.choice(("1s", "2s")),
        }
    window = 1 if large else chance.choice((1, 1, 2, 3))
    shuffle = chance.random() < 0.5
    reader = {
        "window": [window],
        "stride": [chance.choice((1, window))],
        "random_shuffle": shuffle,
        "seed": seed,
        "initial_fill": chance.choice((4, 1024)),
        "missing_chunks": missing,
        "num_io_threads": chance.choice((0, 1, 2)),
        "num_decode_threads": chance.choice((1, 2)),
        "host_memory_budget": chance.choice(
            (192 * MIB, 256 * MIB) if large else (4 * MIB, 8 * MIB, 16 * MIB, 0)
        ),
        "prefetch_queue_depth": chance.choice((1, 1, 3)),
    }
    if chance.random() < 0.2:
        reader["cache_bytes"] = 1 * MIB
    return Plan(
        seed=seed,
        store=store,
        scheme=scheme,
        options=options,
        reader=reader,
        batch_size=1 if large else chance.choice((1, 3, 8)),
        batches=2 if large else chance.choice((2, 4, 8)),
        schedule=schedule,
        passes=passing and not (forbidden and missing == "fill"),
        # A server that has much to do may take longer than a short timeout.
        causes=["403"] * forbidden + ["hang"] * hangs,
    )


def _fault(chance):
    """A fault: half of them pass soon, of the others most are with few objects."""
    kinds = chance.choice(((*PASSING, *TRANSPORT), tuple(STATUS), TRANSPORT, ANSWERS))
    times = chance.choice((1, 1, 2, 0))
    first = chance.choice((0, 0, 0, 0, 0, 3, 10))
    return Fault(
        kind=chance.choice(kinds),
        where=chance.choice(("chunk", "chunk", "chunk", "chunk", "any", "metadata")),
        share=chance.choice((1.0, 1.0, 0.5, 0.2)),
        times=times,
        first=first,
        last=first + chance.choice((5, 20)) if chance.random() < 0.3 else 0,
    )
