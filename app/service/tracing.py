"""Spans of OpenTelemetry for requests and their stages, exported if tracing is enabled. They have no image data."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.propagate import extract

from mien.app import VERSION
from mien.app.errors import StartupError
from mien.app.service.logs import QUIET_PATHS

TRACER: Final = "mien"


def enable() -> None:
    """Trace from now on, with the tracer provider of the process, or else an exporter configured by `OTEL_*` variables.

    Raises: StartupError, without the packages of the extra `trace`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise StartupError(f"MIEN_TRACING needs the extra `trace`: pip install 'mien[trace]' ({error})") from error
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        name = os.environ.get("OTEL_SERVICE_NAME", "mien")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)


def request_span(headers: Mapping[str, str], path: str) -> AbstractContextManager[trace.Span]:
    """The span of a request, which continues the trace of its W3C header `traceparent`."""
    if path in QUIET_PATHS:  # probes, several per second
        return nullcontext(trace.INVALID_SPAN)
    return trace.get_tracer(TRACER, VERSION).start_as_current_span(
        "request", context=extract(dict(headers)), kind=trace.SpanKind.SERVER, attributes={"url.path": path}
    )
