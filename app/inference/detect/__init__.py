"""Face detection; `create_detector` builds the detector named in the settings.

A detector is a file in this folder with a function `create(settings) -> Detector`; its file name is its name.
"""

import importlib
import pkgutil
from types import ModuleType

from mien.app.errors import SettingsError
from mien.app.inference.detect.base import Detector
from mien.app.inference.detect.weights import find_yunet
from mien.app.settings import InferenceSettings

__all__ = ["Detector", "best_detector", "create_detector", "detector_names", "detector_source"]


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def detector_names() -> tuple[str, ...]:
    """Names of all detectors: the files of this folder with `create`."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if hasattr(_module(name), "create")))


def detector_source(name: str, settings: InferenceSettings) -> str:
    """Description of the origin of a detector: the result of `source(settings)` of its module, if it has one.

    Raises: DetectorUnavailable, if its file is damaged.
    """
    source = getattr(_module(name), "source", None)
    return "built in" if source is None else str(source(settings))


def create_detector(settings: InferenceSettings) -> Detector:
    """Build the detector named in the settings; `auto` is YuNet if its file exists, otherwise the built-in one.

    Raises: SettingsError, for an unknown name; DetectorUnavailable, if the detector's file is missing or damaged.
    """
    name = best_detector(settings) if settings.detector == "auto" else settings.detector
    if name not in detector_names():
        raise SettingsError(f"detector {name!r}: expected auto, {', '.join(detector_names())}")
    detector: Detector = _module(name).create(settings)
    return detector


def best_detector(settings: InferenceSettings) -> str:
    """Name of the detector that `auto` selects. Raises: DetectorUnavailable, if YuNet's file is damaged."""
    return "builtin" if find_yunet(settings.models_dir) is None else "yunet"
