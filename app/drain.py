"""How does a process stop without losing a request? It first says so, then the server closes its door.

The ASGI server handles SIGTERM itself: it stops listening, waits for running requests, and ends. `on_stop` goes before
it: readiness turns off at once, and the server hears of the signal only after the time that a balancer needs.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_stop(drain: Callable[[], None], *, after_s: float) -> Iterator[None]:
    """Call `drain` on the first SIGTERM or SIGINT, and the handler that stood before `after_s` seconds later.

    A second signal goes through at once. Does nothing outside the main thread, where there are no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Any] = {}
    stopping = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        first, stopping = not stopping, True
        if first:
            drain()
        wait_s = after_s if first else 0.0
        loop.call_soon_threadsafe(loop.call_later, wait_s, _forward, before[signal.Signals(number)], number)

    for name in _SIGNALS:
        before[name] = signal.signal(name, handle)
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _forward(handler: object, number: int) -> None:
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
