"""Client of the service (`mien serve`), with the results of `Analyzer`: typed faces, batches, and retries.

Needs httpx: `pip install 'mien[client]'`.
"""

import base64
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self

import httpx
import numpy as np
import PIL.Image

from mien.analyzer import Faces, Image, in_batches, pixels_of, read_file
from mien.app.errors import InvalidFace
from mien.app.inference.records import Box, Face, Photo
from mien.data.contract import decode
from mien.data.errors import MienError

_BUSY: Final = (429, 503)
# Responses to a whole request that may be due to one of its images, or to their number
_DIVISIBLE: Final = (413, 415, 422)
_Encoded = tuple[bytes, str | bytes]  # bytes of an image file, and its path if it has one
_Options = dict[str, str | float | bool]


class ServiceError(MienError):
    """A problem of the service with a request or an image.

    Attributes:
        status: HTTP status; kind: the last part of the problem's type, such as `corrupt` (docs/api.md).
    """

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(f"{problem['title']}: {problem['detail']}")
        self.status, self.kind = int(problem["status"]), str(problem["type"]).rpartition(":")[2]


class Client:
    """Sends photos to a service; thread-safe, and a context manager."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        retries: int = 5,
        timeout_s: float = 60.0,
    ) -> None:
        """Connect at the first request.

        Args:
            url: of the service, without `/v1`.
            api_key: sent with every request.
            retries: after a lost connection, or if the service is busy; it says how long to wait.
            timeout_s: for one request.
        """
        headers = {} if api_key is None else {"X-API-Key": api_key}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._retries = retries

    def analyze(
        self, image: Image, *, boxes: Iterable[Sequence[float]] | None = None, **options: str | float | bool
    ) -> Faces:
        """Label the faces of one photo.

        Args:
            image: as for `Analyzer`: a path, the bytes of a file, a binary file, an image of Pillow, or RGB pixels.
            boxes: the faces instead of detected ones: (x, y, width, height), in pixels of the upright photo.
            options: of `POST /v1/expressions`, such as min_face_px=24 or crops=True, which fills `face.crop`.
        Raises: ServiceError; InvalidFace; httpx.TransportError, if the service cannot be reached; OSError, for a path.
        """
        boxes_json = None
        if boxes is not None:
            boxes_json = json.dumps([[_box(index, box)._asdict() for index, box in enumerate(boxes)]])
        (result,) = self._label([_encoded(image)], options, boxes_json)
        if isinstance(result, ServiceError):
            raise result
        return result

    def analyze_batch(self, images: Iterable[Image], **options: str | float | bool) -> list[Faces]:
        """Label several photos, in order, up to 16 of them in one request.

        Raises: BatchError at the end, which names the images that cannot be used and has the results of the others;
            otherwise as `analyze`.
        """
        return in_batches(images, _encoded, lambda encoded: self._label(encoded, options))

    def _label(
        self, images: Sequence[_Encoded], options: _Options, boxes: str | None = None
    ) -> list[Faces | ServiceError]:
        """Results of encoded images, each with its source. Raises: ServiceError, if it concerns the request."""
        response = self._post([("images", payload) for payload, _ in images], options, boxes)
        if response.is_success:
            content = response.json()
            results = [
                _result(content, image, source) for image, (_, source) in zip(content["images"], images, strict=True)
            ]
            return [
                self._label([image], options)[0] if len(images) > 1 and _has_no_room(result) else result
                for image, result in zip(images, results, strict=True)
            ]
        error = ServiceError(_problem(response))
        if error.status not in _DIVISIBLE or error.kind in ("invalid-request", "invalid_face"):
            raise error
        if len(images) == 1:
            return [error]
        half = len(images) // 2
        return self._label(images[:half], options) + self._label(images[half:], options)

    def _post(self, files: list[tuple[str, bytes]], options: _Options, boxes: str | None) -> httpx.Response:
        data = {} if boxes is None else {"boxes": boxes}
        for attempt in range(self._retries + 1):
            wait_s = 0.1 * 2**attempt
            try:
                response = self._http.post("/v1/expressions", files=files, data=data, params=options)
            except httpx.TransportError:
                if attempt == self._retries:
                    raise
            else:
                if response.status_code not in _BUSY or attempt == self._retries:
                    return response
                with suppress(ValueError):  # a date, as some proxies send
                    wait_s = max(wait_s, float(response.headers.get("Retry-After", 0)))
            time.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem document of a response; of a page of a proxy, the problem of its status."""
    if response.headers.get("Content-Type") == "application/problem+json":
        return dict(response.json())
    status, title = response.status_code, response.reason_phrase
    kind = title.lower().replace(" ", "-")
    return {"type": f"urn:mien:problem:{kind}", "title": title, "status": status, "detail": response.text[:200]}


def _box(index: int, values: Sequence[float]) -> Box:
    """Raises: InvalidFace."""
    try:
        return Box(*map(float, values))
    except (TypeError, ValueError) as error:
        raise InvalidFace(f"boxes[{index}]: {values!r}: expected (x, y, width, height)", (index,)) from error


def _encoded(image: Image) -> _Encoded:
    if isinstance(image, np.ndarray | PIL.Image.Image):
        buffer = io.BytesIO()
        pixels = pixels_of(image, max_pixels=sys.maxsize)  # the service has a limit of its own
        PIL.Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue(), buffer.getvalue()
    payload = bytes(image) if isinstance(image, bytes | bytearray | memoryview) else read_file(image)
    return payload, os.path.abspath(os.fsdecode(image)) if isinstance(image, str | os.PathLike) else payload  # noqa: PTH100


def _result(content: dict[str, Any], image: dict[str, Any], source: str | bytes) -> Faces | ServiceError:
    if image["error"] is not None:
        return ServiceError(image["error"])
    faces = tuple(_face(index, values) for index, values in enumerate(image["faces"]))
    return Faces(Photo(image["width"], image["height"], faces), content["model"], content["detector"], source)


def _has_no_room(result: Faces | ServiceError) -> bool:
    """Whether the service refused an image for the bytes of the others, of its request or of others at that time."""
    return isinstance(result, ServiceError) and (result.status in _BUSY or result.kind == "payload-too-large")


def _face(index: int, values: dict[str, Any]) -> Face:
    crop = values.get("crop")
    face = Face.from_dict(values, index=index)
    return face if crop is None else replace(face, crop=decode(base64.b64decode(crop["base64"])))
