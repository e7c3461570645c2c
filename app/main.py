"""The service as an ASGI application: `create_app()` joins settings, pipeline and routes.

`mien serve` runs it; so does any ASGI server: `uvicorn --factory app.main:create_app`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from app import VERSION, problems
from app.drain import on_stop
from app.metrics import Metrics
from app.middleware import REQUEST_ID, Envelope
from app.pipeline import Pipeline, build_pipeline
from app.protocol import STATE_KEY, ConnectionLimits
from app.routes import docs, expressions, health, metrics, models, page, stream
from app.security import ApiKeys
from app.service import Service
from app.settings import Settings, load_settings

_DESCRIPTION = """
Finds the faces of a photo and reads their expressions: seven calibrated probabilities per face.

It reads expressions, not feelings: a smile is no proof of joy. Images are held in memory for the time of a request and
are neither kept nor logged. Every error is a problem document (RFC 9457).
"""


def create_app(settings: Settings | None = None, *, pipeline: Pipeline | None = None) -> FastAPI:
    """Build the application; models are opened, verified and warmed when it starts, before it listens.

    Args:
        settings: as `load_settings()` reads them from the environment when not given.
        pipeline: one that is already open; else the settings say what to open.
    """
    chosen = settings or load_settings()
    app = FastAPI(
        title="Mien",
        version=VERSION,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        middleware=_middleware(chosen),
    )
    app.state.settings, app.state.pipeline = chosen, pipeline
    problems.install(app)
    for resource in (expressions, stream, models, health, metrics, docs, page):
        app.include_router(resource.router)
    app.mount("/page", page.Assets())
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        expose_headers=[REQUEST_ID, "Mien-Provider", "Mien-Fallback", "Retry-After"],
    )
    closed = [] if not settings.cors_origins else [cors]
    return [Middleware(Envelope), *closed, Middleware(ApiKeys, hashes=settings.api_key_sha256)]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, object]]:
    settings: Settings = app.state.settings
    pipeline: Pipeline = app.state.pipeline or build_pipeline(settings)
    service = Service(pipeline, settings, Metrics())
    app.state.service = service
    with on_stop(service.drain, after_s=settings.drain_s):
        yield {STATE_KEY: ConnectionLimits(settings.header_timeout_s, settings.max_connections)}
    service.close()
