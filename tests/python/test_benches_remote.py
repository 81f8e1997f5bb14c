"""`benches/remote.py`, its server and its bare readers, on small stores and the CPU backend."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from stores import FORMATS

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))
import common
import remote
import remote_reading
import serving

BENCHES = Path(remote.__file__).parent
PROGRAMS = remote.default_programs()

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not all((PROGRAMS / name).exists() for name in serving.PROGRAMS),
        reason="the examples range_server and range_readers are not built",
    ),
]


@pytest.fixture
def server(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0").write_bytes(bytes(range(100)))
    client, _ = remote.halves()
    one = serving.Server(PROGRAMS, tmp_path, client)
    yield one
    one.close()


def ask(url, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def test_the_server_answers_as_an_object_store_does(server):
    url, whole = f"{server.url}/c/0", bytes(range(100))
    status, body, headers = ask(url)
    assert (status, body) == (200, whole)
    for asked, expected in (
        ("10-19", whole[10:20]),
        ("90-", whole[90:]),
        ("-5", whole[95:]),
        ("90-200", whole[90:]),
    ):
        status, body, of_part = ask(url, Range=f"bytes={asked}")
        assert (status, body) == (206, expected) and of_part["ETag"] == headers["ETag"]
        assert of_part["Content-Range"].endswith("/100")
    assert ask(url, Range="bytes=100-")[0] == 416
    assert ask(url, If_Match='"other"')[0] == 412 and ask(url, If_Match=headers["ETag"])[0] == 200
    assert (
        ask(f"{server.url}/c/1")[0] == ask(f"{server.url}/c/../c/0x")[0] == ask(f"{server.url}/c")[0] == 404
    )
    with serving.answering(server.url, busy=1):
        assert ask(url)[0] == 503
    began = time.perf_counter()
    with serving.answering(server.url, ms=200):
        assert ask(url)[0] == 200
    assert time.perf_counter() - began >= 0.2
    with serving.answering(server.url, late=1, late_ms=300):
        assert ask(url)[0] == 200
    assert time.perf_counter() - began >= 0.5
    counted = serving.tell(server.url, None)
    assert counted["busy"] == 1 and counted["late"] == 1 and counted["requests"] > 10


def test_bare_readers_get_the_rate_that_the_server_is_held_to(server, tmp_path):
    (tmp_path / "c" / "0").write_bytes(bytes(200_000))
    (tmp_path / "list").write_text("c/0\nc/0 1000 101000\n")
    for how in ({}, {"hyper": 1}):
        with serving.answering(server.url, mb_per_s=20):
            found = serving.read_bare(PROGRAMS, server.url, tmp_path / "list", 4, 1.0, **how)
        assert 0 < found["gb_per_s"] < 0.03 and found["requests_per_s"] > 0
    with pytest.raises(RuntimeError, match="404"):
        (tmp_path / "list").write_text("c/1\n")
        serving.read_bare(PROGRAMS, server.url, tmp_path / "list", 1, 1.0)


@pytest.mark.full
def test_a_quick_run_has_a_row_for_each_point(tmp_path):
    command = [sys.executable, str(BENCHES / "remote.py"), "--quick", "--device", "cpu"]
    command += ["--folder", str(tmp_path), "--out", str(tmp_path), "--points", "raw/http*", "late", "sharded"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (kept,) = tmp_path.glob("remote_quick-*.json")
    rows = {row["point"]: row for row in json.loads(kept.read_text())["rows"]}
    assert not [row for row in rows.values() if "problem" in row], rows
    for point in ("raw/http", "raw/https"):
        row = rows[point]
        assert row["share_of_bare"] == pytest.approx(row["wire_gb_per_s"] / row["bare"]["gb_per_s"])
        assert row["requests"] > 0 and 1 <= row["network_threads"] <= 4
    assert 0 <= rows["late"]["more_requests"] < 0.05
    # The shards of a quick run are small beside the gaps that are asked for with their neighbours.
    assert 0.5 < rows["sharded"]["useful_of_wire"] <= 1
    assert "| raw store, HTTP |" in done.stdout and str(tmp_path) not in kept.read_text()


def test_what_the_joining_rule_makes_of_a_sharded_chunk(tmp_path):
    import numpy as np
    import zarr

    array = zarr.create_array(
        tmp_path / "a",
        shape=(8, 40),
        chunks=(1, 10),
        shards=(2, 40),
        dtype="u1",
        compressors=None,
        fill_value=0,
    )
    array[:] = np.arange(1, 321).reshape(8, 40) % 250 + 1
    requests, useful = remote_reading.joined_ranges(tmp_path / "a", 1 << 20)
    assert (requests, useful) == (1, 80)
    # Two inner chunks at once.
    assert remote_reading.joined_ranges(tmp_path / "a", 20)[0] == 4
    assert len(common.chunk_files(tmp_path / "a")) == 4
