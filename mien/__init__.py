"""Python API for facial expressions, without a server.

    from mien import Analyzer
    faces = Analyzer().analyze("photo.jpg")

The same pipeline as the service and `mien label`, without HTTP or folders.
"""

from data.contract import LABELS
from data.errors import MienError
from mien.analyzer import Analyzer, Box, Face, Image

__all__ = ["LABELS", "Analyzer", "Box", "Face", "Image", "MienError"]
