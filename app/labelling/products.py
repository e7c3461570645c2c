"""Which pictures are written while a photo's pixels are at hand, and under which names?

Names are made from the input's name alone, so that they are the same in every run.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2

from app.labelling.records import STILL
from app.labelling.scan import PICTURES
from data.contract import Array

ANNOTATED: Final = 1
CROPS: Final = 2
THUMBS: Final = 4
ANNOTATED_DIR: Final = "annotated"
CROPS_DIR: Final = "crops"
_JPEG: Final = (".jpg", ".jpeg")
_MAX_COMPONENT_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """How pictures are written: long side of annotated copies, pixels; JPEG quality, 1 to 100; side of thumbnails."""

    annotated_px: int = 1600
    quality: int = 90
    thumb_px: int = 96


def annotated_name(name: str, frame: int) -> str:
    """Path of an annotated copy below `annotated/`, a JPEG: `a/b.jpg` stays, `b.png` becomes `b.png.jpg`."""
    safe = _safe(name)
    if frame != STILL:
        return f"{safe}/frame_{frame:08d}.jpg"
    stem, suffix = os.path.splitext(safe)
    if suffix.lower() in _JPEG and os.path.splitext(stem)[1].lower() not in PICTURES:
        return safe
    return f"{safe}.jpg" if suffix.lower() in PICTURES else f"{safe}.img.jpg"


def crop_name(name: str, frame: int, face: int) -> str:
    """Path of a face crop below `crops/`, a PNG, as the bytes are what the model saw."""
    return f"{annotated_name(name, frame)}.face{face}.png"


def flat_crop_name(name: str, frame: int, face: int) -> str:
    """As `crop_name`, in one folder: slashes become double underscores, with a digest where that loses something."""
    path = crop_name(name, frame, face)
    flat = path.replace("/", "__")
    return _short(flat) if "__" not in path else _short(f"{_digest(path)}__{flat}")


def _safe(name: str) -> str:
    """A relative path that stays where it is put, each part short enough for every file system."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return "/".join(_short(part) for part in parts) or "unnamed"


def _short(part: str) -> str:
    raw = part.encode("utf-8", "replace")
    if len(raw) <= _MAX_COMPONENT_BYTES:
        return part
    stem, suffix = os.path.splitext(part)
    start = stem.encode("utf-8", "replace")[:150].decode("utf-8", "ignore")
    return f"{start}~{_digest(part)}{suffix[:10]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def encode_jpeg(image: Array, quality: int) -> bytes:
    """Encode (H, W, 3) uint8 RGB as JPEG."""
    _, buffer = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    return buffer.tobytes()


def encode_png(image: Array) -> bytes:
    """Encode (H, W, 3) uint8 RGB as PNG."""
    _, buffer = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return buffer.tobytes()


def thumbnail(crop: Array, options: ProductOptions) -> bytes:
    """A small JPEG of a crop for the report and the review page."""
    small = cv2.resize(crop, (options.thumb_px, options.thumb_px), interpolation=cv2.INTER_AREA)
    return encode_jpeg(small, 85)


def annotated_path(out: Path, name: str, frame: int) -> Path:
    """Where an annotated copy lies."""
    return out / ANNOTATED_DIR / annotated_name(name, frame)


def crop_path(out: Path, name: str, frame: int, face: int) -> Path:
    """Where a face crop lies."""
    return out / CROPS_DIR / crop_name(name, frame, face)
