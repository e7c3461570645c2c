"""moto's S3 on loopback, which fails and stalls as real stores do."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import Any

import httpx
import pytest

BUCKET = "photos"


class Store:
    """A WSGI application in front of one of S3, with pages of two objects.

    failures: how often a path gets status 503; slow: paths that respond late; requests: number by path.
    """

    def __init__(self, s3: Callable[..., Iterable[bytes]]) -> None:
        self.s3 = s3
        self.url = ""
        self.failures: Counter[str] = Counter()
        self.slow: set[str] = set()
        self.requests: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode()
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            self.requests[path] += 1
            time.sleep(3 * (path in self.slow))
            if self.failures[path]:
                self.failures[path] -= 1
                start_response("503 Service Unavailable", [("Content-Length", "0")])
                return []
            if "list-type=2" in environ["QUERY_STRING"]:
                environ["QUERY_STRING"] += "&max-keys=2"
        return self.s3(environ, start_response)


@contextmanager
def serving_in_thread(server: BaseServer) -> Iterator[Any]:
    """A server that serves until the end of the block."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def s3_server() -> Iterator[Store]:
    """A running store with an empty bucket; skips the test without moto."""
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto is not installed: S3 is not tested")
    from werkzeug.serving import make_server

    store = Store(moto.DomainDispatcherApplication(moto.create_backend_app))
    with serving_in_thread(make_server("127.0.0.1", 0, store, threaded=True)) as server:
        store.url = f"http://127.0.0.1:{server.server_port}"
        httpx.post(f"{store.url}/moto-api/reset").raise_for_status()
        httpx.put(f"{store.url}/{BUCKET}").raise_for_status()
        yield store


def put(url: str, key: str, payload: bytes) -> None:
    """Store an object in the bucket, for requests without credentials as well."""
    headers = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
    httpx.put(f"{url}/{BUCKET}/{key}", content=payload, headers=headers).raise_for_status()
