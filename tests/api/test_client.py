"""Client of the service: the results of `Analyzer`, in batches, with retries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import PIL.Image
import pytest

from mien import Analyzer, BatchError, Client, ServiceError
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
    boxes = [(170, 40, 110, 130), (10, 20, 60, 60)]
    with Analyzer(model=artifact, device="cpu", detector="builtin") as analyzer:
        (expected,), boxed = analyzer.analyze(sample_photo()), analyzer.analyze(sample_photo(), boxes=boxes)
        client = open_client(detector=analyzer._labeler().detector)
    faces = client.analyze(sample_photo(), crops=True)
    assert (faces.width, faces.height, faces.model, faces.detector) == (512, 512, artifact.name, "builtin")
    (face,) = faces
    assert (face.to_dict(), face.index) == (expected.to_dict(), 0)
    assert np.array_equal(face.crop, expected.crop)
    assert not client.analyze(sample_photo())[0].crop.size
    assert faces.draw().size == (512, 512)
    from_boxes = client.analyze(sample_photo(), boxes=boxes)
    assert [face.to_dict() for face in from_boxes] == [face.to_dict() for face in boxed]


def test_any_image_of_an_analyzer_can_be_sent(open_client: Open, tmp_path: Path) -> None:
    pixels, path, client = gradient_image(320, 240), tmp_path / "photo.png", open_client()
    path.write_bytes(encoded(pixels, "PNG"))
    with path.open("rb") as file, PIL.Image.open(path) as pillow:
        for image in (path, path.read_bytes(), file, pixels, pillow.convert("CMYK")):  # which PNG does not have
            faces = client.analyze(image)
            assert [face.box.width for face in faces] == [80]
            assert faces.draw().size == (320, 240)


def test_batches_name_the_images_that_cannot_be_used(open_client: Open) -> None:
    client = open_client(max_images=3)  # fewer than the client sends at first
    assert [len(faces) for faces in client.analyze_batch([PHOTO] * 7)] == [1] * 7
    with pytest.raises(BatchError) as error:
        client.analyze_batch([b"no image", PHOTO, "/missing.jpg", b"no image"])
    kinds = {index: getattr(one, "kind", type(one).__name__) for index, one in error.value.errors.items()}
    assert kinds == {0: "unsupported", 2: "FileNotFoundError", 3: "unsupported"}
    assert [faces is None for faces in error.value.results] == [True, False, True, True]
    with pytest.raises(ServiceError) as refused:
        open_client(api_key="wrong", api_key_sha256=key_hash("k")).analyze(PHOTO)
    assert (refused.value.status, refused.value.kind) == (401, "unauthorized")
    crowded = open_client(max_buffered_bytes=200_000)  # has room for the images in the response to one of these
    assert [len(faces) for faces in crowded.analyze_batch([PHOTO] * 3, annotate=True, crops=True)] == [1] * 3


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


PROBLEM = {"Content-Type": "application/problem+json"}
BUSY = {"type": "urn:mien:problem:queue-full", "title": "Service is busy", "status": 503, "detail": "try again"}
IMAGE = {"index": 0, "name": None, "width": 8, "height": 6, "faces": [], "timings_ms": {}, "error": None}


def busy(retry_after: str = "7") -> httpx.Response:
    return httpx.Response(503, json=BUSY, headers=PROBLEM | {"Retry-After": retry_after})


def done(*images: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"model": "m", "detector": "d", "images": images or [IMAGE]})


def test_busy_services_and_lost_connections_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, date = httpx.ConnectError("lost"), "Fri, 27 Nov 2026 06:00:00 GMT"
    for responses, expected in (
        ((busy(), lost, done()), [7, 0.2]),
        ((busy(date), done()), [0.1]),
    ):
        client, waits = _scripted(monkeypatch, *responses)
        assert client.analyze(PHOTO) == []
        assert waits == pytest.approx(expected)
    for response, error in ((busy, ServiceError), (lambda: lost, httpx.ConnectError)):
        client, _ = _scripted(monkeypatch, *(response() for _ in range(3)))
        with pytest.raises(error, match=r"busy|lost"):
            client.analyze(PHOTO)


def test_images_without_room_and_too_large_batches_are_sent_again_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = _scripted(monkeypatch, done(IMAGE, IMAGE | {"error": BUSY}), busy(), done())
    assert client.analyze_batch([PHOTO, PHOTO]) == [[], []]
    client, _ = _scripted(monkeypatch, httpx.Response(413, text="<h1>413</h1>"), done(), done())
    assert client.analyze_batch([PHOTO, PHOTO]) == [[], []]
