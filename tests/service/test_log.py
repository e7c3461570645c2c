"""Log of the service: startup, and one line per request with its id."""

import json
import re
from pathlib import Path

from mien.app.inference.runtime.sessions import cuda_unavailable_reason
from mien.app.service.keys import key_hash
from tests.service.conftest import Serve
from tests.support.serving import UPGRADE, Server


def test_every_request_is_logged_with_its_id_and_successful_probes_are_not(common: Server) -> None:
    earlier = len(common.log.read_text())
    given = common.get("/nope", headers={"x-request-id": "trace-1"})
    made = common.get("/v1/models").headers["x-request-id"]
    for path in ("/health", "/ready", "/metrics", "/metrics?a=b"):
        common.get(path)
    assert "device" not in common.log.read_text(), "a service for the CPU looks for no GPU"
    log = common.log.read_text()[earlier:]
    assert given.headers["x-request-id"] == "trace-1"
    assert '"GET /nope HTTP/1.1" 404 Not Found [trace-1]' in log
    assert f'"GET /v1/models HTTP/1.1" 200 OK [{made}]' in log
    assert not [line for line in log.splitlines() if "/health" in line or "/ready" in line or "/metrics" in line]


def test_query_strings_and_refused_streams_leave_no_trace_but_their_path(common: Server) -> None:
    common.get("/nope?key=secret")
    for path, origin in ((b"/v1/stream?key=secret", b"http://localhost"), (b"/v1/stream", b"http://[::1")):
        response = common.send(UPGRADE.replace(b"/v1/stream", path) + b"Origin: %s\r\n\r\n" % origin)
        assert b"application/problem+json" in response
        assert b"x-request-id: " in response
    wrong = common.send(UPGRADE.replace(b"Version: 13", b"Version: 12") + b"\r\n")
    made = re.findall(rb"x-request-id: (\w+)", wrong)[0].decode()
    log = common.log.read_text()
    assert f"connection rejected (400 Bad Request) [{made}]" in log
    assert '"GET /nope HTTP/1.1" 404' in log
    assert '"WebSocket /v1/stream" 422' in log
    assert "secret" not in log
    assert "ERROR" not in log


def test_a_json_log_has_one_object_per_line_and_names_a_missing_gpu(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(f"[web]\nsha256 = ['{key_hash('secret')}']")
    server = serve(device="auto", log_format="json", api_keys_file=tmp_path / "keys.toml")
    made = server.get("/v1/models", headers={"x-api-key": "secret"}).headers["x-request-id"]
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message", "request_id"} <= line.keys() for line in lines)
    (access,) = [line for line in lines if line["request_id"] == made]
    assert (access["method"], access["path"], access["status"]) == ("GET", "/v1/models", 200)
    assert access["key"] == "web"
    if reason := cuda_unavailable_reason():
        assert f"device auto: using the CPU ({reason})" in {line["message"] for line in lines}
