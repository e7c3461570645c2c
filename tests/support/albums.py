"""Photos and videos to label, and the tables of their labels.

The photos are variants of the repository's own, whose licenses samples/README names.
"""

import csv
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import cv2

from mien.app.labeling.options import LabelOptions
from mien.app.labeling.run import Run, label
from mien.app.settings import Settings
from mien.data.contract import Array, decode
from tests.support import encoded, sample_photo


@cache
def face_photo(*, variant: int = 0) -> Array:
    """The face of the sample portrait, mirrored and brightened by variant; (112, 112, 3) uint8 RGB."""
    portrait = decode(sample_photo().read_bytes())
    height, width = portrait.shape[:2]
    face = portrait[: height * 6 // 10, width // 5 : width // 5 + height * 6 // 10]
    face = cv2.resize(face[:, :: -1 if variant % 2 else 1].copy(), (112, 112), interpolation=cv2.INTER_AREA)
    return cv2.convertScaleAbs(face, alpha=0.7 + 0.1 * (variant % 6), beta=float(variant % 5))


def write_photos(folder: Path, *names: str, count: int = 0, first: int = 0) -> Path:
    """Write a photo of a face for each name, or `count` named 0.jpg, 1.jpg, ...; returns `folder`."""
    for number, name in enumerate(names or [f"{number}.jpg" for number in range(count)], start=first):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(face_photo(variant=number), "JPEG"))
    return folder


def label_folder(photos: Path, out: Path, settings: Settings, *outputs: str, **options: Any) -> Run:
    """Label a folder on one thread, in this process and without messages."""
    chosen = LabelOptions(inputs=[str(photos)], out=out, outputs=list(outputs), workers=1, quiet=True, **options)
    return label(chosen, settings)


def rows_of(out: Path, table: str = "labels.csv") -> list[dict[str, str]]:
    """Rows of a table that `mien label` wrote."""
    with (out / table).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def by_file(rows: Iterable[dict[str, str]], *columns: str) -> dict[str, Any]:
    """The value of a column, or a tuple of those of several, for each file of a table."""
    return {row["file"]: row[columns[0]] if len(columns) == 1 else tuple(map(row.get, columns)) for row in rows}


def write_video(path: Path, *, frames: int = 0, images: Iterable[Array] = (), rate: float = 2.0) -> Path:
    """A video of images (H, W, 3) uint8 RGB, or of the sample portrait, mirrored in every second half; returns `path`.

    By default, it has the two frames per second that are labeled. Motion JPEG in AVI, MPEG-4 in other containers.
    """
    pictures = list(images) or [face_photo(variant=number // 4) for number in range(frames)]
    codec = cv2.VideoWriter.fourcc(*("MJPG" if path.suffix == ".avi" else "mp4v"))
    writer = cv2.VideoWriter(str(path), codec, rate, pictures[0].shape[1::-1])
    assert writer.isOpened()
    for picture in pictures:
        writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    writer.release()
    return path


def ffmpeg(*arguments: str | Path) -> None:
    """Run FFmpeg's program, which replaces existing files, for videos as cameras, phones and editors make them."""
    import imageio_ffmpeg  # It takes 0.2 s.

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=60)
