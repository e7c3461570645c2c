"""Requests: their options, their admission, and their images, streamed to memory with limits enforced while reading.

Flow: `Admission.admit` (room in the queue) -> `read_uploads` (`Reservation.buffer` for each chunk) -> `Admission.slot`.
A fixed number of requests has a slot; the others wait in the order of their arrival. Uploads that have not arrived are
not in the queue. Images must not be written to disk, so the form parser gets an in-memory spool.
"""

import asyncio
import base64
import io
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

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


class GivenBox(KnownFields):
    """A box of a request, in pixels of the upright image."""

    x: float
    y: float
    width: float
    height: float


class EncodedImage(KnownFields):
    """One image of a JSON request."""

    name: str | None = Field(None, max_length=255, description="returned in the response")
    base64: str = Field(
        description="bytes of the image file in base64; a data URL is accepted too",
        json_schema_extra={"format": "byte"},
    )
    boxes: list[GivenBox] | None = Field(
        None,
        description="label these boxes instead of detected faces; the response has one face for each, in this order",
    )

    def upload(self) -> "Upload":
        """The image, without bytes if it is not base64."""
        boxes = None if self.boxes is None else [Box(**box.model_dump()) for box in self.boxes]
        payload = b""
        with suppress(ValueError):
            payload = base64.b64decode(_DATA_URL.sub("", self.base64, count=1), validate=True)
        return Upload(self.name, payload, boxes)


class EncodedImages(KnownFields):
    """A JSON request."""

    images: list[EncodedImage] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Upload:
    """One uploaded image in memory, with its file name, if any; `boxes` replace detected faces."""

    name: str | None
    payload: bytes
    boxes: list[Box] | None = None


@dataclass(slots=True, eq=False)
class Reservation:
    """One admitted request; its bytes of the shared buffer are released when it ends."""

    _admission: "Admission"
    buffered_bytes: int = 0

    def buffer(self, count: int) -> None:
        """Reserve bytes of the shared buffer, for bodies, and for images of responses until the client has read them.

        Raises: QueueFull, if others fill the buffer; PayloadTooLarge, if an empty buffer has not enough for this
            request.
        """
        limit = _JSON_COPIES * self._admission.settings.max_body_bytes
        if self.buffered_bytes + count > limit:
            raise PayloadTooLarge(f"more than {limit} bytes for one request: send or ask for less at once")
        if self._admission.buffered_bytes + count > limit:
            raise QueueFull("the buffer for bodies is full: try again in a moment")
        self._admission.buffered_bytes += count
        self.buffered_bytes += count


class Admission:
    """Limits on what is held and worked on at once. Belongs to one event loop, so it needs no lock."""

    def __init__(self, settings: Settings, metrics: Metrics, *, slots: int) -> None:
        self.settings, self._metrics = settings, metrics
        self.buffered_bytes = self.waiting = self.working = self._streams = 0
        self._slots = asyncio.Semaphore(slots)

    @contextmanager
    def admit(self) -> Iterator[Reservation]:
        """Admit or reject a request by its headers. Raises: QueueFull."""
        self._check_queue()
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.buffered_bytes -= reservation.buffered_bytes

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
    headers: Headers, stream: AsyncIterator[bytes], settings: Settings, reserve: Callable[[int], None]
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
        parser = _ImageParser(headers, chunks, settings.max_images)
        await parser.parse()
        payloads = [file.getvalue() for file in parser.files]
        return [Upload(*values) for values in zip(parser.names, payloads, strict=True)]
    return [Upload(None, b"".join([chunk async for chunk in chunks]))]


def _check_head(headers: Headers, max_bytes: int) -> None:
    if (encoding := headers.get("content-encoding", "").strip().lower()) not in ("identity", ""):
        raise UnsupportedContent(f"Content-Encoding {encoding[:40]}: send the body without compression")
    length = headers.get("content-length", "0")
    if len(length) > _MAX_LENGTH_DIGITS or int(length) > max_bytes:  # servers accept digits only
        raise PayloadTooLarge(f"body of {length[:20]} bytes: at most {max_bytes} are accepted")


async def _bounded(
    stream: AsyncIterator[bytes], limit: int, reserve: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    received = 0
    async for chunk in stream:
        received += len(chunk)
        if received > limit:
            raise PayloadTooLarge(f"body of more than {limit} bytes: send less per request")
        reserve(len(chunk))
        yield chunk


def _decoded(body: bytes, settings: Settings) -> list[Upload]:
    """The images of a JSON body."""
    _check_values(body, _MAX_JSON_VALUES)
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


def _check_values(text: bytes, limit: int) -> None:
    """Raises: InvalidRequest, for more values than a body of so many bytes may unpack to."""
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > limit:
        raise InvalidRequest(f"more than {limit:,} values: expected images in base64, and boxes of their faces")


def _too_many(limit: int) -> TooManyImages:
    return TooManyImages(f"more than {limit} images in one request: send the rest in another")


class _MemoryFile(io.BytesIO):
    """An image of a request."""

    _rolled = False  # attribute used by Starlette: never moved to disk


class _ImageParser(MultiPartParser):
    """Starlette's parser for forms with images, with or without file names."""

    def __init__(self, headers: Headers, chunks: AsyncGenerator[bytes, None], max_images: int) -> None:
        super().__init__(headers, chunks)
        self._max_images = max_images
        self.files: list[_MemoryFile] = []
        self.names: list[str | None] = []
        self._ended = False

    async def parse(self) -> FormData:
        """Parse the body. Raises: InvalidRequest, TooManyImages, and what the stream raises."""
        try:
            form = await super().parse()
        except MultiPartException as error:
            raise InvalidRequest(f"multipart body: {error.message}") from error
        if not self._ended:
            raise InvalidRequest("multipart body without its closing boundary: truncated, or another boundary was used")
        if not self.files:
            raise InvalidRequest(f"no image: expected at least one part named {FIELD!r}")
        return form

    def on_headers_finished(self) -> None:
        disposition = self._current_part.content_disposition or b""
        _, options = parse_options_header(disposition)
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field != FIELD:
            raise InvalidRequest(
                f"multipart part {field[:40]!r}: send images as {FIELD!r}, options as query parameters, and boxes in "
                f"{_JSON}"
            )
        if len(self.files) >= self._max_images:
            raise _too_many(self._max_images)
        name = None
        if b"filename" in options:  # browsers send a quotation mark as %22
            name = options[b"filename"].decode("utf-8", "replace").replace("%22", '"')[:_MAX_NAME]
        file = _MemoryFile()
        self.files.append(file)
        self.names.append(name)
        self._current_part.file = UploadFile(cast("BinaryIO", file), filename=name)

    def on_end(self) -> None:
        self._ended = True
