"""`GET /metrics`: counters for Prometheus."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST

from app.routes import service_of
from app.routes.expressions import problem_docs
from app.service import Service

router = APIRouter()


@router.get(
    "/metrics",
    tags=["health"],
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problem_docs(401, 500)},
)
async def metrics(service: Annotated[Service, Depends(service_of)]) -> Response:
    """The text format; `mien_` counters, gauges and histograms."""
    service.gauge()
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)
