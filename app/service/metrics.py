"""Metrics and log of the service: a Prometheus registry per process, and lines of text or JSON.

With several worker processes (`mien serve --workers N`), each writes to the shared folder `PROMETHEUS_MULTIPROC_DIR`,
and any of them responds for all. `process_*` metrics are available with one process only.
"""

import copy
import json
import logging
import os
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from uvicorn.config import LOGGING_CONFIG

# Set by the middleware for each request, and inherited by its tasks and threads.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters, gauges and histograms; label values are from fixed sets and the settings, never from clients."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        self.requests = counter("mien_requests", "Requests by route, method and status", ("route", "method", "status"))
        self.request_seconds = histogram("mien_request_seconds", "Time to respond", ("route",), buckets=_BUCKETS_S)
        self.images = counter("mien_images", "Images by outcome", ("outcome",))
        self.faces = counter("mien_faces", "Labeled faces", ("label", "uncertain"))
        self.stage_seconds = histogram("mien_stage_seconds", "Time per image and stage", ("stage",), buckets=_BUCKETS_S)
        self.batch_faces = histogram("mien_batch_faces", "Faces per inference", buckets=_BATCH_BUCKETS)
        self.queue = gauge("mien_queue_requests", "Requests in the queue")
        self.working = gauge("mien_working_requests", "Requests being processed")
        self.streams = gauge("mien_streams", "Open webcam streams")
        self.frames = counter("mien_stream_frames", "Frames by outcome", ("outcome",))
        facts = ("model", "provider", "precision", "detector", "fallback")
        self.running = gauge("mien_info", "1 for what this process runs", facts, multiprocess_mode="livemax")

    def render(self) -> bytes:
        """Render the text format for all worker processes."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        joined = CollectorRegistry()
        MultiProcessCollector(joined)  # type: ignore[no-untyped-call]
        return generate_latest(joined)


class RequestFilter(logging.Filter):
    """Adds the request id to each record, also as a suffix for text lines; removes query strings from uvicorn's."""

    def filter(self, record: logging.LogRecord) -> bool:
        id_ = request_id.get()
        record.request_id, record.suffix = id_, f" [{id_}]" if id_ else ""
        if isinstance(record.args, tuple) and record.name.startswith("uvicorn."):
            record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
        return True


class JsonLines(logging.Formatter):
    """One JSON object per record, with the fields that the record was given as `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_config(style: Literal["text", "json"]) -> dict[str, Any]:
    """Configuration for `logging.config`: uvicorn's, with the loggers of this and other packages, and request ids."""
    chosen: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    chosen["loggers"]["mien"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    chosen["root"] = {"handlers": ["default"], "level": "WARNING"}
    chosen["filters"] = {"requests": {"()": RequestFilter}}
    for handler in chosen["handlers"].values():
        handler["filters"] = ["requests"]
    for formatter in chosen["formatters"].values():
        formatter["fmt"] += "%(suffix)s"
    if style == "json":
        chosen["formatters"] = {name: {"()": JsonLines} for name in chosen["formatters"]}
    return chosen
