"""Conversion of errors to HTTP responses: problem details (RFC 9457).

A problem never contains a traceback or a path on the server.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from mien.app import errors
from mien.data.errors import MienError

MEDIA_TYPE: Final = "application/problem+json"
CLIENT_GONE: Final = 499  # nginx's status for a client that disconnected; it is only used for metrics
REFUSED: Final = "mien.refused"  # key in the scope of a request for the slug of its problem, for metrics
KEY: Final = "mien.key"  # key in the scope for its API key


@dataclass(frozen=True, slots=True)
class Problem:
    """HTTP status, last part of the problem's type URI, and seconds to wait before a retry."""

    status: int
    slug: str
    retry_after_s: int | None = None

    @property
    def title(self) -> str:
        """Short description of the kind of problem."""
        return self.slug.replace("-", " ").replace("_", " ").capitalize()


def status_problem(status: int) -> Problem:
    """Problem named after an HTTP status."""
    return Problem(status, HTTPStatus(status).phrase.lower().replace(" ", "-"))


def problem_for(error: Exception) -> Problem:
    """Problem for an error; that of `MienError` for an unexpected one, whose details are only in the log."""
    kind = type(error) if isinstance(error, MienError) else MienError
    return Problem(kind.status, kind.code, kind.retry_after_s)


def problem_body(problem: Problem, detail: str, **extra: object) -> dict[str, object]:
    """Members of a problem document; `extra` adds members."""
    return {
        "type": f"urn:mien:problem:{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        **extra,
    }


def problem_response(
    problem: Problem, detail: str, *, headers: dict[str, str] | None = None, **extra: object
) -> Response:
    """Response with a problem document, and Retry-After if it has one."""
    head = dict(headers or {})
    if problem.retry_after_s is not None:
        head["Retry-After"] = str(problem.retry_after_s)
    body = json.dumps(problem_body(problem, detail, **extra))
    response = Response(body, status_code=problem.status, headers=head, media_type=MEDIA_TYPE)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="mien"'
    return response


def refusal(scope: Scope, error: errors.RequestError | errors.CapacityError) -> Response:
    """Response to a request that no route has responded to."""
    problem = status_problem(400) if isinstance(error, errors.InvalidRequest) else problem_for(error)
    scope[REFUSED] = problem.slug
    return problem_response(problem, str(error))


def internal_error() -> Response:
    """Response to an unexpected error, without details."""
    detail = "Internal server error. The log has the details under this X-Request-ID."
    return problem_response(problem_for(MienError()), detail)


async def _respond(connection: HTTPConnection, error: Exception) -> Response:
    """Response to a request, or to a stream that is not open yet."""
    problem = problem_for(error)
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    connection.scope[REFUSED] = problem.slug
    return problem_response(problem, str(error))


async def _http(request: Request, error: Any) -> Response:
    path = request.url.path[:100]
    details = {
        HTTPStatus.NOT_FOUND: f"nothing is served at {path}: /docs lists what is",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not supported at {path}",
    }
    detail = details.get(HTTPStatus(error.status_code), error.detail)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed(request)) or headers["Allow"]
    return problem_response(status_problem(error.status_code), detail, headers=headers)


def _allowed(request: Request) -> list[str]:
    """Methods that are served at the path of a request; Starlette names those of the first route only."""
    scopes = {method: {**request.scope, "method": method} for method in ("GET", "POST")}
    routes: list[BaseRoute] = request.app.routes
    names = [name for name, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)]
    return ["GET", "HEAD", *names[1:]] if "GET" in names else names


async def _invalid(connection: HTTPConnection, error: Any) -> Response:
    problem = problem_for(errors.InvalidRequest())
    connection.scope[REFUSED] = problem.slug
    findings = [_finding(item) for item in error.errors()]
    return problem_response(problem, summary(error.errors()), errors=findings)


def summary(errors: Iterable[Mapping[str, Any]]) -> str:
    """Locations and messages of pydantic's errors in one line."""
    return "; ".join(": ".join(filter(None, finding.values())) for finding in map(_finding, errors))


def _finding(item: Mapping[str, Any]) -> dict[str, str]:
    return {"location": "/".join(map(str, item["loc"])), "message": item["msg"]}


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def install(app: FastAPI) -> None:
    """Handle every exception that a route may raise, except unexpected ones, which the envelope handles."""
    app.add_exception_handler(MienError, _respond)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(WebSocketRequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
