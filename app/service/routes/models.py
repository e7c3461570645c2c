"""`GET /v1/models`: the served models, with metadata from their manifests."""

from http import HTTPStatus
from typing import Final, Literal

from fastapi import APIRouter, HTTPException, Response
from pydantic import Field

from mien.app.inference.records import Label
from mien.app.service.routes import TheService, problem_docs
from mien.app.service.schemas import Fraction, Record

router = APIRouter()
CARD_NAME: Final = "card.md"


class ModelInfo(Record):
    """The model that this process serves."""

    name: str
    labels: list[Label]
    contract_id: str
    precision: str
    provider: str
    parameters: int
    color: str
    confidence_threshold: Fraction
    temperature: float
    prior: Literal["natural", "balanced"] = Field(
        description="balanced: probabilities are corrected for rare expressions"
    )
    prior_correction: list[float] = Field(description="added to the scaled logits if prior is balanced, by label")
    license: str
    commit: str
    explain: bool = Field(description="whether `explain=true` is supported")
    metrics: list[dict[str, object]]


class ModelsResponse(Record):
    """`GET /v1/models`."""

    models: list[ModelInfo]


@router.get("/v1/models", tags=["models"], summary="Served models", responses=problem_docs(401, 500))
async def models(service: TheService) -> ModelsResponse:
    """The verified artifact that this process runs, with its metrics in this precision."""
    classifier = service.labeler.classifier
    manifest = classifier.manifest
    own = {
        "precision": classifier.precision,
        "provider": classifier.provider,
        "prior": classifier.prior,
        "explain": manifest.explain is not None,
        "metrics": [score.model_dump() for score in manifest.metrics_in(classifier.precision)],
    }
    info = ModelInfo(**own | manifest.model_dump(include=ModelInfo.model_fields.keys() - own))
    return ModelsResponse(models=[info])


@router.get(
    "/v1/models/{name}/card",
    tags=["models"],
    summary="Model card",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}, **problem_docs(401, 404, 500)},
)
async def model_card(name: str, service: TheService) -> Response:
    """The model card as Markdown: use, training data, metrics and limitations."""
    classifier = service.labeler.classifier
    if classifier.manifest.name != name:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    text = await service.in_thread((classifier.folder / CARD_NAME).read_bytes)
    return Response(text, media_type="text/markdown")
