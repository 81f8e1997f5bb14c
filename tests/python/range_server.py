"""A web server over a folder with what clients of object stores ask for: ranges, suffixes, tags, `If-Match`,
listings.

S3, Google Cloud Storage and Azure answer a plain GET in the same way, so that it stands in for them where
requests need not be signed. It is a process of its own, because a pipeline that is
being built holds Python's lock while it waits.
"""

import atexit
import email.utils
import json
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

LOG = "/requests-so-far"


@dataclass
class Faults:
    """Which requests for chunks fail, and how.

    Kinds are "403", "405", "500", "503", "reset" (the connection ends without an answer), "short" (it ends
    in the middle), "whole" (200 in place of 206) and "etag" (another tag for the same bytes); the last two
    are for requests of a part.
    """

    kinds: Sequence[str] = ()
    every: int = 0
    """Each request of this number fails, if it is not 0."""
    rate: float = 0.0
    """Else a request fails with this probability."""
    seed: int = 0


@dataclass
class Settings:
    root: str
    latency_s: float = 0.0
    late: str = ""
    """Answers for paths with this in them come later by `late_s`, if it is not empty."""
    late_s: float = 0.0
    absent: int = 404
    """How a request for what is not there is answered."""
    tags: bool = True
    """Whether objects have entity tags, and not only times."""
    capacity: int = 0
    """More requests for chunks at once are answered 503, if it is not 0."""
    listing: int = 200
    """How a request for a listing is answered."""
    page: int = 1000
    """Entries of an answer to one."""
    query: str = ""
    """What the URLs of all requests have to end with, if anything: others are answered 403."""
    key: str = ""
    """The access key that requests have to be signed with, if any."""
    region: str = ""
    """The region that requests have to be signed for, if any. Others are answered as S3 does."""
    redirects: bool = True
    """Whether that is a 301 with a header that names it, or a 400 with an error that does."""
    certificate: str = ""
    """PEM file with the key and the certificates of a server over TLS."""
    faults: Faults = field(default_factory=Faults)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Head and body of an answer leave together: else the system may hold the body back for 40 ms."""
    chunks = 0
    """Requests for chunks so far."""
    busy = 0
    """Requests that are answered now."""
    settings: Settings
    chance: random.Random
    log: list
    lock: threading.Lock

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _fault(self, path, wanted):
        """What goes wrong with a request, which is noted."""
        faults = self.settings.faults
        with self.lock:
            headers = sorted(name.lower() for name in self.headers)
            self.log.append({"method": self.command, "path": path, "range": wanted, "headers": headers})
            self.log[-1]["port"] = self.client_address[1]
            if signed := re.search("Credential=([^/]+)/", self.headers.get("Authorization", "")):
                self.log[-1]["key"] = signed[1]
            if signed := re.search("Credential=[^/]+/[^/]+/([^/]+)/", self.headers.get("Authorization", "")):
                self.log[-1]["region"] = signed[1]
            kinds = [kind for kind in faults.kinds if wanted or kind not in ("whole", "etag")]
            if "/c/" not in path or not kinds:
                return None
            type(self).chunks += 1
            if faults.every:
                fails = self.chunks % faults.every == faults.every - 1
            else:
                fails = self.chance.random() < faults.rate
            return self.chance.choice(kinds) if fails else None

    def _answer(self, with_body):
        path = unquote(urlsplit(self.path).path)
        if path == LOG:
            return self._send(200, json.dumps(self.log).encode())
        if not urlsplit(self.path).query.endswith(self.settings.query):
            return self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        region = self.settings.region
        if region and f"/{region}/s3/" not in self.headers.get("Authorization", ""):
            self._fault(path, None)
            if self.settings.redirects:
                return self._send(301, b"", {"x-amz-bucket-region": region})
            code = "<Code>AuthorizationHeaderMalformed</Code>"
            return self._send(400, f"<Error>{code}<Region>{region}</Region></Error>".encode())
        query = dict(parse_qsl(urlsplit(self.path).query))
        if "list-type" in query or query.get("comp") == "list":
            return self._list(path, query)
        wanted = self.headers.get("Range")
        fault = self._fault(path, wanted)
        with self.lock:
            type(self).busy += 1
            if "/c/" in path and 0 < self.settings.capacity < self.busy:
                fault = "503"
                self.log[-1]["refused"] = True
        try:
            return self._answer_with(path, wanted, fault, with_body)
        finally:
            with self.lock:
                type(self).busy -= 1

    def _answer_with(self, path, wanted, fault, with_body):
        is_late = self.settings.late and self.settings.late in path
        time.sleep(self.settings.latency_s + (self.settings.late_s if is_late else 0.0))
        if fault == "reset":
            self.close_connection = True
            self.connection.close()
            return None
        if self.settings.key and f"Credential={self.settings.key}/" not in self.headers.get(
            "Authorization", ""
        ):
            return self._send(
                403, b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
            )
        if fault in ("403", "405", "500", "503"):
            return self._send(int(fault), b"<Error><Code>AccessDenied</Code></Error>")
        file = Path(self.settings.root) / path.strip("/")
        if not file.is_file():
            return self._send(self.settings.absent, b"")
        data = file.read_bytes()
        tag = f'"{file.stat().st_mtime_ns:x}-{len(data):x}"'
        if fault == "etag":
            tag = f'"{len(self.log)}"'
        if (expected := self.headers.get("If-Match")) and expected != tag:
            return self._send(412, b"")
        start, end, status = 0, len(data), 200
        if wanted and fault != "whole":
            first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted).groups()
            if first == "":
                start = max(0, len(data) - int(last))
            else:
                start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
            if start >= len(data):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status = 206
        headers = {"Last-Modified": email.utils.formatdate(file.stat().st_mtime, usegmt=True)}
        if self.settings.tags:
            headers["ETag"] = tag
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return self._send(status, data[start:end], headers, with_body, fault == "short")

    def _list(self, bucket, query):
        """What lies directly below a prefix, a page at a time, as S3 and GCS or as Azure say it."""
        with self.lock:
            self.log.append({"method": "LIST", "path": f"{bucket}/{query.get('prefix', '')}", "range": None})
        if self.settings.listing != 200:
            return self._send(self.settings.listing, b"<Error><Code>AccessDenied</Code></Error>")
        prefix = query.get("prefix", "")
        folder = Path(self.settings.root) / bucket.strip("/") / prefix
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        start = int(query.get("continuation-token") or query.get("marker") or 0)
        end = start + self.settings.page
        more = str(end) if end < len(entries) else ""
        parts = []
        azure = "comp" in query
        for entry in entries[start:end]:
            name = escape(prefix + entry.name)
            if entry.is_dir():
                name += "/"
                parts.append(
                    f"<BlobPrefix><Name>{name}</Name></BlobPrefix>"
                    if azure
                    else f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
                )
                continue
            size, time_of = entry.stat().st_size, entry.stat().st_mtime
            if azure:
                parts.append(
                    f"<Blob><Name>{name}</Name><Properties><Last-Modified>"
                    f"{email.utils.formatdate(time_of, usegmt=True)}</Last-Modified>"
                    f"<Content-Length>{size}</Content-Length><Content-Type>x</Content-Type>"
                    "<Etag>x</Etag></Properties></Blob>"
                )
            else:
                parts.append(
                    f"<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                    f"<ETag>x</ETag><Size>{size}</Size></Contents>"
                )
        if azure:
            text = (
                f"<EnumerationResults><Blobs>{''.join(parts)}</Blobs><NextMarker>{more}</NextMarker>"
                "</EnumerationResults>"
            )
        else:
            token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
            text = (
                f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}"
                f"{''.join(parts)}</ListBucketResult>"
            )
        return self._send(200, text.encode())

    def _send(self, status, body, headers=None, with_body=True, short=False):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if short:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif with_body and self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests."""


