"""Serving: the command line, the HTTP service and the labeling of folders. Never imports torch."""

import os
from typing import Final

VERSION: Final = "0.1.0"

# From 1.29 on, ONNX Runtime's Linux builds collect telemetry by default: they write to the user's cache and the
# temporary folder and report to Microsoft. The variable is read when the library loads, so it is set here.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
