"""What the service answers, field by field, with units. These models are the OpenAPI document."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Point(_Record):
    """A place in the upright image, pixels from its top-left corner."""

    x: float
    y: float


class Box(_Record):
    """A rectangle in the upright image, pixels; it may reach beyond the edge for a face that is cut off."""

    x: float
    y: float
    width: float
    height: float


class Landmarks(_Record):
    """Five points of a face; left and right as seen in the image."""

    left_eye: Point
    right_eye: Point
    nose: Point
    mouth_left: Point
    mouth_right: Point


class RankedLabel(_Record):
    """An expression and its probability."""

    label: str
    probability: Fraction


class Picture(_Record):
    """An encoded picture inside a JSON document."""

    media_type: Literal["image/png", "image/jpeg"]
    base64: str


class Explanation(_Record):
    """What the model looked at: a hint, no proof."""

    map: list[list[float]] = Field(description="rows over the crop's patches, from the top; all values add up to 1")
    overlay: Picture = Field(description="the same laid over the face, 224x224 pixels")


class FaceResult(_Record):
    """One face."""

    box: Box
    landmarks: Landmarks
    detection_score: Fraction = Field(description="how sure the detector is that this is a face")
    roll_degrees: float = Field(description="in-plane rotation, clockwise positive")
    label: str = Field(description="one of the seven expressions, or `uncertain` below the confidence threshold")
    confidence: Fraction = Field(description="probability of the likeliest expression, calibrated on validation data")
    probabilities: dict[str, Fraction] = Field(description="all seven expressions; they add up to 1")
    top: list[RankedLabel] = Field(description="the `top_k` likeliest expressions, likeliest first")
    explanation: Explanation | None = Field(None, description="with `explain=true`")


class TrackedFaceResult(FaceResult):
    """One face of a stream; probabilities and label are smoothed over its track."""

    track: int = Field(description="the same number as long as the face is followed, from 1")


class ProblemDetails(_Record):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="urn:mien:problem:<kind>")
    title: str
    status: int
    detail: str


class ImageResult(_Record):
    """One image, in the order of the request; `faces` is empty where there is none, `error` is set where it failed."""

    index: int = Field(description="place in the request, from 0")
    name: str | None = Field(description="the client's file name, where it sent one")
    width: int | None = Field(description="pixels, upright; null where the image could not be read")
    height: int | None = Field(description="pixels, upright; null where the image could not be read")
    faces: list[FaceResult]
    timings_ms: dict[str, float] = Field(description="milliseconds per stage: decode, detect, align, classify")
    annotated: Picture | None = Field(
        None,
        description="with `annotate=true`: the picture with its faces drawn in, at most 2048 pixels on its long side",
    )
    error: ProblemDetails | None = None


class ExpressionsResponse(_Record):
    """The answer to one request."""

    model: str = Field(description="name of the artefact that labelled the faces")
    provider: str = Field(description="ONNX Runtime provider that ran the model")
    detector: str
    confidence_threshold: Fraction = Field(description="below it a label is `uncertain`")
    images: list[ImageResult]
    timings_ms: dict[str, float] = Field(description="milliseconds of the request: receive, wait, work, total")


class FrameResult(_Record):
    """The answer to one frame of a stream; `error` is set, and there are no faces, where it could not be read."""

    frame: int = Field(description="which binary message of this connection it was, from 0")
    dropped: int = Field(description="frames of this connection that a newer one has replaced so far")
    width: int | None
    height: int | None
    faces: list[TrackedFaceResult]
    timings_ms: dict[str, float] = Field(description="milliseconds per stage: decode, detect, align, classify")
    error: ProblemDetails | None = None


class ModelInfo(_Record):
    """One model that this process serves."""

    name: str
    labels: list[str]
    contract_id: str
    precision: str
    provider: str
    parameters: int
    colour: str
    confidence_threshold: Fraction
    temperature: float
    licence: str
    commit: str
    explain: bool = Field(description="whether `explain=true` is answered")
    metrics: list[dict[str, object]]


class ModelsResponse(_Record):
    """`GET /v1/models`."""

    models: list[ModelInfo]


class Health(_Record):
    """The process is alive."""

    status: Literal["alive"] = "alive"
    version: str


class Readiness(_Record):
    """The process takes work: the model is verified and warm, and this is what runs it."""

    status: Literal["ready"] = "ready"
    model: str
    model_verified: bool
    warm: bool
    provider: str
    precision: str
    fallback: str | None = Field(description="why the model does not run on the GPU although it might; null otherwise")
    detector: str
    queue_depth: int = Field(description="requests that wait for their turn")
    queue_limit: int
    requests_inside: int
    version: str
