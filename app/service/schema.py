"""What the service returns, and its API description: OpenAPI, as `/openapi.json` and `/docs` show it."""

import base64
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mien.app.inference.guard import uploaded_formats
from mien.app.inference.records import NOTES, Face, ImageData, Label
from mien.app.service.uploads import FIELD, EncodedImages, Fraction
from mien.app.settings import Settings

Milliseconds = Annotated[float, AfterValidator(partial(round, ndigits=2))]


class Record(BaseModel):
    """Base of what is returned."""

    # A client reads every field: null and empty ones are there, too
    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class Finding(Record):
    """One part of a request that is invalid."""

    location: str
    message: str


class ProblemDetails(Record):
    """An error (RFC 9457)."""

    type: str = Field(description="urn:mien:problem:<kind>")
    title: str
    status: int
    detail: str
    errors: list[Finding] = Field(description="what is invalid in options or in the body")


class ImageResult(Record):
    """One image, in the order of the request; `faces` may be empty, and `error` is set if the image failed."""

    index: int = Field(description="position in the request, from 0")
    name: str | None = Field(description="file name, if the client sent one")
    width: int | None = Field(None, description="pixels, upright; null if the image could not be read")
    height: int | None = Field(None, description="pixels, upright; null if the image could not be read")
    faces: list[Face] = []
    notes: tuple[str, ...] = Field(
        (), description="codes of what to know about the image: " + "; ".join(map(": ".join, NOTES.items()))
    )
    timings_ms: dict[str, Milliseconds] = Field(
        {}, description="milliseconds per stage: decode, detect, align, classify"
    )
    annotated: ImageData | None = Field(
        None,
        description="with `annotate=true`: the image with its faces drawn, long side at most 2048 pixels",
    )
    error: ProblemDetails | None = None


class ExpressionsResponse(Record):
    """The response to one request."""

    model: str = Field(description="name of the artifact that labeled the faces")
    choice: str = Field(description="the same as it was chosen for the service: fast, or a name")
    provider: str = Field(description="ONNX Runtime provider that ran the model")
    precision: str = Field(description="precision of its graph: fp32, fp16 or int8")
    detector: str = Field(description="what found the faces; `none` with `whole=true`")
    confidence_threshold: Fraction = Field(description="a confidence below it is `uncertain`")
    images: list[ImageResult]
    timings_ms: dict[str, Milliseconds] = Field(description="milliseconds of the request: receive, wait, work, total")


class ModelInfo(Record):
    """The model that this process serves."""

    name: str
    choice: str = Field(description="as it was chosen for the service: fast, or a name")
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


_BINARY: Final = {"type": "string", "format": "binary", "minLength": 1}
_KINDS: Final = tuple(f"image/{name.lower()}" for name in uploaded_formats())
# A small photo with one face, so that the example of the API description can be sent
_PHOTO: Final = base64.b64encode((Path(__file__).parents[1] / "static" / "example.jpg").read_bytes()).decode()
REQUEST_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [FIELD],
                "additionalProperties": False,
                "properties": {FIELD: {"type": "array", "minItems": 1, "items": _BINARY}},
            },
            "encoding": {FIELD: {"contentType": ", ".join(_KINDS)}},
        },
        "application/json": {
            "schema": {"$ref": "#/components/schemas/EncodedImages"},
            "example": {FIELD: [{"name": "astronaut.jpg", "base64": _PHOTO}]},
        },
        "application/octet-stream": {"schema": _BINARY},
        "image/*": {"schema": _BINARY},
    },
}
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_PROBLEM: Final = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}


def _headers(**descriptions: str) -> dict[str, Any]:
    return {
        name.replace("_", "-"): {"description": description, "schema": {"type": "string"}}
        for name, description in descriptions.items()
    }


_HEADERS: Final = _headers(
    X_Request_ID="as in the request and in the log, or a new one",
    Mien_Provider="ONNX Runtime provider that runs the model",
    Mien_Fallback="cpu, if a GPU is not used that could be; else absent",
)
_HEADERS_OF: Final = {
    401: _headers(WWW_Authenticate="Bearer"),
    503: _headers(Retry_After="seconds until the same request may succeed"),
}


def responses(*problems: int, media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of a route: its result, its problems, and what middleware and the server may respond with."""
    entries: dict[int | str, dict[str, Any]] = {
        200: {} if media_type == "application/json" else {"content": {media_type: _TEXT["text/plain"]}},
        400: {"description": "A Host header that is not accepted, or no HTTP", "content": _TEXT},
        503: {"description": "Too many open connections", "content": _TEXT},
    }
    for problem in problems:
        content = _PROBLEM | entries.get(problem, {}).get("content", {})
        entries[problem] = {"description": HTTPStatus(problem).phrase, "content": content}
    for status, entry in entries.items():
        entry["headers"] = _HEADERS | _HEADERS_OF.get(int(status), {})
    return entries


def complete(document: dict[str, Any], settings: Settings) -> None:
    """Add this deployment's limits and the form of JSON requests."""
    multipart = document["paths"]["/v1/expressions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    encoded = EncodedImages.model_json_schema(ref_template="#/components/schemas/{model}")
    for form in (multipart, encoded):
        form["properties"][FIELD]["maxItems"] = settings.max_images
    document["components"]["schemas"] |= {**encoded.pop("$defs"), "EncodedImages": encoded}
