"""The output folder, used by one process, and the pictures in it: annotated copies, crops of faces, thumbnails.

A folder with files is used only if an earlier run created it. In it, only the outputs that the journal names, and the
pictures of its inputs, are replaced or removed. The name of a picture depends only on the name of the input, so it is
the same in every run and unique.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Final

import cv2
import filelock
from PIL import Image

from mien.app.errors import DiskFull, LabelingError, OutputLocked
from mien.app.labeling.inputs import IMAGE_EXTENSIONS, STATE_DIR, is_video
from mien.data.atomic import atomic_file
from mien.data.contract import Array

# Outputs that need pictures from labeling: two folders of the same names, and thumbnails in the journal.
ANNOTATED: Final = "annotated"
CROPS: Final = "crops"
REPORT: Final = "report"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_JPEG: Final = (".jpg", ".jpeg")
_WRITTEN: Final = (*_JPEG, ".png")
_MAX_COMPONENT_BYTES: Final = 200
_QUALITY: Final = 90
_THUMB_PX: Final = 96
_FRAME: Final = re.compile(r"frame_\d{8,}\.jpg(\.face\d+\.png)?")
_WINDOWS: Final = os.name == "nt"
_BAD_CHARACTERS: Final = re.compile(r'[<>:"\\|?*\x00-\x1f]')
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\.|$)", re.IGNORECASE)


# The folder


def check_out(out: Path) -> None:
    """Check that an output folder is new, empty, or of an earlier run. Raises: LabelingError."""
    with disk_errors(out):
        if out.exists() and any(out.iterdir()) and not (out / STATE_DIR).is_dir():
            raise LabelingError(
                f"{out} contains files, but no journal of `mien label`, the folder {STATE_DIR}. Choose a new or empty "
                "folder with --out."
            )


@contextlib.contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Lock `out` for this process; the system releases the lock even if the process is killed.

    Raises: OutputLocked, naming the other process; DiskFull; LabelingError, if the folder cannot be created.
    """
    state = out / STATE_DIR
    lock = filelock.FileLock(state / "lock", timeout=1.0)  # Its owner may not have written its process id yet.
    with disk_errors(out):
        state.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            owner = "unknown"
            with contextlib.suppress(OSError):
                owner = (state / "owner").read_text(encoding="ascii") or owner
            raise OutputLocked(
                f"{out} is in use by process {owner}: wait until it ends, or choose another --out."
            ) from error
    try:
        with contextlib.suppress(OSError):  # The process id is only for the message.
            (state / "owner").write_text(str(os.getpid()), encoding="ascii")
        shutil.rmtree(parts_dir(out), ignore_errors=True)  # A killed run leaves temporary files.
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Convert errors of the system or SQLite: "no space left" to DiskFull, others to LabelingError."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        code = getattr(error, "sqlite_errorcode", None)
        is_full = code in _SQLITE_FULL if code is not None else getattr(error, "errno", None) in FULL
        if is_full or (code == sqlite3.SQLITE_CANTOPEN and shutil.disk_usage(out).free == 0):
            kept = "Committed results are kept: free some space and rerun the same command."
            raise DiskFull(f"no space left for {out}. {kept}") from error
        if isinstance(error, OSError):
            target = error.filename2 or error.filename or out  # A renaming has two names.
            raise LabelingError(f"cannot write to {target}: {error.strerror or error}.") from error
        if isinstance(error, sqlite3.OperationalError):
            raise LabelingError(f"journal in {out / STATE_DIR}: {error}.") from error
        raise damaged(out, error) from error


def damaged(out: Path, reason: object) -> LabelingError:
    """The error of a damaged journal."""
    return LabelingError(
        f"journal in {out / STATE_DIR} is damaged ({reason}). Nothing was changed. Restore it from a backup, or choose "
        "another --out."
    )


def foreign(path: Path) -> LabelingError:
    """The error of a file that was not written by a run, in the place of an output."""
    return LabelingError(f"{path} exists, but was not written by an earlier run. Move it, or choose another --out.")


def parts_dir(out: Path) -> Path:
    """Folder for temporary files; it is inside `out`, so renaming does not copy."""
    return out / STATE_DIR / "part"


def open_output(out: Path, target: str, mode: str = "w") -> contextlib.AbstractContextManager[IO[Any]]:
    """Open a file of an output, which replaces the old one at the end of the block. Raises: OSError."""
    return atomic_file(out / target, mode, staging=parts_dir(out))


# Pictures


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
    path = crop_path(name, frame, face).removeprefix(f"{CROPS}/")
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
    if icc_profile:  # OpenCV writes none.
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


def crop_path(name: str, frame: int | None, face: int) -> str:
    """Path of a face crop, relative to the output folder; PNG preserves the exact input of the model."""
    return f"{CROPS}/{annotated_name(name, frame)}.face{face}.png"


def image_paths(name: str, frame: int | None, faces: int, pictures: Collection[str]) -> Iterator[str]:
    """Paths of the written images of an input with this number of faces."""
    if ANNOTATED in pictures:
        yield f"{ANNOTATED}/{annotated_name(name, frame)}"
    if CROPS in pictures:
        yield from (crop_path(name, frame, face) for face in range(faces))


def remove_images(out: Path, name: str, pictures: Collection[str]) -> None:
    """Remove the copies and the crops of a photo or of the frames of a video, and folders that become empty."""
    for folder in {ANNOTATED, CROPS}.intersection(pictures):
        path = f"{folder}/{annotated_name(name, 0).rpartition('/')[0]}"
        if not is_video(name):
            if folder == CROPS:
                remove_crops(out, name, None, first=0)
            else:
                _remove(out, f"{ANNOTATED}/{annotated_name(name, None)}")
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in filter(_FRAME.fullmatch, os.listdir(out / path)):
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
    with contextlib.suppress(OSError):  # The folder is not empty, or gone.
        while path := os.path.dirname(path):
            os.rmdir(out / path)
