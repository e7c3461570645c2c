"""Annotated videos, decoded again after labeling.

Between two labeled frames, the box of a person moves from one to the other, and the label is that of the nearer one.
"""

import contextlib
import hashlib
import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import av

from mien.app.inference.drawing import annotate
from mien.app.inference.records import Box, Face, Photo
from mien.app.labeling.copies import FULL, annotated_name, parts_dir
from mien.app.labeling.inputs import VIDEOS, file_sha256, local_file
from mien.app.labeling.journal import Journal, Result
from mien.app.video.reader import Cuts, Video, VideoError
from mien.app.video.writer import VideoWriter
from mien.data.atomic import atomic_path

_WRITTEN_VIDEOS: Final = "video_files"  # The journal has what each file was written from.
_HELD_S: Final = 0.5  # A face is shown for so long before and after its labeled frame.
_log: Final = logging.getLogger(__name__)


def video_path(name: str) -> str:
    """Path of an annotated video: `a/b.mp4` keeps its name, `b.mov` becomes `b.mov.mp4`."""
    path = f"video/{annotated_name(name, 0).rpartition('/')[0]}"
    stem, suffix = os.path.splitext(path)
    if suffix.lower() == ".mp4" and os.path.splitext(stem)[1].lower() not in VIDEOS | {".video"}:
        return path
    return f"{path}.mp4" if suffix.lower() in VIDEOS else f"{path}.video.mp4"


def write_videos(journal: Journal) -> None:
    """Write the videos whose faces have changed, and remove those of videos that are gone."""
    earlier: dict[str, str] = journal.settings.get(_WRITTEN_VIDEOS, {})
    written: dict[str, str] = {}
    for name in journal.videos():
        path, state = video_path(name), _state(journal, name)
        if earlier.get(path) != state or not os.path.exists(journal.out / path):
            try:
                _write(journal, name, journal.out / path)
            except (VideoError, av.error.FFmpegError, FileNotFoundError) as error:
                if getattr(error, "errno", None) in FULL:  # A full disk ends the run.
                    raise
                _log.warning("%s was not written: %s cannot be read (%s)", path, name, error)
                continue
        written[path] = state
    for path in set(earlier).difference(written):
        with contextlib.suppress(OSError):
            os.unlink(journal.out / path)
    journal.put(**{_WRITTEN_VIDEOS: written})


def _state(journal: Journal, name: str) -> str:
    """Hash of everything that a written video shows."""
    state = hashlib.sha256(str(_part(journal)).encode())
    for image in journal.frames(name):
        faces = [(face.person, *face.box, face.label, face.confidence, face.uncertain) for face in image.faces]
        state.update(repr((image.sha256, image.time_s, image.scene, faces)).encode())
    return state.hexdigest()


def _write(journal: Journal, name: str, path: Path) -> None:
    """Write one video. Raises: VideoError, FFmpegError, OSError."""
    labeled, (start_s, end_s) = next(journal.frames(name)), _part(journal)
    with contextlib.ExitStack() as cleanup:
        source = cleanup.enter_context(local_file(labeled.path))
        if file_sha256(source) != labeled.sha256:
            raise VideoError("it is not the video that was labeled")
        part = cleanup.enter_context(atomic_path(path, staging=parts_dir(journal.out)))
        video, cuts = cleanup.enter_context(Video(source)), Cuts()
        written = cleanup.enter_context(contextlib.closing(VideoWriter(part, start_s=start_s)))
        shown = _Shown(journal, name)
        with contextlib.suppress(VideoError):  # Of a truncated video, what is labeled is written.
            for frame in video:
                time_s, is_cut = round(frame.time_s, 3), cuts.is_cut(frame)
                if end_s is not None and time_s >= end_s:
                    break
                if time_s < start_s:
                    continue
                faces = shown.at(time_s, is_cut=is_cut)
                with contextlib.suppress(VideoError):  # Frames may be damaged.
                    pixels = frame.pixels()
                    written.add(annotate(pixels, Photo(pixels.shape[1], pixels.shape[0], faces=faces)), time_s)


def _part(journal: Journal) -> tuple[float, float | None]:
    options = journal.settings["options"]
    return options["start"], options["end"]


class _Shown:
    """The faces to show, between the labeled frames around a time."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._moments = journal.frames(name)
        self._before: Result | None = None
        self._after = next(self._moments, None)
        self._has_cut = False

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


def _time(image: Result) -> float:
    return image.time_s or 0.0


def _people(image: Result | None) -> dict[int, Face]:
    return {} if image is None else {face.person or 0: face for face in image.faces}


def _between(first: Box, last: Box, share: float) -> Box:
    return Box(*((1 - share) * a + share * b for a, b in zip(first, last, strict=True)))
