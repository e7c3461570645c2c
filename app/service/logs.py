"""Logging of the service as text or JSON, with request ids and without successful probes."""

import copy
import json
import logging
from contextvars import ContextVar
from typing import Any, Final, Literal

from uvicorn.config import LOGGING_CONFIG

# Set by the middleware for each request, and inherited by its tasks and threads.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
key_name: ContextVar[str | None] = ContextVar("key_name", default=None)
QUIET_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
_ACCESS: Final = ("client", "method", "path", "http_version", "status")


class RequestFilter(logging.Filter):
    """Adds the request id and the name of the API key to each record, also as a suffix for text lines.

    Query strings, which may contain keys, are removed, and access log records of successful probes dropped.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        id_, key = getattr(record, "request_id", None) or request_id.get(), key_name.get()
        record.request_id, record.key_name = id_, key
        record.suffix = f" [{' '.join(filter(None, (id_, key)))}]" if id_ else ""
        if isinstance(record.args, tuple) and record.name.startswith("uvicorn."):
            record.args = tuple(
                arg.partition("?")[0] if isinstance(arg, str) and arg.startswith("/") else arg for arg in record.args
            )
        access = _access_fields(record)
        return not (access and access["status"] == 200 and access["path"] in QUIET_PATHS)


class JsonLines(logging.Formatter):
    """One JSON object per record; access log records have separate fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            "key": getattr(record, "key_name", None),
            **_access_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _access_fields(record: logging.LogRecord) -> dict[str, object]:
    if record.name != "uvicorn.access" or not isinstance(record.args, tuple) or len(record.args) != len(_ACCESS):
        return {}
    return dict(zip(_ACCESS, record.args, strict=True))


def log_config(style: Literal["text", "json"]) -> dict[str, Any]:
    """Configuration for `logging.config`: uvicorn's, with the loggers of this and other packages, and request ids."""
    chosen: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    chosen["loggers"]["mien"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    chosen["root"] = {"handlers": ["default"], "level": "WARNING"}  # such as exporters of traces
    chosen["filters"] = {"requests": {"()": RequestFilter}}
    for handler in chosen["handlers"].values():
        handler["filters"] = ["requests"]
    for formatter in chosen["formatters"].values():
        formatter["fmt"] += "%(suffix)s"
    if style == "json":
        chosen["formatters"] = {name: {"()": JsonLines} for name in chosen["formatters"]}
    return chosen
