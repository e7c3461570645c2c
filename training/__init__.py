"""Training pipeline: a CNN teacher, a DeiT student distilled from it, evaluation and export."""

import os

# ONNX Runtime's Linux builds collect telemetry by default; the variable is read at import (see app/__init__.py)
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# GNU OpenMP spins for milliseconds in waiting threads: beside other programs, they take the core of the awaited one
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
