"""Images of an archive or a video, in the order of the file.

A container is read sequentially by one thread, because compressed archives and videos have no efficient random access.
Images labeled by an earlier run are skipped without decompressing or decoding them, if the format allows.
"""

import itertools
import lzma
import math
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Final

import cv2

from mien.app.labeling.kinds import is_hidden, is_ignored, kind_of
from mien.app.labeling.reading import open_file, too_many_bytes
from mien.app.labeling.records import STILL, Failure, Item
from mien.app.labeling.request import Request
from mien.app.labeling.scan import printable
from mien.data.contract import Array
from mien.data.errors import MienError

# Products to write for an image with this name and frame; None if it is labeled already.
Wanted = Callable[[str, int], int | None]

_ARCHIVE_ERRORS: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,  # names that are not in their encoding
    RuntimeError,
    struct.error,
)
# A video is truncated if more than this share of its stated length, and more than this many seconds, are missing.
_MISSING_SHARE: Final = 0.1
_MISSING_S: Final = 0.5


class BrokenContainer(MienError):
    """A container that cannot be read to its end."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container to read, with the images to label, limits and sampling."""

    item: Item
    wanted: Wanted
    max_bytes: int
    request: Request


@dataclass(frozen=True, slots=True)
class _Member:
    """An entry of an archive; `name` is None if it is not a file."""

    name: str | None
    size: int
    read: Callable[[], bytes]
    failure: Failure | None = None


class _DamagedMember(Exception):
    """One member cannot be unpacked; later ones may be."""


def open_container(container: Container) -> Iterator[Item | None]:
    """Images of the container, with None for labeled ones. Raises: BrokenContainer."""
    return _video(container) if container.item.kind == "video" else _archive(container)


def _archive(container: Container) -> Iterator[Item | None]:
    item, taken = container.item, set[str]()
    members = _zip_members if item.kind == "zip" else _tar_members
    try:
        with open_file(item.path) as file:
            for index, member in enumerate(members(file)):
                name = None if member.name is None else _unique_name(container, member.name, taken)
                if name is None:
                    continue
                products = container.wanted(name, STILL)
                if products is None:
                    yield None
                    continue
                child = Item(name, item.kind, item.path, index, member.size, products=products)
                yield _with_payload(member, child, container.max_bytes)
    except _ARCHIVE_ERRORS as error:
        raise BrokenContainer(f"archive cannot be read to its end ({error})") from error


