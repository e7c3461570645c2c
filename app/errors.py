"""Exception hierarchy of serving.

A message names what was found, what was expected and what to do next. `app/service/problems.py` maps classes to HTTP.
"""

from mien.data.errors import MienError


class StartupError(MienError):
    """The program cannot start as configured; the message says what to change."""


class SettingsError(StartupError):
    """A setting that is unknown, out of range or contradicts another."""


class DetectorUnavailable(StartupError):
    """The requested detector does not exist, or its file is missing or damaged."""


class ProviderUnavailable(StartupError):
    """The requested device does not run the model."""


class DownloadError(MienError):
    """A model file that could not be downloaded, or that is not the pinned file."""


class RequestError(MienError):
    """A request that cannot be served as sent."""


class PayloadTooLarge(RequestError):
    """More bytes than the limit."""


class NoSuchJob(RequestError):
    """An id of no job, or of another client's."""


class HeadTooLarge(RequestError):
    """Request headers of more bytes, or more headers, than the limit."""


class TooManyImages(RequestError):
    """More images in one request than the limit."""


class BatchTooLarge(RequestError):
    """A request whose images would take longer than the request timeout."""


class InvalidRequest(RequestError):
    """An invalid option or body."""


class InvalidBox(InvalidRequest):
    """Given boxes of faces that cannot be used; `indexes` are their positions in the list."""

    def __init__(self, message: str, indexes: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.indexes = indexes


class UnsupportedContent(RequestError):
    """A body with an unsupported media type."""


class Unauthorized(RequestError):
    """No API key, or a wrong one."""


class ForeignOrigin(RequestError):
    """A change or a stream that a page of another site requests."""


class ForeignHost(RequestError):
    """A Host header that names another service."""


class TooManyRequests(RequestError):
    """A client with more concurrent requests or streams than the limit."""


class CapacityError(MienError):
    """The service is overloaded, late or stopping; the same request may succeed later."""


class QueueFull(CapacityError):
    """A queue that has reached its limit."""


class RequestTimeout(CapacityError):
    """A request that exceeded its time limit."""


class ShuttingDown(CapacityError):
    """The service accepts no more work."""
