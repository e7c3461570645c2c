"""API keys with names, from the settings and from a file that is read at the start.

A key is sent as `Authorization: Bearer` or as `X-API-Key`. The file is TOML, with one table per name:

    [web]
    sha256 = ["9b7f..."]          # of each key; two during a rotation
"""

import hashlib
import hmac
import tomllib
from pathlib import Path
from typing import Annotated, Final

from fastapi import Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import Scope

from mien.app.access import Check
from mien.app.errors import SettingsError, Unauthorized
from mien.app.service.logs import key_name
from mien.app.service.problems import KEY
from mien.app.settings import ApiKeyHash, Settings

PROBE_PATHS: Final = frozenset({"/health", "/ready"})
METRICS_PATH: Final = "/metrics"
# Only for the API description, if keys are configured: the middleware checks keys before routing.
DESCRIBED_KEYS: Final = [
    Security(HTTPBearer(scheme_name="bearer", auto_error=False, description="an API key")),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False, description="the same")),
]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class _Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[tuple[ApiKeyHash, ...], Field(min_length=1)]


_FILE: Final = TypeAdapter(dict[_Name, _Entry])


def key_hash(key: str) -> str:
    """SHA-256 of an API key, 64 hexadecimal digits, for `MIEN_API_KEY_SHA256` and the file of keys."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_check(settings: Settings) -> Check:
    """A check for a valid API key, which raises Unauthorized. Raises: SettingsError, if the file of keys is wrong.

    A key of the settings is named after its hash.
    """
    names = {digest: f"key:{digest[:12]}" for digest in settings.api_key_sha256}
    if settings.api_keys_file is not None:
        names |= _names_in(settings.api_keys_file)
    open_paths = {*PROBE_PATHS, METRICS_PATH} if settings.metrics_without_key else PROBE_PATHS

    def check(scope: Scope) -> None:
        if scope["path"] in open_paths:
            return
        key = _presented_key(Headers(scope=scope))
        if key is None:
            raise Unauthorized("no API key: send it as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")
        digest = key_hash(key)
        # Compare with every hash, so that the time does not reveal a match.
        matches = [name for accepted, name in names.items() if hmac.compare_digest(digest, accepted)]
        if not matches:
            raise Unauthorized("this API key is not accepted")
        scope[KEY] = matches[0]
        key_name.set(matches[0])

    return check


def _names_in(path: Path) -> dict[str, str]:
    """The name of each hash in the file. Raises: SettingsError."""
    try:
        entries = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        what = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{'.'.join(map(str, what['loc']))}: {what['msg']}" if what else error
        raise SettingsError(f"keys in {path}: {reason}") from error
    return {digest: name for name, entry in entries.items() for digest in entry.sha256}


def _presented_key(headers: Headers) -> str | None:
    """The key of a request, if any."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    key = headers.get("x-api-key", value.strip() if scheme.lower() == "bearer" else None)
    if key is None:
        return None
    try:
        return key.encode("latin-1").decode()  # Starlette decodes headers as Latin-1
    except UnicodeDecodeError:
        return key
