"""One file per resource; each has a `router`."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from mien.app.errors import InvalidRequest
from mien.app.service.state import Service


async def service_of(connection: HTTPConnection) -> Service:
    """Service of this process, for requests and WebSockets; async, because FastAPI runs plain functions in a thread."""
    service: Service = connection.app.state.service
    return service


def check_unique(connection: HTTPConnection) -> None:
    """Reject an option that is given twice: which one counts would be a guess. Raises: InvalidRequest."""
    names = [name for name, _ in connection.query_params.multi_items()]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"option {', '.join(repeated)[:200]}: given more than once")


TheService = Annotated[Service, Depends(service_of)]
