"""Settings, read from `MIEN_*` environment variables and arguments.

`InferenceSettings` are what a label depends on; `Settings` add what a deployment needs.

Facts about pixels are constants in `data/contract/`, and options of a training run are in its recipe.
"""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mien.app.errors import SettingsError
from mien.data.contract.pixels import MAX_PIXELS
from mien.models.manifest import Prior, artifact_dir

ENV_PREFIX: Final = "MIEN_"
# Variables of the training commands and of the tests; serving ignores them.
_NOT_SETTINGS: Final = frozenset(
    f"{ENV_PREFIX}{name}" for name in ("DATA_DIR", "PHOTOS_DIR", "MOBILEFACENET", "CHROMIUM")
)
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "fp16", "int8"]
Tiles = Literal["never", "wide", "always"]


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


Origin = Annotated[
    str,
    _matching(
        r"\*|[a-z][a-z0-9+.-]*://[^/\sA-Z]+",
        "origins as browsers send them, such as https://app.example:8443: in lower case, without a path",
    ),
]
HostName = Annotated[
    str,
    _matching(
        r"\*|[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?",
        "host names such as mien.example, without a scheme, a port or a wildcard",
    ),
]
Seconds = Annotated[float, Field(gt=0, le=600)]
Size = Annotated[int, Field(ge=1024)]  # bytes or pixels
ApiKeyHash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _not_empty(value: object) -> object:
    if value == "":  # a path would be the current folder, and a host every address
        raise ValueError("empty. Give a value, or unset it")
    return value


NotEmpty: Final = BeforeValidator(_not_empty)


def _zero_if_auto(value: object) -> object:
    return 0 if value == "auto" else value


class InferenceSettings(BaseSettings):
    """Settings on which a label depends. Every field is the environment variable `MIEN_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    # Model and device
    models_dir: Annotated[Path | None, NotEmpty] = Field(
        None, description="folder with YuNet's file; searched before the user cache"
    )
    model: Annotated[str | Path | None, NotEmpty] = Field(
        None, description="fast (the default), the name of a released artifact or its end, or a folder"
    )
    prior: Prior = Field("balanced", description="balanced corrects for rare expressions, natural does not")
    device: Device = Field("auto", description="of the networks: auto may fall back to the CPU; cuda never does")
    precision: Precision = Field(
        "auto", description="auto: fp16 on a GPU; on a CPU, int8 if it has instructions for it (VNNI, AMX), else fp32"
    )
    threads: Annotated[int, Field(ge=0, le=256)] = Field(
        0, description="threads per inference; 0: one in the service and for detection, else one per core"
    )

    # Detection
    detector: Literal["auto", "builtin", "yunet"] = Field("auto", description="auto: yunet if its file is installed")
    detection_threshold: Annotated[float, Field(gt=0, lt=1)] = Field(0.6, description="minimum score of a face")
    detection_tiles: Tiles = Field(
        "wide",
        description="also search at full size, in tiles, photos larger than that: wide, from 3:1, such as panoramas; "
        "always; or never",
    )
    detect_rotated: bool = Field(True, description="if no upright face is certain, try 90, 180 and 270 degrees")
    min_face_px: Annotated[float, Field(ge=1)] = Field(10.0, description="shorter side of the smallest face, pixels")
    max_faces: Annotated[int, Field(ge=1, le=1000)] = Field(200, description="faces per image; the largest are kept")

    # Images
    max_bytes: Size = Field(20_000_000, description="bytes of one image")
    max_pixels: Size = Field(
        MAX_PIXELS, description="pixels of one image, before decoding; in the service, of all requests together"
    )

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Read the environment; `overrides` that are not None take precedence.

        Raises: SettingsError, naming the variable or the override, what was found and what is allowed.
        """
        _reject_unknown_variables()
        overrides = {name: value for name, value in overrides.items() if value is not None}
        for name in sorted(overrides.keys() - cls.model_fields.keys()):
            nearest = difflib.get_close_matches(name, cls.model_fields, n=1, cutoff=0)[0]
            raise SettingsError(f"{name}: unknown setting. Did you mean {nearest}?")
        try:
            return cls(**overrides)  # type: ignore[arg-type]  # pydantic checks the types
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            source = name if name in overrides else _variable(name)
            if name == "api_key_sha256":  # what was found may be a key
                raise SettingsError(
                    f"{source}: expected the SHA-256 of each key, 64 digits 0-9a-f, with commas"
                ) from None
            raise SettingsError(f"{source}={first['input']!r}: {first['msg']}") from error

    def absolute(self) -> Self:
        """Settings for a process in another current folder, where the released models may be elsewhere, too."""
        paths = {"model": artifact_dir(self.model), "models_dir": self.models_dir}
        relative = {name: path.absolute() for name, path in paths.items() if path and not path.is_absolute()}
        return self.model_copy(update=relative)


class Settings(InferenceSettings):
    """Settings of a deployment of the service."""

    detection_tiles: Tiles = Field("never", description="as above; of 50 megapixels, tiles take seconds")

    # Limits of the service, per process; a request over a limit gets 413 or 503 immediately
    max_body_bytes: Size = Field(
        50_000_000, description="bytes in the body of one request; three times as many are held for all together"
    )
    max_images: Annotated[int, Field(ge=1, le=1000)] = Field(16, description="images in one request")
    max_queue: Annotated[int, Field(ge=0, le=10_000)] = Field(64, description="requests in the queue")
    request_timeout_s: Seconds = Field(30.0, description="waiting and processing time of one request")
    workers: Annotated[int, BeforeValidator(_zero_if_auto), Field(ge=0, le=64)] = Field(
        0, description="processes that share the port; 0 or auto: one per two cores and 1.2 GB, and one on a GPU"
    )

    # Access
    api_key_sha256: Annotated[tuple[ApiKeyHash, ...], NoDecode] = Field(
        (), description="SHA-256 of each API key, hexadecimal, separated by commas; none: no key is needed"
    )
    cors_origins: Annotated[tuple[Origin, ...], NoDecode] = Field(
        (), description="origins whose pages may call the service, separated by commas; none: only its own page"
    )
    allowed_hosts: Annotated[tuple[HostName, ...], NoDecode] = Field(
        (),
        description="accepted names in the Host header, separated by commas; none: any, but only localhost if the "
        "service listens on this machine only",
    )

    # Log
    log_format: Literal["text", "json"] = Field("text", description="json: one object per line")

    # Address
    host: Annotated[str, NotEmpty] = Field(
        "127.0.0.1", description="address to listen on; by default only this machine; *: all, IPv4 and IPv6"
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0: any free port")

    @field_validator("api_key_sha256", "cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _split_at_commas(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def load_settings(**overrides: object) -> Settings:
    """The settings of the service; see `InferenceSettings.load`."""
    return Settings.load(**overrides)


def _variable(field: str) -> str:
    return f"{ENV_PREFIX}{field.upper()}"


def _reject_unknown_variables() -> None:
    """Reject a misspelled variable: the service would run without the intended key or limit."""
    variables = {_variable(field) for field in Settings.model_fields}
    for variable in sorted(name for name in os.environ if name.upper().startswith(ENV_PREFIX)):
        if variable.upper() not in variables | _NOT_SETTINGS:
            nearest = difflib.get_close_matches(variable.upper(), variables, n=1, cutoff=0)[0]
            raise SettingsError(f"{variable}: unknown setting. Did you mean {nearest}? Otherwise unset it.")
