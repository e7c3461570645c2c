"""Spans of a request and its stages, in the trace of its client."""

from collections.abc import Iterator

import pytest
from opentelemetry.trace import SpanKind

from tests.support.app import PHOTO, Connect

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install 'mien[trace]'")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield memory
    provider.shutdown()


def test_the_stages_of_a_request_are_spans_of_the_clients_trace(connect: Connect, exporter: object) -> None:
    client = connect(tracing=True)
    headers = {"content-type": "image/jpeg", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert client.post("/v1/expressions?top_k=2", content=PHOTO, headers=headers).status_code == 200
    finished = exporter.get_finished_spans()  # type: ignore[attr-defined]
    assert len([span for span in finished if span.kind is SpanKind.SERVER]) == 1, "FastAPI adds none"
    assert not [span for span in finished if "top_k" in str(dict(span.attributes))]
    spans = {span.name: span for span in finished}
    request = spans.pop("POST /v1/expressions")
    assert set(spans) == {"decode", "detect", "align", "classify"}
    assert {f"{span.context.trace_id:032x}" for span in (request, *spans.values())} == {TRACE}
    assert f"{request.parent.span_id:016x}" == PARENT
    ids = {span.context.span_id for span in (request, *spans.values())}
    assert all(span.parent.span_id in ids for span in spans.values())
    assert dict(request.attributes) == {"url.path": "/v1/expressions", "http.response.status_code": 200}
