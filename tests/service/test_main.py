"""The application: health, models, metrics, API keys, origins and headers."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mien.app import VERSION
from mien.app.inference import classifier as classifiers
from mien.app.inference.classifier import CPU, CUDA, Classifier
from mien.app.inference.labeler import Labeler
from mien.app.service import api
from mien.app.service.app import open_labeler
from mien.app.settings import Settings
from mien.data.contract import LABELS
from tests.service.conftest import ONE_PHOTO, PHOTO, Connect, key_hash, problem

NO_DRIVER = "no NVIDIA driver was found (libcuda.so.1)"
EVERYWHERE, UMLAUTS = "::", "schl\u00fcssel"


def send(client: TestClient, **headers: str | bytes) -> int:
    headers = {"content-type": "image/jpeg"} | headers
    return client.post("/v1/expressions", content=PHOTO, headers=headers).status_code


def test_health_and_readiness_report_the_running_model(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "alive", "version": VERSION}
    assert client.head("/health").status_code == 200
    ready = client.get("/ready").json()
    assert ready["status"] == "ready"
    assert (ready["model"], ready["provider"], ready["detector"]) == ("tiny.test", CPU, "drawn")
    assert ready["queue_depth"] == ready["requests_inside"] == 0
    (model,) = client.get("/v1/models").json()["models"]
    assert (model["name"], tuple(model["labels"]), model["confidence_threshold"]) == ("tiny.test", LABELS, 0.3)


def test_metrics_count_requests_faces_stages_and_rejections(connect: Connect) -> None:
    client = connect()
    assert send(client) == 200
    assert client.post("/v1/expressions", content=b"x", headers={"content-type": "image/png"}).status_code == 415
    client.request("MADE-UP", "/made/up")
    text = client.get("/metrics").text
    assert "made" not in text.lower(), "metrics do not grow with values of clients"
    assert 'mien_requests_total{method="POST",route="/v1/expressions",status="200"} 1.0' in text
    assert 'mien_images_total{outcome="labeled"} 1.0' in text
    assert 'mien_images_total{outcome="refused"} 1.0' in text
    assert 'mien_stage_seconds_count{stage="detect"} 1.0' in text
    assert re.search(r'mien_faces_total\{label="(\w+)",uncertain="(true|false)"\} 1\.0', text)
    assert "mien_queue_requests 0.0" in text
    assert "\nprocess_resident_memory_bytes " in text


def test_the_host_header_is_checked(connect: Connect) -> None:
    named = {"host": EVERYWHERE, "allowed_hosts": "mien.example"}
    for settings, statuses in (
        ({}, {"localhost:8000": 200, "[::1]:8000": 200, "rebound.example": 400, "localhost:80:80": 400}),
        ({"host": "127.0.0.2"}, {"localhost": 200, "mien.example": 400}),
        ({"host": EVERYWHERE}, {"mien.example": 200}),
        (named, {"MIEN.example:443": 200, "localhost": 200, "other.example": 400}),
        (named | {"allowed_hosts": "www.mien.example"}, {"mien.example": 400}),
    ):
        client = connect(**settings)
        assert {host: client.get("/health", headers={"host": host}).status_code for host in statuses} == statuses


def test_only_pages_of_a_named_origin_read_responses_and_send_headers(connect: Connect) -> None:
    named, evil = {"origin": "https://a.example"}, {"origin": "https://evil.example"}
    client, allowed = connect(cors_origins="https://a.example"), "access-control-allow-origin"
    assert allowed not in connect().get("/health", headers=named).headers
    response = client.get("/health", headers=named)
    assert response.headers[allowed] == "https://a.example"
    assert "Mien-Provider" in response.headers["access-control-expose-headers"]
    assert allowed not in client.get("/health", headers=evil).headers
    asked = {
        "access-control-request-headers": "x-request-id, x-api-key, content-type, traceparent",
        "access-control-request-method": "POST",
    }
    assert client.options("/v1/expressions", headers=named | asked).status_code == 200
    assert client.options("/v1/expressions", headers=evil | asked).status_code == 400


def test_every_response_has_security_headers_and_a_request_id(client: TestClient) -> None:
    unknown = ("/nope", "/health/", "/page/", "/static-offline-docs/%2e%2e%2fcore.py", "/page/%2e%2e/example.jpg")
    for path in ("/health", "/docs", "/v1/models", *unknown):
        response = client.get(path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert len(response.headers["x-request-id"]) == 32
        if path in unknown:
            problem(response, 404, "not-found")
    headers = client.get("/v1/models", headers={"x-request-id": "a b;<script>"}).headers
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"
    assert headers["x-request-id"] != "a b;<script>"


def test_keys_protect_everything_except_probes(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mien.app.service.app")
    client = connect(api_key_sha256=",".join(map(key_hash, ("first", "second", UMLAUTS))))
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    for path in ("/v1/models", "/metrics"):
        refused = client.get(path)
        problem(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer ")
    for header in ("Bearer third", "Bearer ", b"Bearer \xe9", "Basic OnNlY29uZA=="):
        assert send(client, authorization=header) == 401, header
    for accepted in ("Bearer first", f"Bearer {UMLAUTS}".encode()):
        assert send(client, authorization=accepted) == 200, accepted
    assert send(client, **{"authorization": "Bearer first", "x-api-key": "third"}) == 200, "one of the two is enough"
    metrics = client.get("/metrics", headers={"x-api-key": "first"}).text
    assert 'mien_requests_total{method="POST",route="/v1/expressions",status="401"}' in metrics
    for key in ("second", UMLAUTS.encode()):
        assert send(client, **{"x-api-key": key}) == 200, key
    assert caplog.messages[-2].endswith(f'"POST /v1/expressions" 200, key {key_hash("second")[:12]}')
    assert "/health" not in caplog.text


ORIGINS = [
    ({}, 200),
    ({"sec-fetch-site": "same-origin", "origin": "https://outside.example"}, 200),  # as a proxy changes Host
    ({"sec-fetch-site": "cross-site", "origin": "https://friend.example"}, 200),
    ({"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, 403),
    ({"sec-fetch-site": "same-site", "origin": "http://localhost"}, 403),
    ({"sec-fetch-site": "none"}, 200),
    ({"origin": "http://localhost"}, 200),
    ({"origin": "https://localhost"}, 200),
    ({"origin": "https://friend.example"}, 200),
    ({"origin": "http://localhost.evil.example"}, 403),
    ({"origin": "null"}, 403),
]


def test_pages_of_other_origins_change_nothing(connect: Connect) -> None:
    client = connect(cors_origins="https://friend.example", api_key_sha256=key_hash("k"))
    key = {"authorization": "Bearer k"}
    for headers, status in ORIGINS:
        form = {"files": [("images", ("a.jpg", PHOTO))], "headers": headers | key}
        assert client.post("/v1/expressions", **form).status_code == status, headers
        assert client.get("/v1/models", headers=headers | key).status_code == 200, "a link of another page"
    assert send(connect(cors_origins="*"), origin="https://evil.example") == 200


def test_processes_share_the_cores(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "cores", lambda: 8)
    services = [connect(workers=workers).app.state.service for workers in ("auto", 1, 4, 16)]  # type: ignore[attr-defined]
    assert [service.threads for service in services] == [8, 8, 2, 1]
    assert [service._pool._max_workers for service in services] == [8, 8, 2, 1]
    assert [service.admission._slots._value for service in services] == [32, 32, 8, 8]
    monkeypatch.setattr(Labeler, "open", lambda settings: settings.threads)
    assert [open_labeler(Settings(threads=threads)) for threads in (0, 3)] == [1, 3]


def test_every_response_names_the_provider_and_that_a_gpu_is_not_used_unless_another_choice_is_explicit(
    connect: Connect, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (classifiers, api):
        monkeypatch.setattr(module, "cuda_unavailable_reason", lambda: NO_DRIVER)
    client = connect(classifies=Classifier(Settings(model=artifact, device="auto")), device="auto")
    good = client.post("/v1/expressions", **ONE_PHOTO)
    assert good.json()["provider"] == CPU
    for response in (good, client.get("/nope"), client.post("/v1/expressions", json={})):
        assert (response.headers["Mien-Provider"], response.headers["Mien-Fallback"]) == (CPU, "cpu")
    assert client.get("/ready").json()["fallback"] == NO_DRIVER
    assert 'fallback="cpu"' in client.get("/metrics").text
    cases: list[tuple[dict[str, Any], str, str | None, str | None]] = [
        ({"device": "auto"}, CUDA, None, None),
        ({"device": "auto", "precision": "int8"}, CPU, None, None),
        ({"device": "cpu"}, CPU, None, None),
        ({}, CPU, NO_DRIVER, None),
        ({}, CPU, None, NO_DRIVER),
    ]
    for settings, provider, no_gpu, fallback in cases:
        monkeypatch.setattr(api, "gpu_unavailable_reason", lambda found=no_gpu: found)
        assert api.fallback(SimpleNamespace(provider=provider), Settings(**settings)) == fallback, settings
