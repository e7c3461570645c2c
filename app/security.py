"""Who is asking? API keys, compared in constant time, on every path but the probes.

A key comes as `Authorization: Bearer`, as `X-API-Key`, as the password of Basic authentication (so that a browser can
ask a person for it), or, for a WebSocket of a page, as the subprotocol `mien.key.<key>`. Only hashes are configured.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import Unauthorised, problem_for
from app.problems import REFUSED, problem_response

OPEN_PATHS: Final = frozenset({"/health", "/ready"})
KEY_PROTOCOL: Final = "mien.key."
STREAM_PROTOCOL: Final = "mien.v1"  # offered beside the key, as a handshake must choose one, and never the key


def key_hash(key: str) -> str:
    """SHA-256 of an API key, 64 hexadecimal digits, as `MIEN_API_KEY_SHA256` holds it."""
    return hashlib.sha256(key.encode()).hexdigest()


def presented_key(headers: Headers) -> str | None:
    """The key that a request carries, if any."""
    if (direct := headers.get("x-api-key")) is not None:
        return direct
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        return _basic_password(value)
    offered = (name.strip() for name in headers.get("sec-websocket-protocol", "").split(","))
    return next((name.removeprefix(KEY_PROTOCOL) for name in offered if name.startswith(KEY_PROTOCOL)), None)


def _basic_password(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


class ApiKeys:
    """Middleware: refuses what carries no accepted key. Without configured hashes everybody may ask."""

    def __init__(self, app: ASGIApp, hashes: Iterable[str]) -> None:
        self._app = app
        self._hashes = tuple(hashes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._hashes or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            scope["mien.client"] = self._accepted(presented_key(Headers(scope=scope)))
        except Unauthorised as error:
            scope[REFUSED] = problem_for(error).slug
            await problem_response(problem_for(error), str(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _accepted(self, key: str | None) -> str:
        if key is None:
            raise Unauthorised("no API key: send it as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")
        found = key_hash(key)
        # every hash is compared, so that the time tells nothing of which one, or whether one, was near
        matches = [hmac.compare_digest(found, known) for known in self._hashes]
        if not any(matches):
            raise Unauthorised("this API key is not accepted")
        return f"key:{found[:12]}"


def client_of(connection: HTTPConnection) -> str:
    """Whom the limit per caller counts: the API key, else the address."""
    known = connection.scope.get("mien.client")
    if known is not None:
        return str(known)
    return connection.client.host if connection.client else "unknown"
