"""Names and encodings of images that are written during labeling.

A name depends only on the name of the input, so it is the same in every run and unique.
"""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cv2
from PIL import Image

from mien.app.labeling.inputs import IMAGE_EXTENSIONS, VIDEOS
from mien.data.contract import Array

ANNOTATED: Final = 1
CROPS: Final = 2
THUMBS: Final = 4
ANNOTATED_DIR: Final = "annotated"
CROPS_DIR: Final = "crops"
_JPEG: Final = (".jpg", ".jpeg")
_WRITTEN: Final = (*_JPEG, ".png")
_MAX_COMPONENT_BYTES: Final = 200
_QUALITY: Final = 90
_THUMB_PX: Final = 96
_FRAME: Final = re.compile(r"frame_\d{8,}\.jpg(\.face\d+\.png)?")
_WINDOWS: Final = os.name == "nt"
_BAD_CHARACTERS: Final = re.compile(r'[<>:"\\|?*\x00-\x1f]')
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\.|$)", re.IGNORECASE)


def annotated_name(name: str, frame: int | None) -> str:
    """Path of an annotated JPEG in `annotated/`: `a/b.jpg` keeps its name, `b.png` becomes `b.png.jpg`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    *folders, last = ["", *parts] if name.startswith("/") else parts or ["unnamed"]
    safe = "/".join([*(_folder(part) for part in folders), _short(last)])
    if frame is not None:
        return f"{'/'.join(_folder(part) for part in (*folders, last))}/frame_{frame:08d}.jpg"
    stem, suffix = os.path.splitext(safe)
    if suffix.lower() in _JPEG and os.path.splitext(stem)[1].lower() not in IMAGE_EXTENSIONS | {".img"}:
        return safe
    return f"{safe}.jpg" if suffix.lower() in IMAGE_EXTENSIONS else f"{safe}.img.jpg"


def flat_crop_name(name: str, frame: int | None, face: int) -> str:
    """Name of a crop in a single folder: slashes become double underscores, with a hash if this is ambiguous."""
    path = crop_path(name, frame, face).removeprefix(f"{CROPS_DIR}/")
    flat = path.replace("/", "__")
    return _short(flat) if "__" not in path else _short(f"{_digest(path)}__{flat}")


def _folder(part: str) -> str:
    """A folder name that differs from the names of written files, and does not lead to a parent folder or the root.

    `b.png` is written as `b.png.jpg`, so a folder `b.png.jpg` is written as `b.png.jpg~`; one called `b.png.jpg~` gets
    one `~` more.
    """
    bare = part.rstrip("~")
    return _short(f"{part}~" if bare in ("", "..") or bare.lower().endswith(_WRITTEN) else part)


def _short(part: str) -> str:
    """Shorten a name for all file systems; on Windows, also replace what its names cannot contain."""
    if _WINDOWS and (_BAD_CHARACTERS.search(part) or _RESERVED.match(part) or part.endswith((".", " "))):
        stem, suffix = os.path.splitext(_BAD_CHARACTERS.sub("_", part).rstrip(". "))
        part = f"_{stem}~{_digest(part)}{suffix}"
    raw = part.encode("utf-8", "replace")
    if len(raw) <= _MAX_COMPONENT_BYTES:
        return part
    stem, suffix = os.path.splitext(part)
    start = stem.encode("utf-8", "replace")[:150].decode("utf-8", "ignore")
    return f"{start}~{_digest(part)}{suffix[:10]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def encode_jpeg(image: Array, quality: int = _QUALITY, *, icc_profile: bytes = b"") -> bytes:
    """Encode (H, W, 3) uint8 RGB as JPEG."""
    if icc_profile:  # OpenCV writes none
        Image.fromarray(image).save(file := io.BytesIO(), "JPEG", quality=quality, icc_profile=icc_profile)
        return file.getvalue()
    _, buffer = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    return buffer.tobytes()


def encode_png(image: Array) -> bytes:
    """Encode (H, W, 3) uint8 RGB as PNG."""
    _, buffer = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    return buffer.tobytes()


def thumbnail(crop: Array) -> bytes:
    """A small JPEG of a crop for the report and the review page."""
    return encode_jpeg(cv2.resize(crop, (_THUMB_PX, _THUMB_PX), interpolation=cv2.INTER_AREA), 85)


def annotated_path(name: str, frame: int | None) -> str:
    """Path of an annotated copy, relative to the output folder."""
    return f"{ANNOTATED_DIR}/{annotated_name(name, frame)}"


def crop_path(name: str, frame: int | None, face: int) -> str:
    """Path of a face crop, relative to the output folder; PNG preserves the exact input of the model."""
    return f"{CROPS_DIR}/{annotated_name(name, frame)}.face{face}.png"


def video_path(name: str) -> str:
    """Path of an annotated video: `a/b.mp4` keeps its name, `b.mov` becomes `b.mov.mp4`."""
    path = f"video/{annotated_name(name, 0).rpartition('/')[0]}"
    stem, suffix = os.path.splitext(path)
    if suffix.lower() == ".mp4" and os.path.splitext(stem)[1].lower() not in VIDEOS | {".video"}:
        return path
    return f"{path}.mp4" if suffix.lower() in VIDEOS else f"{path}.video.mp4"


def image_paths(name: str, frame: int | None, faces: int, images: int) -> Iterator[str]:
    """Paths of the written images of an input with this number of faces."""
    if images & ANNOTATED:
        yield annotated_path(name, frame)
    if images & CROPS:
        yield from (crop_path(name, frame, face) for face in range(faces))


def remove_images(out: Path, name: str) -> None:
    """Remove the copy and the crops of a photo, and folders that become empty."""
    remove_crops(out, name, None, first=0)
    for path in image_paths(name, None, 0, ANNOTATED):
        _remove(out, path)


def remove_frames(out: Path, name: str) -> None:
    """Remove the copies and the crops of the frames of a video, and folders that become empty."""
    for folder in (ANNOTATED_DIR, CROPS_DIR):
        path = f"{folder}/{annotated_name(name, 0).rpartition('/')[0]}"
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.listdir(out / path):
                if _FRAME.fullmatch(entry):
                    _remove(out, f"{path}/{entry}")


def remove_crops(out: Path, name: str, frame: int | None, *, first: int) -> None:
    """Remove the crops of an input from face number `first` on; the last one first, so that no gap remains."""
    last = first
    while os.path.lexists(out / crop_path(name, frame, last)):
        last += 1
    for face in reversed(range(first, last)):
        _remove(out, crop_path(name, frame, face))


def _remove(out: Path, path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(out / path)
    with contextlib.suppress(OSError):  # not empty, or gone
        while path := os.path.dirname(path):
            os.rmdir(out / path)
