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


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 5e-3)])
def test_gpu_and_cpu_give_the_same_probabilities(artifact: Path, precision: str, tolerance: float) -> None:
    on_gpu = Classifier(Settings(model=artifact, device="cuda", precision=precision))
    assert on_gpu.provider == CUDA
    for count in (1, 3, 257):
        crops = random_crops(count)
        expected = Classifier(Settings(model=artifact, device="cpu", precision="fp32")).classify(crops)
        assert np.abs(on_gpu.classify(crops) - expected).max() < tolerance


def test_auto_takes_the_gpu_in_half_precision(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    classifier = Classifier(Settings(model=artifact))
    assert (classifier.provider, classifier.precision, classifier.max_batch) == (CUDA, "fp16", 256)
    assert capfd.readouterr().err == ""


def test_attention_maps_are_those_of_the_cpu() -> None:
    on_gpu, on_cpu = (Classifier(Settings(device=device, precision="fp32")) for device in ("cuda", "cpu"))
    crops = random_crops(33)
    assert np.abs(on_gpu.explain(crops) - on_cpu.explain(crops)).max() < 1e-3
