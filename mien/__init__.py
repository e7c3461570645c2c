"""Python API for facial expressions, without a server.

    from mien import Analyzer
    faces = Analyzer().analyze("photo.jpg")

The same pipeline as the service and `mien label`, without HTTP or folders. The names are imported at first use, so that
`mien --help` and the parts of the package do not load NumPy, OpenCV and ONNX Runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mien.analyzer import Analyzer, Face, Image
    from mien.app.inference.detect import Box
    from mien.data.contract import LABELS
    from mien.data.errors import MienError

__all__ = ["LABELS", "Analyzer", "Box", "Face", "Image", "MienError"]

_MODULES: Final = {"Box": "mien.app.inference.detect", "LABELS": "mien.data.contract", "MienError": "mien.data.errors"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mien' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "mien.analyzer")), name)
