"""API keys with names, from the settings and from a file that is reread when it changes.

A key is sent as `Authorization: Bearer`, as `X-API-Key`, as the password of Basic authentication (so that a browser can
prompt for it), or, for a WebSocket of a page, as the subprotocol `mien.key.<key>`. The file is TOML, with one table
per name:

    [web]
    sha256 = ["9b7f..."]          # of each key; two during a rotation
"""

import base64
import hashlib
import hmac
import logging
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from fastapi import Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from mien.app.access import Check
from mien.app.errors import SettingsError, Unauthorized
from mien.app.service.logs import key_name
from mien.app.service.problems import KEY
from mien.app.settings import ApiKeyHash, Settings

PROBE_PATHS: Final = frozenset({"/health", "/ready"})
METRICS_PATH: Final = "/metrics"
KEY_PROTOCOL: Final = "mien.key."
# Offered in addition to the key, because a handshake must select a protocol other than the key.
STREAM_PROTOCOL: Final = "mien.v1"
# Only for the API description, if keys are configured: the middleware checks keys before routing.
DESCRIBED_KEYS: Final = [
    Security(HTTPBearer(scheme_name="bearer", auto_error=False, description="an API key")),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False, description="the same")),
]
_FIND: Final = "mien.find-key"  # key in the scope for a function that finds its API key again
_REREAD_S: Final = 1.0
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_log = logging.getLogger(__name__)


class _Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[tuple[ApiKeyHash, ...], Field(min_length=1)]


_FILE: Final = TypeAdapter(dict[_Name, _Entry])


def key_hash(key: str) -> str:
    """SHA-256 of an API key, 64 hexadecimal digits, for `MIEN_API_KEY_SHA256` and the file of keys."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """All keys of a service; a key of the settings is named after its hash."""

    def __init__(self, settings: Settings) -> None:
        """Read the file. Raises: SettingsError."""
        self._path = settings.api_keys_file
        self._from_settings = {digest: f"key:{digest[:12]}" for digest in settings.api_key_sha256}
        self._names, self._version, self._checked_s = self._from_settings, "", 0.0
        if self._path is not None:
            self._reread(self._path)

    def find(self, key: str | None) -> str:
        """The name of a key. Raises: Unauthorized."""
        if key is None:
            raise Unauthorized("no API key: send it as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")
        if self._path is not None and time.monotonic() - self._checked_s > _REREAD_S:
            try:
                self._reread(self._path)
            except SettingsError as error:
                _log.error("%s. The earlier keys stay valid", error)  # without the traceback
        digest = key_hash(key)
        # Compare with every hash, so that the time does not reveal a match.
        matches = [name for accepted, name in self._names.items() if hmac.compare_digest(digest, accepted)]
        if not matches:
            raise Unauthorized("this API key is not accepted")
        return matches[0]

    def _reread(self, path: Path) -> None:
        self._checked_s = time.monotonic()
        try:
            status = path.stat()
            version = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
            if version == self._version:
                return
            self._version = version
            entries = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            what = error.errors()[0] if isinstance(error, ValidationError) else None
            reason = f"{'.'.join(map(str, what['loc']))}: {what['msg']}" if what else error
            raise SettingsError(f"keys in {path}: {reason}") from error
        self._names = self._from_settings | {digest: name for name, entry in entries.items() for digest in entry.sha256}


def presented_key(headers: Headers) -> str | None:
    """The key of a request, if any."""
    if (direct := headers.get("x-api-key")) is not None:
        return _decoded(direct)
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return _decoded(value.strip())
    if scheme.lower() == "basic":
        return _basic_password(value)
    offered = (name.strip() for name in headers.get("sec-websocket-protocol", "").split(","))
    return next((name.removeprefix(KEY_PROTOCOL) for name in offered if name.startswith(KEY_PROTOCOL)), None)


def _decoded(value: str) -> str:
    """A header value as UTF-8, if it is; Starlette decodes headers as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _basic_password(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def key_check(settings: Settings) -> Check:
    """A check for a valid API key, which raises Unauthorized. Raises: SettingsError, if the file of keys is wrong."""
    keys = Keys(settings)
    open_paths = {*PROBE_PATHS, METRICS_PATH} if settings.metrics_without_key else PROBE_PATHS

    def check(scope: Scope) -> None:
        if scope["path"] not in open_paths:
            scope[_FIND] = partial(keys.find, presented_key(Headers(scope=scope)))
            scope[KEY] = scope[_FIND]()
            key_name.set(scope[KEY])

    return check


def key_of(connection: HTTPConnection) -> str | None:
    """Name of a request's API key, if keys are configured. Raises: Unauthorized, if it was removed meanwhile."""
    find: Callable[[], str] | None = connection.scope.get(_FIND)
    return None if find is None else find()


def client_of(connection: HTTPConnection) -> str:
    """Client for limits per client: the name of the API key, else the address."""
    if (name := key_of(connection)) is not None:
        return name
    return connection.client.host if connection.client else "unknown"
