"""Which images does a request carry? Read while they arrive, in memory only, and refused at the first byte too many.

Flow: request stream -> here -> decode. The framework's own form parser spools large parts into a temporary file; an
image of a person must not touch a disk, so the parts are collected here.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.errors import InvalidRequest, PayloadTooLarge, TooManyImages, UnsupportedContent

FIELD: Final = "images"
_MAX_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Upload:
    """One image as it came: the client's name for it, where there is one, and the file's bytes."""

    name: str | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Bytes of the whole body, bytes of one image, images of one request."""

    body_bytes: int
    image_bytes: int
    images: int


def check_head(content_type: str | None, content_length: str | None, limits: UploadLimits) -> None:
    """Refuse by the headers alone, before a byte of the body is read.

    Raises: UnsupportedContent, PayloadTooLarge, InvalidRequest.
    """
    kind = _media_type(content_type)
    if kind != "multipart/form-data" and not kind.startswith("image/"):
        raise UnsupportedContent(
            f"Content-Type {content_type or 'missing'}: send multipart/form-data with parts named {FIELD!r}, "
            "or one image as the body with an image/* type"
        )
    if content_length is None:
        return
    if not (content_length.isascii() and content_length.isdecimal()):
        raise InvalidRequest("Content-Length: expected a number of bytes")
    if int(content_length) > limits.body_bytes:
        raise PayloadTooLarge(f"body of {content_length} bytes: at most {limits.body_bytes} are read")


async def read_uploads(
    stream: AsyncIterator[bytes],
    content_type: str,
    limits: UploadLimits,
    *,
    reserve: Callable[[int], None] = lambda _count: None,
) -> list[Upload]:
    """Collect the images of a body.

    Args:
        stream: the body as it arrives.
        content_type: the request's header, already accepted by `check_head`.
        limits: checked on every chunk.
        reserve: called with the length of every chunk before it is kept; may raise to refuse the rest.
    Returns: at least one upload, in the order of the parts.
    Raises: PayloadTooLarge, TooManyImages, InvalidRequest.
    """
    multipart = _media_type(content_type) == "multipart/form-data"
    collector = _MultipartBody(content_type, limits) if multipart else _PlainBody(limits)
    received = 0
    async for chunk in stream:
        received += len(chunk)
        if received > limits.body_bytes:
            raise PayloadTooLarge(f"body of more than {limits.body_bytes} bytes: no more are read")
        reserve(len(chunk))
        collector.feed(chunk)
    return collector.finish()


def _media_type(content_type: str | None) -> str:
    return (content_type or "").split(";", 1)[0].strip().lower()


class _PlainBody:
    """The body is one image."""

    def __init__(self, limits: UploadLimits) -> None:
        self._limit = limits.image_bytes
        self._data = bytearray()

    def feed(self, chunk: bytes) -> None:
        _check_image(len(self._data) + len(chunk), self._limit)
        self._data += chunk

    def finish(self) -> list[Upload]:
        if not self._data:
            raise InvalidRequest("empty body: expected the bytes of one image")
        return [Upload(None, bytes(self._data))]


@dataclass(slots=True)
class _Part:
    """A part while it arrives; header lines first, then data."""

    header_name: bytearray = field(default_factory=bytearray)
    header_value: bytearray = field(default_factory=bytearray)
    disposition: bytes = b""
    name: str | None = None
    data: bytearray = field(default_factory=bytearray)


class _MultipartBody:
    """Callbacks of the multipart parser; every limit is checked in the callback that could pass it."""

    def __init__(self, content_type: str, limits: UploadLimits) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise InvalidRequest("Content-Type multipart/form-data: its boundary is missing")
        self._limits = limits
        self._uploads: list[Upload] = []
        self._part = _Part()
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidRequest(f"multipart boundary: {error}") from error

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequest(f"malformed multipart body: {error}") from error

    def finish(self) -> list[Upload]:
        if not self._ended:
            raise InvalidRequest("multipart body without its closing boundary: cut short, or another boundary was used")
        if not self._uploads:
            raise InvalidRequest(f"no image: expected at least one part named {FIELD!r}")
        return self._uploads

    def _begin(self) -> None:
        if len(self._uploads) >= self._limits.images:
            raise TooManyImages(f"more than {self._limits.images} images in one request: send the rest in another")
        self._part = _Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._part.header_name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.header_value += data[start:end]

    def _header_end(self) -> None:
        if self._part.header_name.lower() == b"content-disposition":
            self._part.disposition = bytes(self._part.header_value)
        self._part.header_name, self._part.header_value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._part.disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name != FIELD:
            raise InvalidRequest(
                f"multipart part {name[:40]!r}: images are sent as {FIELD!r}, and options as query parameters"
            )
        if b"filename" in options:
            self._part.name = options[b"filename"].decode("utf-8", "replace")[:_MAX_NAME]

    def _data(self, data: bytes, start: int, end: int) -> None:
        _check_image(len(self._part.data) + end - start, self._limits.image_bytes)
        self._part.data += memoryview(data)[start:end]

    def _end_part(self) -> None:
        self._uploads.append(Upload(self._part.name, bytes(self._part.data)))
        self._part = _Part()

    def _end(self) -> None:
        self._ended = True


def _check_image(count: int, limit: int) -> None:
    if count > limit:
        raise PayloadTooLarge(f"image of more than {limit} bytes: no more are read")
