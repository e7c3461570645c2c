"""Command line `mien`: one file per command; large libraries are imported only when a command runs.

mien --help
"""

import sys


def main() -> None:
    """Run the program."""
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
