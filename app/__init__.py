"""Serving: the command line, the HTTP service and the labelling of folders. Never imports torch."""

from typing import Final

VERSION: Final = "0.1.0"
