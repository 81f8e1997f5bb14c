"""A fast web server over a folder, and bare readers of it, on cores of their own: for `remote.py`.

Both are programs in Rust, `range_server.rs` and `range_readers.rs`:

    cargo build --release --example range_server --example range_readers
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("range_server", "range_readers")
UNDISTURBED = {"ms": 0, "late": 0, "late_ms": 2000, "busy": 0, "mb_per_s": 0, "connection_mb_per_s": 0}
"""Settings of a server that is as fast as it can be."""


def program(folder: Path, name: str) -> str:
    """The path of one of `PROGRAMS`.

    Raises:
        FileNotFoundError: It is not there.
    """
    path = folder / name
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(
            f"there is no program {path}; build it with `cargo build --release --example {name}`, "
            "or say with --programs where it is"
        )
    return str(path.resolve())


class Server:
    """A running server.

    Attributes:
        url: of the folder that is served.
        pid: of its process.
    """

    def __init__(self, programs: Path, root: Path, cores: Sequence[int], pem: Path | None = None) -> None:
        """
        Args:
            programs: folder of `PROGRAMS`.
            root: the folder that is served.
            cores: those that the server may use.
            pem: file with a certificate and its key: TLS.
        """
        command = [program(programs, "range_server"), str(root), *(("--tls", str(pem)) if pem else ())]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.url = self.process.stdout.readline().strip()
        self.pid = self.process.pid

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def tell(url: str, authority: str | None, **settings: float) -> dict[str, int]:
    """Changes settings of the server at a URL; returns what it has counted since it was started."""
    import ssl

    query = "&".join(f"{name}={value}" for name, value in settings.items())
    context = ssl.create_default_context(cafile=authority) if url.startswith("https") else None
    host = "/".join(url.split("/")[:3])
    with urllib.request.urlopen(f"{host}/-/?{query}", timeout=60, context=context) as answer:
        return json.load(answer)


@contextmanager
def answering(url: str, authority: str | None = None, **settings: float) -> Iterator[None]:
    """In the block the server at a URL has these settings, behind it none."""
    tell(url, authority, **(UNDISTURBED | settings))
    try:
        yield
    finally:
        tell(url, authority, **UNDISTURBED)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, made by openssl.

    Returns:
        The file with the certificate and its key, and the one that clients trust.

    Raises:
        FileNotFoundError: There is no openssl.
    """
    if shutil.which("openssl") is None:
        raise FileNotFoundError("TLS needs the program openssl, to make a certificate")
    both, trusted, key = (folder / name for name in ("server.pem", "trusted.pem", "key.pem"))
    if not both.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "3650", "-subj", "/CN=127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(trusted)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        both.write_text(key.read_text() + trusted.read_text())
    return both, trusted


def read_bare(
    programs: Path,
    url: str,
    requests: Path,
    connections: int,
    seconds: float,
    *,
    hyper: int | None = None,
    kept_mib: int = 0,
    authority: str | None = None,
) -> dict[str, Any]:
    """What bare readers get, on the cores of this process: see `range_readers.rs`.

    Args:
        programs: folder of `PROGRAMS`.
        url: of the store.
        requests: file with a line for each request.
        connections: how many there are.
        seconds: that are timed.
        hyper: so many threads with a runtime each; None: a blocking thread for each connection.
        kept_mib: memory that hyper's readers copy what comes to, in MiB.
        authority: file with the certificate to trust.

    Raises:
        RuntimeError: What the readers say.
    """
    command = [program(programs, "range_readers"), url, str(requests), str(connections), str(seconds)]
    command += ["--hyper", str(hyper), "--keep", str(kept_mib)] if hyper else []
    command += ["--ca", authority] if authority else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 4 * seconds)
    if done.returncode:
        raise RuntimeError(f"range_readers: {done.stderr.strip()[:500]}")
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "connections": connections}
