"""Probes: `/health` (the process is alive) and `/ready` (it accepts requests)."""

from fastapi import APIRouter

from mien.app import VERSION
from mien.app.errors import ShuttingDown
from mien.app.service.routes import TheService
from mien.app.service.routes.expressions import problem_docs
from mien.app.service.schemas import Health, Readiness

router = APIRouter(tags=["health"])


@router.get("/health", summary="Alive", responses=problem_docs(500))
async def health() -> Health:
    """Responds while the event loop is running, independent of the model."""
    return Health(version=VERSION)


@router.get("/ready", summary="Ready for work", responses=problem_docs(500, 503))
async def ready(service: TheService) -> Readiness:
    """200 with what runs, or 503 while the process is stopping; nothing listens before the model is warm."""
    if service.draining:
        raise ShuttingDown("the service is stopping: it finishes accepted requests and accepts no new ones")
    classifier = service.default.classifier
    return Readiness(
        model=classifier.manifest.name,
        provider=classifier.provider,
        precision=classifier.precision,
        fallback=service.fallback,
        detector=service.default.detector.name,
        queue_depth=service.admission.waiting,
        queue_limit=service.settings.max_queue,
        requests_inside=service.admission.admitted,
        version=VERSION,
    )
