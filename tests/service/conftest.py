"""Service with a tiny model: in this process with drawn faces, or in its own with the built-in detector."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from mien.app.inference.classifier import Classifier
from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler
from mien.app.service.app import create_app
from mien.app.settings import Settings
from mien.data.contract import Array
from tests.support import encoded, gradient_image, upright_face
from tests.support.serving import Server, serving

Connect = Callable[..., TestClient]
PHOTO = encoded(gradient_image(640, 480), "JPEG")
# A request with one photo
ONE_PHOTO: dict[str, Any] = {"content": PHOTO, "headers": {"content-type": "image/jpeg"}}


def post(client: TestClient, *payloads: bytes, **query: object) -> httpx.Response:
    """Label images that are sent as a form."""
    files = [("images", (f"{index}.jpg", payload, "image/jpeg")) for index, payload in enumerate(payloads)]
    return client.post("/v1/expressions", files=files, params=query)


def problem(response: httpx.Response, status: int, kind: str) -> str:
    """Check that a response is this problem document; returns its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["type"], body["status"], bool(body["title"])) == (f"urn:mien:problem:{kind}", status, True)
    return str(body["detail"])


def key_hash(key: str) -> str:
    """What the service is given for an API key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _drawn(image: Array, *, live: bool = False) -> list[Detection]:
    """One face of 80 px in the center of any image wider than 200 px."""
    height, width = image.shape[:2]
    return [upright_face(width / 2, height / 2)] if width > 200 else []


DRAWN = SimpleNamespace(name="drawn", detect=_drawn)


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


@pytest.fixture(scope="module")
def connect(classifier: Classifier) -> Iterator[Connect]:
    """Start a service with the given settings, and another detector or classifier; returns its client."""
    with ExitStack() as running:

        def start(*, detector: object = DRAWN, classifies: object = classifier, **settings: object) -> TestClient:
            chosen = Settings(**{"device": "cpu", **settings})
            app = create_app(chosen, labeler=Labeler(detector, classifies, chosen))
            return running.enter_context(TestClient(app, base_url="http://localhost"))

        yield start


@pytest.fixture(scope="module")
def client(connect: Connect) -> TestClient:
    """A client of a service that the tests of a module share; its counters are not zero."""
    return connect()


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Server]:
    """A server with a long queue, shared by tests that do not change its state."""
    with serving(tmp_path_factory.mktemp("common"), artifact, detector="builtin", max_queue=500) as server:
        yield server
