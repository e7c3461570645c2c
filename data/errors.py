"""Base class of all errors that this project raises, in serving and training, and the error of data sets."""

from typing import ClassVar


class MienError(Exception):
    """An error with a message for the user; commands print it as one line without a traceback.

    Attributes:
        status: HTTP status of its response.
        code: stable name: the last part of a problem's type URI, and the `reason` of a row in a table.
        exit_code: of the command that it ends.
        retry_after_s: seconds until the same request may succeed, if it may.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal-error"
    exit_code: ClassVar[int] = 1
    retry_after_s: ClassVar[int | None] = None


class DatasetError(MienError):
    """A data set that is missing, incomplete or not in the expected layout."""
