"""ASGI application of the service.

Run it with `mien serve`, or with any ASGI server: `uvicorn --factory mien.app.main:create_app`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from mien.app import VERSION
from mien.app.access import ANY, Guard, host_check, is_address, origin_check
from mien.app.inference.labeler import Labeler, open_labelers
from mien.app.service import problems, tracing
from mien.app.service.http_protocol import STATE_KEY
from mien.app.service.keys import DESCRIBED_KEYS, key_check
from mien.app.service.memory import return_large_buffers
from mien.app.service.metrics import Metrics
from mien.app.service.middleware import RATE_LIMITS, REQUEST_ID, Cors, Envelope, WholeBody, head_check
from mien.app.service.routes import docs, expressions, health, models, page, stream
from mien.app.service.shutdown import on_stop
from mien.app.service.state import Service
from mien.app.settings import Settings, load_settings

_COMPRESSION: Final = 4  # the largest piece that does not go to a thread, 128 kB of JSON, takes 2 to 6 ms
_DESCRIPTION = """
Finds the faces in photos and labels their expressions: calibrated probabilities per face.

It labels expressions, not feelings: a smile does not prove joy. Images are held in memory while a request runs, and are
neither stored nor logged. Every error is a problem document (RFC 9457).
"""


def create_app(settings: Settings | None = None, *, labelers: Mapping[str, Labeler] | None = None) -> FastAPI:
    """Build the application; models are opened, verified and warmed up at startup, before it accepts connections.

    Args:
        settings: by default, read from the environment.
        labelers: open labelers by model name, the default first; by default, opened from the settings.
    Raises: SettingsError, if the file of keys cannot be used; StartupError, without the packages
        for tracing.
    """
    chosen = settings or load_settings()
    if chosen.tracing:
        tracing.enable()
    app = FastAPI(
        title="Mien",
        version=VERSION,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=_lifespan,
        # its spans have query strings, and its records the messages of exceptions
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        middleware=_middleware(chosen),
    )
    app.state.settings, app.state.labelers = chosen, labelers
    problems.install(app)
    _include_routes(app, chosen)
    expressions.describe_limits(app.openapi(), chosen)
    return app


def _include_routes(app: FastAPI, settings: Settings) -> None:
    """Add every route; the API description marks routes that require a key."""
    keyed = DESCRIBED_KEYS if settings.needs_key else []
    for resource in (expressions, models):
        app.include_router(resource.router, dependencies=keyed)
    app.include_router(health.metrics_router, dependencies=[] if settings.metrics_without_key else keyed)
    for public in (stream, health, docs, page):  # FastAPI does not describe WebSockets
        app.include_router(public.router)
    app.mount("/page", page.Assets())


def _middleware(settings: Settings) -> list[Middleware]:
    cors = Middleware(
        Cors,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-API-Key", REQUEST_ID],
        expose_headers=[REQUEST_ID, "Mien-Provider", "Mien-Fallback", "Retry-After", *RATE_LIMITS],
    )
    return [
        Middleware(Envelope),
        Middleware(WholeBody, max_bytes=settings.max_body_bytes),
        Middleware(
            Guard,
            checks=[head_check, host_check(_allowed_hosts(settings)), origin_check(settings.cors_origins)],
            refuse=problems.refusal,
        ),
        *([cors] if settings.cors_origins else []),
        *([Middleware(Guard, checks=[key_check(settings)], refuse=problems.refusal)] if settings.needs_key else []),
        Middleware(GZipMiddleware, compresslevel=_COMPRESSION),
    ]


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Names in the settings; by default, localhost if only this machine can connect, else any name."""
    if settings.allowed_hosts:
        return ("localhost", *settings.allowed_hosts)
    local = settings.host == "localhost" or (is_address(settings.host) and ip_address(settings.host).is_loopback)
    return ("localhost",) if local else (ANY,)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
    return_large_buffers()
    settings: Settings = app.state.settings
    service = Service(app.state.labelers or open_labelers(settings), settings, Metrics())
    app.state.service = service
    with on_stop(service.drain, after_s=settings.drain_s):
        yield {STATE_KEY: service}
        await service.ended()
    service.close()
