"""Checks of the headers Host, Sec-Fetch-Site and Origin, which keep pages of other sites from using a service.

Shared by the HTTP service and the review page.
"""

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mien.app.errors import ForeignHost, ForeignOrigin, InvalidRequest, RequestError

ANY: Final = "*"
Check = Callable[[Scope], None]
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{0,5})?")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Middleware that responds with `refuse` to requests and streams for which a check raises a RequestError."""

    def __init__(
        self, app: ASGIApp, checks: Iterable[Check], refuse: Callable[[Scope, RequestError], Response]
    ) -> None:
        self._app, self._checks, self._refuse = app, tuple(checks), refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] != "lifespan":
                for check in self._checks:
                    check(scope)
        except RequestError as error:
            await self._refuse(scope, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def host_check(names: Iterable[str]) -> Check:
    """A check of the Host header, which raises InvalidRequest if it is malformed or missing, and ForeignHost.

    With a foreign name that resolves to this machine (DNS rebinding), a page of another site could read responses.
    This attack is not possible with an IP address, so addresses are always accepted.
    """
    accepted = frozenset(name.lower() for name in names)

    def check(scope: Scope) -> None:
        hosts = Headers(scope=scope).getlist("host")
        if not hosts and scope.get("http_version") == "1.0":
            return
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            received = ", ".join(hosts)[:100] or "none"
            raise InvalidRequest(f"Host header: expected one, as name or name:port; found {received}")
        name = match[1].lower()
        if ANY not in accepted and name not in accepted and not is_address(name.strip("[]")):
            raise ForeignHost(f"host {name[:100]}: not recognized. Add it to MIEN_ALLOWED_HOSTS if it should be")

    return check


def origin_check(origins: Iterable[str] = ()) -> Check:
    """A check that only own pages and those of `origins` change anything or open streams; it raises ForeignOrigin.

    Browsers send forms and WebSockets of any page without asking first, with stored passwords. Other clients send
    neither header.
    """
    accepted = frozenset(origins)

    def check(scope: Scope) -> None:
        if scope["type"] == "http" and scope["method"] in _SAFE_METHODS:
            return
        headers = Headers(scope=scope)
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if {origin, ANY} & accepted or site in ("same-origin", "none"):
            return
        if site is None and (origin is None or _netloc(origin) == headers.get("host", "")):
            return
        raise ForeignOrigin(
            f"origin {(origin or site or '')[:100]}: only pages of this service may send this. Let a proxy pass on "
            "Host, or add the origin to MIEN_CORS_ORIGINS"
        )

    return check


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:  # such as http://[::1
        return None


def is_address(name: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
