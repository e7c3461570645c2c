"""Copies: annotated photos, crops of faces and thumbnails, written while labeling; and annotated videos.

A name depends only on the name of the input, so it is the same in every run and unique. Videos are decoded again after
labeling: between two labeled frames, the box of a person moves from one to the other, and the label is that of the
nearer one.
"""

import contextlib
import hashlib
import io
import logging
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
import cv2
from PIL import Image

from mien.app.inference.drawing import annotate
from mien.app.inference.records import Box, Face, Photo
from mien.app.labeling.files import FULL, parts_dir
from mien.app.labeling.inputs import IMAGE_EXTENSIONS, VIDEOS, file_sha256, local_file
from mien.app.video.reader import Cuts, Video, VideoError
from mien.app.video.writer import VideoWriter
from mien.data.atomic import atomic_path
from mien.data.contract import Array

if TYPE_CHECKING:  # which imports this module
    from mien.app.labeling.journal import Journal, Result

ANNOTATED: Final = 1
CROPS: Final = 2
THUMBS: Final = 4
ANNOTATED_DIR: Final = "annotated"
CROPS_DIR: Final = "crops"
_WRITTEN_VIDEOS: Final = "video_files"  # in the journal: what each file was written from
_HELD_S: Final = 0.5  # for which a face is shown before and after its labeled frame
_log: Final = logging.getLogger(__name__)
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


# Videos


def write_videos(journal: "Journal") -> None:
    """Write the videos whose faces have changed, and remove those of videos that are gone."""
    earlier: dict[str, str] = journal.settings.get(_WRITTEN_VIDEOS, {})
    written: dict[str, str] = {}
    for name in journal.videos():
        path, state = video_path(name), _state(journal, name)
        if earlier.get(path) != state or not os.path.exists(journal.out / path):
            try:
                _write(journal, name, journal.out / path)
            except (VideoError, av.error.FFmpegError, FileNotFoundError) as error:
                if getattr(error, "errno", None) in FULL:  # of the disk, which ends the run
                    raise
                _log.warning("%s was not written: %s cannot be read (%s)", path, name, error)
                continue
        written[path] = state
    for path in set(earlier).difference(written):
        with contextlib.suppress(OSError):
            os.unlink(journal.out / path)
    journal.put(**{_WRITTEN_VIDEOS: written})


def _state(journal: "Journal", name: str) -> str:
    """Hash of everything that a written video shows."""
    state = hashlib.sha256(str((journal.options.start, journal.options.end)).encode())
    for image in _frames(journal, name):
        faces = [(face.person, *face.box, face.label, face.confidence, face.uncertain) for face in image.faces]
        state.update(repr((image.sha256, image.time_s, image.scene, faces)).encode())
    return state.hexdigest()


def _write(journal: "Journal", name: str, path: Path) -> None:
    """Write one video. Raises: VideoError, FFmpegError, OSError."""
    labeled, start_s, end_s = next(_frames(journal, name)), journal.options.start, journal.options.end
    with contextlib.ExitStack() as cleanup:
        source = cleanup.enter_context(local_file(labeled.path))
        if file_sha256(source) != labeled.sha256:
            raise VideoError("it is not the video that was labeled")
        part = cleanup.enter_context(atomic_path(path, staging=parts_dir(journal.out)))
        video, cuts = cleanup.enter_context(Video(source)), Cuts()
        written = cleanup.enter_context(
            contextlib.closing(VideoWriter(part, sound_of=source, start_s=start_s, end_s=end_s))
        )
        shown = _Shown(journal, name)
        with contextlib.suppress(VideoError):  # truncated: what is labeled is written
            for frame in video:
                time_s, is_cut = round(frame.time_s, 3), cuts.is_cut(frame)
                if end_s is not None and time_s >= end_s:
                    break
                if time_s < start_s:
                    continue
                faces = shown.at(time_s, is_cut=is_cut)
                with contextlib.suppress(VideoError):  # a damaged frame
                    pixels = frame.pixels()
                    written.add(annotate(pixels, Photo(pixels.shape[1], pixels.shape[0], faces=faces)), time_s)


def _frames(journal: "Journal", name: str) -> Iterator["Result"]:
    return (image for image in journal.results(name) if image.frame is not None)


class _Shown:
    """The faces to show, between the labeled frames around a time."""

    def __init__(self, journal: "Journal", name: str) -> None:
        self._moments = _frames(journal, name)
        self._before: Result | None = None
        self._after = next(self._moments, None)
        self._has_cut = False  # since the labeled frame before

    def at(self, time_s: float, *, is_cut: bool) -> tuple[Face, ...]:
        """Faces at a time, later than in the last call, largest first."""
        self._has_cut |= is_cut
        while self._after is not None and _time(self._after) <= time_s:
            self._before, self._after, self._has_cut = self._after, next(self._moments, None), False
        before, after = self._before, self._after
        if before is not None and after is not None and before.scene != after.scene:
            before, after = (None, after) if self._has_cut else (before, None)
        passed_s = math.inf if before is None else time_s - _time(before)
        left_s = math.inf if after is None else _time(after) - time_s
        near = {} if min(passed_s, left_s) > _HELD_S else _people(before if passed_s <= left_s else after)
        faces = list(near.values())
        if passed_s + left_s <= 2 * _HELD_S:
            first, last, share = _people(before), _people(after), passed_s / (passed_s + left_s)
            both = near.keys() & first.keys() & last.keys()
            moved = {who: _between(first[who].box, last[who].box, share) for who in both}
            faces = [replace(face, box=moved.get(who, face.box)) for who, face in near.items()]
        return tuple(sorted(faces, key=lambda face: -face.box.width * face.box.height))


def _time(image: "Result") -> float:
    return image.time_s or 0.0


def _people(image: "Result | None") -> dict[int, Face]:
    return {} if image is None else {face.person or 0: face for face in image.faces}


def _between(first: Box, last: Box, share: float) -> Box:
    return Box(*((1 - share) * a + share * b for a, b in zip(first, last, strict=True)))
