"""Entry point of `python -m mien`, the same program as `mien`."""

from mien.app.cli import main

if __name__ == "__main__":
    main()
