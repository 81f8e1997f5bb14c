"""A server of objects that misbehaves as a schedule says, and says what it did.

`range_server.py` is a good server with single faults for tests that count requests. This one has all that
goes wrong between a client and an object store. One process serves many schedules, one after the other or at
once: the URL `http://HOST:PORT/ID` is a store as it behaves under the schedule `ID`. What fails follows from
the schedule's seed and from how often an object, or a part of it, was asked for before, whatever the order of
requests is.
"""

import asyncio
import email.utils
import gzip
import json
import random
import re
import socket
import struct
import subprocess
import sys
import urllib.request
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

SECRET = "s3cr3t"
"""Is in whatever nobody may see."""

STATUS = {
    # Kind: status, code of the answer.
    "408": (408, "RequestTimeout"),
    "429": (429, "TooManyRequests"),
    "500": (500, "InternalError"),
    "502": (502, None),
    "503": (503, "SlowDown"),
    "504": (504, None),
    "401": (401, "InvalidAuthenticationInfo"),
    "403": (403, "AccessDenied"),
    "403-archived": (403, "InvalidObjectState"),
    "405": (405, None),
    "expired": (400, "ExpiredToken"),
    "clock": (403, "RequestTimeTooSkewed"),
    "signature": (403, "SignatureDoesNotMatch"),
    "no-bucket": (404, "NoSuchBucket"),
}
PASSING = ("408", "429", "500", "502", "503", "504")
"""What a client may ask for again."""
TRANSPORT = ("reset", "reset-headers", "reset-body", "short", "hang", "hang-headers", "hang-body")
"""What happens to connections."""
ANSWERS = (
    *("whole", "range-moved", "range-longer", "range-none", "range-unread", "total", "tag-other", "tag-none"),
    *("other-object", "redirect", "redirect-loop", "redirect-bare", "redirect-away", "gzip", "transcoded"),
    *("endless", "no-length", "page", "no-http"),
)
"""Answers that are not what a server should say, or are, such as a redirect."""
KINDS = (*STATUS, *TRANSPORT, *ANSWERS)
REDIRECTS = {"redirect": (301, 302, 303, 307, 308), "redirect-loop": (302,), "redirect-away": (302, 307)}


@dataclass
class Fault:
    """What goes wrong, with which requests, and how often."""

    kind: str
    where: str = "chunk"
    """"chunk", "metadata" or "any"."""
    share: float = 1.0
    """This part of all objects has the fault."""
    times: int = 0
    """The first requests, this many, of an object or of a range of it fail; all of them, if it is 0."""
    first: int = 0
    """Requests before this one are answered well: credentials that expire, or the begin of a burst."""
    last: int = 0
    """The end of a burst, if it is not 0."""


@dataclass
class Schedule:
    """How a folder is served."""

    root: str
    seed: int = 0
    faults: list = field(default_factory=list)
    latency_s: float = 0.0
    """The median; one in a hundred takes ten times as long."""
    bytes_per_s: float = 0.0
    """Of one connection; as fast as it goes, if it is 0."""
    absent: int = 404
    tags: str = "strong"
    """"strong", "weak" or "none"."""
    elsewhere: str = "http://127.0.0.2:9"
    """Where "redirect-away" leads; nobody listens there by default."""


class _Served:
    """A schedule, and what came of it."""

    def __init__(self, settings):
        self.settings = Schedule(**settings)
        self.settings.faults = [Fault(**fault) for fault in self.settings.faults]
        self.requests = self.now = self.peak = 0
        self.asked = Counter()
        self.faults = Counter()

    def chance(self, *words):
        return random.Random(f"{self.settings.seed} {words}")

    def latency_s(self, path, number):
        settings = self.settings
        chance = self.chance("latency", path, number)
        return settings.latency_s * (10 if chance.random() < 0.01 else chance.lognormvariate(0, 0.4))

    def fault(self, path, wanted):
        """What goes wrong with a request."""
        name = path.rsplit("/", 1)[-1]
        where = (
            "metadata" if name in ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata") else "chunk"
        )
        self.requests += 1
        # What is asked for behind a body that broke off ends where that did.
        place = path, wanted and wanted.split("-")[1]
        number = self.asked[place]
        self.asked[place] += 1
        for at, fault in enumerate(self.settings.faults):
            if (
                fault.where in (where, "any")
                and self.requests > fault.first
                and (not fault.last or self.requests <= fault.last)
                and (not fault.times or number < fault.times)
                and self.chance(at, path).random() < fault.share
            ):
                self.faults[fault.kind] += 1
                return fault.kind, number
        return None, number


