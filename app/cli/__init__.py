"""Command line `mien`: one file per command; large libraries are imported only when a command runs.

python -m app --help
"""

import sys


def main() -> None:
    """Run the program."""
    if sys.argv[1:2] == ["label"]:
        from app.cli.exit_codes import exit_when_stopped

        exit_when_stopped()
    from app.cli.program import app

    app()
