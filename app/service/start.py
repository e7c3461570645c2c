"""The start of the service, in one process or several, for `mien serve` and `mien webcam`."""

import logging
import logging.config
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE

from mien.app.cpu_count import cores, free_bytes
from mien.app.errors import SettingsError, StartupError
from mien.app.inference.classifier import CPU
from mien.app.inference.labeler import Labeler
from mien.app.service import stream
from mien.app.service.app import create_app, open_labeler
from mien.app.service.metrics import log_config
from mien.app.settings import Settings

_KEEP_ALIVE_S: Final = 75  # longer than the 60 s of proxies, which would send a request while this end closes
_STOP_S: Final = 30
_CHECK_S: Final = 0.2
_MAX_CONNECTIONS: Final = 512
_WORKER_BYTES: Final = 1_200_000_000  # at most, with the default limits: docs/service.md, "Memory"
_LOCAL: Final = "127.0.0.1"
_log = logging.getLogger(__name__)


def run(settings: Settings, *, any_port: bool = False, opened: Callable[[int], object] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests; `opened` is called with the port.

    The models are opened here first, so that a setting that cannot work is an error with a message, not a traceback of
    a worker process, which opens its own.

    Args:
        any_port: listen on another port if that of the settings is in use.
    Raises: StartupError and its subclasses, ArtifactError.
    """
    logging.config.dictConfig(log_config(settings.log_format))  # for log messages while models are opened
    labeler = open_labeler(settings)
    workers = settings.workers or _workers(labeler)
    with listen(settings, any_port=any_port) as listener, suppress(KeyboardInterrupt):
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        _log.info("address: http://%s:%d, detector: %s", shown, port, labeler.detector.name)
        if opened is not None:
            opened(port)
        if workers == 1:
            # uvicorn raises the signal again after a graceful stop; the default handler would look like a crash
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            serve(settings, listener, labeler)
        else:
            del labeler
            _run_workers(settings.model_copy(update={"workers": workers}), listener)


def _workers(labeler: Labeler) -> int:
    """One process per two cores, because Python's lock lets one use about two, and one on a GPU, for full batches."""
    return max(1, min(cores() // 2, free_bytes() // _WORKER_BYTES)) if labeler.classifier.provider == CPU else 1


def serve(settings: Settings, listener: socket.socket, labeler: Labeler | None = None) -> None:
    """Serve in this process, with models that are opened unless they are given."""
    config = uvicorn.Config(
        create_app(settings, labeler=labeler),
        # h11 ignores every `Upgrade` but websocket and reads the body; httptools takes the body for the next request
        http="h11",
        ws="websockets-sansio",
        ws_max_size=stream.MAX_FRAME_BYTES,
        ws_max_queue=1,
        ws_per_message_deflate=False,  # JPEG does not compress further, and deflate bombs are a risk
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S,
        access_log=False,  # the service writes its own: see `_count`
        server_header=False,
        proxy_headers=False,
        log_config=log_config(settings.log_format),
    )
    uvicorn.Server(config).run(sockets=[listener])


def _work(settings: Settings, listener: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    serve(settings, listener)


def _run_workers(settings: Settings, listener: socket.socket) -> None:
    """Serve in several processes; one that ends, such as for lack of memory, is replaced.

    uvicorn's own workers take seconds to import the program; these are forked from a process that has imported it.
    Systems other than Linux do not fork safely.
    """
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(["__main__", __name__])
    stopping, workers = threading.Event(), list[BaseProcess]()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    # counters of all workers, without image data; Windows cannot remove those that are still mapped
    with tempfile.TemporaryDirectory(prefix="mien-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        try:
            while not stopping.is_set():
                while len(workers) < settings.workers:
                    process = context.Process(target=_work, args=(settings, listener))
                    process.start()
                    workers.append(process)
                wait([worker.sentinel for worker in workers], _CHECK_S)
                for worker in [worker for worker in workers if not worker.is_alive()]:
                    workers.remove(worker)
                    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]  # its open requests and streams
                    if worker.exitcode == STARTUP_FAILURE:
                        raise StartupError("a worker process could not start: the log has its error")
                    if not stopping.is_set():
                        _log.error("worker process [%s] ended with %s: starting another", worker.pid, worker.exitcode)
        finally:
            listener.close()
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join()


def listen(settings: Settings, *, any_port: bool = False) -> socket.socket:
    """A socket at the address of the settings; `any_port`: another one if theirs is in use. Raises: SettingsError."""
    host, port = settings.host, settings.port
    try:
        if host == "*" and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        name = None if host == "*" else host
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(addresses)  # IPv4 is first.
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        if any_port:
            return listen(settings.model_copy(update={"port": 0}))
        raise SettingsError(f"{host}, port {port}: {error.strerror}. Choose another address or port") from error


def serve_page(settings: Settings, *, browser: bool) -> None:
    """Serve the page to this machine only, and open it. Raises: StartupError and its subclasses."""

    def show(port: int) -> None:
        address = f"http://{_LOCAL}:{port}/"
        opened = browser and webbrowser.open(address)
        sys.stderr.write(f"The page is {'open at' if opened else 'at'} {address} (press Ctrl-C to stop)\n")

    local = settings.model_copy(update={"host": _LOCAL, "workers": 1})
    run(local, any_port="port" not in settings.model_fields_set, opened=show)
