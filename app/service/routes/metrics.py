"""`GET /metrics`: metrics for Prometheus."""

import asyncio

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from mien.app.service.routes import TheService, problem_docs

router = APIRouter()


@router.get(
    "/metrics",
    tags=["health"],
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problem_docs(401, 500)},
)
async def metrics(service: TheService) -> Response:
    """Counters, gauges and histograms in the text format."""
    if service.jobs is not None:
        for state, count in (await asyncio.to_thread(service.jobs.states)).items():
            service.metrics.jobs.labels(state).set(count)
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
