"""The application: health, models, documentation, metrics, API keys and headers."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mien.app import VERSION
from mien.app.inference.detect import create_detector
from mien.app.service.jobs import Jobs
from mien.app.service.keys import key_hash
from mien.app.settings import Settings
from mien.data.contract import EIGHT_LABELS, LABELS
from tests.support.app import PHOTO, Connect, problem

EVERYWHERE, UMLAUTS = "::", "schl\u00fcssel"
SECURED = {"/v1/expressions", "/v1/models", "/v1/models/{name}/card", "/metrics"}  # if there are keys


def send(client: TestClient, **headers: str | bytes) -> int:
    headers = {"content-type": "image/jpeg"} | headers
    return client.post("/v1/expressions", content=PHOTO, headers=headers).status_code


def test_health_and_readiness_report_the_running_model(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "alive", "version": VERSION}
    ready = client.get("/ready").json()
    assert ready["status"] == "ready"
    assert (ready["model"], ready["provider"], ready["detector"]) == ("tiny.test", "CPUExecutionProvider", "drawn")
    assert ready["queue_depth"] == ready["requests_inside"] == 0
    (model,) = client.get("/v1/models").json()["models"]
    assert (model["name"], tuple(model["labels"])) == ("tiny.test", LABELS)
    assert (model["confidence_threshold"], model["license"]) == (0.3, "Apache-2.0")


def test_every_page_responds_to_head_without_a_body(client: TestClient) -> None:
    for path in ("/", "/card", "/sw.js", "/page/app.webmanifest", "/docs", "/openapi.json", "/v1/models", "/health"):
        head, page = (request(path, headers={"accept-encoding": "identity"}) for request in (client.head, client.get))
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == page.headers["content-type"]
        assert head.headers["content-length"] == str(len(page.content))


@pytest.mark.parametrize("query", ["", "?aligned=true"])
def test_the_example_of_the_description_can_be_sent_and_has_a_face(connect: Connect, query: str) -> None:
    client = connect(detector=create_detector(Settings(detector="builtin")))
    (operation,) = client.get("/openapi.json").json()["paths"]["/v1/expressions"].values()
    example = operation["requestBody"]["content"]["application/json"]["example"]
    plain = client.post(f"/v1/expressions{query}", json=example).json()["images"][0]
    assert len(plain["faces"]) == 1
    example["images"][0]["base64"] = f"data:image/jpeg;base64,{example['images'][0]['base64']}"
    assert client.post(f"/v1/expressions{query}", json=example).json()["images"][0]["faces"] == plain["faces"]


def test_an_unknown_path_is_a_problem(client: TestClient) -> None:
    unknown = ("/nope", "/v1/expression", "/docs/assets/redoc.standalone.js", "/docs/", "/page/nope.js", "/page/")
    outside = ("/docs/assets/%2e%2e%2fdocs.js", "/page/../docs.js", "/page/%2e%2e/docs.js")
    for path in (*unknown, *outside):
        problem(client.get(path), 404, "not-found")


def test_the_documentation_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert "//" not in page.text.replace("<!doctype", "")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "SwaggerUIBundle" in client.get("/docs/page.js").text
    assert len(client.get("/docs/assets/swagger-ui-bundle.js").content) > 1_000_000
    assert len(client.get("/docs/assets/swagger-ui.css").content) > 100_000


def test_the_description_has_bodies_problems_and_limits_for_generators_of_clients(connect: Connect) -> None:
    document = connect(max_images=3, extra_models="accurate").get("/openapi.json").json()
    operations = {path: operation for path, item in document["paths"].items() for operation in item.values()}
    ids = [operation["operationId"] for operation in operations.values()]
    assert sorted(ids) == ["expressions", "health", "metrics", "model_card", "models", "ready"]
    operation, schemas = operations["/v1/expressions"], document["components"]["schemas"]
    bodies = operation["requestBody"]["content"]
    assert bodies.keys() == {"multipart/form-data", "application/json", "application/octet-stream"}
    for form in (bodies["multipart/form-data"]["schema"], schemas["EncodedImages"]):
        assert form["properties"]["images"]["maxItems"] == 3
    choice = next(parameter for parameter in operation["parameters"] if parameter["name"] == "model")
    assert choice["schema"] == {"type": "string", "enum": ["fast", "accurate"], "default": "fast"}
    assert all(name in schemas["FaceResult"]["properties"]["label"]["description"] for name in EIGHT_LABELS)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, set()),
        ({"api_key_sha256": key_hash("k")}, SECURED),
        ({"api_key_sha256": key_hash("k"), "metrics_without_key": True}, SECURED - {"/metrics"}),
    ],
)
def test_the_description_requires_a_key_where_the_service_does(
    connect: Connect, settings: dict[str, Any], expected: set[str]
) -> None:
    document = connect(**settings).get("/openapi.json", headers={"X-API-Key": "k"}).json()
    operations = {path: operation for path, item in document["paths"].items() for operation in item.values()}
    security = {path: operation["security"] for path, operation in operations.items() if "security" in operation}
    assert security == {path: [{"bearer": []}, {"header": []}] for path in expected}
    assert set(document["components"].get("securitySchemes", ())) == ({"bearer", "header"} if expected else set())


def test_metrics_count_requests_faces_stages_and_rejections(connect: Connect) -> None:
    client = connect()
    assert send(client) == 200
    assert client.post("/v1/expressions", content=b"x", headers={"content-type": "image/png"}).status_code == 415
    text = client.get("/metrics").text
    assert 'mien_requests_total{method="POST",route="/v1/expressions",status="200"} 1.0' in text
    assert 'mien_images_total{outcome="labeled"} 1.0' in text
    assert 'mien_rejections_total{problem="unsupported-image"} 1.0' in text
    assert 'mien_stage_seconds_count{stage="detect"} 1.0' in text
    assert re.search(r'mien_faces_total\{label="(\w+)",uncertain="(true|false)"\} 1\.0', text)
    assert 'provider="CPUExecutionProvider"' in text
    assert "mien_queue_requests 0.0" in text
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert f"\n{name} " in text


def test_every_rejection_is_counted_by_its_problem(connect: Connect) -> None:
    client = connect(api_key_sha256=key_hash("k"), cors_origins="https://a.example", metrics_without_key=True)
    key = {"x-api-key": "k"}
    client.get("/v1/models")
    client.get("/nope", headers=key)
    client.get("/v1/expressions", headers=key)
    client.post("/v1/expressions?top_k=101", headers=key)
    client.get("/health", headers={"host": "evil.example"})
    client.options("/health", headers={"origin": "https://b.example", "access-control-request-method": "GET"})
    text = client.get("/metrics").text
    kinds = ("unauthorized", "not-found", "method-not-allowed", "invalid-request", "foreign-host", "bad-request")
    for kind in kinds:
        assert f'mien_rejections_total{{problem="{kind}"}} 1.0' in text, kind


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost:8000", 200),
        ({}, "127.0.0.1", 200),
        ({}, "[::1]:8000", 200),
        ({}, "rebound.example", 421),
        ({}, "a b", 400),
        ({}, "localhost:80:80", 400),
        ({"host": EVERYWHERE}, "mien.example", 200),
        ({"host": EVERYWHERE, "allowed_hosts": "mien.example"}, "MIEN.example:443", 200),
        ({"host": EVERYWHERE, "allowed_hosts": "mien.example"}, "other.example", 421),
        ({"allowed_hosts": "*"}, "any.example", 200),
    ],
)
def test_the_host_header_is_checked(connect: Connect, settings: dict[str, str], host: str, status: int) -> None:
    response = connect(**settings).get("/health", headers={"host": host})
    assert response.status_code == status
    assert response.headers["content-type"] == f"application/{'json' if status == 200 else 'problem+json'}"
    assert response.headers["x-request-id"]


def test_only_pages_of_a_named_origin_read_responses_and_send_the_headers_of_a_job(
    connect: Connect, tmp_path: Path
) -> None:
    named, evil = {"origin": "https://a.example"}, {"origin": "https://evil.example"}
    assert "access-control-allow-origin" not in connect().get("/health", headers=named).headers
    client = connect(cors_origins="https://a.example", jobs_dir=tmp_path)
    assert client.get("/health", headers=named).headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in client.get("/health", headers=evil).headers
    for path, method in (("/v1/expressions", "POST"), ("/v1/jobs/1", "DELETE")):
        asked = {"access-control-request-headers": "x-request-id, content-type, idempotency-key"}
        asked["access-control-request-method"] = method
        assert client.options(path, headers=named | asked).status_code == 200
        refused = client.options(path, headers=evil | asked)
        assert "origin" in problem(refused, 400, "bad-request")
        assert len(refused.headers["x-request-id"]) == 32


def test_metrics_do_not_grow_with_values_from_clients(connect: Connect) -> None:
    client = connect()
    for number in range(20):
        client.get(f"/made/up/{number}")
        client.request(f"MADE{number}", "/health")
    text = client.get("/metrics").text
    assert "made" not in text.lower()
    assert 'route="unmatched",status="404"} 20.0' in text


def test_every_response_has_security_headers_and_a_request_id(client: TestClient) -> None:
    for path in ("/health", "/nope", "/docs", "/v1/models"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert len(headers["x-request-id"]) == 32
    headers = client.get("/v1/models").headers
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"
    given = client.get("/health", headers={"x-request-id": "trace-1"}).headers["x-request-id"]
    assert given == "trace-1"
    forged = client.get("/health", headers={"x-request-id": "a b;<script>"}).headers["x-request-id"]
    assert forged != "a b;<script>"


def test_keys_protect_everything_except_probes(connect: Connect) -> None:
    client = connect(api_key_sha256=",".join(map(key_hash, ("first", "second", UMLAUTS))))
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    for path in ("/v1/models", "/metrics", "/docs", "/openapi.json", "/nope"):
        refused = client.get(path)
        problem(refused, 401, "unauthorized")
        challenges = refused.headers.get_list("www-authenticate")
        assert [challenge.split()[0] for challenge in challenges] == ["Basic", "Bearer"]
    for header in ("Bearer third", "Bearer ", "Basic !!!", b"Basic \xe9"):
        assert send(client, authorization=header) == 401, header
    basic = base64.b64encode(b"anyone:second").decode()
    for accepted in ("Bearer first", f"Basic {basic}", f"Bearer {UMLAUTS}".encode()):
        assert send(client, authorization=accepted) == 200, accepted
    for key in ("second", UMLAUTS.encode()):
        assert send(client, **{"x-api-key": key}) == 200, key


ORIGINS = [
    ({}, 200),
    ({"sec-fetch-site": "same-origin", "origin": "http://localhost"}, 200),
    ({"sec-fetch-site": "same-origin", "origin": "https://outside.example"}, 200),  # as a proxy changes Host
    ({"sec-fetch-site": "none"}, 200),
    ({"sec-fetch-site": "cross-site", "origin": "https://friend.example"}, 200),
    ({"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site", "origin": "http://localhost"}, 403),
    ({"origin": "http://localhost"}, 200),
    ({"origin": "https://friend.example"}, 200),
    ({"origin": "https://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://[::1"}, 403),
]


def test_pages_of_other_origins_change_nothing(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "start_next", lambda _: None)  # jobs stay in the queue
    settings = {"cors_origins": "https://friend.example", "api_key_sha256": key_hash("k"), "max_jobs": 99}
    client, jobs = connect(jobs_dir=tmp_path, **settings), 0
    password = {"authorization": "Basic " + base64.b64encode(b":k").decode()}  # that a browser has stored
    for headers, status in ORIGINS:
        form = {"files": [("images", ("a.jpg", PHOTO))], "headers": headers | password}
        responses = [client.post("/v1/expressions", **form), client.post("/v1/jobs", **form)]
        responses += [client.request(name, "/v1/jobs/1", headers=headers | password) for name in ("PUT", "DELETE")]
        allowed = status == 200
        assert [one.status_code for one in responses] == ([200, 202, 405, 404] if allowed else [403] * 4), headers
        jobs += allowed
        assert sum(path.is_dir() for path in tmp_path.iterdir()) == jobs
        if not allowed:
            assert {response.json()["type"] for response in responses} == {"urn:mien:problem:foreign-origin"}
        assert client.get("/docs", headers=headers | password).status_code == 200, "a link of another page"


def test_a_wrong_method_is_told_all_methods_of_a_path(connect: Connect, tmp_path: Path) -> None:
    client = connect(jobs_dir=tmp_path)
    allowed = {path: client.put(path).headers["allow"] for path in ("/v1/jobs/1", "/v1/jobs", "/health")}
    assert allowed == {"/v1/jobs/1": "GET, HEAD, DELETE", "/v1/jobs": "GET, HEAD, POST", "/health": "GET, HEAD"}
