"""One file per resource; each has a `router`, and the schemas of its own responses."""

from collections.abc import AsyncIterable
from contextlib import ExitStack
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mien.app.errors import InvalidRequest
from mien.app.service.problems import MEDIA_TYPE
from mien.app.service.state import Service


async def service_of(connection: HTTPConnection) -> Service:
    """Service of this process, for requests and WebSockets; async, because FastAPI runs plain functions in a thread."""
    service: Service = connection.app.state.service
    return service


async def _check_unique(connection: HTTPConnection) -> None:
    names = [name for name, _ in connection.query_params.multi_items()]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"option {', '.join(repeated)[:200]}: given more than once")


TheService = Annotated[Service, Depends(service_of)]
# Rejects an option that is given twice: which one counts would be a guess
UNIQUE_OPTIONS: Final = [Depends(_check_unique)]


def problem_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems that a route may respond with."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


class HeldResponse(StreamingResponse):
    """A response that holds what its request has reserved until the client has read it."""

    def __init__(self, chunks: AsyncIterable[bytes], media_type: str, cleanup: ExitStack) -> None:
        super().__init__(chunks, media_type=media_type)
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._cleanup:
            await super().__call__(scope, receive, send)
