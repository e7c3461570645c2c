"""What can go wrong in serving, and which HTTP answer each error becomes (RFC 9457 problem details).

One tree of one-line classes, one table. A message is written for the person who reads it: what was found, what was
expected, what to do next. It never carries a traceback or a path on the server.
"""

from dataclasses import dataclass
from typing import Final

from data.contract import DecodeError, ImageTooLarge, UnsupportedImage


class MienError(Exception):
    """Anything that serving raises on purpose."""


class StartupError(MienError):
    """The program cannot start as it was told to; the message says what to change."""


class SettingsError(StartupError):
    """A setting that is unknown, out of range or contradicts another."""


class DetectorUnavailable(StartupError):
    """The detector that was asked for is not there, or its file is damaged."""


class ProviderUnavailable(StartupError):
    """The device that was asked for runs no node of the model."""


class DownloadError(MienError):
    """A model file could not be fetched, or what came is not the file that was pinned."""


class RequestError(MienError):
    """The caller's request cannot be served as it is."""


class PayloadTooLarge(RequestError):
    """More bytes than the limit."""


class TooManyImages(RequestError):
    """More images in one request than the limit."""


class InvalidRequest(RequestError):
    """An option or a body that has no meaning here."""


class UnsupportedContent(RequestError):
    """A body that is neither multipart nor a picture."""


class Unauthorised(RequestError):
    """No API key, or a wrong one."""


class ForeignOrigin(RequestError):
    """A page of another site tries to open a stream."""


class TooManyRequests(RequestError):
    """This caller has more requests in flight than the limit."""


class CapacityError(MienError):
    """The service is well but full, late or on its way out; the same request may succeed in a moment."""


class QueueFull(CapacityError):
    """The waiting line has reached its limit."""


class RequestTimeout(CapacityError):
    """The request was not done within its time."""


class ShuttingDown(CapacityError):
    """The service takes no more work."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the table: HTTP status, the last part of the problem's type URI, its title, seconds to wait."""

    status: int
    slug: str
    title: str
    retry_after_s: int | None = None


# The narrowest class comes first: the first row that the error is an instance of answers.
PROBLEMS: Final[tuple[tuple[type[Exception], Problem], ...]] = (
    (ImageTooLarge, Problem(413, "image-too-large", "Image has too many pixels")),
    (UnsupportedImage, Problem(415, "unsupported-image", "Not a supported image format")),
    (DecodeError, Problem(422, "unreadable-image", "Image cannot be read")),
    (PayloadTooLarge, Problem(413, "payload-too-large", "Request has too many bytes")),
    (TooManyImages, Problem(413, "too-many-images", "Too many images in one request")),
    (UnsupportedContent, Problem(415, "unsupported-content", "Body is neither multipart nor an image")),
    (InvalidRequest, Problem(422, "invalid-request", "Request has no meaning here")),
    (Unauthorised, Problem(401, "unauthorised", "API key missing or wrong")),
    (ForeignOrigin, Problem(403, "foreign-origin", "Page of another origin")),
    (TooManyRequests, Problem(429, "too-many-requests", "Too many requests at once", retry_after_s=1)),
    (QueueFull, Problem(503, "queue-full", "Service is busy", retry_after_s=1)),
    (RequestTimeout, Problem(503, "timeout", "Request took too long", retry_after_s=2)),
    (ShuttingDown, Problem(503, "shutting-down", "Service is stopping", retry_after_s=5)),
)
INTERNAL: Final = Problem(500, "internal", "Unexpected error")


def problem_for(error: Exception) -> Problem:
    """The table's answer to an error; `INTERNAL`, whose details stay in the log, for one that is not in it."""
    return next((problem for kind, problem in PROBLEMS if isinstance(error, kind)), INTERNAL)
