"""The program of docs/onnx.md, executed: it computes what Mien serves from the files of an artifact alone."""

import json
import re
from typing import Any

import numpy as np
import pytest

from mien.app.inference.classifier import Classifier
from mien.app.inference.detect import create_detector
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box, Detection, Prepared
from mien.app.settings import load_settings
from mien.models.manifest import artifact_dir
from mien.training.release.conditions import degrade
from tests.support import ROOT

_DEGRADED = (
    ("blur, sigma in px", 5.0), ("yaw, degrees", 45.0), ("face width, px", 9.0), ("objects over eyes or mouth", 2.0),
)  # fmt: skip


def test_the_program_of_the_page_computes_the_served_probabilities() -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "onnx.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    program: dict[str, Any] = {}
    exec(compile(code, "docs/onnx.md", "exec"), program)  # noqa: S102 (of this repository)
    model = "fast"
    settings = load_settings(model=artifact_dir(model), device="cpu", precision="fp32")
    labeler = Labeler(create_detector(settings), Classifier(settings), settings)
    original = labeler.prepare((ROOT / "samples" / "photos" / "astronaut.jpg").read_bytes())
    faces = [(original.crops[0], original.detections[0].landmarks_px)]
    for condition, strength in _DEGRADED:
        crop, landmarks = degrade(original.crops[0], condition, strength, seed=1)
        faces.append((crop, 0.9 * landmarks + 20))
    cover = json.loads((ROOT / "data" / "cover.json").read_text(encoding="utf-8"))
    softened = 0
    for crop, landmarks in faces:
        detection = Detection(Box(0, 0, 90, 90), landmarks.astype(np.float32), 0.9)
        (photo,) = labeler.classify([Prepared(200, 200, (detection,), crop[None])])
        computed = program["probabilities"](artifact_dir(model), crop, detection.landmarks_px.astype(float), cover)
        assert computed == pytest.approx(photo.faces[0].probabilities, abs=1e-4)
        (natural,) = labeler.classifier.classify(crop[None])
        softened += abs(natural.max() - photo.faces[0].confidence) > 0.01
    assert softened >= 2, "some of the faces are softened"
