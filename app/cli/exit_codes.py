"""Exit codes, and the handling of signals during the imports of `mien label`; fast to import."""

import os
import signal
from types import FrameType
from typing import Final

# Those of errors are attributes of their classes; all are documented in docs/labeling.md.
FAILED, USAGE, SOME_ERRORS, STOPPED = 1, 2, 3, 4
EXIT_CODES: Final = (
    "Exit codes: 0 all labeled; 1 could not run; 2 usage; 3 done, but some files have errors; 4 stopped, rerun the "
    "same command to resume; 5 the output folder is in use; 6 the disk is full."
)


def stopped_by(name: str) -> str:
    """Message of a run that was stopped by a signal."""
    return f"stopped by {name}. Rerun the same command to resume."


def exit_when_stopped() -> None:
    """Exit at SIGINT and SIGTERM during imports, which take about a second.

    The exit is immediate, because native libraries may swallow an exception that is raised during their import.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    os.write(2, f"mien: {stopped_by(signal.Signals(number).name)}\n".encode())
    os._exit(STOPPED)
