"""Handling of Ctrl-C and SIGTERM, which stop a run cleanly at any time."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Stopped(BaseException):
    """A signal, with this name, stopped the run; committed results are kept."""


class Interrupts:
    """The first signal raises `Stopped` or, while deferred, is only recorded; a second one exits immediately."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._deferred = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if not self._deferred:
            self.check()

    def check(self) -> None:
        """Raise `Stopped` after a signal; needed if the first exception was lost in a callback."""
        if self.received is not None:
            raise Stopped(self.received)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only record signals during the block, which checks `received`."""
        self.check()
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    @contextlib.contextmanager
    def installed(self) -> Iterator["Interrupts"]:
        """Handle the signals of this process during the block, in the main thread."""
        before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
