"""Service with a tiny model and a fake detector; no network, no released files."""

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketTestSession

from mien.app.inference.classifier import Classifier
from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box
from mien.app.service.app import create_app
from mien.app.settings import Settings
from mien.data.contract import Array
from tests.support import encoded, gradient_image

Connect = Callable[..., TestClient]
PHOTO = encoded(gradient_image(640, 480), "JPEG")
# A request with one photo
ONE_PHOTO: dict[str, Any] = {"content": PHOTO, "headers": {"content-type": "image/jpeg"}}


def post(client: TestClient, *payloads: bytes, **query: object) -> httpx.Response:
    """Label images that are sent as a form."""
    files = [("images", (f"{index}.jpg", payload, "image/jpeg")) for index, payload in enumerate(payloads)]
    return client.post("/v1/expressions", files=files, params=query)


def post_in_parts(client: TestClient, send: Callable[..., Any], *messages: dict[str, Any], query: bytes = b"") -> None:
    """Post a photo to the application itself; `messages` follow the body, and `send` gets what is sent."""
    received = iter([{"type": "http.request", "body": PHOTO}, *messages])

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    headers = {b"host": b"localhost", b"content-type": b"image/jpeg", b"content-length": b"%d" % len(PHOTO)}
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/v1/expressions", "query_string": query}
    scope |= {"headers": [*headers.items()], "client": ("10.0.0.9", 1), "server": ("localhost", 80), "root_path": ""}
    assert client.portal is not None
    client.portal.call(client.app, scope, receive, send)


def problem(response: httpx.Response, status: int, kind: str) -> str:
    """Check that a response is this problem document; returns its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"urn:mien:problem:{kind}"
    assert body["status"] == status
    assert body["title"]
    return str(body["detail"])


def key_hash(key: str) -> str:
    """What the service is given for an API key."""
    return hashlib.sha256(key.encode()).hexdigest()


class LocalClient(TestClient):
    """A client whose Host header names this machine, as the service expects by default."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app, base_url="http://localhost")

    def websocket_connect(self, url: str, *arguments: Any, **options: Any) -> WebSocketTestSession:
        return super().websocket_connect(f"ws://localhost{url}", *arguments, **options)


def upright_face(x: float, y: float, side: float = 80.0) -> Detection:
    """A detected face with its center at (x, y)."""
    points = np.array([(-0.2, -0.15), (0.2, -0.15), (0.0, 0.025), (-0.15, 0.225), (0.15, 0.225)], np.float32)
    return Detection(Box(x - side / 2, y - side / 2, side, side), points * side + (x, y), 0.9)


class DrawnFaces:
    """A detector that finds one face of 80 px in the center of any image wider than 200 px."""

    name = "drawn"

    def detect(self, image: Array, *, live: bool = False) -> list[Detection]:
        height, width = image.shape[:2]
        return [upright_face(width / 2, height / 2)] if width > 200 else []


class SlowDetector:
    """A detector that blocks until `go` is set, and finds nothing."""

    name = "slow"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)

    def detect(self, image: Array, *, live: bool = False) -> list[Detection]:
        self.begun.release()
        self.go.wait(20)
        return []


@pytest.fixture(scope="session")
def classifier(artifact: Path) -> Classifier:
    return Classifier(Settings(model=artifact, device="cpu", threads=1))


@contextmanager
def _connecting(classifier: Classifier) -> Iterator[Connect]:
    with ExitStack() as running:

        def start(*, detector: object = None, classifies: object = classifier, **settings: object) -> TestClient:
            chosen = Settings(**{"device": "cpu", **settings})
            labeler = Labeler(detector or DrawnFaces(), classifies, chosen)
            return running.enter_context(LocalClient(create_app(chosen, labeler=labeler)))

        yield start


@pytest.fixture
def connect(classifier: Classifier) -> Iterator[Connect]:
    """Start a service with the given settings, and another detector or classifier; returns its client."""
    with _connecting(classifier) as start:
        yield start


@pytest.fixture(scope="module")
def client(classifier: Classifier) -> Iterator[TestClient]:
    """A client of a service that the tests of a module share; its counters are not zero."""
    with _connecting(classifier) as start:
        yield start()
