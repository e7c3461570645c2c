"""The released models: probabilities of sample photos, and graphs against weights."""

import cv2
import numpy as np
import pytest

from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.contract import LABELS, decode
from mien.data.quality import softmax
from mien.models.manifest import artifact_dir, read_manifest
from mien.training.evaluate import open_graph, predict, run_graph
from mien.training.weights import load_trained
from tests.support import ROOT, sample_photo

# samples/photos/grace_hopper.jpg with the built-in detector and the default prior; a new release has others
GOLDEN = {
    ("fast", "fp32"): (0.000, 0.005, 0.020, 0.001, 0.325, 0.004, 0.643),
    ("fast", "int8"): (0.001, 0.005, 0.022, 0.001, 0.337, 0.004, 0.630),
    ("v3", "fp32"): (0.001, 0.005, 0.008, 0.001, 0.110, 0.004, 0.871),
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
    (network, head, _), manifest = load_trained(artifact_dir("fast")), read_manifest(artifact_dir("fast"))
    expected = softmax(predict(network, crops, head=head))
    assert len(set(expected.argmax(axis=1))) > 2
    for precision, difference in (("fp32", 1e-4), ("fp16", 1e-2), ("int8", 0.1)):
        graph = artifact_dir("fast") / manifest.graph(precision).file
        found = softmax(run_graph(open_graph(graph), crops))
        assert np.abs(found - expected).max() < difference, precision
        assert np.mean(found.argmax(axis=1) == expected.argmax(axis=1)) >= 0.95, precision
