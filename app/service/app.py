"""The application of the service: who may call, routes, middleware and problems.

`mien serve` starts it (start.py), or any ASGI server: `uvicorn --factory mien.app.service.app:create_app`.
"""

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mien.app import VERSION
from mien.app.errors import ForeignOrigin, InvalidRequest, Unauthorized, named_problem, problem
from mien.app.inference.labeler import Labeler
from mien.app.service import api, page, stream
from mien.app.service.api import Service
from mien.app.service.metrics import request_id
from mien.app.service.schema import complete
from mien.app.service.uploads import findings, summary
from mien.app.settings import Settings, load_settings
from mien.data.errors import MienError

REQUEST_ID: Final = "X-Request-ID"
_CLIENT_GONE: Final = 499  # nginx's status for a client that disconnected
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QUIET_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
# Pages of any site may send these to any other, but not read the response.
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS: Final = _SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1", "[::1]")
# Only for the API description: FastAPI's classes for keys reject WebSockets.
_DESCRIBED_KEYS: Final = [
    Security(HTTPBearer(scheme_name="bearer", auto_error=False, description="an API key")),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False, description="the same")),
]
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
_DESCRIPTION: Final = """
Finds the faces in photos and labels their expressions: calibrated probabilities per face.

It labels expressions, not feelings: a smile does not prove joy. Images are held in memory while a request runs, and are
neither stored nor logged. Every error is a problem document (RFC 9457).
"""
_log = logging.getLogger(__name__)


def open_labeler(settings: Settings) -> Labeler:
    """The model and the detector; unless set, inferences have one thread, because photos are processed in parallel.

    Raises: as `Labeler.open`.
    """
    return Labeler.open(settings.model_copy(update={"threads": settings.threads or 1}))


def create_app(settings: Settings | None = None, *, labeler: Labeler | None = None) -> FastAPI:
    """Build the application; the model is opened, verified and warmed up at startup, before it accepts connections.

    Args:
        settings: by default, read from the environment.
        labeler: by default, opened from the settings.
    """
    chosen = settings or load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = Service(labeler or open_labeler(chosen), chosen)
        yield
        app.state.service.close()

    app = FastAPIOffline(
        title="Mien",
        version=VERSION,
        description=_DESCRIPTION,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        middleware=_middleware(chosen),
        dependencies=[Depends(_check_origin)],
    )
    app.state.settings = chosen
    keys = [Depends(_check_key), *(_DESCRIBED_KEYS if chosen.api_key_sha256 else [])]
    app.include_router(api.router, dependencies=keys)
    app.include_router(stream.router, dependencies=keys[:1])
    for router in (api.probes, page.router):
        app.include_router(router)
    app.mount("/page", page.Assets())
    app.add_exception_handler(MienError, _problem)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(WebSocketRequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
    complete(app.openapi(), chosen)
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    local = settings.host in _LOCAL_HOSTS or settings.host.startswith("127.")
    hosts = [*_LOCAL_HOSTS, *settings.allowed_hosts] if local or settings.allowed_hosts else ["*"]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-API-Key", REQUEST_ID, "traceparent", "tracestate"],
        expose_headers=[REQUEST_ID, "Mien-Provider", "Mien-Fallback", "Retry-After"],
    )
    return [
        Middleware(Envelope),
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        *([cors] if settings.cors_origins else []),
    ]


async def _check_origin(connection: HTTPConnection) -> None:
    """Only own pages and those of `cors_origins` change anything or open streams. Raises: ForeignOrigin.

    Browsers send forms and WebSockets of any page without asking first. Other clients send neither header.
    """
    headers, origins = connection.headers, connection.app.state.settings.cors_origins
    origin, site, host = headers.get("origin"), headers.get("sec-fetch-site"), headers.get("host")
    if connection.scope.get("method") in _SAFE_METHODS or {origin, "*"} & {*origins} or site in ("same-origin", "none"):
        return
    if site is not None or origin not in (None, f"http://{host}", f"https://{host}"):
        raise ForeignOrigin("only pages of this service may send this. Let a proxy pass on Host")


