"""Tests that need a GPU; skipped with the reason if there is none."""

from pathlib import Path

import numpy as np
import pytest

from mien.app.inference.classifier import CUDA, Classifier, cuda_unavailable_reason
from mien.app.settings import Settings
from tests.support import random_crops


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    reason = cuda_unavailable_reason()
    if reason is not None:
        pytest.skip(f"no GPU to test: {reason}")


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("auto", 5e-3)])
def test_gpu_and_cpu_give_the_same_probabilities(
    artifact: Path, precision: str, tolerance: float, capfd: pytest.CaptureFixture[str]
) -> None:
    on_gpu = Classifier(Settings(model=artifact, precision=precision))
    assert (on_gpu.provider, on_gpu.precision) == (CUDA, "fp16" if precision == "auto" else precision)
    for count in (1, 3, 257):
        crops = random_crops(count)
        expected = Classifier(Settings(model=artifact, device="cpu", precision="fp32")).classify(crops)
        assert np.abs(on_gpu.classify(crops) - expected).max() < tolerance
    assert capfd.readouterr().err == ""
