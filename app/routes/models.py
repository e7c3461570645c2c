"""`GET /v1/models`: which model answers, and what its manifest says of it."""

from typing import Annotated

from fastapi import APIRouter, Depends

from app.routes import service_of
from app.routes.expressions import problem_docs
from app.schemas import ModelInfo, ModelsResponse
from app.service import Service

router = APIRouter()


@router.get("/v1/models", tags=["models"], summary="Served models", responses=problem_docs(401, 500))
async def models(service: Annotated[Service, Depends(service_of)]) -> ModelsResponse:
    """The verified artefact that this process runs, with the scores its manifest states."""
    classifier = service.pipeline.classifier
    manifest = classifier.manifest
    info = ModelInfo(
        name=manifest.name,
        labels=list(manifest.labels),
        contract_id=manifest.contract_id,
        precision=classifier.precision,
        provider=classifier.provider,
        parameters=manifest.parameters,
        colour=manifest.colour,
        confidence_threshold=manifest.abstain_threshold,
        temperature=manifest.temperature,
        licence=manifest.licence,
        commit=manifest.commit,
        explain=False,
        metrics=[score.model_dump() for score in manifest.metrics],
    )
    return ModelsResponse(models=[info])
