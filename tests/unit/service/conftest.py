"""A service with a tiny model and a detector that finds what the test says; no network, no released files."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.classify import Classifier
from app.detect import Face
from app.main import create_app
from app.pipeline import Pipeline
from app.settings import Settings
from data.contract import Array
from tests.support import tiny_artefact

Connect = Callable[..., TestClient]


class DrawnFaces:
    """A detector that finds one face of 80 px in the middle of any picture wider than 200 px."""

    name = "drawn"

    def detect(self, image: Array) -> list[Face]:
        height, width = image.shape[:2]
        if width <= 200:
            return []
        x, y = width / 2, height / 2
        points = [(x - 16, y - 12), (x + 16, y - 12), (x, y + 2), (x - 12, y + 18), (x + 12, y + 18)]
        return [Face((x - 40.0, y - 40.0, 80.0, 80.0), np.array(points, np.float32), 0.9)]


@pytest.fixture(scope="session")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_artefact(tmp_path_factory.mktemp("artefacts") / "tiny.test")


@pytest.fixture(scope="session")
def classifier(artefact: Path) -> Classifier:
    return Classifier(artefact, device="cpu", threads=1)


@pytest.fixture
def connect(classifier: Classifier) -> Iterator[Connect]:
    """Start a service with the given settings; returns its client. A detector can be given as `detector`."""
    with ExitStack() as running:

        def start(*, detector: object = None, **settings: object) -> TestClient:
            chosen = Settings(device="cpu", **settings)  # type: ignore[arg-type]
            pipeline = Pipeline(detector or DrawnFaces(), classifier, chosen)  # type: ignore[arg-type]
            return running.enter_context(TestClient(create_app(chosen, pipeline=pipeline)))

        yield start


@pytest.fixture
def client(connect: Connect) -> TestClient:
    return connect()
