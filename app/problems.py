"""How does an error look to the client? As RFC 9457 problem details, whichever layer it came from."""

import json
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from app.errors import INTERNAL, PROBLEMS, Problem, problem_for

MEDIA_TYPE: Final = "application/problem+json"
CLIENT_GONE: Final = 499  # nginx's number for a client that left; nobody is there to read it
REFUSED: Final = "mien.refused"  # key of the request's scope under which the kind of problem is noted, to be counted


def problem_body(problem: Problem, detail: str, **extra: object) -> dict[str, object]:
    """The members of a problem document; `extra` adds to the five standard ones."""
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
    """A response that carries a problem, with Retry-After where the table has one."""
    head = dict(headers or {})
    if problem.retry_after_s is not None:
        head["Retry-After"] = str(problem.retry_after_s)
    body = json.dumps(problem_body(problem, detail, **extra))
    response = Response(body, status_code=problem.status, headers=head, media_type=MEDIA_TYPE)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        # two lines: of two challenges in one, Chromium reads the first alone, and asks nobody for a password
        for challenge in ('Basic realm="mien", charset="UTF-8"', 'Bearer realm="mien"'):
            response.headers.append("WWW-Authenticate", challenge)
    return response


def detail_of(error: Exception) -> str:
    """What a client may read of an error: the message of a known one, nothing of an unknown one."""
    return "The service met an error that it does not know." if problem_for(error) is INTERNAL else str(error)


async def _known(request: Request, error: Exception) -> Response:
    problem = problem_for(error)
    request.scope[REFUSED] = problem.slug
    return problem_response(problem, str(error))


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    slug = status.phrase.lower().replace(" ", "-")
    path = request.url.path[:100]
    details = {
        HTTPStatus.NOT_FOUND: f"nothing is served at {path}",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} is not served at {path}",
    }
    detail = details.get(status, error.detail)
    return problem_response(Problem(status, slug, status.phrase), detail, headers=dict(error.headers or {}))


async def _invalid(_request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = [{"location": "/".join(map(str, item["loc"])), "message": item["msg"]} for item in error.errors()]
    detail = "; ".join(f"{item['location']}: {item['message']}" for item in found)
    return problem_response(Problem(422, "invalid-request", "Request has no meaning here"), detail, errors=found)


async def _unknown(_request: Request, error: Exception) -> Response:
    return problem_response(INTERNAL, detail_of(error))


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def install(app: FastAPI) -> None:
    """Translate every exception that a route may raise."""
    for kind, _ in PROBLEMS:
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unknown)
