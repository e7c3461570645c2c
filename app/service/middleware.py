"""Middleware for request ids, security headers, the provider header, and metrics."""

import logging
import re
import time
import uuid
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mien.app.service.logs import request_id
from mien.app.service.problems import (
    CLIENT_GONE,
    KEY,
    REFUSED,
    internal_error,
    problem_response,
    status_problem,
)
from mien.app.service.state import Service
from mien.data.errors import MienError

REQUEST_ID: Final = "X-Request-ID"
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
# Swagger UI has an inline script and style attributes, and its icons in data URLs.
_DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STARTS: Final = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})

_log = logging.getLogger(__name__)


class Envelope:
    """Outermost middleware for requests and streams. Headers set by a route are kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        service: Service = scope["app"].state.service
        if scope.get("method") == "HEAD":  # GET for routes; servers send no body
            scope = {**scope, "method": "GET"}
        from_client = Headers(scope=scope).get(REQUEST_ID, "")
        request_id.set(from_client if _SAFE_ID.fullmatch(from_client) else new_id())
        start = time.perf_counter()
        status = 0

        async def send_enveloped(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.close" and not status:  # no route: the server's own refusal is empty
                problem = status_problem(HTTPStatus.NOT_FOUND)
                await problem_response(problem, f"no stream is served at {scope['path'][:100]}")(
                    scope, receive, send_enveloped
                )
                return
            if message["type"] in _STARTS:
                status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
                if scope["path"] == "/docs":
                    MutableHeaders(scope=message)["Content-Security-Policy"] = _DOCS_POLICY
                _add_headers(message, service)
            await send(message)

        try:
            await self._app(scope, receive, send_enveloped)
        except Exception:
            if status:
                raise
            _log.exception("unexpected error in %s", scope["path"])
            scope[REFUSED] = MienError.code
            await internal_error()(scope, receive, send_enveloped)
        finally:
            _count(scope, service, status or CLIENT_GONE, time.perf_counter() - start)


def new_id() -> str:
    """Create a request id."""
    return uuid.uuid4().hex


def _add_headers(message: Message, service: Service) -> None:
    message.setdefault("headers", [])
    headers = MutableHeaders(scope=message)
    headers[REQUEST_ID] = request_id.get() or new_id()
    headers["Mien-Provider"] = service.labeler.classifier.provider
    if service.fallback is not None:
        headers["Mien-Fallback"] = "cpu"
    if message["type"] == "websocket.accept":
        return
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)


def _count(scope: Scope, service: Service, status: int, seconds: float) -> None:
    is_error = status >= HTTPStatus.BAD_REQUEST and status != CLIENT_GONE
    # an error status may lack a problem of a route
    if refused := scope.get(REFUSED) or (is_error and status_problem(status).slug):
        service.metrics.rejections.labels(refused).inc()
    if (key := scope.get(KEY)) is not None:
        service.metrics.key_requests.labels(key, str(status)).inc()
    if scope["type"] == "websocket":
        return  # the duration of a stream depends on its client, so its frames are counted instead
    path = _route(scope)
    method = scope["method"] if scope["method"] in _METHODS else "other"
    service.metrics.requests.labels(path, method, str(status)).inc()
    service.metrics.request_seconds.labels(path).observe(seconds)


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "unmatched"


class CloseUnread:
    """Middleware that closes the connection after a request that is refused before its body.

    The server would otherwise read the rest of the body, however long that takes, to find the next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        arriving = "content-length" in headers or "transfer-encoding" in headers

        async def receive_part() -> Message:
            nonlocal arriving
            message = await receive()
            arriving = arriving and message.get("more_body", False)
            return message

        async def send_part(message: Message) -> None:
            if arriving and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive_part, send_part)


class Cors(CORSMiddleware):
    """CORS middleware that rejects requests with problem documents."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        detail = bytes(response.body).decode()
        return problem_response(status_problem(response.status_code), detail, headers={"Vary": "Origin"})
