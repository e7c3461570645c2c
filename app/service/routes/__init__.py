"""One file per resource; each has a `router`."""

import re
from typing import Annotated, Final

from fastapi import Depends
from starlette.requests import HTTPConnection

from mien.app.errors import InvalidRequest
from mien.app.service.state import Service

_GZIP: Final = re.compile(r"\bgzip\s*(?:;\s*q=([01](?:\.\d{0,3})?))?")


async def service_of(connection: HTTPConnection) -> Service:
    """Service of this process, for requests and WebSockets; async, because FastAPI runs plain functions in a thread."""
    service: Service = connection.app.state.service
    return service


def check_unique(connection: HTTPConnection) -> None:
    """Reject an option that is given twice: which one counts would be a guess. Raises: InvalidRequest."""
    names = [name for name, _ in connection.query_params.multi_items()]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"option {', '.join(repeated)[:200]}: given more than once")


def accepts_gzip(connection: HTTPConnection) -> bool:
    """Whether a client accepts a compressed response."""
    weights = _GZIP.findall(connection.headers.get("accept-encoding", ""))
    return any(float(weight or 1) > 0 for weight in weights)


TheService = Annotated[Service, Depends(service_of)]
