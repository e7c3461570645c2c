"""Command line `mien`: one file per command; large libraries are imported only when a command runs.

mien --help
"""

import io
import os
import sys


def main() -> None:
    """Run the program."""
    # In another encoding, files cannot be named like their photos. Only the start of Python can change it.
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (no shell)
    # Redirected to a file on Windows, the output has a code page without bars and without most names of files.
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf = sys.stdout.encoding.lower().startswith("utf")
        sys.stdout.reconfigure(encoding=None if is_utf else "utf-8", errors="surrogateescape")  # bytes of a path
    if sys.argv[1:2] == ["label"]:
        from mien.app.cli.exit_codes import exit_when_stopped

        exit_when_stopped()
    from mien.app.cli.program import app

    app()
