"""Requests: their options, their admission, and their images, streamed to memory with limits enforced while reading.

Flow: `Admission.admit` (room in the queue) -> `read_uploads` (reserves the bytes of each chunk) -> `Admission.slot`.
A fixed number of requests has a slot; the others wait in the order of their arrival. Uploads that have not arrived are
not in the queue.
"""

import asyncio
import base64
import io
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.datastructures import Headers

from mien.app.errors import InvalidRequest, PayloadTooLarge, QueueFull, TooManyImages, UnsupportedContent
from mien.app.inference.records import Box
from mien.app.service.metrics import Metrics
from mien.app.settings import Settings

FIELD: Final = "images"
_MULTIPART: Final = "multipart/form-data"
_JSON: Final = "application/json"
_OCTETS: Final = "application/octet-stream"
# A parsed value takes up to 300 bytes, where it may be two in the body ("[,[,"); images are few and long.
_MAX_JSON_VALUES: Final = 10_000
_JSON_COPIES: Final = 3  # copies of a body during parsing: bytes, text, images
_MAX_STREAMS: Final = 8
_MAX_NAME: Final = 255
_DATA_URL: Final = re.compile(r"^data:[\w/+.-]{0,100};base64,")
_MAX_LENGTH_DIGITS: Final = 18
Fraction = Annotated[float, Field(ge=0, le=1)]
Reserve = Callable[[int], None]


class KnownFields(BaseModel):
    """Base of client input; an unknown name is rejected with a list of the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_fields(cls, data: Any) -> Any:
        unknown = sorted(set(data) - set(cls.model_fields)) if isinstance(data, dict) else []
        if unknown:
            names = {"found": ", ".join(unknown)[:200], "known": ", ".join(cls.model_fields)}
            raise PydanticCustomError("unknown_option", "no option is named {found}; options: {known}", names)
        return data


class FaceOptions(KnownFields):
    """Query parameters of a stream."""

    confidence_threshold: Fraction | None = Field(
        None, description="a confidence below it is `uncertain`; by default the model's own threshold"
    )


class LabelOptions(FaceOptions):
    """Query parameters of a request."""

    crops: bool = Field(False, description="return each face, aligned, as PNG in base64")
    whole: bool = Field(False, description="each image is one face, such as those of `crops`: only classify it")
    annotate: bool = Field(False, description="return each image with its faces drawn in, as JPEG in base64")
    explain: bool = Field(
        False, description="return attention maps, of the first network of a mean; 422 if the model has none"
    )


class EncodedImage(KnownFields):
    """One image of a JSON request."""

    name: str | None = Field(None, max_length=255, description="returned in the response")
    base64: str = Field(
        description="bytes of the image file in base64; a data URL is accepted too",
        json_schema_extra={"format": "byte"},
    )
    boxes: list[Box] | None = Field(
        None,
        description="label these boxes instead of detected faces; the response has one face for each, in this order",
    )

    def upload(self) -> "Upload":
        """The image, without bytes if it is not base64."""
        payload = b""
        with suppress(ValueError):
            payload = base64.b64decode(_DATA_URL.sub("", self.base64, count=1), validate=True)
        return Upload(self.name, payload, self.boxes)


class EncodedImages(KnownFields):
    """A JSON request."""

    images: list[EncodedImage] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Upload:
    """One uploaded image in memory, with its file name, if any; `boxes` replace detected faces."""

    name: str | None
    payload: bytes
    boxes: list[Box] | None = None


class Admission:
    """Limits on what is held and worked on at once. Belongs to one event loop, so it needs no lock."""

    def __init__(self, settings: Settings, metrics: Metrics, *, slots: int) -> None:
        self.settings, self._metrics = settings, metrics
        self.buffered_bytes = self.waiting = self.working = self._streams = 0
        self._slots = asyncio.Semaphore(slots)

    @contextmanager
    def admit(self) -> Iterator[Reserve]:
        """Admit or reject a request by its headers. Raises: QueueFull.

        Yields a function that reserves bytes of the shared buffer until the request ends: for its body, and for images
        of its response until the client has read them. It raises QueueFull, if others fill the buffer, and
        PayloadTooLarge, if an empty buffer has not enough for this request.
        """
        self._check_queue()
        limit, reserved = _JSON_COPIES * self.settings.max_body_bytes, 0

        def reserve(count: int) -> None:
            nonlocal reserved
            if reserved + count > limit:
                raise PayloadTooLarge(f"more than {limit} bytes for one request: send or ask for less at once")
            if self.buffered_bytes + count > limit:
                raise QueueFull("the buffer for bodies is full: try again in a moment")
            self.buffered_bytes += count
            reserved += count

        try:
            yield reserve
        finally:
            self.buffered_bytes -= reserved

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Admit or reject a stream. Raises: QueueFull."""
        if self._streams >= _MAX_STREAMS:
            raise QueueFull(f"{self._streams} streams are open: try again in a moment")
        self._streams += 1
        try:
            with self._metrics.streams.track_inprogress():
                yield
        finally:
            self._streams -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot to work in; if the wait is canceled, the request leaves the queue. Raises: QueueFull."""
        self._check_queue()
        self.waiting += 1
        try:
            with self._metrics.queue.track_inprogress():
                await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        try:
            with self._metrics.working.track_inprogress():
                yield
        finally:
            self.working -= 1
            self._slots.release()

    def _check_queue(self) -> None:
        """Check whether a request may wait. Raises: QueueFull."""
        if self._slots.locked() and self.waiting >= self.settings.max_queue:
            raise QueueFull(f"{self.working} requests running and {self.waiting} waiting: try again in a moment")


async def read_uploads(
    headers: Headers, stream: AsyncIterator[bytes], settings: Settings, reserve: Reserve
) -> list[Upload]:
    """Collect the images of a body, within the limits.

    Args:
        headers: of the request; rejected before the body is read if it cannot be accepted.
        stream: chunks of the body.
        settings: the limits, checked on every chunk.
        reserve: called with the length of every chunk before it is stored; may raise to reject the rest.
    Returns: at least one upload, in the order of the parts.
    Raises: UnsupportedContent, PayloadTooLarge, TooManyImages, InvalidRequest.
    """
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (_MULTIPART, _JSON, _OCTETS) and not media_type.startswith("image/"):
        raise UnsupportedContent(
            f"Content-Type {media_type or 'missing'}: send {_MULTIPART} with parts named {FIELD!r}, {_JSON} with "
            "base64, or one image as the body with an image/* type or application/octet-stream"
        )
    _check_head(headers, settings.max_body_bytes)
    if media_type == _JSON:
        chunks = _bounded(stream, settings.max_body_bytes, lambda count: reserve(_JSON_COPIES * count))
        return await asyncio.to_thread(_decoded, b"".join([chunk async for chunk in chunks]), settings)
    chunks = _bounded(stream, settings.max_body_bytes, reserve)
    if media_type == _MULTIPART:
        return await _form_images(headers, chunks, settings.max_images)
    return [Upload(None, b"".join([chunk async for chunk in chunks]))]


def _check_head(headers: Headers, max_bytes: int) -> None:
    if (encoding := headers.get("content-encoding", "").strip().lower()) not in ("", "identity"):
        raise UnsupportedContent(f"Content-Encoding {encoding[:40]}: send the body without compression")
    length = headers.get("content-length", "0")
    if len(length) > _MAX_LENGTH_DIGITS or int(length) > max_bytes:  # servers accept digits only
        raise PayloadTooLarge(f"body of {length[:20]} bytes: at most {max_bytes} are accepted")


async def _bounded(stream: AsyncIterator[bytes], limit: int, reserve: Reserve) -> AsyncIterator[bytes]:
    received = 0
    async for chunk in stream:
        received += len(chunk)
        if received > limit:
            raise PayloadTooLarge(f"body of more than {limit} bytes: send less per request")
        reserve(len(chunk))
        yield chunk


def _decoded(body: bytes, settings: Settings) -> list[Upload]:
    """The images of a JSON body."""
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > _MAX_JSON_VALUES:
        raise InvalidRequest(
            f"more than {_MAX_JSON_VALUES:,} values: expected images in base64, and boxes of their faces"
        )
    try:
        images = EncodedImages.model_validate_json(body).images
    except ValidationError as error:
        raise InvalidRequest(f"JSON body: {summary(error.errors())}") from error
    if len(images) > settings.max_images:
        raise _too_many(settings.max_images)
    return [image.upload() for image in images]


def findings(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Location and message of each of pydantic's errors."""
    return [{"location": "/".join(map(str, error["loc"])), "message": error["msg"]} for error in errors]


