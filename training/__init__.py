"""The training pipeline: a CNN teacher, a DeiT student distilled from it, evaluation and export."""

import os

# ONNX Runtime's Linux builds collect telemetry by default; read once, when the library loads (see app/__init__.py)
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
