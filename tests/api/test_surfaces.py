"""One photo has the same labels and agreement through REST, stream, table, Python and video."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter
from websockets.sync.client import connect

from mien import Analyzer
from mien.app.inference.labeler import Labeler
from mien.app.live import Frame, label_frames
from mien.app.settings import load_settings
from tests.support import encoded, sample_photo
from tests.support.albums import label_folder, rows_of
from tests.support.serving import Server, serving

Faces = list[dict[str, Any]]


@pytest.fixture(scope="module")
def photo() -> bytes:
    """A photo without loss, whose face is blurred and softened."""
    with Image.open(sample_photo()) as image:
        return encoded(image.convert("RGB").filter(ImageFilter.GaussianBlur(4)), "PNG")


@pytest.fixture(scope="module")
def settings(artifact: Path) -> dict[str, Any]:
    return {"model": artifact, "detector": "builtin", "device": "cpu"}


@pytest.fixture(scope="module")
def expected(settings: dict[str, Any], photo: bytes) -> Faces:
    faces: Faces = Analyzer(**settings).analyze(photo).to_dict()["faces"]
    assert [face["reasons"][0] for face in faces] == ["blurred"]
    for face in faces:
        assert 0 < face["agreement"] != face["confidence"]
    return faces


@pytest.fixture(scope="module")
def server(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, artifact, detector="builtin") as running:
        yield running


def from_rest(server: Server, photo: bytes) -> Faces:
    return server.post(photo, **{"content-type": "image/png"}).json()["images"][0]["faces"]


def from_stream(server: Server, photo: bytes) -> Faces:
    with connect(server.url.replace("http", "ws") + "/v1/stream") as stream:
        stream.send(photo)
        return json.loads(stream.recv(timeout=60))["faces"]


@pytest.mark.parametrize("ask", [from_rest, from_stream])
def test_service_labels_as_python_does(ask: Any, server: Server, photo: bytes, expected: Faces) -> None:
    assert ask(server, photo) == expected


def test_video_labels_as_python_does(settings: dict[str, Any], photo: bytes, expected: Faces) -> None:
    frames = iter([Frame(0.0, np.asarray(Image.open(io.BytesIO(photo))))])
    (faces,) = (line["faces"] for line in label_frames(Labeler.open(load_settings(**settings)), frames))
    assert faces == [face | {"person": 1} for face in expected]


def test_table_labels_as_python_does(settings: dict[str, Any], photo: bytes, expected: Faces, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(photo)
    label_folder(tmp_path / "photos", tmp_path / "out", load_settings(**settings), "csv")
    (row,) = rows_of(tmp_path / "out")
    (face,) = expected
    assert {label: float(row[f"p_{label}"]) for label in face["probabilities"]} == face["probabilities"]
    assert (row["label"], row["uncertain"]) == (face["label"], str(face["uncertain"]).lower())
    assert (row["reasons"].split(), float(row["agreement"])) == (face["reasons"], face["agreement"])
    assert {name: float(row[name]) for name in face["box"]} == pytest.approx(face["box"], abs=0.06)
