"""Attention maps in responses, and their overlay on a crop."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from mien.app.inference.attention_overlay import overlay
from mien.app.inference.classifier import Classifier
from mien.app.settings import Settings
from mien.data.contract import decode
from tests.support import encoded, gradient_image, tiny_artifact
from tests.unit.app.conftest import Connect


@pytest.fixture
def explaining(connect: Connect, tmp_path: Path) -> TestClient:
    """Client of a service whose model has an attention map."""
    return connect(
        classifies=Classifier(Settings(model=tiny_artifact(tmp_path / "explaining.test", explain=True), device="cpu"))
    )


def post(client: TestClient, width: int, height: int, **query: object) -> list[dict[str, Any]]:
    """Faces of a drawn image."""
    image = {"content": encoded(gradient_image(width, height)), "headers": {"content-type": "image/png"}}
    response = client.post("/v1/expressions", params=query, **image)
    assert response.status_code == 200, response.text
    return response.json()["images"][0]["faces"]


def test_every_face_has_a_map_and_its_overlay_on_request(explaining: TestClient) -> None:
    (face,) = post(explaining, 640, 480, explain=True)
    relevance = np.array(face["explanation"]["map"])
    assert relevance.shape == (7, 7)
    assert relevance.sum() == pytest.approx(1, abs=1e-4)
    drawn = decode(base64.b64decode(face["explanation"]["overlay"]["base64"]))
    assert drawn.shape == (224, 224, 3)
    (plain,) = post(explaining, 640, 480)
    assert plain["explanation"] is None
    assert post(explaining, 64, 64, explain=True) == [], "a photo without a face"
    assert explaining.get("/v1/models").json()["models"][0]["explain"] is True


def test_the_overlay_is_bright_where_the_map_is_high() -> None:
    relevance = np.zeros((7, 7), np.float32)
    relevance[1, 5] = 1
    drawn = overlay(np.full((112, 112, 3), 100, np.uint8), relevance).astype(int)
    assert drawn[48, 176].sum() > drawn[176, 48].sum() + 150
    flat = overlay(np.full((112, 112, 3), 100, np.uint8), np.full((7, 7), 1 / 49, np.float32))
    assert np.ptp(flat.reshape(-1, 3), axis=0).max() == 0, "a uniform map has a uniform overlay"
