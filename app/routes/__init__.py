"""One file per resource; each has a `router`."""

from fastapi import Request
from starlette.requests import HTTPConnection

from app.service import Service


async def service_of(request: Request) -> Service:
    """The process's service; async, as the framework would send another function to a thread and back."""
    return service_behind(request)


def service_behind(connection: HTTPConnection) -> Service:
    """As `service_of`, for a WebSocket too."""
    service: Service = connection.app.state.service
    return service
