"""Servers that others wrote: every chain of codecs through each kind of store, and what is wrong named."""

import json
import re
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
import zarr

import matrix
import real_servers
from chains import CHAINS
from fault_server import Fault, Schedule, running
from reading import CPU, assert_same_bits, build, read_all
from real_servers import SECRET, make_certificates, sas
from stores import FORMATS
from tiers import quick

if 3 not in FORMATS:
    pytest.skip("written through zarr-python 3", allow_module_level=True)

QUICK = (
    *("raw", "zstd.3", "zstd.3.checksum.no-size", "blosc.lz4.shuffle", "blosc.zstd.bitshuffle", "gzip.5"),
    *("lz4.1", "shuffle-zstd", "transpose-zstd", "sharded.end.zstd.3", "sharded.start.blosc.lz4.noshuffle"),
)
CASES = {}
for _case in matrix.CASES:
    if not matrix.pending(_case):
        CASES.setdefault(_case.chain, _case)
KINDS = ("hadro", "fake_gcs", "azurite", "https")
PLAIN = "plain.zarr"


def write_plain(bucket):
    """An array of which some chunks are missing; returns what is read of it."""
    data = np.arange(480, dtype="f4").reshape(20, 4, 6)
    data[8:12] = -1
    array = zarr.create_array(
        store=bucket / PLAIN, shape=data.shape, chunks=(2, 4, 6), dtype="f4", fill_value=-1
    )
    array[:] = data
    return data


class Servers:
    """Each server is started when it is asked for first."""

    def __init__(self, root, folder, stack):
        self.root, self.folder, self.stack = root, folder, stack
        self.started = {}
        self.in_folder = {}
        """The samples of an array as they are read from the folder, by chain."""
        self.certificates = None

    def __getitem__(self, kind):
        if kind not in self.started:
            more = []
            if kind == "https":
                more = [make_certificates(self.folder)]
                self.certificates = more[0]
            self.started[kind] = self.stack.enter_context(getattr(real_servers, kind)(self.root, *more))
        return self.started[kind]


