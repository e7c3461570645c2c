"""Ctrl-C and SIGTERM, which end a run cleanly at any moment."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Stopped(BaseException):
    """The run was asked to stop; what is committed stays. `name` is that of the signal."""

    def __init__(self, name: str) -> None:
        """Remember the signal."""
        super().__init__(name)
        self.name = name


class Interrupts:
    """The first signal raises `Stopped` or, while `calls` is active, calls a function; a second one ends at once."""

    def __init__(self) -> None:
        """Nothing was received yet."""
        self.received: str | None = None
        self._call: Callable[[], None] | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if self._call is None:
            self.check()
        else:
            self._call()

    def check(self) -> None:
        """Raise `Stopped` after a signal; needed where Python lost the first one, in a callback of its own."""
        if self.received is not None:
            raise Stopped(self.received)

    @contextlib.contextmanager
    def calls(self, function: Callable[[], None]) -> Iterator[None]:
        """Let a signal call `function` while the block runs, which then ends by itself."""
        self.check()
        self._call = function
        try:
            yield
        finally:
            self._call = None


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle signals while the block runs; only a main thread can."""
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
