"""Standard error as JSON lines: output of libraries is wrapped as messages."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def json_stderr() -> Iterator[IO[str]]:
    """Wrap every line that is printed to standard error; yields a stream for JSON lines, which are not wrapped.

    FFmpeg, OpenCV, libpng and Ray write to the file descriptor, so the descriptor is redirected.
    """
    try:
        standard = sys.stderr.fileno() == 2
    except (OSError, ValueError):  # replaced by a test
        standard = False
    if not standard:
        yield sys.stderr
        return
    sys.stderr.flush()
    real, (source, sink) = os.dup(2), os.pipe()
    with os.fdopen(real, "w", encoding="utf-8") as stream:
        os.dup2(sink, 2)
        os.close(sink)
        thread = threading.Thread(target=_wrap, args=(source, stream), daemon=True)
        thread.start()
        try:
            yield stream
        finally:
            sys.stderr.flush()
            os.dup2(stream.fileno(), 2)  # closes the last writer of the pipe: the thread ends
            thread.join(timeout=5)


def _wrap(source: int, stream: IO[str]) -> None:
    with os.fdopen(source, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            if text := line.strip():
                stream.write(json.dumps({"event": "message", "message": text}, ensure_ascii=False) + "\n")
                stream.flush()
