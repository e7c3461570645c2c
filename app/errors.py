"""Exception hierarchy of the application.

A message names what was found, what was expected and what to do next. The attributes are described in `MienError`.
"""

from typing import Any

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

    status, code = 400, "bad-request"


class PayloadTooLarge(RequestError):
    """A request or a response of more bytes than the limit."""

    status, code = 413, "payload-too-large"


class TooManyImages(RequestError):
    """More images in one request than the limit."""

    status, code = 413, "too-many-images"


class BatchTooLarge(RequestError):
    """A request whose images would take longer than the request timeout."""

    status, code = 413, "batch-too-large"


class InvalidRequest(RequestError):
    """An invalid option or body."""

    status, code = 422, "invalid-request"


class InvalidFace(InvalidRequest):
    """A given face that cannot be used; `indexes` are the positions of such faces in a list of boxes."""

    code = "invalid_face"

    def __init__(self, message: str, indexes: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.indexes = indexes


class UnsupportedContent(RequestError):
    """A body with an unsupported media type."""

    status, code = 415, "unsupported-content"


class Unauthorized(RequestError):
    """No API key, or a wrong one."""

    status, code = 401, "unauthorized"


class ForeignOrigin(RequestError):
    """A change or a stream that a page of another site requests."""

    status, code = 403, "foreign-origin"


class CapacityError(MienError):
    """The service is overloaded, late or stopping; the same request may succeed later."""

    status, code, retry_after_s = 503, "service-unavailable", 1


class QueueFull(CapacityError):
    """A queue that has reached its limit."""

    code = "queue-full"


class RequestTimeout(CapacityError):
    """A request that exceeded its time limit."""

    code, retry_after_s = "timeout", 2


class LabelingError(MienError):
    """Labeling cannot start or continue; the message says what to change."""


class OutputLocked(LabelingError):
    """Another process is using the same output folder."""

    exit_code = 5


class DiskFull(LabelingError):
    """The disk is full; committed results are kept."""

    exit_code = 6


class Stopped(BaseException):
    """A signal, with this name, stopped a run of `mien label`; committed results are kept."""


def problem(error: Exception, **members: object) -> dict[str, Any]:
    """A problem document (RFC 9457); an unexpected error has no details, which are only in the log."""
    if isinstance(error, MienError) and error.status != MienError.status:
        return named_problem(error.status, error.code, str(error), **members)
    detail = "Internal server error. The log has the details under this X-Request-ID."
    return named_problem(MienError.status, MienError.code, detail, **members)


def named_problem(status: int, code: str, detail: str, **members: object) -> dict[str, Any]:
    """A problem document of this status and code."""
    title = code.replace("-", " ").replace("_", " ").capitalize()
    fixed = {"type": f"urn:mien:problem:{code}", "title": title, "status": status, "detail": detail, "errors": []}
    return fixed | members
