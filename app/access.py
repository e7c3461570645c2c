"""Middleware that keeps pages of other sites from using a service or the review page on a visitor's machine."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mien.app.errors import ForeignOrigin, problem

# Any page may send these to any site, but not read the response. Hosts are checked against DNS rebinding by Starlette.
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1", "[::1]")
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
        return site is None and (origin is None or _netloc(origin) == headers.get("host", ""))


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:  # such as http://[::1
        return None
