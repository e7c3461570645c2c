"""ASGI application of the service.

Run it with `mien serve`, or with any ASGI server: `uvicorn --factory mien.app.main:create_app`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware

from mien.app import VERSION
from mien.app.access import ANY, Guard, host_check, is_address, origin_check
from mien.app.inference.labeler import Labeler
from mien.app.service import page, problems
from mien.app.service.keys import DESCRIBED_KEYS, key_check
from mien.app.service.metrics import Metrics
from mien.app.service.middleware import REQUEST_ID, CloseUnread, Cors, Envelope
from mien.app.service.routes import expressions, health, models, stream
from mien.app.service.state import Service
from mien.app.settings import Settings, load_settings

_DESCRIPTION = """
Finds the faces in photos and labels their expressions: calibrated probabilities per face.

It labels expressions, not feelings: a smile does not prove joy. Images are held in memory while a request runs, and are
neither stored nor logged. Every error is a problem document (RFC 9457).
"""


def open_labeler(settings: Settings) -> Labeler:
    """The model and the detector; unless set, inferences have one thread, because photos are processed in parallel.

    Raises: as `Labeler.open`.
    """
    return Labeler.open(settings.model_copy(update={"threads": settings.threads or 1}))


def create_app(settings: Settings | None = None, *, labeler: Labeler | None = None) -> FastAPI:
    """Build the application; the model is opened, verified and warmed up at startup, before it accepts connections.

    Args:
        settings: by default, read from the environment.
        labeler: by default, opened from the settings.
    Raises: SettingsError, if the file of keys cannot be used.
    """
    chosen = settings or load_settings()
    app = FastAPIOffline(
        title="Mien",
        version=VERSION,
        description=_DESCRIPTION,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=_lifespan,
        middleware=_middleware(chosen),
    )
    app.state.settings, app.state.labeler = chosen, labeler
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
    for public in (stream, health, page):  # FastAPI does not describe WebSockets
        app.include_router(public.router)
    app.mount("/page", page.Assets())


def _middleware(settings: Settings) -> list[Middleware]:
    cors = Middleware(
        Cors,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-API-Key", REQUEST_ID],
        expose_headers=[REQUEST_ID, "Mien-Provider", "Mien-Fallback", "Retry-After"],
    )
    return [
        Middleware(Envelope),
        Middleware(CloseUnread),
        Middleware(
            Guard,
            checks=[host_check(_allowed_hosts(settings)), origin_check(settings.cors_origins)],
            refuse=problems.refusal,
        ),
        *([cors] if settings.cors_origins else []),
        *([Middleware(Guard, checks=[key_check(settings)], refuse=problems.refusal)] if settings.needs_key else []),
    ]


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Names in the settings; by default, localhost if only this machine can connect, else any name."""
    if settings.allowed_hosts:
        return ("localhost", *settings.allowed_hosts)
    local = settings.host == "localhost" or (is_address(settings.host) and ip_address(settings.host).is_loopback)
    return ("localhost",) if local else (ANY,)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    service = Service(app.state.labeler or open_labeler(settings), settings, Metrics())
    app.state.service = service
    yield
    service.close()
