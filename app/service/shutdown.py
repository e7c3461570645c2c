"""Graceful shutdown: `/ready` fails first, then the port closes, and every accepted connection is served.

On SIGTERM, the ASGI server stops listening, waits for running requests, and exits. `on_stop` runs before that: `/ready`
fails immediately, and the server gets the signal after a delay for load balancers. The server would drop connections
that only the kernel has accepted, so they are taken over before the port closes. A socket filter keeps further ones
from arriving in between; their clients are refused when the port has closed.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn

# Windows has no SIGTERM from outside; programs that stop a service there send Ctrl-Break.
_SIGNALS: Final = tuple(
    signal.Signals[name] for name in ("SIGTERM", "SIGINT", "SIGBREAK") if name in signal.Signals.__members__
)
_CLOSING_S: Final = 0.02  # time for the event loop to release a listener
_SO_ATTACH_FILTER: Final = 26  # Linux, socket(7)
_DROP_ALL: Final = array("B", struct.pack("HBBI", 0x06, 0, 0, 0))  # one BPF instruction: return 0
_WORKERS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # shared by all workers; only set if there are several
_ENDING: Final = "ending"


@contextmanager
def starting() -> Iterator[None]:
    """End the process immediately at SIGTERM while models are opened.

    It has not accepted anything yet, but would keep the port open and lose the connections in its queue. Has no effect
    outside of the main thread, which gets all signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = getattr(before, "__self__", None)
    if isinstance(server, uvicorn.Server) and server.should_exit:  # the signal came just before
        signal.raise_signal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def on_stop(drain: Callable[[], None], *, after_s: float) -> Iterator[None]:
    """Call `drain` on the first SIGTERM or SIGINT, and the previous handler `after_s` seconds later.

    A second signal is passed on immediately. Has no effect outside of the main thread, which gets all signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    stopping: list[asyncio.Task[None]] = []

    def stop(number: int) -> None:
        first = not stopping
        stopping.append(loop.create_task(_stop(before[signal.Signals(number)], number, after_s if first else None)))

    def handle(number: int, _frame: FrameType | None) -> None:
        drain()
        loop.call_soon_threadsafe(stop, number)

    for name in _SIGNALS:
        before[name] = signal.signal(name, handle)
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


async def _stop(handler: object, number: int, after_s: float | None) -> None:
    """Call the previous handler of a signal; after a delay and without a listening port, unless `after_s` is None.

    A second Ctrl-C ends a server that is stopping.
    """
    server = getattr(handler, "__self__", None)
    if after_s is not None:
        await asyncio.sleep(after_s)
        if isinstance(server, uvicorn.Server):
            await close_port(server)
    elif number == signal.SIGINT and isinstance(server, uvicorn.Server) and server.should_exit:
        handler = signal.SIG_DFL  # the server's own would log a traceback, and exit with status 0
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def announce_end() -> None:
    """Tell the worker processes that all of them end, before they get a signal."""
    Path(os.environ[_WORKERS_FOLDER], _ENDING).touch()


def is_ending() -> bool:
    """Whether the whole service ends, and not one of several workers that share the port."""
    return _WORKERS_FOLDER not in os.environ or Path(os.environ[_WORKERS_FOLDER], _ENDING).exists()


async def close_port(server: uvicorn.Server) -> None:
    """Stop listening, then take over the connections in the kernel's queue.

    A duplicate of each listener preserves the queue until the event loop has released the original.
    """
    # not os.dup: on Windows, the number of a socket is not a file descriptor
    listeners = [listener.dup() for bound in server.servers for listener in bound.sockets or ()]
    if is_ending():
        for listener in listeners:
            _drop_new_connections(listener)
    for bound in server.servers:
        bound.close()
    await asyncio.sleep(_CLOSING_S)
    protocol: Any = server.config.http_protocol_class
    states = {"server_state": server.server_state, "app_state": server.lifespan.state}
    for connection in [connection for listener in listeners for connection in _queued(listener)]:
        await asyncio.get_running_loop().connect_accepted_socket(partial(protocol, server.config, **states), connection)


def _drop_new_connections(listener: socket.socket) -> None:
    """Ignore connection attempts; clients repeat them after a second. Has no effect outside of Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not in every sandbox
            program = struct.pack("HP", 1, _DROP_ALL.buffer_info()[0])
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _queued(listener: socket.socket) -> list[socket.socket]:
    """Accept all connections in the queue, and close the listener."""
    connections = []
    listener.setblocking(False)
    try:
        while True:
            connections.append(listener.accept()[0])
            connections[-1].setblocking(False)
    except OSError:  # the queue is empty, or another process has closed the port
        listener.close()
    return connections
