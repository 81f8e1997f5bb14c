"""What `zarr_dali.info` says of stores at URLs: requests and bytes of an epoch, and metadata that are not
consolidated."""

import json
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dali
from range_server import serving
from reading import CPU, build
from stores import FORMATS

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

import zarr

from zarr_dali.cli import main

SHAPE = (40, 24, 36)


def write(root, name, data, **settings):
    settings = {"zarr_format": 3, "chunks": (2, 12, 36), "compressors": None} | settings
    zarr.create_array(root, name=name, shape=data.shape, dtype=data.dtype, **settings)[:] = data


@pytest.fixture
def data(rng):
    return rng.integers(0, 1000, SHAPE).astype("f4")


def chunk_requests(server):
    return [request for request in server.requests() if "/c/" in request["path"]]


def asked_in_an_epoch(server, url, batch_size, **arguments):
    """Requests for chunks of one epoch, of a reader that cannot read ahead of it, and the bytes that came."""
    before = len(chunk_requests(server))
    pipe = build(CPU, url, batch_size=batch_size, **arguments)
    batches = -(-pipe.reader_meta("reader")["epoch_size"] // batch_size)
    for _ in range(batches):
        pipe.run()
    stats = zarr_dali.stats(pipe)
    del pipe
    asked = chunk_requests(server)[before:]
    return asked, stats


@pytest.mark.parametrize(
    "settings, requests",
    [
        # 20 x 2 chunks; sharded: 5 indexes, and of each the inner chunks of two batches.
        ({}, 40),
        ({"shards": (8, 24, 36), "compressors": zarr.codecs.ZstdCodec()}, 5 + 10),
    ],
)
def test_requests_and_bytes_of_an_epoch(tmp_path, data, settings, requests):
    write(tmp_path, "a", data, **settings)
    stored = sum(file.stat().st_size for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    with serving(tmp_path) as server:
        (report,) = zarr_dali.info(f"{server.url}/a", device="cpu", batch_size=4).arrays
        asked, _ = asked_in_an_epoch(server, f"{server.url}/a", 4)
    remote = report.reading.remote
    assert remote.requests == requests
    assert remote.bytes == pytest.approx(stored, rel=0.02)
    # Each object was asked for; the reader was in the next epoch by then, so that some were twice.
    assert len({(one["path"], one["range"]) for one in asked}) == requests


def test_windows_share_chunks_and_a_local_store_costs_no_requests(tmp_path, data):
    write(tmp_path, "a", data)
    with serving(tmp_path) as server:
        (report,) = zarr_dali.info(f"{server.url}/a", device="cpu", batch_size=4, window=[3]).arrays
    # 38 windows of three steps in batches of four: neighbours share a chunk of two steps.
    assert 36 <= report.reading.remote.requests <= 44
    (report,) = zarr_dali.info(tmp_path / "a", device="cpu").arrays
    assert report.reading.remote is None and report.consolidated is None


def test_metadata_that_are_not_consolidated_are_told_with_what_they_cost(tmp_path, data):
    group = zarr.create_group(tmp_path / "s", zarr_format=3)
    for name in ("a", "b"):
        write(group.store, name, data)
    with serving(tmp_path) as server:
        url = f"{server.url}/s"
        before = len(server.requests())
        apart = zarr_dali.info(url, ["a", "b"], device="cpu")
        assert len(server.requests()) > before
        zarr.consolidate_metadata(tmp_path / "s")
        together = zarr_dali.info(url, device="cpu")
        done = CliRunner().invoke(main, ["info", url, "--device", "cpu"])
    assert [array.consolidated for array in apart.arrays] == [False, False]
    (advice,) = [advice for advice in apart.advice if advice.code == "not-consolidated"]
    assert advice.arrays == ("a", "b") and "2 files" in advice.text and not advice.is_to_rewrite
    assert [array.consolidated for array in together.arrays] == [True, True]
    assert not [advice for advice in together.advice if advice.code == "not-consolidated"]
    assert "requests for" in done.output and done.exit_code == 0, done.output
    as_dict = json.loads(together.to_json())["arrays"][0]["reading"]["remote"]
    assert as_dict["requests"] == 40 and as_dict["bytes"] == np.prod(SHAPE) * 4


def test_a_group_that_cannot_be_listed_says_what_helps(tmp_path, data):
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    write(tmp_path / "g.zarr", "a", data)
    with serving(tmp_path) as server:
        url = f"{server.url}/g.zarr"
        with pytest.raises(ValueError, match="no listings; name the arrays, or consolidate"):
            zarr_dali.info(url, device="cpu")
        assert [report.name for report in zarr_dali.info(url, ["a"], device="cpu").arrays] == ["a"]
        with pytest.raises(ValueError, match="none that can be listed"):
            zarr_dali.info(url, ["b"], device="cpu")


def test_zip_files_and_documents_that_are_not_there(tmp_path, data):
    """To write them again, as damaged ones, helps nobody who misspelt a URL."""
    write(tmp_path / "in" / "g.zarr", "", data)
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as outer:
        for file in (tmp_path / "in").rglob("*"):
            outer.write(file, file.relative_to(tmp_path / "in"))
    with serving(tmp_path) as server:
        for name, words in [
            ("no.zip", "no such zip file; check its path or URL"),
            ("no.json", "no such document of references; check its path or URL"),
            ("outer.zip", r"in a zip file, it is .*outer\.zip\|zip:FOLDER"),
        ]:
            with pytest.raises((ValueError, RuntimeError), match=words):
                zarr_dali.info(f"{server.url}/{name}", device="cpu")
        found = zarr_dali.info(f"{server.url}/outer.zip|zip:g.zarr", device="cpu")
        assert found.arrays[0].shape == SHAPE
