"""Command line `mien`: one file per command; large libraries are imported only when a command runs.

mien --help
"""

import io
import sys


def main() -> None:
    """Run the program."""
    # Redirected to a file on Windows, the output has a code page without bars and without most names of files.
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(encoding="utf-8")
    if sys.argv[1:2] == ["label"]:
        from mien.app.cli.exit_codes import exit_when_stopped

        exit_when_stopped()
    from mien.app.cli.program import app

    if "--json-log" not in sys.argv:
        app()
        return
    import typer

    from mien.app.cli.exit_codes import USAGE
    from mien.app.cli.options import fail

    try:
        sys.exit(app(standalone_mode=False))
    except typer.TyperException as error:
        fail(error.format_message(), USAGE)