def _unique_name(container: Container, name: str, taken: set[str]) -> str | None:
    """Unique name of the member in the outputs; None if it is left out or its path leads upward."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    inner = printable("/".join(parts))
    if not parts or any(is_hidden(part, container.request) for part in parts) or is_ignored(inner, container.request):
        return None
    unique, number = inner, 1
    while unique in taken:
        number += 1
        unique = f"{inner}~{number}"
    taken.add(unique)
    return f"{container.item.name}/{unique}"


def _zip_members(file: IO[bytes]) -> Iterator[_Member]:
    encrypted = Failure("encrypted", "the member is encrypted; no password can be given")
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = None if info.is_dir() else info.filename
            yield _Member(
                name, info.file_size, partial(_unzipped, archive, info), encrypted if info.flag_bits & 1 else None
            )


def _unzipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(info) as file:
            return file.read(info.file_size + 1)
    except _ARCHIVE_ERRORS as error:
        raise _DamagedMember(f"the member cannot be unpacked ({error})") from error


def _tar_members(file: IO[bytes]) -> Iterator[_Member]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for info in archive:
            yield _Member(info.name if info.isfile() else None, info.size, partial(_untarred, archive, info))


def _untarred(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    return b"" if file is None else file.read()


def _with_payload(member: _Member, child: Item, max_bytes: int) -> Item:
    """Read the bytes of a member, or set the failure."""
    failure = member.failure
    if kind_of(child.name) != "file":
        message = "an archive or a video inside an archive: unpack the outer one to label it"
        failure = Failure("nested", message, "skipped")
    elif failure is None and member.size > max_bytes:
        failure = Failure("too_large", too_many_bytes(member.size, max_bytes))
    if failure is not None:
        return replace(child, failure=failure)
    try:
        return replace(child, payload=member.read())
    except _DamagedMember as error:
        return replace(child, failure=Failure("corrupt", str(error)))


def read_member(path: str, kind: str, member: int, frame: int) -> bytes | Array:
    """Read one image of a container again: encoded bytes, or RGB pixels of a frame. Raises: BrokenContainer."""
    if kind == "video":
        return _read_frame(path, frame)
    try:
        with open_file(path) as file:
            members = _zip_members(file) if kind == "zip" else _tar_members(file)
            return next(itertools.islice(members, member, None)).read()
    except (*_ARCHIVE_ERRORS, _DamagedMember, StopIteration) as error:
        raise BrokenContainer(f"archive {path}: member {member} cannot be read ({error})") from error


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


def expected_frames(path: bytes, request: Request) -> int:
    """Approximate number of frames to sample, from the header of the video; 0 if unknown."""
    video = cv2.VideoCapture(os.fsdecode(path))
    frames, rate = video.get(cv2.CAP_PROP_FRAME_COUNT), video.get(cv2.CAP_PROP_FPS)
    video.release()
    if frames <= 0:
        return 0
    if request.per_second and rate > 0:
        return round(min(frames, frames / rate * request.per_second))
    return round(frames / request.every)


def _video(container: Container) -> Iterator[Item | None]:
    item, request = container.item, container.request
    video = cv2.VideoCapture(os.fsdecode(item.path))
    try:
        if not video.isOpened():
            raise BrokenContainer("video cannot be opened: not a format that OpenCV's FFmpeg reads")
        frame, slot, time_s = 0, 0, 0.0
        rate = video.get(cv2.CAP_PROP_FPS) or 25.0
        while video.grab():
            time_s = _time_s(video, frame, rate)
            # At most one frame per time slot, even if the frame rate varies.
            due = math.floor(time_s * request.per_second + 1e-6) if request.per_second else frame // request.every
            if due >= slot:
                slot = due + 1
                yield _frame(video, item, frame, time_s, container.wanted(item.name, frame))
            frame += 1
        _check_end(video, frame, time_s, rate)
    finally:
        video.release()


def _check_end(video: cv2.VideoCapture, frames: int, last_s: float, rate: float) -> None:
    """Compare the length with that in the header. Raises: BrokenContainer."""
    if frames == 0:
        raise BrokenContainer("no frame of the video can be decoded")
    announced = video.get(cv2.CAP_PROP_FRAME_COUNT)
    length_s, read_s = announced / rate, last_s + 1 / rate
    missing_s = length_s - read_s
    # Check both: some formats estimate the number of frames from the length, others the length from the frame rate.
    if frames < announced * (1 - _MISSING_SHARE) and missing_s > max(_MISSING_S, length_s * _MISSING_SHARE):
        raise BrokenContainer(
            f"video ends after {read_s:.1f} of {length_s:.1f} s: truncated or damaged. Earlier frames are labeled"
        )


def _time_s(video: cv2.VideoCapture, frame: int, rate: float) -> float:
    """Seconds since the start, from the timestamp if there is one."""
    stamp = video.get(cv2.CAP_PROP_POS_MSEC) / 1000.0
    return round(stamp if stamp > 0 or frame == 0 else frame / rate, 3)


def _frame(video: cv2.VideoCapture, item: Item, frame: int, time_s: float, products: int | None) -> Item | None:
    if products is None:
        return None
    child = Item(item.name, "video", item.path, None, item.size, frame, time_s, products, sha256=item.sha256)
    read, pixels = video.retrieve()
    if not read:
        return replace(child, failure=Failure("corrupt", f"frame {frame} cannot be decoded"))
    return replace(child, pixels=cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