async def _check_key(connection: HTTPConnection) -> None:
    """Require one of the keys, if there are any; its name is the start of its hash. Raises: Unauthorized."""
    accepted: tuple[str, ...] = connection.app.state.settings.api_key_sha256
    if not accepted:
        return
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    presented = [connection.headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
    for key in filter(None, presented):
        # Starlette decodes headers as Latin-1, which leaves their bytes as they are.
        digest = hashlib.sha256(key.encode("latin-1")).hexdigest()
        # Compare with every hash, so that the time does not reveal a match.
        if matches := [known for known in accepted if hmac.compare_digest(digest, known)]:
            connection.state.key = matches[0][:12]
            return
    if any(presented):
        raise Unauthorized("this API key is not accepted")
    raise Unauthorized("no API key: send it as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")


class Envelope:
    """Middleware of every request and stream: id, headers, metrics, a line in the log, and unexpected errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope.get("method") == "HEAD":  # GET for routes; servers send no body
            scope = {**scope, "method": "GET"}
        headers, start_s, status = Headers(scope=scope), time.perf_counter(), 0
        arriving = "content-length" in headers or "transfer-encoding" in headers
        from_client = headers.get(REQUEST_ID, "")
        request_id.set(from_client if _SAFE_ID.fullmatch(from_client) else uuid.uuid4().hex)
        service: Service = scope["app"].state.service

        async def receive_part() -> Message:
            nonlocal arriving
            message = await receive()
            arriving = arriving and message.get("more_body", False)
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
                # Refused before its body: the server would otherwise read all of it to find the next request.
                _add_headers(message, scope["path"], service, close=arriving)
            await send(message)

        try:
            await self._app(scope, receive_part, send_with_headers)
        except Exception as error:
            if status:
                raise
            _log.exception("unexpected error in %s", scope["path"])
            await _problem_response(problem(error))(scope, receive, send_with_headers)
        finally:
            _count(scope, service, status or _CLIENT_GONE, time.perf_counter() - start_s)


def _add_headers(message: Message, path: str, service: Service, *, close: bool) -> None:
    message.setdefault("headers", [])
    headers = MutableHeaders(scope=message)
    headers[REQUEST_ID] = request_id.get() or ""
    headers["Mien-Provider"] = service.labeler.classifier.provider
    if service.fallback is not None:
        headers["Mien-Fallback"] = "cpu"
    if message["type"] == "websocket.accept":
        return
    if path == "/docs":
        headers["Content-Security-Policy"] = _DOCS_POLICY
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    if close:
        headers["Connection"] = "close"


def _count(scope: Scope, service: Service, status: int, seconds: float) -> None:
    """Count and log a request; the duration of a stream depends on its client, so its frames are counted instead."""
    path, method = scope["path"], scope.get("method", "WebSocket")
    if path not in _QUIET_PATHS or status != HTTPStatus.OK:
        key = scope.get("state", {}).get("key")
        client = (scope.get("client") or ("",))[0]
        fields = {"client": client, "method": method, "path": path, "status": status, "key": key}
        by = f", key {key}" if key else ""
        _log.info('%s - "%s %s" %d%s', client, method, path, status, by, extra={"fields": fields})
    if scope["type"] == "http":
        route = getattr(scope.get("route"), "path", None) or "unmatched"
        service.metrics.requests.labels(route, method if method in _METHODS else "other", str(status)).inc()
        service.metrics.request_seconds.labels(route).observe(seconds)


def _problem_response(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(body, body["status"], headers, media_type="application/problem+json")


async def _problem(_connection: HTTPConnection, error: Any) -> Response:
    """Response to a request, or to a stream that is not open yet."""
    if error.status == MienError.status:
        raise error
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="mien"'
    return _problem_response(problem(error), headers)


async def _http_problem(request: Request, error: Any) -> Response:
    status, detail = HTTPStatus(error.status_code), error.detail
    if status == HTTPStatus.NOT_FOUND:
        detail = f"nothing is served at {request.url.path[:100]}: /docs lists what is"
    return _problem_response(named_problem(status, status.phrase.lower().replace(" ", "-"), detail), error.headers)


async def _invalid(_connection: HTTPConnection, error: Any) -> Response:
    found = error.errors()
    return _problem_response(problem(InvalidRequest(summary(found)), errors=findings(found)))


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)
