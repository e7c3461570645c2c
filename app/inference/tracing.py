"""Spans of OpenTelemetry for requests and stages; none, and at no cost, unless tracing is enabled.

Spans continue the W3C header `traceparent` of a request, and are passed on to a Triton server. They have no image data.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from mien.app import VERSION
from mien.app.errors import StartupError

_tracer: Any = None


def enable() -> None:
    """Trace from now on, with the tracer provider of the process, or else an exporter configured by `OTEL_*` variables.

    Raises: StartupError, without the packages of the extra `trace`.
    """
    global _tracer  # noqa: PLW0603  # one per process, as in OpenTelemetry
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if not isinstance(trace.get_tracer_provider(), TracerProvider):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            named = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "mien")})
            provider = TracerProvider(resource=named)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
    except ImportError as error:
        raise StartupError(f"MIEN_TRACING needs the extra `trace`: pip install 'mien[trace]' ({error})") from error
    _tracer = trace.get_tracer("mien", VERSION)


def span(name: str) -> AbstractContextManager[Any]:
    """A span of a stage, within that of its request."""
    return nullcontext() if _tracer is None else _tracer.start_as_current_span(name)


@contextmanager
def request_span(headers: Mapping[str, str], attributes: Mapping[str, str]) -> Iterator[Any]:
    """The span of a request, which continues the trace of its headers; None if tracing is not enabled."""
    if _tracer is None:
        yield None
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    with _tracer.start_as_current_span(
        "request", context=extract(dict(headers)), kind=SpanKind.SERVER, attributes=dict(attributes)
    ) as current:
        yield current


def passed_on() -> dict[str, str]:
    """Headers that continue the current trace in another program."""
    if _tracer is None:
        return {}
    from opentelemetry.propagate import inject

    headers: dict[str, str] = {}
    inject(headers)
    return headers
