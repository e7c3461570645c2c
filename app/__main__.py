"""Entry point of `python -m app`, the same program as `mien`."""

from app.cli import main

if __name__ == "__main__":
    main()
