"""A web server over a folder, with what clients of object stores ask for: ranges, suffixes, entity tags and `If-Match`.

S3, Google Cloud Storage and Azure answer a plain GET in the same way, so that it stands in for them where requests need not be signed
and nothing is listed.
"""

import email.utils
import re
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Request:
    """What a client asked for."""

    method: str
    path: str
    query: str
    range: str | None
    headers: dict[str, str]


@dataclass
class Answers:
    """How the server answers, and what it was asked."""

    latency_s: float = 0.0
    fault: Callable[[Request, int], str | None] = lambda request, number: None
    """For a request and its number: "403", "503", "reset", "short", "whole" (200 in place of 206), "etag", or None."""
    log: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, request: Request) -> int:
        with self.lock:
            self.log.append(request)
            return len(self.log) - 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    answers: Answers

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _answer(self, with_body):
        url = urlsplit(self.path)
        wanted = self.headers.get("Range")
        request = Request(self.command, unquote(url.path), url.query, wanted, dict(self.headers))
        fault = self.answers.fault(request, self.answers.note(request))
        time.sleep(self.answers.latency_s)
        if fault == "reset":
            self.close_connection = True
            self.connection.close()
            return None
        if fault in ("403", "503"):
            return self._send(int(fault), b"<Error><Code>Refused</Code></Error>")
        file = self.root / request.path.strip("/")
        if not file.is_file():
            return self._send(404, b"")
        data = file.read_bytes()
        tag = f'"{file.stat().st_mtime_ns:x}-{len(data):x}"'
        if fault == "etag":
            tag = f'"{len(self.answers.log)}"'
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
        headers = {"ETag": tag, "Last-Modified": email.utils.formatdate(file.stat().st_mtime, usegmt=True)}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return self._send(status, data[start:end], headers, with_body, fault == "short")

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


@contextmanager
def serving(root, **settings):
    """The URL of a server over a folder, and its `Answers`."""
    answers = Answers(**settings)
    handler = type("Handler", (_Handler,), {"root": Path(root), "answers": answers})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
