"""Which choices belong to a deployment: one class, read from `MIEN_*` environment variables or given by the caller.

Facts about pixels are constants in `data/contract/`, a training run's choices are its recipe; nothing is set twice.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.errors import SettingsError
from data.contract.decode import MAX_PIXELS

ENV_PREFIX = "MIEN_"
Device = Literal["auto", "cpu", "cuda", "tensorrt"]
Precision = Literal["auto", "fp32", "fp16", "int8"]
ApiKeyHash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Settings(BaseSettings):
    """Deployment settings. Every field is the environment variable `MIEN_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    # What runs
    models_dir: Path | None = Field(None, description="folder with YuNet's file; before the user cache")
    model: Path | None = Field(None, description="artefact folder; the released default when unset")
    device: Device = Field("auto", description="auto may fall back to the CPU; cuda and tensorrt refuse to")
    precision: Precision = Field("auto", description="auto: fp16 on a GPU, fp32 on a CPU; int8 is for CPUs")
    threads: Annotated[int, Field(ge=0, le=256)] = Field(
        0, description="threads per inference; 0: one to detect, as many as cores to classify"
    )
    cuda_graphs: bool = Field(True, description="replay batches on the GPU as CUDA graphs, where that is faster")
    tensorrt_cache: Path | None = Field(
        None, description="folder for the engines of device tensorrt; the user cache when unset"
    )

    max_batch: Annotated[int, Field(ge=0, le=4096)] = Field(0, description="faces of one inference; 0: by device")
    batch_wait_ms: Annotated[float, Field(ge=0, le=1000)] = Field(
        2.0, description="under load, how long a batch waits to fill; an idle service never waits"
    )
    batch_queue: Annotated[int, Field(ge=1, le=100_000)] = Field(1024, description="faces that wait for an inference")

    # Which faces are found
    detector: str = Field("auto", description="auto, or a detector of app/detect: yunet, haar")
    detection_threshold: Annotated[float, Field(gt=0, lt=1)] = Field(0.6, description="least score of a face")
    detection_px: Annotated[int, Field(ge=160, le=4096)] = Field(640, description="long side of the first pass, pixels")
    detection_max_px: Annotated[int, Field(ge=160, le=8192)] = Field(
        1600, description="long side of the second pass, made where the first one met small faces or none"
    )
    find_turned: bool = Field(True, description="where no upright face is sure, look at 90, 180 and 270 degrees")
    min_face_px: Annotated[float, Field(ge=1)] = Field(10.0, description="shorter side of the smallest face, pixels")
    max_faces: Annotated[int, Field(ge=1, le=1000)] = Field(200, description="faces per image; the largest are kept")

    # What is accepted
    max_bytes: Annotated[int, Field(ge=1024)] = Field(20_000_000, description="bytes of one image")
    max_pixels: Annotated[int, Field(ge=1024)] = Field(MAX_PIXELS, description="pixels of one image, before decoding")

    reduced_decode: bool = Field(
        True, description="decode a JPEG far larger than detection needs at 1/2, 1/4 or 1/8, where its faces stay large"
    )

    # What the service accepts, per process; past a limit the answer is 413, 429 or 503, at once
    max_body_bytes: Annotated[int, Field(ge=1024)] = Field(50_000_000, description="bytes of one request's body")
    max_images: Annotated[int, Field(ge=1, le=1000)] = Field(16, description="images in one request")
    max_concurrent: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="requests at work at once; 0: four per core, at least 8"
    )
    max_queue: Annotated[int, Field(ge=0, le=10_000)] = Field(64, description="requests that wait for their turn")
    max_wait_s: Annotated[float, Field(gt=0, le=600)] = Field(
        3.0, description="who would be done later than this, as things go, is refused instead of queued"
    )
    max_per_client: Annotated[int, Field(ge=0, le=10_000)] = Field(
        64, description="requests at once of one API key or address; 0: as many as there is room for"
    )
    max_buffered_bytes: Annotated[int, Field(ge=1024)] = Field(
        512_000_000, description="bytes held for all requests together"
    )
    max_pixels_at_once: Annotated[int, Field(ge=1024)] = Field(
        100_000_000, description="pixels that all requests together hold decoded; about 15 bytes each"
    )
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = Field(1024, description="open connections")
    max_frame_bytes: Annotated[int, Field(ge=1024)] = Field(2_000_000, description="bytes of one webcam frame")
    max_streams: Annotated[int, Field(ge=0, le=1024)] = Field(8, description="open webcam streams")
    request_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(30.0, description="wait and work of one request")
    body_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(30.0, description="for a body to arrive whole")
    header_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(10.0, description="for a request's head to arrive")
    shutdown_timeout_s: Annotated[int, Field(ge=1, le=600)] = Field(
        30, description="after SIGTERM, for accepted requests to finish"
    )
    drain_s: Annotated[float, Field(ge=0, le=600)] = Field(
        0.0, description="after SIGTERM, to serve on while /ready already says no, so that a balancer notices"
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(1, description="processes that share the port")

    # Who may ask
    api_key_sha256: Annotated[tuple[ApiKeyHash, ...], NoDecode] = Field(
        (), description="SHA-256 of each API key, hexadecimal, separated by commas; none: everybody may ask"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="origins whose pages may call the service, separated by commas; none: only its own page"
    )

    # Where it listens
    host: str = Field("127.0.0.1", description="address to listen on; only this machine unless told otherwise")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0 takes a free one")

    @field_validator("api_key_sha256", "cors_origins", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _passes_grow(self) -> Self:
        if self.detection_max_px < self.detection_px:
            raise ValueError(f"detection_max_px {self.detection_max_px} is below detection_px {self.detection_px}")
        return self


def load_settings(**overrides: object) -> Settings:
    """Read the environment, with `overrides` (None means: not given) on top.

    Raises: SettingsError, naming the variable, what was found and what is allowed.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks the types
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]) or "settings"
        raise SettingsError(f"{ENV_PREFIX}{name.upper()}={first['input']!r}: {first['msg']}") from error