class FaultServer:
    """Answers requests."""

    def __init__(self):
        self.served = {}

    async def connected(self, reader, writer):
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self.answered(reader, writer):
                pass
        with suppress(OSError):
            writer.close()

    async def answered(self, reader, writer):
        """Answers one request. Returns whether the connection can be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        parts = urlsplit(target)
        name, _, path = unquote(parts.path).lstrip("/").partition("/")
        if method == "POST":
            return await self.told(writer, name, body)
        if method == "DELETE":
            return await self.ended(writer, name)
        if (served := self.served.get(name)) is None:
            return await _send(writer, 410, {}, b"no such schedule")
        answer = _Answer(served, name, method, path, parts.query, headers, reader, writer)
        served.now += 1
        served.peak = max(served.peak, served.now)
        try:
            return await answer.send()
        finally:
            served.now -= 1

    async def told(self, writer, name, body):
        self.served[name] = _Served(json.loads(body))
        return await _send(writer, 200, {}, b"{}")

    async def ended(self, writer, name):
        served = self.served.pop(name)
        report = {"requests": served.requests, "peak": served.peak, "faults": served.faults}
        return await _send(writer, 200, {}, json.dumps(report).encode())


@dataclass
class _Answer:
    served: _Served
    name: str
    method: str
    path: str
    query: str
    headers: dict
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self):
        wanted = self.headers.get("range")
        # Where a redirect leads all is well.
        redirected = "redirected" in self.query
        fault, number = (None, 0) if redirected else self.served.fault(self.path, wanted)
        self.chance = self.served.chance(self.path, wanted, number)
        await asyncio.sleep(self.served.latency_s(self.path, number))
        if fault in STATUS:
            return await self.refuse(*STATUS[fault])
        if fault == "reset":
            return self.reset()
        if fault == "hang":
            return await self.hang()
        if fault == "no-http":
            self.writer.write(b"220 mail.example.org ESMTP ready\r\n" * 3)
            return False
        if fault == "page":
            page = f"<html>Sign in to the network<a href='/?token={SECRET}'></a></html>".encode() * 40
            return await self.answer(200, {"Content-Type": "text/html", "ETag": '"page"'}, page)
        if fault and fault.startswith("redirect"):
            return await self.redirect(fault)
        file = Path(self.served.settings.root) / self.path
        if not file.is_file():
            return await self.refuse(self.served.settings.absent, None)
        return await self.object(file.read_bytes(), int(file.stat().st_mtime), wanted, fault)

    async def refuse(self, status, code):
        body = ""
        if code:
            body = (
                '<?xml version="1.0" encoding="UTF-8"?>\n'
                f"<Error><Code>{code}</Code><Message>It failed.</Message>"
                f"<StringToSign>{SECRET}</StringToSign></Error>"
            )
        return await self.answer(status, {"Content-Type": "application/xml"}, body.encode())

    async def redirect(self, fault):
        if fault == "redirect-bare":
            return await self.answer(301, {"x-amz-bucket-region": "eu-north-1"}, b"")
        status = self.chance.choice(REDIRECTS[fault])
        signed = f"X-Amz-Signature={SECRET}&X-Amz-Security-Token={SECRET}"
        to = {
            "redirect": f"/{self.name}/{self.path}?redirected&{signed}",
            "redirect-loop": f"/{self.name}/{self.path}?again&{signed}",
            "redirect-away": f"{self.served.settings.elsewhere}/{self.path}?{signed}",
        }[fault]
        return await self.answer(status, {"Location": to}, b"")

    async def object(self, data, modified, wanted, fault):
        tags = self.served.settings.tags
        tag = f'"{zlib.crc32(data):08x}-{len(data):x}"'
        expected = self.headers.get("if-match")
        if fault == "tag-other":
            tag = f'"{self.chance.random()}"'
        elif fault == "other-object" and expected:
            # A server that knows no conditions, and has another object now.
            tag, expected, data = '"other"', None, bytes(255 - byte for byte in data)
        if expected and expected != tag:
            return await self.answer(412, {}, b"")
        headers = {"Last-Modified": email.utils.formatdate(modified, usegmt=True)}
        if tags != "none" and fault != "tag-none":
            headers["ETag"] = tag if tags == "strong" else f"W/{tag}"
        start, end, total = 0, len(data), len(data)
        if fault in ("gzip", "transcoded"):
            if fault == "gzip":
                return await self.answer(200, headers | {"Content-Encoding": "gzip"}, gzip.compress(data, 1))
            stored = {"x-goog-stored-content-encoding": "gzip", "Transfer-Encoding": "chunked"}
            return await self.answer(200, headers | stored, data)
        if fault == "endless":
            wanted = None
        if not wanted or fault == "whole":
            return await self.answer(200, headers, data, fault)
        first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted).groups()
        if first:
            start, end = int(first), min(end, int(last) + 1 if last else end)
        else:
            start = max(0, end - int(last))
        if start >= total:
            return await self.answer(416, {"Content-Range": f"bytes */{total}"}, b"")
        if fault == "range-moved":
            start, end = max(0, start - 1), max(1, end - 1)
        elif fault == "range-longer":
            end = min(total, end + 10) if end < total else end - 1
        elif fault == "total":
            total += 7
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        if fault == "range-none":
            del headers["Content-Range"]
        elif fault == "range-unread":
            headers["Content-Range"] = f"bytes {start}-{end - 1}/*"
        return await self.answer(206, headers, data[start:end], fault)

    async def answer(self, status, headers, body, fault=None):
        """Sends an answer; what happens to its connection is up to the fault."""
        writer = self.writer
        length = len(body) if fault != "endless" else 1 << 40
        if fault != "no-length" and "Transfer-Encoding" not in headers:
            headers["Content-Length"] = str(length)
        head = [f"HTTP/1.1 {status} {'OK' if status < 300 else 'Not so'}"]
        head = "\r\n".join([*head, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()
        if fault in ("reset-headers", "hang-headers"):
            writer.write(head[: len(head) // 2])
            await writer.drain()
            return self.reset() if fault == "reset-headers" else await self.hang()
        writer.write(head)
        if self.method == "HEAD":
            return True
        if fault in ("short", "reset-body", "hang-body"):
            await self.write(body[: int(len(body) * self.chance.random())])
            if fault == "short":
                return False
            return self.reset() if fault == "reset-body" else await self.hang()
        if fault == "endless":
            while True:
                await self.write(bytes(1 << 16))
        if "Transfer-Encoding" in headers:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        await self.write(body)
        return fault != "no-length"

    async def write(self, body):
        """As fast as a connection may be."""
        rate = self.served.settings.bytes_per_s
        step = 1 << 14 if rate else len(body)
        for at in range(0, len(body), step or 1):
            self.writer.write(body[at : at + step])
            await self.writer.drain()
            if rate:
                await asyncio.sleep(step / rate)

    async def hang(self):
        """Until the client goes away."""
        await self.writer.drain()
        await self.reader.read()
        return False

    def reset(self):
        """Ends the connection in a way that the client's system notices as an error."""
        sock = self.writer.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        return False


async def _send(writer, status, headers, body):
    head = [f"HTTP/1.1 {status} OK", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    await writer.drain()
    return True


class Control:
    """The server, seen from the process that started it."""

    def __init__(self, url):
        self.url = url

    @contextmanager
    def schedule(self, name, schedule):
        """Yields the URL of the served folder, and a dictionary in which is afterwards what came of it."""
        url, came = f"{self.url}/{name}", {}
        _ask("POST", url, json.dumps(asdict(schedule)).encode())
        try:
            yield url, came
        finally:
            came.update(json.loads(_ask("DELETE", url)))


def _ask(method, url, data=None):
    with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=30) as answer:
        return answer.read()


@contextmanager
def running():
    """A server in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        yield Control(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def main():
    server = await asyncio.start_server(FaultServer().connected, "127.0.0.1", 0, backlog=512)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
