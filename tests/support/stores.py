"""Servers of stores, and a server in front of one that fails and stalls as real stores do, on loopback."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from benchmarks.serving import free_port
from tests.support import eventually

BUCKET = "photos"
S = TypeVar("S", bound=BaseServer)


class Faulty(ThreadingHTTPServer):
    """Forwards to a server of S3, with pages of two objects.

    failures: how often a path gets status 503; slow: paths that send nothing; requests: number by path.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.failures: Counter[str] = Counter()
        self.slow: set[str] = set()
        self.requests: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faulty

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests[path] += 1
        if path in self.server.slow:
            time.sleep(3)
            self.close_connection = True
        elif self.server.failures[path]:
            self.server.failures[path] -= 1
            self._reply(503, b"")
        else:
            self._forward()

    do_HEAD = do_GET  # noqa: N815  # named by the library

    def _forward(self) -> None:
        paged = "&max-keys=2" if "list-type=2" in self.path else ""
        url, headers = self.server.upstream + self.path + paged, {"Authorization": self.headers["Authorization"]}
        response = httpx.request(self.command, url, headers=headers, timeout=60)
        self._reply(response.status_code, response.content, response.headers)

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            if name.lower() in ("etag", "last-modified", "content-type") or (
                name.lower() == "content-length" and self.command == "HEAD"
            ):
                self.send_header(name, value)
        if self.command != "HEAD" or not headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving_in_thread(server: S) -> Iterator[S]:
    """A server that serves until the end of the block."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server of moto with an empty bucket."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def created() -> bool:
        assert process.poll() is None, command
        with suppress(httpx.TransportError):
            return httpx.put(f"{url}/{BUCKET}").is_success
        return False

    try:
        eventually(created, failure=lambda: command)
        yield url
    finally:
        process.terminate()
        process.wait()


def put(url: str, key: str, payload: bytes) -> None:
    """Store an object in the bucket, for requests without credentials as well."""
    headers = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
    httpx.put(f"{url}/{BUCKET}/{key}", content=payload, headers=headers).raise_for_status()
