"""Client of the service: the results of `Analyzer`, in batches, with retries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import PIL.Image
import pytest

from mien import Analyzer, BatchError, Client, Face, Faces, MienError, ServiceError
from mien.app.service.keys import key_hash
from tests.support import encoded, gradient_image, sample_photo
from tests.support.app import PHOTO, Connect

Open = Callable[..., Client]


@pytest.fixture
def open_client(connect: Connect) -> Open:
    """A client of a service with these settings."""

    def start(*, api_key: str | None = None, **settings: Any) -> Client:
        client = Client(api_key=api_key)
        service = connect(**settings)
        service.headers.update(client._http.headers)
        client._http = service  # type: ignore[assignment]  # the same methods
        return client

    return start


def test_results_equal_those_of_an_analyzer(open_client: Open, artifact: Path) -> None:
    with Analyzer(model=artifact, device="cpu", detector="builtin") as analyzer:
        (expected,) = analyzer.analyze(sample_photo())
        client = open_client(detector=analyzer._labeler().detector)
    faces = client.analyze(sample_photo(), crops=True)
    assert isinstance(faces, Faces)
    assert (faces.width, faces.height, faces.model, faces.detector) == (512, 512, artifact.name, "builtin")
    (face,) = faces
    assert isinstance(face, Face)
    assert face.to_dict() == expected.to_dict()
    assert face.index == 0
    assert face.box.width == pytest.approx(expected.box.width, abs=0.01)
    assert np.array_equal(face.crop, expected.crop)
    assert not client.analyze(sample_photo())[0].crop.size
    assert faces.draw().size == (512, 512)


def test_any_image_of_an_analyzer_can_be_sent(open_client: Open, tmp_path: Path) -> None:
    pixels, path, client = gradient_image(320, 240), tmp_path / "photo.png", open_client()
    path.write_bytes(encoded(pixels, "PNG"))
    with path.open("rb") as file, PIL.Image.open(path) as pillow:
        modes = [pillow.convert(mode) for mode in ("CMYK", "YCbCr", "I", "F")]  # which PNG does not have
        for image in (path, str(path), path.read_bytes(), file, pixels, pillow, *modes):
            faces = client.analyze(image)
            assert [face.box.width for face in faces] == [80]
            assert faces.draw().size == (320, 240)


def test_given_boxes_are_labeled_as_by_an_analyzer(open_client: Open, artifact: Path) -> None:
    boxes = [(170, 40, 110, 130), (10, 20, 60, 60)]
    with Analyzer(model=artifact, device="cpu", detector="builtin") as analyzer:
        expected = analyzer.analyze(sample_photo(), boxes=boxes)
        client = open_client(detector=analyzer._labeler().detector)
    assert [face.to_dict() for face in client.analyze(sample_photo(), boxes=boxes)] == [
        face.to_dict() for face in expected
    ]
    assert client.analyze(sample_photo(), boxes=[]) == []
    with pytest.raises(ServiceError, match="outside the image"):
        client.analyze(sample_photo(), boxes=[(900, 900, 10, 10)])
    for wrong in ((1, 2, 3), [(1, 2)] * 5, None, ["a"] * 4):
        with pytest.raises(MienError, match=r"^boxes\[1\]: .*expected \(x, y, width, height\)"):
            client.analyze(sample_photo(), boxes=[boxes[0], wrong])  # type: ignore[list-item]


def test_batches_name_the_images_that_cannot_be_used(open_client: Open) -> None:
    client = open_client(max_images=3)  # fewer than the client sends at first
    assert [len(faces) for faces in client.analyze_batch([PHOTO] * 7)] == [1] * 7
    with pytest.raises(BatchError) as error:
        client.analyze_batch([b"no image", PHOTO, "/missing.jpg", b"no image", None])  # type: ignore[list-item]
    kinds = {index: getattr(one, "kind", type(one).__name__) for index, one in error.value.errors.items()}
    unsupported = "unsupported-image"
    assert kinds == {0: unsupported, 2: "FileNotFoundError", 3: unsupported, 4: "TypeError"}
    assert [faces is None for faces in error.value.results] == [True, False, True, True, True]
    assert client.analyze_batch([]) == []
    crowded = open_client(max_buffered_bytes=200_000)  # has room for the images in the response to one of these
    assert [len(faces) for faces in crowded.analyze_batch([PHOTO] * 3, annotate=True, crops=True)] == [1] * 3
    with pytest.raises(TypeError, match="several images"):
        client.analyze_batch("photo.jpg")


def test_problems_are_errors_with_their_status_and_kind(open_client: Open) -> None:
    client = open_client(api_key="k", api_key_sha256=key_hash("k"))
    assert client.analyze(PHOTO)
    for image, options, status, kind in (
        (b"no image", {}, 415, "unsupported-image"),
        (PHOTO, {"top_k": 101}, 422, "invalid-request"),
    ):
        with pytest.raises(ServiceError) as error:
            client.analyze(image, **options)
        assert (error.value.status, error.value.kind) == (status, kind)
    with pytest.raises(ServiceError, match="not accepted") as error:
        open_client(api_key="wrong", api_key_sha256=key_hash("k")).analyze_batch([PHOTO])
    assert error.value.status == 401


def _scripted(monkeypatch: pytest.MonkeyPatch, *responses: Any) -> tuple[Client, list[float]]:
    """A client that gets these responses or errors in turn, and the seconds that it waits."""
    waits: list[float] = []
    monkeypatch.setattr("mien.client.time.sleep", waits.append)
    left = iter(responses)

    def respond(_request: httpx.Request) -> httpx.Response:
        response: httpx.Response | Exception = next(left)
        if isinstance(response, Exception):
            raise response
        return response

    client = Client(retries=2)
    client._http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(respond))
    return client, waits


BUSY = {"type": "urn:mien:problem:queue-full", "title": "Service is busy", "status": 503, "detail": "try again"}
PROBLEM = {"Content-Type": "application/problem+json"}
IMAGE = {"index": 0, "name": None, "width": 8, "height": 6, "faces": [], "timings_ms": {}, "error": None}


def test_busy_services_and_lost_connections_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    done = httpx.Response(200, json={"model": "m", "detector": "d", "images": [IMAGE]})
    busy = httpx.Response(503, json=BUSY, headers=PROBLEM | {"Retry-After": "7"})
    client, waits = _scripted(monkeypatch, busy, httpx.ConnectError("lost"), done)
    assert client.analyze(PHOTO) == []
    assert waits[0] == 7
    assert 0 < waits[1] < 1
    client, _ = _scripted(monkeypatch, busy, busy, busy)
    with pytest.raises(ServiceError, match="busy"):
        client.analyze(PHOTO)
    dated = httpx.Response(503, json=BUSY, headers=PROBLEM | {"Retry-After": "Fri, 27 Nov 2026 06:00:00 GMT"})
    client, waits = _scripted(monkeypatch, dated, done)
    assert client.analyze(PHOTO) == []
    assert 0 < waits[0] < 1
    partial = httpx.Response(200, json={"model": "m", "detector": "d", "images": [IMAGE, IMAGE | {"error": BUSY}]})
    client, _ = _scripted(monkeypatch, partial, busy, done)
    assert client.analyze_batch([PHOTO, PHOTO]) == [[], []]
    client, _ = _scripted(monkeypatch, *[httpx.ConnectError("lost")] * 3)
    with pytest.raises(httpx.ConnectError):
        client.analyze(PHOTO)


def test_a_page_of_a_proxy_is_an_error_with_its_status_and_too_large_batches_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = httpx.Response(502, text="<h1>502 Bad Gateway</h1>")
    client, _ = _scripted(monkeypatch, page)
    with pytest.raises(ServiceError, match="502 Bad Gateway") as error:
        client.analyze(PHOTO)
    assert (error.value.status, error.value.kind) == (502, "bad-gateway")
    done = httpx.Response(200, json={"model": "m", "detector": "d", "images": [IMAGE]})
    client, _ = _scripted(monkeypatch, httpx.Response(413, text="<h1>413</h1>"), done, done)
    assert client.analyze_batch([PHOTO, PHOTO]) == [[], []]
