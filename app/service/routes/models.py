"""`GET /v1/models`: the served models, with metadata from their manifests."""

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, HTTPException, Response

from mien.app.inference.classifier import Classifier
from mien.app.service.routes import TheService
from mien.app.service.routes.expressions import problem_docs
from mien.app.service.schemas import ModelInfo, ModelsResponse

router = APIRouter()
CARD_NAME: Final = "card.md"


@router.get("/v1/models", tags=["models"], summary="Served models", responses=problem_docs(401, 500))
async def models(service: TheService) -> ModelsResponse:
    """The verified artifacts that this process runs, the default first, with their metrics in this precision."""
    return ModelsResponse(models=[_info(choice, labeler.classifier) for choice, labeler in service.labelers.items()])


def _info(choice: str, classifier: Classifier) -> ModelInfo:
    manifest = classifier.manifest
    return ModelInfo(
        choice=choice,
        name=manifest.name,
        labels=list(manifest.labels),
        contract_id=manifest.contract_id,
        precision=classifier.precision,
        provider=classifier.provider,
        parameters=manifest.parameters,
        color=manifest.color,
        confidence_threshold=manifest.confidence_threshold,
        temperature=manifest.temperature,
        prior=classifier.prior,
        prior_correction=list(manifest.prior_correction),
        license=manifest.license,
        commit=manifest.commit,
        explain=manifest.explain is not None,
        metrics=[score.model_dump() for score in manifest.metrics_in(classifier.precision)],
    )


@router.get(
    "/v1/models/{name}/card",
    tags=["models"],
    summary="Model card",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}, **problem_docs(401, 404, 500)},
)
async def model_card(name: str, service: TheService) -> Response:
    """The model card as Markdown: use, training data, metrics and limitations."""
    for labeler in service.labelers.values():
        if labeler.classifier.manifest.name == name:
            text = await service.in_thread((labeler.classifier.folder / CARD_NAME).read_bytes)
            return Response(text, media_type="text/markdown")
    raise HTTPException(HTTPStatus.NOT_FOUND)