class Server:
    """A running server."""

    def __init__(self, url):
        self.url = url

    def requests(self):
        """All requests so far: `method`, `path`, `range`, the names of all `headers`, the client's `port`,
        the access `key` and the `region` that it is signed with, and whether it was `refused` for want of
        capacity."""
        with urllib.request.urlopen(self.url + LOG) as answer:
            return json.load(answer)


def urls(server, path="data.zarr"):
    """The folder `bucket/PATH` of a server by the URL of each kind of store, with its options."""
    anonymous = {"anon": True}
    return {
        "http": (f"{server}/bucket/{path}", {}),
        "s3": (f"s3://bucket/{path}", anonymous | {"endpoint_url": server, "region": "eu-west-1"}),
        "gs": (f"gs://bucket/{path}", {"token": "anon", "endpoint_url": server}),
        "az": (f"az://bucket/{path}", anonymous | {"account_name": "account", "endpoint_url": server}),
    }


@contextmanager
def serving(root, **chosen):
    """A server over a folder, with the fields of `Settings` and `Faults`."""
    faults = {name: chosen.pop(name) for name in ("kinds", "every", "rate", "seed") if name in chosen}
    chosen["certificate"] = str(chosen.get("certificate", ""))
    settings = Settings(str(root), **chosen, faults=Faults(**faults))
    started = _asked({"settings": asdict(settings)})
    try:
        yield Server(started["url"])
    finally:
        _asked({"end": started["pid"]})


_LOCK = threading.Lock()


def _asked(request):
    """What the process that servers are forked from answers."""
    with _LOCK:
        parent = _parent(os.getpid())
        parent.stdin.write(json.dumps(request) + "\n")
        parent.stdin.flush()
        return json.loads(parent.stdout.readline())


@lru_cache
def _parent(_):
    """The process that servers are forked from, so that one starts in milliseconds; it ends with this one."""
    parent = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(parent.communicate)
    return parent


def main():
    """Starts and ends servers, one request a line. Ends all of them at the end of the requests."""
    running = set()
    for line in sys.stdin:
        request = json.loads(line)
        if pid := request.get("end"):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            running.remove(pid)
            print("null", flush=True)
            continue
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            _serve(request["settings"], write)
        running.add(pid)
        os.close(write)
        with open(read) as told:
            print(json.dumps({"pid": pid, "url": told.readline()}), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _serve(settings, told):
    """A server with these settings, in this process; its URL goes to the descriptor `told`."""
    settings["faults"] = Faults(**settings["faults"])
    settings = Settings(**settings)
    shared = {
        "settings": settings,
        "chance": random.Random(settings.faults.seed),
        "log": [],
        "lock": threading.Lock(),
    }
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), shared))
    if settings.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.certificate)
        # Else the thread that accepts connections would wait for those who do not like the certificate.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "https" if settings.certificate else "http"
    os.write(told, f"{scheme}://127.0.0.1:{server.server_port}".encode())
    os.close(told)
    server.serve_forever()


if __name__ == "__main__":
    main()
