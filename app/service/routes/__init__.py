"""One file per resource; each has a `router`."""

from fastapi import Request
from starlette.requests import HTTPConnection

from app.service.state import Service


async def service_of(request: Request) -> Service:
    """The process's service; async, because the framework would run a plain function in a thread."""
    return service_behind(request)


def service_behind(connection: HTTPConnection) -> Service:
    """As `service_of`, for a WebSocket too."""
    service: Service = connection.app.state.service
    return service
