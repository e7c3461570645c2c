"""API keys of the settings, sent as `Authorization: Bearer` or as `X-API-Key`."""

import hashlib
import hmac
from typing import Final

from fastapi import Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection

from mien.app.errors import Unauthorized

# Only for the API description: FastAPI's classes for keys reject WebSockets.
DESCRIBED: Final = [
    Security(HTTPBearer(scheme_name="bearer", auto_error=False, description="an API key")),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False, description="the same")),
]


def key_hash(key: str) -> str:
    """SHA-256 of an API key, 64 hexadecimal digits, for `MIEN_API_KEY_SHA256`."""
    return hashlib.sha256(key.encode()).hexdigest()


async def check_key(connection: HTTPConnection) -> None:
    """Require one of the keys, if there are any; its name is the start of its hash. Raises: Unauthorized."""
    accepted: tuple[str, ...] = connection.app.state.settings.api_key_sha256
    if not accepted:
        return
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    presented = [connection.headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
    for digest in map(key_hash, map(_utf8, filter(None, presented))):
        # Compare with every hash, so that the time does not reveal a match.
        if matches := [known for known in accepted if hmac.compare_digest(digest, known)]:
            connection.state.key = matches[0][:12]
            return
    if any(presented):
        raise Unauthorized("this API key is not accepted")
    raise Unauthorized("no API key: send it as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")


def _utf8(value: str) -> str:
    """A header as UTF-8, if it is; Starlette decodes headers as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
