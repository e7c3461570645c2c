"""Server of `mien serve`: uvicorn with additional limits."""

import logging
import logging.config
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.supervisors import Multiprocess

from mien.app.errors import SettingsError
from mien.app.inference.classifier import with_precision
from mien.app.inference.detect import best_detector
from mien.app.inference.detect.weights import YUNET_FILE
from mien.app.inference.pipeline import build_pipelines
from mien.app.main import create_app
from mien.app.service.http_protocol import BoundedProtocol, StreamProtocol
from mien.app.service.logs import log_config
from mien.app.service.shutdown import announce_end, starting
from mien.app.settings import Settings, environment

_RETRY_S: Final = 1.0
_COUNTERS_BYTES: Final = 262_144  # files of the counters of one worker

_log = logging.getLogger(__name__)


class Workers(Multiprocess):
    """Uvicorn's worker processes, with a parent that closes the port before it stops them.

    Otherwise, the port would stay open until the last worker ends, and the kernel would accept connections that no
    process serves. Gauges of a worker that has ended no longer count.
    """

    def keep_subprocess_alive(self) -> None:
        for process in self.processes:
            process.child_conn.close()  # the worker has its own: if it dies during a health check, that ends at once
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]

    def terminate_all(self) -> None:
        announce_end()
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests.

    The models are opened here first, so that a setting that cannot work is an error with a message, not a traceback
    of the server. Worker processes open their own; they read the same settings from their environment.

    Raises: StartupError and its subclasses, ArtifactError.
    """
    try:
        socket.getaddrinfo(settings.host, settings.port)
    except OSError as error:
        raise SettingsError(f"MIEN_HOST={settings.host}: {error.strerror}. Give a name or an address only") from error
    options = uvicorn_options(settings)
    logging.config.dictConfig(options["log_config"])  # for log messages while models are opened
    if settings.detector == "auto" and settings.models_dir is not None and best_detector(settings) != "yunet":
        _log.warning(
            "MIEN_MODELS_DIR=%s has no %s: the built-in detector is used. Copy the file there, or unset the variable",
            settings.models_dir,
            YUNET_FILE,
        )
    pipelines = build_pipelines(settings)
    app = create_app(settings, pipelines=pipelines)  # of several workers: checks keys and the folder of jobs
    if settings.workers == 1:
        # uvicorn raises the signal again after a graceful stop; with the default handler that would look like a crash
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.run(app, **options)
        return
    classifiers = [pipeline.classifier for pipeline in pipelines.values()]
    precision, provider = classifiers[0].precision, classifiers[0].provider
    # an extra model may have no graph of this precision: then workers measure again
    shared = all(precision in classifier.manifest.graphs for classifier in classifiers)
    _export(with_precision(settings, precision, provider) if shared else settings)
    del app, pipelines, classifiers
    # counters of all workers, without image data; Windows cannot remove those that are still mapped
    with tempfile.TemporaryDirectory(prefix="mien-metrics-", ignore_cleanup_errors=True) as folder:
        _check_space(folder, settings.workers)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        config = uvicorn.Config(worker_app, factory=True, workers=settings.workers, **options)
        Workers(config, [config.bind_socket()]).run()


def _check_space(folder: str, workers: int) -> None:
    """Raises: SettingsError, if counters do not fit: the files are mapped, so workers would die of SIGBUS."""
    free, needed = shutil.disk_usage(folder).free, workers * _COUNTERS_BYTES
    if free < needed:
        raise SettingsError(
            f"{Path(folder).parent}: {free:,} bytes are free, counters of {workers} workers need {needed:,}. Make "
            "room, set TMPDIR to another folder, or use one worker"
        )


def worker_app() -> FastAPI:
    """Application of one of several workers, which waits until the file of keys, for example, is mended.

    Otherwise, the parent would start one worker after another, each with a traceback in the log.
    """
    logged = ""
    with starting():
        while True:
            try:
                return create_app()
            except SettingsError as error:
                if str(error) != logged:
                    logged = str(error)
                    _log.error("%s. Worker %d waits until this is fixed", error, os.getpid())  # without the traceback
            time.sleep(_RETRY_S)


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """Options of uvicorn for the settings."""
    return {
        "host": settings.host,
        "port": settings.port,
        "http": BoundedProtocol,
        "ws": StreamProtocol,
        "ws_max_size": settings.max_frame_bytes,
        "ws_max_queue": 1,
        "ws_per_message_deflate": False,  # JPEG does not compress further, and deflate bombs are a risk
        "timeout_keep_alive": 15,
        "timeout_graceful_shutdown": settings.shutdown_timeout_s + 2,
        "timeout_worker_healthcheck": 60,  # uvicorn's 5 s kill workers that are still starting on a busy machine
        "server_header": False,
        "proxy_headers": False,
        "log_config": log_config(settings.log_format),
    }


def _export(settings: Settings) -> None:
    """Export all settings to the environment of the workers, so that no variable overrides a command-line option."""
    for name, value in environment(settings).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
