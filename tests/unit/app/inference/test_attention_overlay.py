"""Attention maps in responses, and their overlay on a crop."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.inference.attention_overlay import overlay
from app.inference.classifier import Classifier
from app.inference.pipeline import Pipeline
from app.main import create_app
from app.settings import Settings
from data.contract import decode
from tests.explaining import explaining_artifact
from tests.support import encoded, gradient_image, random_crops
from tests.unit.app.conftest import DrawnFaces, LocalClient


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    folder: Path = tmp_path_factory.mktemp("artifacts") / "explaining.test"
    return Classifier(explaining_artifact(folder), device="cpu", threads=1)


@pytest.fixture
def telling(classifier: Classifier) -> Iterator[TestClient]:
    settings = Settings(device="cpu")
    with LocalClient(create_app(settings, pipelines={"fast": Pipeline(DrawnFaces(), classifier, settings)})) as client:
        yield client


def test_every_face_comes_with_a_map_and_its_overlay(telling: TestClient) -> None:
    body = {"content": encoded(gradient_image(640, 480)), "headers": {"content-type": "image/png"}}
    answer = telling.post("/v1/expressions?explain=true", **body)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    (face,) = answer.json()["images"][0]["faces"]
    relevance = np.array(face["explanation"]["map"])
    assert relevance.shape == (7, 7)
    assert relevance.sum() == pytest.approx(1, abs=1e-4)
    drawn = decode(base64.b64decode(face["explanation"]["overlay"]["base64"]))
    assert drawn.shape == (224, 224, 3)
    plain = telling.post("/v1/expressions", **body)  # type: ignore[arg-type]
    assert plain.json()["images"][0]["faces"][0]["explanation"] is None
    assert telling.get("/v1/models").json()["models"][0]["explain"] is True


def test_a_photo_without_a_face_needs_no_explanation(telling: TestClient) -> None:
    body = {"content": encoded(gradient_image(64, 64)), "headers": {"content-type": "image/png"}}
    answer = telling.post("/v1/expressions?explain=true", **body)  # type: ignore[arg-type]
    assert answer.json()["images"][0]["faces"] == []


def test_maps_of_a_batch_are_those_of_its_crops(classifier: Classifier) -> None:
    crops = random_crops(70)
    maps = classifier.explain(crops)
    assert maps.shape == (70, 7, 7)
    for index in (0, 63, 64, 69):
        assert np.allclose(maps[index], classifier.explain(crops[index : index + 1])[0], atol=1e-6)
        tiles = crops[index].astype(float).reshape(7, 16, 7, 16, 3).mean(axis=(1, 3, 4))
        assert np.allclose(maps[index], tiles / tiles.sum(), atol=1e-4)


def test_the_overlay_is_warm_where_the_map_is_high() -> None:
    relevance = np.zeros((7, 7), np.float32)
    relevance[1, 5] = 1
    drawn = overlay(np.full((112, 112, 3), 100, np.uint8), relevance).astype(int)
    assert drawn[48, 176].sum() > drawn[176, 48].sum() + 150
    flat = overlay(np.full((112, 112, 3), 100, np.uint8), np.full((7, 7), 1 / 49, np.float32))
    assert np.ptp(flat.reshape(-1, 3), axis=0).max() == 0, "a map without a preference shows none"
