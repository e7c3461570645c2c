"""Server of `mien serve`: uvicorn with additional limits."""

import gc
import logging
import logging.config
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.supervisors import Multiprocess

from mien.app.errors import SettingsError
from mien.app.inference.classifier import with_precision
from mien.app.inference.detect import best_detector
from mien.app.inference.detect.weights import YUNET_FILE
from mien.app.inference.labeler import open_labelers
from mien.app.main import create_app
from mien.app.service.http_protocol import BoundedProtocol, StreamProtocol
from mien.app.service.logs import log_config
from mien.app.service.middleware import MAX_HEAD_BYTES
from mien.app.settings import Settings, environment, load_settings
from mien.data.errors import MienError

_RETRY_S: Final = 1.0
_OTHER_FILES: Final = 512  # models, libraries, and images that are being stored

_log = logging.getLogger(__name__)


class Workers(Multiprocess):
    """Uvicorn's worker processes.

    The parent closes its copy of the port when they stop; otherwise, the kernel would accept connections that no
    process serves. Gauges of a worker that has ended no longer count.
    """

    def keep_subprocess_alive(self) -> None:
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]

    def terminate_all(self) -> None:
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests.

    The port is reserved and the models are opened here first, so that a setting that cannot work is an error with a
    message, not a traceback of the server. Worker processes open their own models; they read the same settings from
    their environment.

    Raises: StartupError and its subclasses, ArtifactError.
    """
    options = uvicorn_options(settings)
    logging.config.dictConfig(options["log_config"])  # for log messages while models are opened
    with json_errors(settings.log_format), reserved_port(settings) as listeners:
        _raise_file_limit(settings)
        if settings.detector == "auto" and settings.models_dir is not None and best_detector(settings) != "yunet":
            _log.warning(
                "MIEN_MODELS_DIR=%s has no %s: the built-in detector is used. Copy the file there, or unset the "
                "variable",
                settings.models_dir,
                YUNET_FILE,
            )
        labelers = open_labelers(settings)
        app = create_app(settings, labelers=labelers)  # of several workers: checks keys
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            _log.info("Serving http://%s:%d (press Ctrl-C to stop)", f"[{host}]" if ":" in host else host, port)
        if settings.workers == 1:
            # uvicorn raises the signal again after a graceful stop; the default handler would look like a crash
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            with suppress(KeyboardInterrupt):
                uvicorn.Server(uvicorn.Config(app, **options)).run(listeners)
            return
        classifiers = [labeler.classifier for labeler in labelers.values()]
        precision, provider = classifiers[0].precision, classifiers[0].provider
        # an extra model may have no graph of this precision: then workers measure again
        shared = all(precision in classifier.manifest.graphs for classifier in classifiers)
        _export(with_precision(settings, precision, provider) if shared else settings)
        del app, labelers, classifiers
        gc.collect()  # sessions are in reference cycles; they would keep memory, also of the GPU
        _run_workers(settings, options, listeners)


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


def _run_workers(settings: Settings, options: dict[str, Any], listeners: list[socket.socket]) -> None:
    # counters of all workers, without image data; Windows cannot remove those that are still mapped
    with tempfile.TemporaryDirectory(prefix="mien-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        for listener in listeners:
            listener.set_inheritable(True)
        Workers(uvicorn.Config(worker_app, factory=True, workers=settings.workers, **options), listeners).run()


@contextmanager
def reserved_port(settings: Settings) -> Iterator[list[socket.socket]]:
    """Bind the address of the settings without listening, so clients are refused until the models are open.

    Raises: SettingsError, for a wrong address or a port that is in use.
    """
    where = f"MIEN_HOST={settings.host}, MIEN_PORT={settings.port}"
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror}. Give a name or an address only as the host") from error
    with ExitStack() as cleanup:
        listeners = []
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            listener = cleanup.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # on Windows, the option shares a port that is in use
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind(address)
            except OSError as error:
                raise SettingsError(f"{where}: {error.strerror}. Choose another port or address") from error
            listeners.append(listener)
        yield listeners


def _raise_file_limit(settings: Settings) -> None:
    """Raise the limit of open files as far as allowed: the default of 1,024 is below that of connections."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            _log.warning(
                "%d files may be open, %d are needed: clients may be reset. Raise the limit (ulimit -n), or lower "
                "MIEN_MAX_CONNECTIONS",
                allowed,
                needed,
            )


def worker_app() -> FastAPI:
    """Application of one of several workers; the parent replaces one whose file of keys, for example, is broken.

    A worker that has not accepted anything yet ends immediately at SIGTERM: it would keep the port open.
    """
    settings = load_settings()
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return create_app(settings, labelers=open_labelers(settings))
    except SettingsError as error:
        _log.error("%s. Worker %d is restarted until this is fixed", error, os.getpid())  # without the traceback
        time.sleep(_RETRY_S)
        sys.exit(1)
    finally:
        signal.signal(signal.SIGTERM, handler)


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """Options of uvicorn for the settings."""
    return {
        "host": settings.host,
        "port": settings.port,
        "http": BoundedProtocol,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "ws": StreamProtocol,
        "ws_max_size": settings.max_frame_bytes,
        "ws_max_queue": 1,
        "ws_per_message_deflate": False,  # JPEG does not compress further, and deflate bombs are a risk
        "timeout_keep_alive": 15,
        "timeout_graceful_shutdown": settings.shutdown_timeout_s + 2,
        "timeout_worker_healthcheck": 30,  # uvicorn's 5 s kill workers that are still starting on a busy machine
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
