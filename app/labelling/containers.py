"""What is inside an archive or a video? Its pictures, one by one, in the order in which they can be read cheaply.

A container is read by one thread, in order: a compressed archive and a video cannot be entered in the middle. What
was done in an earlier run is passed over without being decompressed or decoded into pixels, where the format allows.
"""

import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import cv2

from app.labelling.records import STILL, Failure, Item
from app.labelling.scan import is_litter, kind_of
from data.contract import Array

# Whether a picture of this name and frame still has to be labelled, and with which products.
Wanted = Callable[[str, int], int | None]

_ARCHIVE_ERRORS: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
)


class BrokenContainer(Exception):
    """The container cannot be read, or not to its end."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which frames of a video are taken: every n-th, or so many per second of its time; never both."""

    every: int = 1
    per_second: float | None = None

    def describe(self) -> str:
        """The choice in words; part of a video's signature."""
        return f"{self.per_second:g} per second" if self.per_second else f"every {self.every}"


def open_container(item: Item, wanted: Wanted, *, max_bytes: int, sampling: Sampling) -> Iterator[Item | None]:
    """The container's pictures; None stands for one that is done already. Raises: BrokenContainer."""
    if item.kind == "zip":
        return _zip(item, wanted, max_bytes)
    if item.kind == "tar":
        return _tar(item, wanted, max_bytes)
    return _video(item, wanted, sampling)


def _member(item: Item, name: str, seen: dict[str, int]) -> str | None:
    """The member's unique name in the outputs; None for litter and for folders that climb out."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    if not parts or any(is_litter(part, hidden=False) for part in parts):
        return None
    inner = "/".join(parts).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    seen[inner] = seen.get(inner, 0) + 1
    return f"{item.name}/{inner}" + (f"~{seen[inner]}" if seen[inner] > 1 else "")


def _child(item: Item, name: str, member: int, size: int, products: int) -> Item:
    return Item(name, item.kind, item.path, member, size, products=products)


def _too_large(child: Item, max_bytes: int) -> Item:
    message = f"{child.size:,} bytes: at most {max_bytes:,} are read (MIEN_MAX_BYTES)"
    return replace(child, failure=Failure("too_large", message))


def _nested(child: Item) -> Item:
    message = "an archive or a video within an archive: unpack the outer one to have it labelled"
    return replace(child, failure=Failure("nested", message, "skipped"))


def _zip(item: Item, wanted: Wanted, max_bytes: int) -> Iterator[Item | None]:
    seen: dict[str, int] = {}
    try:
        with zipfile.ZipFile(os.fsdecode(item.path)) as archive:
            for index, info in enumerate(archive.infolist()):
                name = None if info.is_dir() else _member(item, info.filename, seen)
                if name is None:
                    continue
                products = wanted(name, STILL)
                if products is None:
                    yield None
                    continue
                child = _child(item, name, index, info.file_size, products)
                yield _zip_payload(archive, info, child, max_bytes)
    except _ARCHIVE_ERRORS as error:
        raise BrokenContainer(f"archive cannot be read ({error})") from error


def _zip_payload(archive: zipfile.ZipFile, info: zipfile.ZipInfo, child: Item, max_bytes: int) -> Item:
    if kind_of(child.name) != "file":
        return _nested(child)
    if info.flag_bits & 1:
        return replace(child, failure=Failure("encrypted", "the member is encrypted; no password can be given"))
    if info.file_size > max_bytes:
        return _too_large(child, max_bytes)
    try:
        with archive.open(info) as file:
            payload = file.read(max_bytes + 1)
    except _ARCHIVE_ERRORS as error:
        return replace(child, failure=Failure("corrupt", f"the member cannot be unpacked ({error})"))
    return replace(child, payload=payload)


def _tar(item: Item, wanted: Wanted, max_bytes: int) -> Iterator[Item | None]:
    seen: dict[str, int] = {}
    try:
        with tarfile.open(os.fsdecode(item.path), mode="r|*") as archive:
            for index, info in enumerate(archive):
                name = _member(item, info.name, seen) if info.isfile() else None
                if name is None:
                    continue
                products = wanted(name, STILL)
                if products is None:
                    yield None
                    continue
                child = _child(item, name, index, info.size, products)
                yield _tar_payload(archive, info, child, max_bytes)
    except _ARCHIVE_ERRORS as error:
        raise BrokenContainer(f"archive cannot be read to its end ({error})") from error


def _tar_payload(archive: tarfile.TarFile, info: tarfile.TarInfo, child: Item, max_bytes: int) -> Item:
    if kind_of(child.name) != "file":
        return _nested(child)
    if info.size > max_bytes:
        return _too_large(child, max_bytes)
    file = archive.extractfile(info)
    return replace(child, payload=b"" if file is None else file.read())


def read_member(path: str, kind: str, member: int, frame: int) -> bytes | Array:
    """One picture of a container once more: encoded bytes, or RGB pixels of a frame. Raises: BrokenContainer."""
    try:
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                return archive.read(archive.infolist()[member])
        if kind == "tar":
            with tarfile.open(path, mode="r:*") as tar:
                file = tar.extractfile(tar.getmembers()[member])
                return b"" if file is None else file.read()
    except (*_ARCHIVE_ERRORS, IndexError) as error:
        raise BrokenContainer(f"archive {path}: member {member} cannot be read ({error})") from error
    return _read_frame(path, frame)


def _read_frame(path: str, frame: int) -> Array:
    video = cv2.VideoCapture(path)
    try:
        for _ in range(frame + 1):
            if not video.grab():
                break
        read, pixels = video.retrieve()
    finally:
        video.release()
    if not read:
        raise BrokenContainer(f"video {path}: frame {frame} cannot be read")
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def expected_frames(path: bytes, sampling: Sampling) -> int:
    """About how many frames will be taken, from what the video's header says; 0 where it says nothing."""
    video = cv2.VideoCapture(os.fsdecode(path))
    frames, rate = video.get(cv2.CAP_PROP_FRAME_COUNT), video.get(cv2.CAP_PROP_FPS)
    video.release()
    if frames <= 0:
        return 0
    if sampling.per_second and rate > 0:
        return round(min(frames, frames / rate * sampling.per_second))
    return round(frames / sampling.every)


