"""Access control by API keys and by the Host header.

A key is sent as `Authorization: Bearer`, as `X-API-Key`, as the password of Basic authentication (so that a browser can
prompt for it), or, for a WebSocket of a page, as the subprotocol `mien.key.<key>`.
"""

import base64
import re
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Final

from fastapi import Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from mien.app.errors import ForeignHost, InvalidRequest, RequestError, Unauthorized
from mien.app.service.keys import Keys
from mien.app.service.logs import key_name
from mien.app.service.problems import KEY, REFUSED, problem_for, problem_response, status_problem
from mien.app.settings import Settings

PROBE_PATHS: Final = frozenset({"/health", "/ready"})
METRICS_PATH: Final = "/metrics"
ANY: Final = "*"
Check = Callable[[Scope], None]
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{0,5})?")
_CHECK: Final = "mien.check-key"  # key in the scope for a function that finds its API key again
# Only for the API description, if keys are configured: the middleware checks keys before routing.
DESCRIBED_KEYS: Final = [
    Security(HTTPBearer(scheme_name="bearer", auto_error=False, description="an API key")),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False, description="the same")),
]
KEY_PROTOCOL: Final = "mien.key."
STREAM_PROTOCOL: Final = (
    "mien.v1"  # offered in addition to the key, because a handshake must select a protocol other than the key
)


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


class Guard:
    """Middleware that rejects requests and streams for which `check` raises a RequestError."""

    def __init__(self, app: ASGIApp, check: Check) -> None:
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] != "lifespan":
                self._check(scope)
        except RequestError as error:
            problem = status_problem(400) if isinstance(error, InvalidRequest) else problem_for(error)
            scope[REFUSED] = problem.slug
            await problem_response(problem, str(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)


def key_check(settings: Settings) -> Check:
    """A check for a valid API key, which raises Unauthorized. Raises: SettingsError, if the file of keys is wrong."""
    keys = Keys(settings)
    open_paths = {*PROBE_PATHS, METRICS_PATH} if settings.metrics_without_key else PROBE_PATHS

    def accepted(key: str | None) -> str:
        if key is None:
            raise Unauthorized("no API key: send it as 'Authorization: Bearer <key>' or 'X-API-Key: <key>'")
        if (name := keys.find(key)) is None:
            raise Unauthorized("this API key is not accepted")
        return name

    def check(scope: Scope) -> None:
        if scope["path"] not in open_paths:
            scope[_CHECK] = partial(accepted, presented_key(Headers(scope=scope)))
            scope[KEY] = scope[_CHECK]()
            key_name.set(scope[KEY])

    return check


def host_check(settings: Settings) -> Check:
    """A check of the Host header, which raises InvalidRequest if it is malformed or missing, and ForeignHost.

    With a foreign name that resolves to this machine (DNS rebinding), a page of another site could read responses.
    This attack is not possible with an IP address, so addresses are always accepted.
    """
    served = frozenset(name.lower() for name in _allowed_hosts(settings))

    def check(scope: Scope) -> None:
        hosts = Headers(scope=scope).getlist("host")
        if not hosts and scope.get("http_version") == "1.0":
            return
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            given = ", ".join(hosts)[:100] or "none"
            raise InvalidRequest(f"Host header: expected one, as name or name:port; found {given}")
        name = match[1].lower()
        if ANY not in served and name not in served and not _is_address(name.strip("[]")):
            raise ForeignHost(f"host {name[:100]}: not served here. Add it to MIEN_ALLOWED_HOSTS if it should be")

    return check


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Names in the settings; by default, localhost if only this machine can connect, else any name."""
    if settings.allowed_hosts:
        return ("localhost", *settings.allowed_hosts)
    local = settings.host == "localhost" or (_is_address(settings.host) and ip_address(settings.host).is_loopback)
    return ("localhost",) if local else (ANY,)


def key_of(connection: HTTPConnection) -> str | None:
    """Name of a request's API key, if keys are configured. Raises: Unauthorized, if it was removed meanwhile."""
    check: Callable[[], str] | None = connection.scope.get(_CHECK)
    return None if check is None else check()


def client_of(connection: HTTPConnection) -> str:
    """Client for limits per client: the name of the API key, else the address."""
    if (name := key_of(connection)) is not None:
        return name
    return connection.client.host if connection.client else "unknown"
