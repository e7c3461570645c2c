"""Probes, `/health` (the process is alive) and `/ready` (it accepts requests), and `/metrics` for Prometheus."""

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field

from mien.app import VERSION
from mien.app.service.routes import TheService, problem_docs
from mien.app.service.schemas import Record

router = APIRouter(tags=["health"])
metrics_router = APIRouter(tags=["health"])


class Health(Record):
    """The process is alive."""

    status: Literal["alive"] = "alive"
    version: str


class Readiness(Record):
    """The process accepts requests; the fields say what runs."""

    status: Literal["ready"] = "ready"
    model: str
    provider: str
    precision: str
    fallback: str | None = Field(
        description="why the model runs on the CPU although a GPU was requested or is there; otherwise null"
    )
    detector: str
    queue_depth: int = Field(description="requests in the queue")
    queue_limit: int
    requests_inside: int = Field(description="requests running or waiting")
    version: str


@router.get("/health", summary="Alive", responses=problem_docs(500))
async def health() -> Health:
    """Responds while the event loop is running, independent of the model."""
    return Health(version=VERSION)


@router.get("/ready", summary="Ready for work", responses=problem_docs(500))
async def ready(service: TheService) -> Readiness:
    """200 with what runs; nothing listens before the model is warm, nor while the process stops."""
    classifier = service.labeler.classifier
    return Readiness(
        model=classifier.manifest.name,
        provider=classifier.provider,
        precision=classifier.precision,
        fallback=service.fallback,
        detector=service.labeler.detector.name,
        queue_depth=service.admission.waiting,
        queue_limit=service.settings.max_queue,
        requests_inside=service.admission.waiting + service.admission.working,
        version=VERSION,
    )


@metrics_router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problem_docs(401, 500)},
)
async def metrics(service: TheService) -> Response:
    """Counters, gauges and histograms in the text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
