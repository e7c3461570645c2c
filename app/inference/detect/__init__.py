"""Face detection: `create_detector` builds the detector that the settings name.

A detector is one file of this folder with a function `create(settings) -> Detector`; its file name is its name.
"""

import importlib
import pkgutil
from types import ModuleType

from app.errors import SettingsError
from app.inference.detect.base import Detector, Face
from app.inference.detect.weights import find_yunet
from app.settings import Settings

__all__ = ["Detector", "Face", "best_detector", "create_detector", "detector_names", "detector_source"]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def detector_names() -> tuple[str, ...]:
    """Names of the detectors there are: the files of this folder that have `create`."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if hasattr(_module(name), "create")))


def detector_source(name: str, settings: Settings) -> str:
    """Where a detector comes from, for people: the result of its module's `source(settings)`, if it has one.

    Raises: DetectorUnavailable, if its file is damaged.
    """
    source = getattr(_module(name), "source", None)
    return "built in" if source is None else str(source(settings))


def create_detector(settings: Settings) -> Detector:
    """Build the detector that `settings.detector` names; `auto` is YuNet where its file is, else the builtin one.

    Raises: SettingsError for an unknown name; DetectorUnavailable where the detector's file is missing or damaged.
    """
    name = best_detector(settings) if settings.detector == "auto" else settings.detector
    if name not in detector_names():
        raise SettingsError(f"detector {name!r}: expected auto, {', '.join(detector_names())}")
    detector: Detector = _module(name).create(settings)
    return detector


def best_detector(settings: Settings) -> str:
    """Name of the detector that `auto` stands for. Raises: DetectorUnavailable, if YuNet's file is damaged."""
    return "builtin" if find_yunet(settings.models_dir) is None else "yunet"