def summary(errors: Iterable[Mapping[str, Any]]) -> str:
    """Locations and messages of pydantic's errors in one line."""
    return "; ".join(": ".join(filter(None, finding.values())) for finding in findings(errors))


def _too_many(limit: int) -> TooManyImages:
    return TooManyImages(f"more than {limit} images in one request: send the rest in another")


async def _form_images(headers: Headers, chunks: AsyncIterator[bytes], max_images: int) -> list[Upload]:
    """The images of a form, with or without file names, held in memory. Raises: InvalidRequest, TooManyImages."""
    uploads, complete = list[Upload](), False

    def add(part: FormField | File) -> None:
        if part.field_name != FIELD.encode():
            field = (part.field_name or b"").decode("utf-8", "replace")
            raise InvalidRequest(
                f"multipart part {field[:40]!r}: send images as {FIELD!r}, options as query parameters, and boxes in "
                f"{_JSON}"
            )
        if len(uploads) >= max_images:
            raise _too_many(max_images)
        if isinstance(part, File):  # browsers send a quotation mark as %22
            name = (part.file_name or b"").decode("utf-8", "replace").replace("%22", '"')[:_MAX_NAME]
            uploads.append(Upload(name, cast("io.BytesIO", part.file_object).getvalue()))
        else:
            uploads.append(Upload(None, part.value or b""))

    def end() -> None:
        nonlocal complete
        complete = True

    boundary = parse_options_header(headers["content-type"])[1].get(b"boundary", b"")
    try:
        parser = FormParser(_MULTIPART, add, add, end, boundary, config={"MAX_MEMORY_FILE_SIZE": sys.maxsize})
        async for chunk in chunks:
            parser.write(chunk)
    except FormParserError as error:
        raise InvalidRequest(f"multipart body: {error}") from error
    if not complete:
        raise InvalidRequest("multipart body without its closing boundary: truncated, or another boundary was used")
    if not uploads:
        raise InvalidRequest(f"no image: expected at least one part named {FIELD!r}")
    return uploads
