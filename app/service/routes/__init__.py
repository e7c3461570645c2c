"""One file per resource; each has a `router`."""

from fastapi import Request
from starlette.requests import HTTPConnection

from app.service.state import Service


async def service_of(request: Request) -> Service:
    """Service of this process; async, because FastAPI runs plain functions in a thread."""
    return service_behind(request)


def service_behind(connection: HTTPConnection) -> Service:
    """Like `service_of`, also for WebSockets."""
    service: Service = connection.app.state.service
    return service
