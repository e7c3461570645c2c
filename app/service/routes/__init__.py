"""One file per resource; each has a `router`."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from mien.app.service.state import Service


async def service_of(connection: HTTPConnection) -> Service:
    """Service of this process, for requests and WebSockets; async, because FastAPI runs plain functions in a thread."""
    service: Service = connection.app.state.service
    return service


TheService = Annotated[Service, Depends(service_of)]
