"""Training pipeline: a CNN teacher, a DeiT student distilled from it, evaluation and export."""

import os

# ONNX Runtime's Linux builds collect telemetry by default; the variable is read at import (see app/__init__.py)
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
