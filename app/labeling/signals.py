"""Handling of Ctrl-C and SIGTERM, which stop a run cleanly at any time."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Stopped(BaseException):
    """A signal stopped the run; committed results are kept. `name` is the name of the signal."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Interrupts:
    """The first signal raises `Stopped` or, during `calls`, calls a function; a second one exits immediately."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._call: Callable[[], None] | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if self._call is None:
            self.check()
        else:
            self._call()

    def check(self) -> None:
        """Raise `Stopped` after a signal; needed if the first exception was lost in a callback."""
        if self.received is not None:
            raise Stopped(self.received)

    @contextlib.contextmanager
    def calls(self, function: Callable[[], None]) -> Iterator[None]:
        """Call `function` on a signal during the block, instead of raising."""
        self.check()
        self._call = function
        try:
            yield
        finally:
            self._call = None


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle signals during the block; works in the main thread only."""
    received = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, received.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
