"""One photo has the same labels and agreement through REST, stream, table, Python and video."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter
from websockets.sync.client import connect

from mien import Analyzer
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import FACES
from mien.app.live import Frame, label_frames
from mien.app.settings import load_settings
from tests.support import encoded, sample_photo
from tests.support.albums import label_folder, rows_of
from tests.support.serving import serving


def test_every_surface_labels_as_python_does(artifact: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": artifact, "detector": "builtin", "device": "cpu"}
    with Image.open(sample_photo()) as image:  # whose face is blurred and softened, without loss
        photo = encoded(image.convert("RGB").filter(ImageFilter.GaussianBlur(4)), "PNG")
    expected = Analyzer(**options).analyze(photo).to_dict()["faces"]
    (face,) = expected
    assert face["reasons"][0] == "blurred"
    assert 0 < face["agreement"] != face["confidence"]
    digits = {"detection_score": 4, "confidence": 6, "roll_degrees": 2}
    assert {name: round(face[name], places) for name, places in digits.items()}.items() <= face.items()

    labeler = Labeler.open(load_settings(**options))
    live = FACES.dump_python([*labeler.label(photo, live=True).faces], mode="json")  # from a smaller copy
    assert (len(live), live[0]["label"], live == expected) == (1, face["label"], False)
    with serving(tmp_path, artifact, detector="builtin") as server:
        assert server.post(photo, **{"content-type": "image/png"}).json()["images"][0]["faces"] == expected
        with connect(server.url.replace("http", "ws") + "/v1/stream") as stream:
            stream.send(photo)
            assert json.loads(stream.recv(timeout=60))["faces"] == live

    frames = iter([Frame(0.0, np.asarray(Image.open(io.BytesIO(photo))))])
    (line,) = label_frames(labeler, frames)
    assert line["faces"] == [face | {"person": 1}]

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(photo)
    label_folder(tmp_path / "photos", tmp_path / "out", load_settings(**options), "csv")
    (row,) = rows_of(tmp_path / "out")
    assert {label: float(row[f"p_{label}"]) for label in face["probabilities"]} == face["probabilities"]
    assert (row["label"], row["uncertain"]) == (face["label"], str(face["uncertain"]).lower())
    assert (row["reasons"].split(), float(row["agreement"])) == (face["reasons"], face["agreement"])
    numbers = {f"{name}_{axis}": place for name, point in face["landmarks"].items() for axis, place in point.items()}
    numbers |= face["box"] | {"roll": face["roll_degrees"], "confidence": face["confidence"]}
    numbers |= {name: face[name] for name in ("sharpness", "detection_score")}
    assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers, abs=0.06)
