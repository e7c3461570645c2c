"""Schemas of requests and responses, with units; the source of the OpenAPI document."""

from functools import partial
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from mien.app.inference.records import NOTES, Face, ImageData
from mien.app.service.problems import problem_body, problem_for

Fraction = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, AfterValidator(partial(round, ndigits=2))]


class Record(BaseModel):
    """Base of everything in a response."""

    model_config = ConfigDict(frozen=True)


class KnownFields(BaseModel):
    """Base of client input; an unknown name is rejected with a list of the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _reject_unknown_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        unknown = sorted(set(data) - set(cls.model_fields)) if isinstance(data, dict) else []
        if unknown:
            options = {"found": ", ".join(unknown)[:200], "known": ", ".join(cls.model_fields)}
            raise PydanticCustomError("unknown_option", "no option is named {found}; options: {known}", options)
        return handler(data)


class LabelOptions(KnownFields):
    """Query parameters of a request."""

    crops: bool = Field(False, description="return each face, aligned, as PNG in base64")
    confidence_threshold: Fraction | None = Field(
        None, description="a confidence below it is `uncertain`; by default the model's own threshold"
    )
    whole: bool = Field(False, description="each image is one face, such as those of `crops`: only classify it")
    annotate: bool = Field(False, description="return each image with its faces drawn in, as JPEG in base64")
    explain: bool = Field(
        False, description="return attention maps, of the first network of a mean; 422 if the model has none"
    )


class GivenBox(KnownFields):
    """A box of a request, in pixels of the upright image."""

    x: float
    y: float
    width: float
    height: float


class EncodedImage(KnownFields):
    """One image of a JSON request."""

    name: str | None = Field(None, max_length=255, description="returned in the response")
    base64: str = Field(
        min_length=4,
        description="bytes of the image file in base64; a data URL is accepted too",
        json_schema_extra={"format": "byte"},
    )
    boxes: list[GivenBox] | None = Field(
        None,
        description="label these boxes instead of detected faces; the response has one face for each, in this order",
    )


class EncodedImages(KnownFields):
    """A JSON request."""

    images: list[EncodedImage] = Field(min_length=1)


class ProblemDetails(Record):
    """An error (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="urn:mien:problem:<kind>")
    title: str
    status: int
    detail: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """The problem of one image or frame."""
        return cls.model_validate(problem_body(problem_for(error), str(error)))


class ImageResult(Record):
    """One image, in the order of the request; `faces` may be empty, and `error` is set if the image failed."""

    index: int = Field(description="position in the request, from 0")
    name: str | None = Field(description="file name, if the client sent one")
    width: int | None = Field(description="pixels, upright; null if the image could not be read")
    height: int | None = Field(description="pixels, upright; null if the image could not be read")
    faces: list[Face]
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

    @property
    def bytes_of_images(self) -> int:
        """Bytes of the images in base64."""
        images = [self.annotated, *(face.crop for face in self.faces)]
        images += [face.explanation.overlay for face in self.faces if face.explanation is not None]
        return sum(len(image.base64) for image in images if image is not None)


class ExpressionsResponse(Record):
    """The response to one request."""

    model: str = Field(description="name of the artifact that labeled the faces")
    provider: str = Field(description="ONNX Runtime provider that ran the model")
    precision: str = Field(description="precision of its graph: fp32, fp16 or int8")
    detector: str = Field(description="what found the faces; `none` with `whole=true`")
    confidence_threshold: Fraction = Field(description="a confidence below it is `uncertain`")
    images: list[ImageResult]
    timings_ms: dict[str, Milliseconds] = Field(description="milliseconds of the request: receive, wait, work, total")
