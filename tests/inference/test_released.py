"""The released models: probabilities of a sample photo in each precision."""

import pytest

from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.contract import LABELS
from tests.support import ROOT, sample_photo

# samples/photos/grace_hopper.jpg with the built-in detector and the default prior; a new release has others
GOLDEN = {
    ("fast", "fp32"): (0.000, 0.003, 0.004, 0.002, 0.092, 0.001, 0.896),
    ("fast", "fp16"): (0.000, 0.003, 0.004, 0.002, 0.092, 0.001, 0.896),
    ("fast", "int8"): (0.000, 0.003, 0.004, 0.003, 0.090, 0.001, 0.898),
    ("accurate", "fp32"): (0.001, 0.002, 0.019, 0.001, 0.118, 0.008, 0.851),
    ("accurate", "int8"): (0.001, 0.005, 0.043, 0.001, 0.097, 0.011, 0.842),
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
