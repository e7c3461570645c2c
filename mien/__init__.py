"""Python API for facial expressions, without a server.

    from mien import Analyzer
    faces = Analyzer().analyze("photo.jpg")

The same pipeline as the service and `mien label`, without HTTP or folders (docs/python.md). The names are imported at
first use, so that `mien --help` and the parts of the package do not load NumPy, OpenCV and ONNX Runtime.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mien.analyzer import Analyzer, BatchError, Faces, Image
    from mien.app.inference.records import Box, Face
    from mien.data.contract import LABELS
    from mien.data.errors import MienError

    __version__: str

__all__ = ["LABELS", "Analyzer", "BatchError", "Box", "Face", "Faces", "Image", "MienError"]

_MODULES: Final = {
    "Box": ("mien.app.inference.records", "Box"),
    "Face": ("mien.app.inference.records", "Face"),
    "LABELS": ("mien.data.contract", "LABELS"),
    "MienError": ("mien.data.errors", "MienError"),
    "__version__": ("mien.app", "VERSION"),
}

if not TYPE_CHECKING:  # A type checker would accept any name.

    def __getattr__(name: str) -> object:
        if name not in {*__all__, "__version__"}:
            raise AttributeError(f"module 'mien' has no attribute {name!r}")
        module, attribute = _MODULES.get(name, ("mien.analyzer", name))
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
