"""The errors of serving: one tree of one-line classes.

A message names what was found, what was expected and what to do next. `app/service/problems.py` maps classes to HTTP.
"""

from data.errors import MienError


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
    """A request that cannot be served as it is."""


class PayloadTooLarge(RequestError):
    """More bytes than the limit."""


class TooManyImages(RequestError):
    """More images in one request than the limit."""


class BatchTooLarge(RequestError):
    """A request whose images take longer together than a request may."""


class InvalidRequest(RequestError):
    """An option or a body that is not valid here."""


class UnsupportedContent(RequestError):
    """A body of a media type that is not read."""


class Unauthorized(RequestError):
    """No API key, or a wrong one."""


class ForeignOrigin(RequestError):
    """A page of another site that tries to open a stream."""


class ForeignHost(RequestError):
    """A Host header that names another service."""


class TooManyRequests(RequestError):
    """A caller with more requests or streams in flight than the limit."""


class CapacityError(MienError):
    """The service works but is full, late or stopping; the same request may succeed in a moment."""


class QueueFull(CapacityError):
    """A queue that has reached its limit."""


class RequestTimeout(CapacityError):
    """A request that was not finished in time."""


class ShuttingDown(CapacityError):
    """The service accepts no more work."""
