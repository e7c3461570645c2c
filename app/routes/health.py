"""`/health`: is the process alive? `/ready`: should it be sent work?"""

from typing import Annotated

from fastapi import APIRouter, Depends

from app import VERSION
from app.errors import ShuttingDown
from app.routes import service_of
from app.routes.expressions import problem_docs
from app.schemas import Health, Readiness
from app.service import Service

router = APIRouter(tags=["health"])


@router.get("/health", summary="Alive", responses=problem_docs(500))
async def health() -> Health:
    """Answers as long as the event loop turns; says nothing about the model."""
    return Health(version=VERSION)


@router.get("/ready", summary="Ready for work", responses=problem_docs(500, 503))
async def ready(service: Annotated[Service, Depends(service_of)]) -> Readiness:
    """200 with what runs, or 503 while the process is stopping; before the model is warm nothing listens at all."""
    if service.draining:
        raise ShuttingDown("the service finishes what it has accepted and takes no more")
    classifier = service.pipeline.classifier
    return Readiness(
        model=classifier.manifest.name,
        model_verified=True,
        warm=True,
        provider=classifier.provider,
        precision=classifier.precision,
        fallback=service.fallback,
        detector=service.pipeline.detector.name,
        queue_depth=service.admission.waiting,
        queue_limit=service.admission.limits.queue,
        requests_inside=service.admission.inside,
        version=VERSION,
    )
