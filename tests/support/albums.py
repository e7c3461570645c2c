"""Folders to label, up to a realistic messy one, and the tables of their labels.

The messy folder has variants of the sample photos, duplicates, links, odd names and broken files.

The photos are the repository's own, whose licenses samples/README names.
"""

import csv
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from mien.app.labeling.options import LabelOptions
from mien.app.labeling.run import Run, label
from mien.app.settings import Settings
from mien.data.contract import Array
from tests.support import encoded, gradient_image, sample_photo

ODD_NAMES = (
    "ünï cödé 名前.jpg",
    'with, comma "quote".jpg',
    "new\nline.jpg",
    "carriage\rreturn.jpg",
    "-dash.jpg",
    "=1+1.jpg",
    "a" * 200 + ".jpg",
)
SIDE_PX = 112  # small, so that the detector is fast
BROKEN = {
    "empty.jpg": b"",
    "text.jpg": b"not an image",
    "cut.jpg": b"\xff\xd8\xff\xe0" + b"\0" * 40,
    "main.ts": b"const a = 1;",
    "notes.txt": b"not an image, and not meant to be one",
}
UNNAMED = ("IMG_0001", "x.jpg_original", "x.mpo")  # The names do not say that they are photos, but their bytes do.
ARCHIVES = ("a.zip", "b.CBZ", "c.tar.gz", "d.rar", "e.jpg.gz")
RAW = ("f.nef", "g.DNG", "h.tga")


@cache
def _portrait() -> Array:
    """The face of the sample portrait with a margin."""
    with Image.open(sample_photo()) as image:
        face = np.asarray(image.convert("RGB"))
    height, width = face.shape[:2]
    return face[: height * 6 // 10, width // 5 : width // 5 + height * 6 // 10]


def face_photo(side_px: int = SIDE_PX, *, variant: int = 0) -> Array:
    """The face of the sample portrait, mirrored and brightened by variant; (side, side, 3) uint8 RGB."""
    face = cv2.resize(_portrait(), (side_px, side_px), interpolation=cv2.INTER_AREA)
    if variant % 2:
        face = np.ascontiguousarray(face[:, ::-1])
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


def make_album(folder: Path, count: int) -> Path:
    """Fill `folder` with `count` images in folders of 100, every seventh without a face, and with problematic files."""
    faces = [encoded(face_photo(variant=number), "JPEG", quality=85) for number in range(30)]
    no_face = encoded(gradient_image(160, 120), "PNG")
    for number in range(count):
        path = folder / f"{number // 100:03d}" / f"{number:05d}{'.jpg' if number % 7 else '.png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(faces[number % 30] if number % 7 else no_face)
    _odd(folder / "odd", faces)
    write_video(folder / "clip.avi", frames=10)
    return folder


def _odd(folder: Path, variants: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(ODD_NAMES):
        (folder / name).write_bytes(variants[number])
    with open(os.fsencode(folder) + b"/latin-\xe9.jpg", "wb") as file:  # noqa: PTH123  # Path requires UTF-8
        file.write(variants[7])
    tiff = encoded(face_photo(), "TIFF")  # as camera raw
    broken = BROKEN | dict.fromkeys(UNNAMED, variants[1][:600]) | dict.fromkeys((*ARCHIVES, *RAW), tiff)
    for name, payload in broken.items():
        (folder / name).write_bytes(payload)
    Image.new("1", (20_000, 20_000)).save(folder / "huge.png")  # 400 megapixels in a few kB
    (folder / "twice.jpg").write_bytes(variants[0])
    (folder / "once.jpg").hardlink_to(folder / "twice.jpg")
    (folder / "locked.jpg").write_bytes(variants[8])
    (folder / "locked.jpg").chmod(0)  # an error, except for root
    (folder / "linked.jpg").symlink_to(folder / ODD_NAMES[0])
    (folder / "dangling.jpg").symlink_to(folder / "nowhere.jpg")
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    os.mkfifo(folder / "pipe.jpg")
    (folder / ".hidden.jpg").write_bytes(variants[0])


def write_video(path: Path, *, frames: int = 0, images: Iterable[Array] = (), rate: float = 2.0) -> Path:
    """A video of images (H, W, 3) uint8 RGB, or of the sample portrait, mirrored in every second half; returns `path`.

    By default, it has the two frames per second that are labeled by default.

    Motion JPEG in AVI, MPEG-4 in other containers.
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
