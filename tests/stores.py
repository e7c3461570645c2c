"""An S3 server, and a server in front of it that fails and stalls as real stores do, on loopback."""

import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from tests.serving import free_port
from tests.support import ROOT

BUCKET = "photos"


class Faulty(ThreadingHTTPServer):
    """Serves `files`, or forwards to a server of S3, with pages of two objects.

    failures: how often a path gets status 503; slow: paths that send nothing; requests: number by path.
    """

    daemon_threads = True

    def __init__(self, upstream: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.files: dict[str, bytes] = {}
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
        elif self.server.upstream:
            self._forward()
        elif path in self.server.files:
            self._reply(200, self.server.files[path])
        else:
            self._reply(404, b"")

    do_HEAD = do_GET  # noqa: N815  # named by the library

    def _forward(self) -> None:
        paged = "&max-keys=2" if "list-type=2" in self.path else ""
        url, headers = self.server.upstream + self.path + paged, {"Authorization": self.headers["Authorization"]}
        request = urllib.request.Request(url, method=self.command, headers=headers)  # noqa: S310  # loopback
        try:
            with urllib.request.urlopen(request) as response:  # noqa: S310  # loopback
                self._reply(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            self._reply(error.code, error.read())

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
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
def faulty_server(upstream: str = "") -> Iterator[Faulty]:
    """A server of the tests, which ends with the block."""
    with Faulty(upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server of moto with an empty bucket; skips the test if moto is not installed."""
    own = ROOT / ".venv-moto" / "bin" / "moto_server"
    program = str(own) if own.exists() else shutil.which("moto_server")
    if program is None:
        pytest.skip("moto_server is not installed: `sh requirements/install.sh .venv-moto moto`. S3 is not tested")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _create_bucket(url)
        yield url
    finally:
        process.terminate()
        process.wait()


def _create_bucket(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"))  # noqa: S310  # loopback
        except OSError:
            assert time.monotonic() < deadline, "moto did not start"
            time.sleep(0.1)
        else:
            return


def put(url: str, key: str, payload: bytes) -> None:
    """Store an object in the bucket."""
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{url}/{BUCKET}/{key}", payload, headers, method="PUT")  # noqa: S310  # loopback
    urllib.request.urlopen(request).close()  # noqa: S310
