"""The provider in responses, `/ready` and `/metrics`, and its fallback to the CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mien.app.inference import classifier
from mien.app.inference.classifier import CPU, CUDA, Classifier
from mien.app.service import api
from mien.app.settings import Settings
from tests.support.app import ONE_PHOTO, Connect

WHY = "no NVIDIA driver was found (libcuda.so.1)"


def test_every_response_names_the_provider_and_the_fallback(
    connect: Connect, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (classifier, api):
        monkeypatch.setattr(module, "cuda_unavailable_reason", lambda: WHY)
    client = connect(classifies=Classifier(Settings(model=artifact, device="auto")), device="auto")
    good = client.post("/v1/expressions", **ONE_PHOTO)
    assert good.json()["provider"] == CPU
    for response in (good, client.get("/nope"), client.post("/v1/expressions", json={})):
        assert (response.headers["Mien-Provider"], response.headers["Mien-Fallback"]) == (CPU, "cpu")
    assert client.get("/ready").json()["fallback"] == WHY
    assert 'fallback="cpu"' in client.get("/metrics").text


def test_a_gpu_that_is_not_used_is_a_fallback_unless_another_choice_is_explicit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "cuda_unavailable_reason", lambda: WHY)
    cases: list[tuple[dict[str, Any], str, str | None, str | None]] = [
        ({"device": "auto"}, CUDA, None, None),
        ({"device": "auto", "precision": "int8"}, CPU, None, None),
        ({"device": "cpu"}, CPU, None, None),
        ({}, CPU, WHY, None),
        ({}, CPU, None, WHY),
    ]
    for settings, provider, no_gpu, expected in cases:
        monkeypatch.setattr(api, "gpu_unavailable_reason", lambda found=no_gpu: found)
        classifier: Any = SimpleNamespace(provider=provider)
        assert api.fallback(classifier, Settings(**settings)) == expected, settings