def _video(item: Item, wanted: Wanted, sampling: Sampling) -> Iterator[Item | None]:
    path = os.fsdecode(item.path)
    digest = _file_digest(path)
    video = cv2.VideoCapture(path)
    try:
        if not video.isOpened():
            raise BrokenContainer("video cannot be opened: no format that OpenCV's FFmpeg reads")
        rate = video.get(cv2.CAP_PROP_FPS) or 25.0
        frame, next_s, taken = 0, 0.0, 0
        while video.grab():
            time_s = _time_s(video, frame, rate)
            take = time_s >= next_s - 1e-9 if sampling.per_second else frame % sampling.every == 0
            if take:
                taken += 1
                next_s = taken / sampling.per_second if sampling.per_second else 0.0
                yield _frame(video, item, frame, time_s, digest, wanted(item.name, frame))
            frame += 1
        if frame == 0:
            raise BrokenContainer("video holds no frame that can be decoded")
    finally:
        video.release()


def _time_s(video: cv2.VideoCapture, frame: int, rate: float) -> float:
    """Seconds from the start; the container's own time stamp where it has one."""
    stamp = video.get(cv2.CAP_PROP_POS_MSEC) / 1000.0
    return round(stamp if stamp > 0 or frame == 0 else frame / rate, 3)


def _frame(
    video: cv2.VideoCapture, item: Item, frame: int, time_s: float, digest: str, products: int | None
) -> Item | None:
    if products is None:
        return None
    child = Item(item.name, "video", item.path, None, item.size, frame, time_s, products, sha256=digest)
    read, pixels = video.retrieve()
    if not read:
        return replace(child, failure=Failure("corrupt", f"frame {frame} cannot be decoded"))
    return replace(child, pixels=cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))


def _file_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BrokenContainer(f"video cannot be read ({error.strerror or error})") from error
