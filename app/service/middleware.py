"""Middleware for request ids, security headers, the provider header, and metrics."""

import asyncio
import itertools
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

from mien.app.errors import HeadTooLarge, ShuttingDown, TooManyRequests
from mien.app.service.logs import request_id
from mien.app.service.problems import (
    CLIENT_GONE,
    KEY,
    REFUSED,
    internal_error,
    problem_for,
    problem_response,
    refusal,
    status_problem,
)
from mien.app.service.state import Service
from mien.app.service.tracing import request_span
from mien.data.errors import MienError

REQUEST_ID: Final = "X-Request-ID"
# As in the earlier drafts of the IETF, which clients read; the unit is concurrent requests
RATE_LIMITS: Final = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 100
# As Safari requests videos, which it plays only in parts; others get the whole file for "bytes=0-", and can keep it
PART: Final = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")
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
_RETRY_S: Final = problem_for(TooManyRequests()).retry_after_s
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
        scope = _for_routes(scope)
        from_client = Headers(scope=scope).get(REQUEST_ID, "")
        request_id.set(from_client if _SAFE_ID.fullmatch(from_client) else new_id())
        start = time.perf_counter()
        status = 0
        task = asyncio.current_task()
        service.requests.add(task)

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
                _add_headers(message, scope, service)
                _add_limits(message, scope, service)
            await send(message)

        try:
            with request_span(Headers(scope=scope), scope["path"]) as span:
                await self._app(scope, receive, send_enveloped)
                span.update_name(f"{scope.get('method', 'WebSocket')} {_route(scope)}")
                span.set_attribute("http.response.status_code", int(status))
        except asyncio.CancelledError:  # the server would log a traceback, and respond with plain text
            if not service.draining:
                raise
            response = refusal(scope, ShuttingDown("the service stopped before it could respond"))
            if not status:
                await response(scope, receive, send_enveloped)
        except Exception:
            if status:
                raise
            _log.exception("unexpected error in %s", scope["path"])
            scope[REFUSED] = MienError.code
            await internal_error()(scope, receive, send_enveloped)
        finally:
            service.requests.discard(task)
            _count(scope, service, status or CLIENT_GONE, time.perf_counter() - start)


def _for_routes(scope: Scope) -> Scope:
    """A request as routes get it: HEAD is GET, to which servers send no body, and only parts of videos are served."""
    # Starlette reports a wrong range in plain text
    is_part = scope["path"].endswith(".webm") and PART.fullmatch(Headers(scope=scope).get("range", ""))
    headers = [header for header in scope["headers"] if is_part or header[0] != b"range"]
    head = {"method": "GET"} if scope.get("method") == "HEAD" else {}
    return {**scope, "headers": headers, **head}


def head_check(scope: Scope) -> None:
    """Raises: HeadTooLarge."""
    path = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if len(scope["headers"]) > MAX_HEADERS or path + sum(map(len, itertools.chain(*scope["headers"]))) > MAX_HEAD_BYTES:
        raise HeadTooLarge(f"at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADERS} headers are accepted")


def new_id() -> str:
    """Create a request id."""
    return uuid.uuid4().hex


def _add_headers(message: Message, scope: Scope, service: Service) -> None:
    message.setdefault("headers", [])
    headers = MutableHeaders(scope=message)
    headers[REQUEST_ID] = request_id.get() or new_id()
    headers["Mien-Provider"] = service.default.classifier.provider
    if service.fallback is not None:
        headers["Mien-Fallback"] = "cpu"
    if message["type"] == "websocket.accept":
        return
    if message.get("status") != HTTPStatus.PARTIAL_CONTENT:
        del headers["Accept-Ranges"]
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    if service.draining or {"content-length", "transfer-encoding"} <= set(Headers(scope=scope)):  # RFC 9112, 6.1
        headers["Connection"] = "close"


def _add_limits(message: Message, scope: Scope, service: Service) -> None:
    """Tell a client of `/v1` how many requests it may send at once."""
    limit = service.settings.max_per_client
    address = None if service.settings.needs_key else (scope.get("client") or ("unknown",))[0]
    client = scope.get(KEY, address)
    if message["type"] != "http.response.start" or not scope["path"].startswith("/v1/") or client is None or not limit:
        return
    remaining = service.admission.remaining(client)
    for name, value in zip(RATE_LIMITS, (limit, remaining, 0 if remaining else _RETRY_S), strict=True):
        MutableHeaders(scope=message)[name] = str(value)


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


class WholeBody:
    """Middleware that receives the rest of a body, within its limit, before a response ends.

    A server that closes the connection resets a client that is still sending, which loses the response.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        # a client that waits for "100 Continue" does not send the body after another response
        arriving = ("content-length" in headers or "transfer-encoding" in headers) and "expect" not in headers

        async def receive_part() -> Message:
            nonlocal arriving
            message = await receive()
            arriving = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def send_part(message: Message) -> None:
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if not (last and arriving):
                await send(message)
                return
            await send({**message, "more_body": True})
            received = 0
            while received < self._max_bytes and (part := await receive_part()).get("more_body", False):
                received += len(part["body"])
            await send({"type": "http.response.body"})

        if arriving:
            await self._app(scope, receive_part, send_part)
        else:
            await self._app(scope, receive, send)


class Cors(CORSMiddleware):
    """CORS middleware that rejects requests with problem documents."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        detail = bytes(response.body).decode()
        return problem_response(status_problem(response.status_code), detail, headers={"Vary": "Origin"})
