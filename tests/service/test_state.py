"""The reported provider, its fallback to the CPU in log, `/ready`, `/metrics` and header; the classifying thread."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mien.app.cli import checks
from mien.app.inference.classifier import Classifier
from mien.app.inference.runtime import sessions
from mien.app.inference.runtime.sessions import CPU, CUDA
from mien.app.service import state
from mien.app.settings import Settings
from tests.support.app import ONE_PHOTO, Connect

WHY = "no NVIDIA driver was found (libcuda.so.1)"


@pytest.mark.parametrize("gpu_wanted", [True, False])
def test_every_response_names_the_provider_and_the_fallback(
    connect: Connect, artifact: Path, monkeypatch: pytest.MonkeyPatch, gpu_wanted: bool
) -> None:
    for module in (sessions, state):
        monkeypatch.setattr(module, "cuda_unavailable_reason", lambda: WHY)
    settings = {"device": "auto" if gpu_wanted else "cpu"}
    client = connect(classifies=Classifier(Settings(model=artifact, **settings)), **settings)
    good = client.post("/v1/expressions", **ONE_PHOTO)
    assert good.json()["provider"] == CPU
    for response in (good, client.get("/nope"), client.post("/v1/expressions", json={})):
        assert response.headers["Mien-Provider"] == CPU
        assert response.headers.get("Mien-Fallback") == ("cpu" if gpu_wanted else None)
    assert client.get("/ready").json()["fallback"] == (WHY if gpu_wanted else None)
    (line,) = (line for line in client.get("/metrics").text.splitlines() if line.startswith("mien_info{"))
    assert f'fallback="{"cpu" if gpu_wanted else "none"}"' in line
    assert f'provider="{CPU}"' in line


@pytest.mark.parametrize(
    ("settings", "provider", "no_gpu", "expected"),
    [
        ({"device": "auto"}, CUDA, None, None),
        ({"device": "auto", "precision": "int8"}, CPU, None, None),
        ({"device": "cpu"}, CPU, None, None),
        ({}, CPU, WHY, None),
        ({}, CPU, None, WHY),
    ],
)
def test_a_gpu_that_is_not_used_is_a_fallback_unless_another_choice_is_explicit(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    provider: str,
    no_gpu: str | None,
    expected: str | None,
) -> None:
    monkeypatch.setattr(state, "cuda_unavailable_reason", lambda: WHY)
    for module in (sessions, state):
        monkeypatch.setattr(module, "gpu_unavailable_reason", lambda: no_gpu)
    assert state.fallback(SimpleNamespace(provider=provider), Settings(**settings)) == expected  # type: ignore[arg-type]
    sessions._log_fallback.__wrapped__(WHY)
    assert ("WARNING" in {record.levelname for record in caplog.records}) == (no_gpu is None)


def test_doctor_distinguishes_a_failing_gpu_from_an_unrequested_one(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (checks, state):
        monkeypatch.setattr(module, "cuda_unavailable_reason", lambda: None)
    told = {device: checks._device(Settings(device=device, model=artifact)) for device in ("auto", "cpu")}
    assert "does not run on the GPU of this machine" in told["auto"]
    assert told["cpu"].endswith("was not requested")


def test_the_thread_of_a_photo_also_classifies_it_and_counts_the_batch(
    connect: Connect, classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, infer = list[str](), classifier._infer
    named = lambda crops: threads.append(threading.current_thread().name) or infer(crops)  # noqa: E731
    monkeypatch.setattr(classifier, "_infer", named)
    client = connect()
    assert len(client.post("/v1/expressions", **ONE_PHOTO).json()["images"][0]["faces"]) == 1
    assert [name.startswith("mien-photo") for name in threads] == [True]
    metrics = client.get("/metrics").text
    assert "mien_batch_faces_sum 1.0" in metrics
    assert "mien_batch_faces_count 1.0" in metrics
