"""Graceful shutdown: `/ready` fails first, then the port closes, and every accepted connection is served.

On SIGTERM, an ASGI server closes connections without a running request, stops listening, and waits for the others.
`on_stop` runs before that: `/ready` fails immediately; the port closes after a delay for load balancers; the server
gets the signal after another second, in which requests may arrive that were on their way.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn

# Windows has no SIGTERM from outside; programs that stop a service there send Ctrl-Break.
_SIGNALS: Final = tuple(
    signal.Signals[name] for name in ("SIGTERM", "SIGINT", "SIGBREAK") if name in signal.Signals.__members__
)
_CLOSING_S: Final = 0.02  # time for the event loop to release a listener
_LAST_REQUEST_S: Final = 1.0


@contextmanager
def on_stop(drain: Callable[[], None], *, after_s: float) -> Iterator[None]:
    """Call `drain` on the first SIGTERM or SIGINT, close the port `after_s` seconds later, and then stop the server.

    A second SIGINT (Ctrl-C) ends the process immediately. Has no effect outside of the main thread, which gets all
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers: dict[int, Any] = {}
    stopping: list[asyncio.Task[None]] = []

    def stop(number: int) -> None:
        if not stopping:
            stopping.append(loop.create_task(_stop(handlers[number], number, after_s)))
        elif number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def handle(number: int, _frame: FrameType | None) -> None:
        drain()
        loop.call_soon_threadsafe(stop, number)

    for name in _SIGNALS:
        handlers[name] = signal.signal(name, handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def _stop(handler: object, number: int, after_s: float) -> None:
    await asyncio.sleep(after_s)
    server = getattr(handler, "__self__", None)
    if isinstance(server, uvicorn.Server):
        await close_port(server)
        await asyncio.sleep(_LAST_REQUEST_S)
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


async def close_port(server: uvicorn.Server) -> None:
    """Stop listening, and accept the connections that are in the kernel's queue, which would be reset.

    A duplicate of each listener preserves the queue until the event loop has released the original.
    """
    # not os.dup: on Windows, the number of a socket is not a file descriptor
    listeners = [listener.dup() for bound in server.servers for listener in bound.sockets or ()]
    for bound in server.servers:
        bound.close()
    await asyncio.sleep(_CLOSING_S)
    protocol: Any = server.config.http_protocol_class
    states = {"server_state": server.server_state, "app_state": server.lifespan.state}
    for connection in [connection for listener in listeners for connection in _accept_queued(listener)]:
        await asyncio.get_running_loop().connect_accepted_socket(partial(protocol, server.config, **states), connection)


def _accept_queued(listener: socket.socket) -> list[socket.socket]:
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
