"""Service with a tiny model and a fake detector; no network, no released files."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketTestSession

from app.inference.classifier import Classifier
from app.inference.detect import Face
from app.inference.pipeline import Pipeline
from app.main import create_app
from app.settings import Settings
from data.contract import Array

Connect = Callable[..., TestClient]


class LocalClient(TestClient):
    """A client whose Host header names this machine, as the service expects by default."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(app, base_url="http://localhost")

    def websocket_connect(self, url: str, *arguments: Any, **options: Any) -> WebSocketTestSession:
        return super().websocket_connect(f"ws://localhost{url}", *arguments, **options)


class DrawnFaces:
    """A detector that finds one face of 80 px in the center of any image wider than 200 px."""

    name = "drawn"

    def detect(self, image: Array) -> list[Face]:
        height, width = image.shape[:2]
        if width <= 200:
            return []
        x, y = width / 2, height / 2
        points = [(x - 16, y - 12), (x + 16, y - 12), (x, y + 2), (x - 12, y + 18), (x + 12, y + 18)]
        return [Face((x - 40.0, y - 40.0, 80.0, 80.0), np.array(points, np.float32), 0.9)]


@pytest.fixture(scope="session")
def classifier(artifact: Path) -> Classifier:
    return Classifier(artifact, device="cpu", threads=1)


@pytest.fixture
def connect(classifier: Classifier) -> Iterator[Connect]:
    """Start a service with the given settings and an optional `detector`; returns its client."""
    with ExitStack() as running:

        def start(*, detector: object = None, **settings: object) -> TestClient:
            chosen = Settings(device="cpu", **settings)  # type: ignore[arg-type]
            pipeline = Pipeline(detector or DrawnFaces(), classifier, chosen)  # type: ignore[arg-type]
            pipelines = dict.fromkeys(chosen.model_names, pipeline)
            return running.enter_context(LocalClient(create_app(chosen, pipelines=pipelines)))

        yield start


@pytest.fixture
def client(connect: Connect) -> TestClient:
    return connect()
