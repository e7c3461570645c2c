"""The released models: probabilities of sample photos, the program of docs/onnx.md, and graphs against weights."""

import json
import re
from typing import Any

import cv2
import numpy as np
import pytest

from mien.app.inference.detector import Detection
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box, Photo
from mien.app.settings import load_settings
from mien.data.contract import LABELS, Array, decode
from mien.data.quality import softmax
from mien.models.manifest import artifact_dir, load_artifact, read_report, scores_of
from mien.training.config import DataSource
from mien.training.data import read_split
from mien.training.evaluate import PRIORS, open_graph, run_graph
from mien.training.graphs import ReleasedNetwork, torch_logits
from mien.training.weights import load_network
from tests.support import ROOT, folder_from_environment, sample_photo

# samples/photos/grace_hopper.jpg with the built-in detector and the default prior; a new release has others
GOLDEN = {
    ("fast", "fp32"): (0.000, 0.005, 0.020, 0.001, 0.325, 0.004, 0.643),
    ("fast", "int8"): (0.001, 0.005, 0.022, 0.001, 0.337, 0.004, 0.630),
    ("v3", "fp32"): (0.001, 0.005, 0.008, 0.001, 0.110, 0.004, 0.871),
    ("accurate", "fp32"): (0.000, 0.001, 0.029, 0.001, 0.255, 0.008, 0.705),
}


@pytest.mark.parametrize(("model", "precision"), GOLDEN)
def test_sample_photos_have_the_recorded_probabilities(model: str, precision: str) -> None:
    settings = load_settings(model=model, precision=precision, device="cpu", detector="builtin", threads=1)
    labeler = Labeler.open(settings)
    assert labeler.label((ROOT / "samples/photos/chelsea.jpg").read_bytes()).faces == (), "a cat"
    (smiling,) = labeler.label(sample_photo().read_bytes()).faces
    assert smiling.probabilities["happiness"] > 0.99
    (portrait,) = labeler.label((ROOT / "samples/photos/grace_hopper.jpg").read_bytes()).faces
    tolerance = 0.05 if precision == "int8" else 0.01  # int8 rounds differently on other processors
    expected = dict(zip(LABELS, GOLDEN[model, precision], strict=True))
    assert portrait.probabilities == pytest.approx(expected, abs=tolerance)


def test_every_graph_of_the_fast_model_computes_what_its_weights_do() -> None:
    photo = decode(sample_photo().read_bytes())
    sides = np.random.default_rng(0).integers(90, 200, 48)
    crops = np.stack(
        [cv2.resize(photo[20:, 120 + n % 64 : 120 + n % 64 + side][:side], (112, 112)) for n, side in enumerate(sides)]
    )
    network, manifest = load_network(artifact_dir("fast"))
    expected = softmax(torch_logits(ReleasedNetwork(network, read_report(artifact_dir("fast"))["head"]), crops))
    assert len(set(expected.argmax(axis=1))) > 2
    for precision, difference in (("fp32", 1e-4), ("fp16", 1e-2), ("int8", 0.1)):
        graph = artifact_dir("fast") / manifest.graph(precision).file
        found = softmax(run_graph(open_graph(graph), crops))
        assert np.abs(found - expected).max() < difference, precision
        assert np.mean(found.argmax(axis=1) == expected.argmax(axis=1)) >= 0.95, precision


def degraded(crop: Array, landmarks: Array) -> list[tuple[Array, Array]]:
    """A blurred, a turned, a small and a covered copy of a face, with their landmarks in a photo."""
    turned, small, covered = landmarks.copy(), cv2.resize(crop, (11, 11), interpolation=cv2.INTER_AREA), crop.copy()
    turned[2, 0] += 0.4 * (landmarks[1, 0] - landmarks[0, 0])
    covered[70:105, 20:92] = (200, 220, 230)
    return [
        (cv2.GaussianBlur(crop, (0, 0), 5), landmarks), (crop, turned),
        (cv2.resize(small, (112, 112)), landmarks * 11 / 112), (covered, landmarks),
    ]  # fmt: skip


def test_the_program_of_the_page_about_onnx_computes_the_served_probabilities() -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "onnx.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    program: dict[str, Any] = {}
    exec(compile(code, "docs/onnx.md", "exec"), program)  # noqa: S102 (of this repository)
    labeler = Labeler.open(load_settings(model="fast", device="cpu", precision="fp32", detector="builtin"))
    original = labeler.prepare(sample_photo().read_bytes())
    face = original.crops[0], original.detections[0].landmarks_px
    faces = [face, *degraded(*face)]
    cover = json.loads((ROOT / "data" / "cover.json").read_text(encoding="utf-8"))
    softened = 0
    for crop, landmarks in faces:
        detection = Detection(Box(0, 0, 90, 90), landmarks.astype(np.float32), 0.9)
        (photo,) = labeler.classify([Photo(200, 200, (detection,), crop[None])])
        computed = program["probabilities"](artifact_dir("fast"), crop, detection.landmarks_px.astype(float), cover)
        assert computed == pytest.approx(photo.faces[0].probabilities, abs=1e-4)
        (natural,) = labeler.classifier.classify(crop[None])
        softened += abs(natural.max() - photo.faces[0].confidence) > 0.01
    assert softened >= 2, "some of the faces are softened"


@pytest.mark.soak
@pytest.mark.parametrize(("model", "precision"), GOLDEN)
def test_metrics_and_threshold_of_the_manifest_are_those_of_the_graph(model: str, precision: str) -> None:
    root = folder_from_environment("MIEN_DATA_DIR") / "ferplus"
    faces = read_split(DataSource(kind="ferplus", split="valid", root=root))
    manifest = load_artifact(artifact_dir(model))
    graph = manifest.graph(precision)
    logits = run_graph(open_graph(artifact_dir(model) / graph.file), faces.crops)
    for prior in PRIORS:
        probabilities = manifest.probabilities(logits, prior)
        labeled = probabilities.argmax(axis=1) == faces.labels
        stated = [entry for entry in scores_of(artifact_dir(model), precision) if entry["prior"] == prior]
        (entry,) = (entry for entry in stated if entry["data"] == "ferplus")
        assert labeled.mean() == pytest.approx(entry["accuracy"]["value"], abs=0.002)
        assert labeled[probabilities.max(axis=1) >= manifest.confidence_threshold].mean() >= 0.94
