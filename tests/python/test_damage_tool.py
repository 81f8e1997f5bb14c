"""A short run of `../damage.py` over the main chains, and the tool's own ways out."""

import sys
from functools import lru_cache
from pathlib import Path
from random import Random

import pytest

import mutations
from stores import FORMATS, snappy_decode, snappy_encode

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1]))
import damage

MUTATIONS = 40
CHAINS = (
    *("raw-crc32c", "zstd.3", "zstd.3.checksum", "zstd.3.no-size", "gzip.5", "zlib.9", "lz4.1", "snappy"),
    *("blosc.lz4.shuffle", "blosc.lz4hc.noshuffle", "blosc.zstd.bitshuffle", "blosc.zlib.shuffle"),
    *("blosc.snappy.shuffle", "blosc.blosclz.shuffle", "blosc.lz4.blocks", "blosc.stored"),
    *("zstd-crc32c", "fletcher32-zstd", "adler32-zstd", "shuffle-zstd", "delta-zstd"),
    *("sharded.end.zstd.3", "sharded.start.blosc.zstd.bitshuffle", "sharded.end.raw-crc32c"),
)


@lru_cache
def short_run(device):
    """One run for all tests of a backend: starting its processes takes longer than the mutations."""
    return damage.run(device, CHAINS, MUTATIONS, jobs=2)


@pytest.mark.full
@pytest.mark.parametrize("chain", CHAINS)
def test_damaged_chunks(backend, chain):
    """No crash, no hang, no values other than zarr-python's, no checksum unnoticed, no chunk unnamed."""
    report = short_run(backend.device)
    if reason := report.unusable.get(chain):
        assert "is not installed" in reason, reason
        pytest.skip(reason)
    assert report.total(chain).total() == MUTATIONS
    assert report.bugs(chain) == 0, report.suspicious[chain]
    assert report.total(chain)["error"] >= MUTATIONS // 4, report.total(chain)


@pytest.mark.full
def test_workers_may_crash_and_hang():
    """The tool writes down what they were at, and goes on behind it."""
    faults = {3: "crash", 8: "hang"}
    report = damage.run("cpu", ["raw"], 12, patience_s=5, faults=faults)
    assert report.total("raw").total() == 12
    found = {entry["number"]: entry["outcome"] for entry in report.suspicious["raw"]}
    assert found == {3: "crash", 8: "hang"}
    assert report.bugs() == 2
    assert "raw 3" in report.as_markdown({"device": "cpu"})


@pytest.mark.full
def test_mutations_are_the_same_every_time(tmp_path):
    for name in damage.TARGETS:
        try:
            stores = [damage.Store(name, tmp_path / part) for part in ("a", "b")]
        except pytest.skip.Exception:
            continue
        broken = []
        for store in stores:
            for number in range(20):
                file, intact, damaged, kind = store.mutation(name, 1, number)
                assert damaged != intact
                broken.append((file.relative_to(store.path), damaged, kind))
        assert broken[:20] == broken[20:], name


@pytest.mark.parametrize("name", damage.TARGETS)
def test_fields_lie_in_the_chunk(tmp_path, name):
    """Each format's fields are found in each of its chunks, apart from each other."""
    store = damage.Store(name, tmp_path)
    for chunk in store.chunks:
        fields = store.target.fields(chunk, 0, len(chunk))
        ends = 0
        for field in sorted(fields, key=lambda field: field.start):
            assert ends <= field.start and field.start + field.size <= len(chunk), field
            ends = field.start + field.size
        assert fields or name == "raw"


def test_snappy_by_hand():
    random = Random(5)
    for size in (0, 1, 59, 60, 61, 255, 256, 257, 70_000):
        for noise in (0.0, 0.1, 1.0):
            data = bytes(random.randrange(256) if random.random() < noise else i % 7 for i in range(size))
            assert snappy_decode(snappy_encode(data)) == data
            for broken in (snappy_encode(data)[:-1], snappy_encode(data) + b"\0"):
                with pytest.raises(ValueError):
                    snappy_decode(broken)


def test_repairs():
    """A repaired checksum fits, so that damage gets past it."""
    data = bytearray(b"content of a chunk" + bytes(4))
    mutations.repair_crc32c(data)
    assert data[-4:] == mutations.crc32c(data[:-4]).to_bytes(4, "little")
    index = mutations.Index(entries=2)
    shard = bytearray(range(100))
    index.repair(shard)
    assert index.span(shard) == (64, 96)
    assert shard[96:] == mutations.crc32c(shard[64:96]).to_bytes(4, "little")
