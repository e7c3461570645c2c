"""Who may call: pages of the service itself or of named origins, and clients with an API key."""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from fastapi import Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mien.app.errors import ForeignOrigin, Unauthorized, problem

# Any page may send these to any site, but not read the response. Hosts are checked against DNS rebinding by Starlette.
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1", "[::1]")
# Only for the API description: FastAPI's classes for keys reject WebSockets.
DESCRIBED_KEYS: Final = [
    Security(HTTPBearer(scheme_name="bearer", auto_error=False, description="an API key")),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False, description="the same")),
]
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class OwnPages:
    """Only own pages and those of `origins` change anything or open streams.

    Browsers send forms and WebSockets of any page without asking first. Other clients send neither header.
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str] = ()) -> None:
        self._app, self._origins = app, {*origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("method") in _SAFE_METHODS or self._is_own(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = problem(ForeignOrigin("only pages of this service may send this. Let a proxy pass on Host"))
        await JSONResponse(body, body["status"], media_type="application/problem+json")(scope, receive, send)

    def _is_own(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if {origin, "*"} & self._origins or site in ("same-origin", "none"):
            return True
        host = headers.get("host", "")
        return site is None and origin in (None, f"http://{host}", f"https://{host}")


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
