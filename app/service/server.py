"""Server of `mien serve`: uvicorn with the options of the settings."""

import logging
import logging.config
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from mien.app.inference.detector import YUNET_FILE, detector_name
from mien.app.main import create_app, open_labeler
from mien.app.service.logs import log_config
from mien.app.settings import Settings
from mien.data.errors import MienError

_KEEP_ALIVE_S: Final = (
    75  # longer than proxies keep an idle connection, which would else send requests into a closed one
)

_log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests.

    The models are opened here first, so that a setting that cannot work is an error with a message, not a traceback of
    the server. Worker processes open their own; they read the settings from the environment.

    Raises: StartupError and its subclasses, ArtifactError.
    """
    options = uvicorn_options(settings)
    logging.config.dictConfig(options["log_config"])  # for log messages while models are opened
    with json_errors(settings.log_format):
        if settings.detector == "auto" and settings.models_dir is not None and detector_name(settings) != "yunet":
            _log.warning(
                "MIEN_MODELS_DIR=%s has no %s: the built-in detector is used. Copy the file there, or unset the "
                "variable",
                settings.models_dir,
                YUNET_FILE,
            )
        app = create_app(settings, labeler=open_labeler(settings))
    if settings.workers == 1:
        # uvicorn raises the signal again after a graceful stop; the default handler would look like a crash
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(app, **options)
        return
    del app
    # counters of all workers, without image data; Windows cannot remove those that are still mapped
    with tempfile.TemporaryDirectory(prefix="mien-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run("mien.app.main:create_app", factory=True, workers=settings.workers, **options)


@contextmanager
def json_errors(log_format: str) -> Iterator[None]:
    """Log an error that ends the start as JSON if the log is JSON; otherwise, the command prints it."""
    try:
        yield
    except (MienError, OSError) as error:
        if log_format != "json":
            raise
        logging.config.dictConfig(log_config("json"))
        _log.critical("%s", error)  # without the traceback
        raise SystemExit(1) from None


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """Options of uvicorn for the settings."""
    return {
        "host": settings.host,
        "port": settings.port,
        # h11 ignores every `Upgrade` but websocket and reads the body; httptools takes the body for the next request
        "http": "h11",
        "ws": "websockets-sansio",
        "ws_max_size": settings.max_frame_bytes,
        "ws_max_queue": 1,
        "ws_per_message_deflate": False,  # JPEG does not compress further, and deflate bombs are a risk
        "limit_concurrency": settings.max_connections,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": settings.shutdown_timeout_s,
        "timeout_worker_healthcheck": 30,  # uvicorn's 5 s kill workers that are still starting on a busy machine
        "server_header": False,
        "proxy_headers": False,
        "log_config": log_config(settings.log_format),
    }
