"""Exit codes of the program, and the exit of `mien label` at a signal before it has begun; light to import."""

import json
import os
import signal
import sys
from types import FrameType
from typing import Final

# Documented in docs/labeling.md
FAILED, USAGE, SOME_ERRORS, STOPPED, LOCKED, DISK_FULL = 1, 2, 3, 4, 5, 6
EXIT_CODES: Final = (
    "Exit codes: 0 all labeled; 1 could not run; 2 usage; 3 done, but some files have errors; 4 stopped, rerun the "
    "same command to resume; 5 the output folder is in use; 6 the disk is full."
)


def stopped_by(name: str) -> str:
    """The message of a run that a signal has stopped."""
    return f"stopped by {name}. Rerun the same command to resume."


def exit_when_stopped() -> None:
    """Exit at SIGINT and SIGTERM while the program is imported, which takes a second.

    At once and not by an exception, which a native library that is being imported would lose.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    message = stopped_by(signal.Signals(number).name)
    fields = {"event": "failed", "error": message, "code": STOPPED}
    line = json.dumps(fields) if "--json-log" in sys.argv else f"mien: {message}"
    os.write(2, f"{line}\n".encode())
    os._exit(STOPPED)
