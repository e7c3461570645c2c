"""Folders to label, up to a messy one with links, odd names and broken files, and the tables of their labels.

The photos are variants of the repository's own, whose licenses samples/README names.
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
BROKEN = {
    "empty.jpg": b"",
    "text.jpg": b"not an image",
    "cut.jpg": b"\xff\xd8\xff\xe0" + b"\0" * 40,
    "cut.mp4": b"\0\0\0 ftypisom\0\0\2\0isomiso2avc1mp41",
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


def face_photo(side_px: int = 112, *, variant: int = 0) -> Array:
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


def make_album(folder: Path) -> Path:
    """Fill `folder` with 100 images, every seventh without a face, a video, and files that are odd, or broken."""
    faces = [encoded(face_photo(variant=number), "JPEG", quality=85) for number in range(30)]
    no_face, odd = encoded(gradient_image(160, 120), "PNG"), folder / "odd"
    odd.mkdir(parents=True)
    for number in range(100):
        (folder / f"{number:02d}.{'jpg' if number % 7 else 'png'}").write_bytes(
            faces[number % 30] if number % 7 else no_face
        )
    write_video(folder / "clip.avi", frames=10)
    files = dict(zip(ODD_NAMES, faces, strict=False)) | BROKEN | dict.fromkeys(UNNAMED, faces[1][:600])
    files |= dict.fromkeys((*ARCHIVES, *RAW), encoded(face_photo(), "TIFF"))  # as camera raw
    for name, payload in files.items():
        (odd / name).write_bytes(payload)
    with open(os.fsencode(odd) + b"/latin-\xe9.jpg", "wb") as file:  # noqa: PTH123  # Path requires UTF-8
        file.write(faces[7])
    Image.new("1", (20_000, 20_000)).save(odd / "huge.png")  # 400 megapixels in a few kB
    (odd / "locked.jpg").write_bytes(faces[8])
    (odd / "locked.jpg").chmod(0)  # an error, except for root
    (odd / "twice.jpg").hardlink_to(odd / ODD_NAMES[0])
    (odd / "linked.jpg").symlink_to(odd / ODD_NAMES[0])
    (odd / "dangling.jpg").symlink_to(odd / "nowhere.jpg")
    (odd / "loop").symlink_to(odd, target_is_directory=True)
    os.mkfifo(odd / "pipe.jpg")
    (odd / ".hidden.jpg").write_bytes(faces[0])
    return folder


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
