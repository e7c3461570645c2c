"""What does every answer carry? A request id, security headers, the provider that runs; and it is counted."""

import re
import time
import uuid
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.problems import REFUSED
from app.service import Service

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
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Envelope:
    """Middleware around everything else. A header that a route has set is left as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service: Service = scope["app"].state.service
        request_id = _request_id(scope)
        start = time.perf_counter()
        status = 500

        async def send_enveloped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _envelop(message, service, request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_enveloped)
        finally:
            _count(scope, service, status, time.perf_counter() - start)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex


def _envelop(message: Message, service: Service, request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers[REQUEST_ID] = request_id
    headers["Mien-Provider"] = service.pipeline.classifier.provider
    if service.fallback is not None:
        headers["Mien-Fallback"] = "cpu"
    if service.draining:
        headers["Connection"] = "close"


def _count(scope: Scope, service: Service, status: int, seconds: float) -> None:
    route: Any = scope.get("route")
    path = getattr(route, "path", None) or "unmatched"
    method = scope["method"] if scope["method"] in _METHODS else "other"
    service.metrics.requests.labels(path, method, str(status)).inc()
    if REFUSED in scope:
        service.metrics.rejections.labels(scope[REFUSED]).inc()
    service.metrics.request_seconds.labels(path).observe(seconds)
