"""How is the application put on a port? One call for `mien serve`, with the limits that lie below the application."""

import copy
import logging.config
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from app.main import create_app
from app.pipeline import build_pipeline
from app.protocol import PatientProtocol
from app.settings import ENV_PREFIX, Settings


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted.

    The pipeline is opened here first, so that a setting that cannot work is an error with a message, not a traceback
    of the server. Worker processes open their own; they read the same settings from their environment.

    Raises: StartupError and its kinds, ArtefactError.
    """
    options = uvicorn_options(settings)
    logging.config.dictConfig(options["log_config"])  # what opening the pipeline has to tell is heard
    pipeline = build_pipeline(settings)
    if settings.workers == 1:
        # uvicorn raises the signal again once it has ended well; with the default handler that would look like a crash
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(create_app(settings, pipeline=pipeline), **options)
        return
    del pipeline
    _export(settings)
    with tempfile.TemporaryDirectory(prefix="mien-metrics-") as folder:  # counters of all workers; nothing of an image
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run("app.main:create_app", factory=True, workers=settings.workers, **options)


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """The options of `uvicorn.run` that these settings ask for."""
    return {
        "host": settings.host,
        "port": settings.port,
        "http": PatientProtocol,
        "ws_max_size": settings.max_frame_bytes,
        "ws_max_queue": 1,
        "ws_per_message_deflate": False,  # JPEG does not shrink, and a deflate bomb would grow
        "timeout_keep_alive": 15,
        "timeout_graceful_shutdown": settings.shutdown_timeout_s + 2,
        "server_header": False,
        "proxy_headers": False,
        "log_config": _log_config(),
    }


def _log_config() -> dict[str, Any]:
    """Uvicorn's own, with the loggers of this package beside it."""
    chosen: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    chosen["loggers"]["app"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return chosen


def _export(settings: Settings) -> None:
    for name, value in settings.model_dump(exclude_defaults=True).items():
        if value is not None:
            os.environ[f"{ENV_PREFIX}{name.upper()}"] = _text(value)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.resolve()) if isinstance(value, Path) else str(value)