def write_chains(bucket, chains):
    for name in chains:
        CASES[name].write(bucket / f"{name}.zarr")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Servers of a bucket with a plain array and the arrays of the quick tier."""
    root, folder = tmp_path_factory.mktemp("buckets"), tmp_path_factory.mktemp("certificates")
    (root / "bucket").mkdir()
    write_plain(root / "bucket")
    write_chains(root / "bucket", QUICK)
    with ExitStack() as stack:
        yield Servers(root, folder, stack)


@pytest.fixture(scope="module")
def all_servers(tmp_path_factory):
    """The same with the arrays of all chains."""
    root, folder = tmp_path_factory.mktemp("buckets"), tmp_path_factory.mktemp("certificates")
    (root / "bucket").mkdir()
    write_chains(root / "bucket", CASES)
    with ExitStack() as stack:
        yield Servers(root, folder, stack)


def assert_same_as_folder(servers, kind, chains):
    served = servers[kind]
    options = json.dumps(served.options)
    for name in chains:
        window = CASES[name].window
        settings = {"window": window, "batch_size": 1 if window else CASES[name].extents.shape[0]}
        if name not in servers.in_folder:
            (servers.in_folder[name],) = read_all(CPU, servers.root / "bucket" / f"{name}.zarr", **settings)
        expected = servers.in_folder[name]
        (found,) = read_all(CPU, f"{served.parent}/{name}.zarr", storage_options=options, **settings)
        assert len(found) == len(expected) > 0
        for sample, right in zip(found, expected):
            assert_same_bits(sample, right, f"{CASES[name].id} from {kind}")


@pytest.mark.parametrize("kind", quick(KINDS, "hadro"))
def test_chains_give_the_bits_of_the_folder(servers, kind):
    assert_same_as_folder(servers, kind, QUICK)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_all_chains_give_the_bits_of_the_folder(all_servers, kind):
    assert set(CASES) >= set(CHAINS) - {"numcodecs.blosc"}
    assert_same_as_folder(all_servers, kind, CASES)


def test_a_slow_server_with_failures_gives_the_bits_of_the_folder(tmp_path):
    (tmp_path / "bucket").mkdir()
    data = write_plain(tmp_path / "bucket")
    settings = {"latency-ms": 3, "latency-jitter-ms": 10, "error-rate": 0.2, "fault-seed": 5}
    with real_servers.hadro(tmp_path, **settings) as served:
        options = json.dumps(served.options)
        (found,) = read_all(CPU, f"{served.parent}/{PLAIN}", storage_options=options)
    np.testing.assert_array_equal(np.stack(found), data)


# --- what is wrong --------------------------------------------------------------------------------

FORBIDDEN = "check the credentials and what they permit"
OURS = "requested with the access key of storage_options"
NO_BUCKET = "the bucket or container is not there"
NO_METADATA = "holds no Zarr metadata"
CERTIFICATE = "check the name of the host, its certificate and the clock"

WRONG = {
    # Of which server; what replaces options, or the URL; what the error says.
    "secret": ("hadro", {"secret": f"{SECRET}-not"}, None, ("403", "SignatureDoesNotMatch", OURS, FORBIDDEN)),
    "key": ("hadro", {"key": "OTHER"}, None, ("403", "InvalidAccessKeyId", OURS, FORBIDDEN)),
    "no key": (
        "hadro",
        {"key": None, "secret": None, "anon": True},
        None,
        ("403", "AccessDenied", "requested with no credentials", "give credentials", "permission"),
    ),
    "bucket": ("hadro", {}, f"s3://nothing/{PLAIN}", ("404", "NoSuchBucket", NO_BUCKET)),
    "store": ("hadro", {}, "s3://bucket/nothing.zarr", (NO_METADATA,)),
    "gcs bucket": ("fake_gcs", {}, f"gs://nothing/{PLAIN}", (NO_METADATA,)),
    "account key": (
        "azurite",
        {"account_key": "bm90aGluZw=="},
        None,
        ("403", "AuthorizationFailure", "requested with the account key", FORBIDDEN),
    ),
    "signature": (
        "azurite",
        {"account_key": None, "sas_token": lambda: sas(ends=timedelta(minutes=-5))},
        None,
        ("403", "AuthorizationFailure", "requested with a shared access signature", FORBIDDEN),
    ),
    "container": ("azurite", {}, f"az://nothing/{PLAIN}", ("404", "ContainerNotFound", NO_BUCKET)),
    "authority": ("https", {"ca_bundle": None}, None, ("UnknownIssuer", CERTIFICATE, "ca_bundle")),
    "host": (
        "https",
        {},
        lambda url: url.replace("127.0.0.1", "localhost"),
        ("not valid for name", CERTIFICATE),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_at_once(servers, what):
    kind, change, url, words = WRONG[what]
    served = servers[kind]
    path = f"{served.parent}/{PLAIN}"
    path = url(path) if callable(url) else url or path
    change = {name: value() if callable(value) else value for name, value in change.items()}
    assert_refused(path, served.options | change, words)


def assert_refused(path, options, words):
    """It is refused when the pipeline is built, and not after long repeating."""
    options = {name: value for name, value in options.items() if value is not None}
    began = datetime.now()
    with pytest.raises((RuntimeError, ValueError)) as error:
        build(CPU, path, storage_options=json.dumps(options))
    said = str(error.value)
    assert (datetime.now() - began).total_seconds() < 5
    assert path in said and all(word in said for word in words), said
    assert SECRET not in said and "sig=" not in said and "<?xml" not in said
    keys = [value for name, value in options.items() if re.search("key|secret|token", name)]
    assert not any(str(value) in said for value in keys if len(str(value)) > 5), said


def test_a_certificate_that_has_expired_is_named(servers, tmp_path):
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    certificates = make_certificates(tmp_path, ends=yesterday)
    with real_servers.https(servers.root, certificates) as served:
        assert_refused(f"{served.parent}/{PLAIN}", served.options, ("certificate expired", CERTIFICATE))


S3_SAYS = {
    # Which no server at hand says: what S3 answers to a wrong region, old credentials and a wrong clock.
    "redirect-bare": ("incorrectly configured region", "region"),
    "expired": ("400", "ExpiredToken", OURS, "not expired"),
    "clock": ("403", "RequestTimeTooSkewed", "clock"),
    "signature": ("403", "SignatureDoesNotMatch", OURS, FORBIDDEN),
}


@pytest.mark.parametrize("kind", S3_SAYS)
def test_what_s3_says_is_named_at_once(servers, kind):
    schedule = Schedule(str(servers.root), faults=[Fault(kind, "any")])
    with running() as server, server.schedule("s3", schedule) as (url, _):
        options = {"endpoint_url": url, "region": "eu-west-1", "key": "KEY", "secret": SECRET}
        assert_refused(f"s3://bucket/{PLAIN}", options, S3_SAYS[kind])


def test_credentials_that_expire_while_it_is_read(servers):
    """The first batches come, then an error that says so, and never a fill value."""
    schedule = Schedule(str(servers.root), faults=[Fault("expired", "any", first=8)])
    with running() as server, server.schedule("s3", schedule) as (url, _):
        options = {"endpoint_url": url, "region": "eu-west-1", "key": "KEY", "secret": SECRET}
        pipe = build(
            CPU,
            f"s3://bucket/{PLAIN}",
            batch_size=2,
            storage_options=json.dumps(options),
            missing_chunks="fill-403",
            pipeline={"prefetch_queue_depth": 1},
        )
        with pytest.raises(RuntimeError, match="ExpiredToken") as error:
            for start in range(0, 20, 2):
                batch = pipe.run()[0].as_array()
                expected = np.arange(start * 24, start * 24 + 48, dtype="f4").reshape(2, 4, 6)
                np.testing.assert_array_equal(batch, -1 if start in (8, 10) else expected)
        assert f"s3://bucket/{PLAIN}" in str(error.value) and SECRET not in str(error.value)
        del pipe
