"""`WS /v1/stream`: frames in, faces out, never a queue."""

from contextlib import ExitStack

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from tests.support.app import PHOTO as FRAME
from tests.support.app import Connect, SlowDetector, key_hash, problem


def rejection(client: TestClient, path: str = "/v1/stream", **options: object) -> httpx.Response:
    """The response to a stream that is rejected before it opens."""
    with pytest.raises(WebSocketDenialResponse) as rejected, client.websocket_connect(path, **options):
        pass
    return rejected.value


def test_frames_come_back_with_their_number_and_the_face_as_rest_returns_it(connect: Connect) -> None:
    client = connect()
    response = client.post("/v1/expressions", content=FRAME, headers={"content-type": "image/jpeg"})
    (expected,) = response.json()["images"][0]["faces"]
    with client.websocket_connect("/v1/stream") as socket:
        for number in range(5):
            socket.send_bytes(FRAME)
            result = socket.receive_json()
            assert (result["frame"], result["dropped"], result["width"]) == (number, 0, 640)
            (face,) = result["faces"]
            assert face == expected
    assert 'mien_stream_frames_total{outcome="processed"} 5.0' in client.get("/metrics").text
    assert "mien_streams 0.0" in client.get("/metrics").text


def test_a_broken_frame_gets_an_error_and_the_stream_goes_on(client: TestClient) -> None:
    with client.websocket_connect("/v1/stream") as socket:
        socket.send_bytes(FRAME[:500])
        broken = socket.receive_json()
        socket.send_bytes(FRAME)
        good = socket.receive_json()
    assert (broken["frame"], broken["error"]["status"], broken["faces"]) == (0, 422, [])
    assert (good["frame"], good["error"], len(good["faces"])) == (1, None, 1)
    assert 'mien_stream_frames_total{outcome="refused"} 1.0' in client.get("/metrics").text


def test_a_slow_service_drops_frames_instead_of_queueing_them(connect: Connect) -> None:
    slow = SlowDetector()
    client = connect(detector=slow)
    with client.websocket_connect("/v1/stream") as socket:
        socket.send_bytes(FRAME)
        assert slow.begun.acquire(timeout=10)
        for _ in range(50):
            socket.send_bytes(FRAME)
        while 'outcome="dropped"} 49.0' not in client.get("/metrics").text:
            pass
        slow.go.set()
        assert socket.receive_json()["frame"] == 0
        newest = socket.receive_json()
        assert (newest["frame"], newest["dropped"]) == (50, 49)


def test_text_and_oversized_frames_close_the_stream(connect: Connect) -> None:
    client = connect()
    for send, code in (
        (lambda socket: socket.send_text("hello"), 1003),
        (lambda s: s.send_bytes(bytes(2_000_001)), 1009),
    ):
        with client.websocket_connect("/v1/stream") as socket:
            send(socket)
            with pytest.raises(WebSocketDisconnect) as closed:
                socket.receive_json()
            assert closed.value.code == code


def test_streams_are_counted_and_limited(connect: Connect) -> None:
    client = connect()
    with ExitStack() as streams:
        for _ in range(8):
            streams.enter_context(client.websocket_connect("/v1/stream"))
        rejected = rejection(client)
        problem(rejected, 503, "queue-full")
        assert "retry-after" in rejected.headers
    with client.websocket_connect("/v1/stream"):
        pass


def test_a_stream_requires_a_page_of_the_service_or_a_named_one_and_a_key(connect: Connect) -> None:
    client = connect(cors_origins="https://friend.example", api_key_sha256=key_hash("open-sesame"))
    key = {"x-api-key": "open-sesame"}
    problem(rejection(client), 401, "unauthorized")
    for origin in ("https://evil.example", "http://[::1", "null"):
        assert rejection(client, headers=key | {"origin": origin}).status_code == 403
    for origin in ("http://localhost", "https://friend.example"):
        with client.websocket_connect("/v1/stream", headers=key | {"origin": origin}) as socket:
            socket.send_bytes(FRAME)
            assert len(socket.receive_json()["faces"]) == 1
