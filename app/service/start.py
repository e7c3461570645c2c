"""The start of the service, in one process or several, for `mien serve` and `mien webcam`."""

import logging
import logging.config
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from rich.console import Console

from mien.app.cpu_count import cores, free_bytes
from mien.app.errors import SettingsError
from mien.app.inference.classifier import CPU
from mien.app.inference.detector_files import YUNET_FILE, detector_name
from mien.app.inference.labeler import Labeler
from mien.app.service import stream
from mien.app.service.app import create_app, open_labeler
from mien.app.service.metrics import log_config
from mien.app.settings import Settings
from mien.data.errors import MienError

_KEEP_ALIVE_S: Final = 75  # longer than the 60 s of proxies, which would send a request while this end closes
_STOP_S: Final = 30
_MAX_CONNECTIONS: Final = 512
_WORKER_BYTES: Final = 1_200_000_000  # at most, with the default limits: docs/service.md, "Memory"
_LOCAL: Final = "127.0.0.1"
_log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests.

    The models are opened here first, so that a setting that cannot work is an error with a message, not a traceback of
    the server. Worker processes open their own; they read the settings from the environment.

    Raises: StartupError and its subclasses, ArtifactError.
    """
    logging.config.dictConfig(log_config(settings.log_format))  # for log messages while models are opened
    with json_errors(settings.log_format):
        if settings.detector == "auto" and settings.models_dir is not None and detector_name(settings) != "yunet":
            _log.warning(
                "MIEN_MODELS_DIR=%s has no %s: the built-in detector is used. Copy the file there, or unset the "
                "variable",
                settings.models_dir,
                YUNET_FILE,
            )
        labeler = open_labeler(settings)
    workers = settings.workers or _workers(labeler)
    if workers == 1:
        # uvicorn raises the signal again after a graceful stop; the default handler would look like a crash
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(create_app(settings, labeler=labeler), **uvicorn_options(settings))
        return
    del labeler
    os.environ["MIEN_WORKERS"] = str(workers)  # the processes read it, to share the cores
    # counters of all workers, without image data; Windows cannot remove those that are still mapped
    with tempfile.TemporaryDirectory(prefix="mien-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        options = uvicorn_options(settings, workers)
        uvicorn.run("mien.app.service.app:create_app", factory=True, workers=workers, **options)


def _workers(labeler: Labeler) -> int:
    """One process per two cores, because Python's lock lets one use about two, and one on a GPU, for full batches."""
    return max(1, min(cores() // 2, free_bytes() // _WORKER_BYTES)) if labeler.classifier.provider == CPU else 1


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


def uvicorn_options(settings: Settings, workers: int = 1) -> dict[str, Any]:
    """Options of uvicorn for the settings."""
    # IPv4 and IPv6: asyncio listens on both for an empty host, and the socket that workers share for ::
    everywhere = "" if workers == 1 else "::"
    return {
        "host": everywhere if settings.host == "*" else settings.host,
        "port": settings.port,
        # h11 ignores every `Upgrade` but websocket and reads the body; httptools takes the body for the next request
        "http": "h11",
        "ws": "websockets-sansio",
        "ws_max_size": stream.MAX_FRAME_BYTES,
        "ws_max_queue": 1,
        "ws_per_message_deflate": False,  # JPEG does not compress further, and deflate bombs are a risk
        "limit_concurrency": _MAX_CONNECTIONS,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": _STOP_S,
        "access_log": False,  # see `_count`
        "server_header": False,
        "proxy_headers": False,
        "log_config": log_config(settings.log_format),
    }


def serve_page(settings: Settings, *, browser: bool) -> None:
    """Serve the page to this machine only, and open it when it responds. Raises: StartupError and its subclasses."""
    local = settings.model_copy(update={"host": _LOCAL, "workers": 1})
    port = _port(local)
    address = f"http://{_LOCAL}:{port}/"
    threading.Thread(target=_open_when_ready, args=(address, browser), daemon=True).start()
    run(local.model_copy(update={"port": port}))


def _port(settings: Settings) -> int:
    """Return the configured port, or any free port if the default is in use. Raises: SettingsError."""
    with socket.socket() as probe:
        if os.name == "posix":  # on Windows, the option shares a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            if "port" in settings.model_fields_set:
                raise SettingsError(f"port {settings.port}: {error.strerror}. Choose another port") from error
            return _port(settings.model_copy(update={"port": 0}))
        return int(probe.getsockname()[1])


def _open_when_ready(address: str, browser: bool) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is not for this machine
    for _ in range(1200):
        try:
            with direct.open(f"{address}ready", timeout=5):
                break
        except OSError:
            time.sleep(0.1)
    else:
        return
    opened = browser and webbrowser.open(address)
    Console(stderr=True).out(f"The page is {'open at' if opened else 'at'} {address} (press Ctrl-C to stop)")
