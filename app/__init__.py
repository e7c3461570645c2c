"""Serving: the command line, the HTTP service and the labeling of folders. Never imports torch."""

import os
from importlib.metadata import version
from typing import Final

VERSION: Final = version("mien")  # of pyproject.toml, as installed

# From 1.29 on, ONNX Runtime's Linux builds collect telemetry by default: they write to the user's cache and the
# temporary folder and report to Microsoft. The variable is read when the library loads, so it is set here.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
