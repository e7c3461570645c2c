"""Images of an archive or a video, in the order of the file.

A container is read sequentially by one thread, because compressed archives and videos have no efficient random access.
Images labeled by an earlier run are skipped without decompressing or decoding them, if the format allows.
"""

import contextlib
import hashlib
import io
import itertools
import logging
import lzma
import math
import os.path
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Final

from PIL import Image

from mien.app.inference.video import Cuts, NoVideo, Video, VideoError, VideoFrame
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.reading import (
    failure_of,
    is_hidden,
    is_ignored,
    is_packed,
    kind_of,
    local_file,
    may_have_frames,
    open_file,
    too_many_bytes,
)
from mien.app.labeling.records import Failure, Input, Status
from mien.app.labeling.scan import printable
from mien.app.settings import InferenceSettings
from mien.app.wording import counted
from mien.data.contract import Array, DecodeError
from mien.data.contract.decode import upright_rgb
from mien.data.contract.levels import narrow_levels
from mien.data.errors import MienError

IsDone = Callable[[Input], bool]
_log: Final = logging.getLogger(__name__)

# About a million members; a member takes ten times as much memory as its entry in this list.
MAX_DIRECTORY_BYTES: Final = 100_000_000
Image.MAX_IMAGE_PIXELS = None  # `max_pixels` replaces Pillow's own limit
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
_PAGED: Final = ("TIFF", "GIF", "WEBP", "PNG", "AVIF")
_FRAME_MS: Final = 100.0  # of a frame without a duration, as browsers show it
_LIVE_PHOTO_S: Final = 5.0
_SCENE_S: Final = 0.6  # from one scene to the next, with `--scenes`
_ENCRYPTED: Final = Failure("encrypted", "the member is encrypted; no password can be given")
_UTF8_FLAG: Final = 0x800
_DOS: Final = (0, 10, 14)  # FAT, NTFS and VFAT, as the systems that made an archive
_UNICODE_PATH: Final = 0x7075  # of Info-ZIP
_EXTRA: Final = struct.Struct("<HH")
_SPECIAL: Final = Failure("special_file", "a pipe or device in an archive", "skipped")


class ContainerError(MienError):
    """A container that cannot be read to its end, or has nothing to label."""

    def __init__(self, message: str, reason: str = "corrupt", status: Status = "error") -> None:
        super().__init__(message)
        self.failure = Failure(reason, message, status)


@dataclass(frozen=True, slots=True)
class _Member:
    """A file in an archive."""

    name: str
    size: int
    read: Callable[[], bytes]
    failure: Failure | None = None
    decoded: bool = True  # whether the encoding of its name is known


def open_container(
    container: Input, path: bytes, options: LabelOptions, limits: InferenceSettings, is_done: IsDone
) -> Iterator[tuple[Input, bool]]:
    """Images of the container at a local path, and whether they are done; these are not decompressed.

    Raises: ContainerError, OSError.
    """
    if not os.path.getsize(path):
        raise ContainerError("empty file: no bytes to read", "empty")
    if container.kind == "video":
        return _frames(container, path, options, is_done)
    if container.kind == "pages":
        return _pages(replace(container, parent=container.row, row=None), path, limits.max_pixels, is_done)
    return _images(container, path, options, limits, is_done)


def _images(
    container: Input, path: bytes, options: LabelOptions, limits: InferenceSettings, is_done: IsDone
) -> Iterator[tuple[Input, bool]]:
    names, unknown = set[str](), 0
    try:
        with open_file(path) as file:
            for index, member in enumerate(_members(file, container.kind, options.zip_encoding)):
                name = _name_of(member.name, options) if member else None
                if member is None or name is None:
                    continue
                unique, number, (stem, suffix) = name, 1, os.path.splitext(name)
                while unique in names:
                    number += 1
                    unique = f"{stem}~{number}{suffix}"
                names.add(unique)
                unknown += not member.decoded
                child = replace(
                    container,
                    name=f"{container.name}/{unique}",
                    size=member.size,
                    member=index,
                    parent=container.row,
                    row=None,
                    sha256="",
                )
                if is_done(child):
                    yield child, True
                    continue
                child = _with_payload(member, child, limits.max_bytes)
                paged = child.payload if child.payload and may_have_frames(unique, options) else None
                if paged is not None and page_count(io.BytesIO(paged)) > 1:
                    child = replace(child, sha256=hashlib.sha256(paged).hexdigest(), payload=None)
                    yield from _pages(child, io.BytesIO(paged), limits.max_pixels, is_done)
                else:
                    yield child, False
    except _ARCHIVE_ERRORS as error:
        raise ContainerError(f"archive cannot be read to its end ({error})") from error
    if unknown:
        message = "%s: %s in an unknown encoding. Add --zip-encoding NAME, such as cp932 or gbk."
        _log.warning(message, container.name, counted(unknown, "name"))


def _members(file: IO[bytes], kind: str, zip_encoding: str | None = None) -> Iterator[_Member | None]:
    """Members of an archive, with None for those that are not files."""
    if kind == "zip":
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                name, decoded = _zip_name(info, zip_encoding)
                read = partial(archive.read, info)
                failure = _ENCRYPTED if info.flag_bits & 1 else None
                yield None if name.endswith("/") else _Member(name, info.file_size, read, failure, decoded)
        return
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for entry in tar:
            read = partial(_extract, tar, entry)
            link = Failure("link", f"a link to {printable(entry.linkname)} in the archive", "skipped")
            failure = None if entry.isfile() else link if entry.issym() or entry.islnk() else _SPECIAL
            yield None if entry.isdir() else _Member(entry.name, entry.size, read, failure)


def _zip_name(info: zipfile.ZipInfo, encoding: str | None) -> tuple[str, bool]:
    """Name of a member with forward slashes, and whether its encoding is known.

    Without the flag for UTF-8, archivers write the encoding of their system, and do not name it. A backslash separates
    folders only in an archive of DOS or Windows, and can be half a character in a name that was not decoded.
    """
    name, decoded = info.orig_filename, True
    if not info.flag_bits & _UTF8_FLAG:
        raw = name.encode("cp437")  # as `zipfile` decoded it
        candidates = (raw.decode, "utf-8"), (_unicode_path(info.extra, raw).decode, "utf-8"), (raw.decode, encoding)
        for decode, candidate in candidates:
            with contextlib.suppress(UnicodeDecodeError):
                if candidate and (text := decode(candidate)):
                    name = text
                    break
        else:
            decoded = False
    name = name.split("\0")[0]
    return name.replace("\\", "/") if decoded and info.create_system in _DOS else name, decoded


def _unicode_path(extra: bytes, raw: bytes) -> bytes:
    """The UTF-8 name in the extra field 0x7075 of a member, if it belongs to its name; otherwise empty."""
    while len(extra) >= _EXTRA.size:
        kind, length = _EXTRA.unpack_from(extra)
        value, extra = extra[_EXTRA.size : _EXTRA.size + length], extra[_EXTRA.size + length :]
        if kind == _UNICODE_PATH and value[:5] == struct.pack("<BI", 1, zlib.crc32(raw)):
            return value[5:]
    return b""


def _check_directory(file: IO[bytes]) -> None:
    """Check the size of a zip's list of members, which `zipfile` reads as a whole. Raises: ContainerError."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # also of Zip64, which has no public reader
    if end and end[zipfile._ECD_SIZE] > MAX_DIRECTORY_BYTES:  # type: ignore[attr-defined]
        size = end[zipfile._ECD_SIZE]  # type: ignore[attr-defined]
        message = f"the archive's list of members has {size:,} bytes, the limit is {MAX_DIRECTORY_BYTES:,}"
        raise ContainerError(message, "too_large")


def _extract(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    return b"" if file is None else file.read()


def _name_of(member: str, options: LabelOptions) -> str | None:
    """Name of a member in the outputs, without parts that lead upward; None if it is left out."""
    parts = [part for part in member.split("/") if part not in ("", ".", "..")]
    name = printable("/".join(parts)).replace("\0", "\\x00")
    if not parts or any(is_hidden(part, options) for part in parts) or is_ignored(name, options):
        return None
    return name


def _with_payload(member: _Member, child: Input, max_bytes: int) -> Input:
    """Read the bytes of a member, or set the failure. Raises: TarError, EOFError, ..., if a tar file is damaged."""
    failure = member.failure
    if (kind_of(child.name) != "file" or is_packed(child.name)) and failure in (None, _ENCRYPTED):
        message = "an archive or a video inside an archive: unpack the outer one to label it"
        failure = Failure("nested", message, "skipped")
    elif failure is None and member.size > max_bytes:
        failure = Failure("too_large", too_many_bytes(member.size, max_bytes))
    if failure is not None:
        return replace(child, failure=failure)
    try:
        return replace(child, payload=member.read())
    except NotImplementedError as error:  # Deflate64, which Windows uses above 2 GB, Zstandard, PPMd
        message = f"the member cannot be unpacked ({error}): unpack the archive, or repack it with Deflate"
        return replace(child, failure=Failure("unsupported", message))
    except _ARCHIVE_ERRORS as error:
        if child.kind == "tar":  # nothing after the damage can be read
            raise
        return replace(child, failure=Failure("corrupt", f"the member cannot be unpacked ({error})"))


def read_member(image: Input) -> bytes:
    """Read one image of an archive again. Raises: ContainerError."""
    try:
        with local_file(image.path) as path, open_file(path) as file:
            members = _members(file, image.kind)  # closes a zip file when it is deleted
            member = next(itertools.islice(members, image.member, None))
            return b"" if member is None else member.read()
    except (*_ARCHIVE_ERRORS, StopIteration) as error:
        raise ContainerError(f"member {image.member} cannot be read ({error})") from error


def expected_frames(path: bytes, options: LabelOptions) -> int:
    """Approximate number of frames to sample, from the header of the video; 0 if unknown."""
    seconds, rate = _stated(path)
    seconds = max(0.0, min(seconds, options.end or seconds) - options.start)
    if options.scenes:
        return 0
    per_second = options.frames_per_s
    return round(seconds * min(per_second, rate) if per_second else seconds * rate / (options.every or 1))


def is_short(path: bytes) -> bool:
    """Return whether a video is as short as that of a Live Photo, which has three seconds."""
    return 0 < _stated(path)[0] <= _LIVE_PHOTO_S


def _stated(path: bytes) -> tuple[float, float]:
    """Seconds and frames per second, from the header of a video; 0 if unknown."""
    try:
        with Video(path) as video:
            return video.duration_s or 0.0, video.fps
    except VideoError:
        return 0.0, 0.0


@contextlib.contextmanager
def _opened(source: bytes | io.BytesIO) -> Iterator[IO[bytes]]:
    if isinstance(source, io.BytesIO):
        yield source
        return
    with local_file(source) as path, open_file(path) as file:
        yield file


def page_count(source: bytes | io.BytesIO) -> int:
    """Number of pages of a TIFF or frames of an animation, at a path or URL, or opened; 1 if it cannot be read."""
    try:
        with _opened(source) as file, Image.open(file, formats=_PAGED) as image:
            return int(getattr(image, "n_frames", 1))
    except Exception:  # noqa: BLE001  # Pillow raises anything on a damaged file, which is reported when it is labeled
        return 1


def read_page(source: bytes | io.BytesIO, page: int, max_pixels: int) -> tuple[Array, bool]:
    """One page or frame, (H, W, 3) uint8 RGB, and whether it was stretched. Raises: DecodeError, OSError."""
    with _opened(source) as file, Image.open(file, formats=_PAGED) as image:
        return _page(image, page, max_pixels)


def _page(image: Image.Image, page: int, max_pixels: int) -> tuple[Array, bool]:
    try:
        image.seek(page)
    except (EOFError, OSError, ValueError, SyntaxError) as error:
        raise DecodeError(f"page {page} cannot be read ({error})") from error
    levels = narrow_levels(image)
    return upright_rgb(image, max_pixels=max_pixels, levels=levels), levels is not None


def _pages(item: Input, source: bytes | io.BytesIO, max_pixels: int, is_done: IsDone) -> Iterator[tuple[Input, bool]]:
    """Pages of a TIFF, each opened anew because one can be damaged, or frames of an animation, in order."""
    with _opened(source) as file, Image.open(file, formats=_PAGED) as image:
        is_tiff, time_ms = image.format == "TIFF", 0.0
        for number in range(getattr(image, "n_frames", 1)):
            page = replace(item, frame=number, time_s=None if is_tiff else round(time_ms / 1000, 3))
            done = is_done(page)
            if not (done and is_tiff):
                try:
                    decoded = read_page(source, number, max_pixels) if is_tiff else _page(image, number, max_pixels)
                    pixels, is_stretched = decoded
                    page = replace(page, pixels=pixels, notes=("stretched",) if is_stretched else ())
                except (DecodeError, OSError) as error:
                    page = replace(page, failure=failure_of(error, page.name))
            yield page, done
            time_ms += image.info.get("duration") or _FRAME_MS


def _open_video(name: str, path: bytes) -> Video:
    """Open a video. Raises: ContainerError."""
    try:
        return Video(path)
    except NoVideo as error:
        raise ContainerError(str(error), "no_video", "skipped") from error
    except VideoError as error:
        if name.lower().endswith(".ts"):
            with open_file(path) as file:
                if file.read(1) != b"\x47":  # of a transport stream
                    message = "a source file of TypeScript, or another file that is not a video"
                    raise ContainerError(message, "not_an_image", "skipped") from error
        raise ContainerError(f"video {error}") from error


class _Sampling:
    """The choice of frames; `scene` is the number of cuts so far, and `slot` the next one to fill."""

    def __init__(self, options: LabelOptions) -> None:
        self._options, self._cuts = options, Cuts()
        self.scene = self.slot = 0
        self._last_s = -math.inf

    def is_due(self, frame: VideoFrame, time_s: float) -> bool:
        """Return whether to label the next frame."""
        is_cut = self._cuts.is_cut(frame)
        self.scene += is_cut
        # At most one frame per time slot, even if the frame rate varies.
        per_second = self._options.frames_per_s
        due = math.floor(time_s * per_second + 1e-6) if per_second else frame.number // (self._options.every or 1)
        if self._options.scenes:
            due = self.slot if (is_cut or not self.slot) and time_s - self._last_s >= _SCENE_S else -1
        if due < self.slot:
            return False
        self.slot, self._last_s = due + 1, time_s
        return True


def _frames(container: Input, path: bytes, options: LabelOptions, is_done: IsDone) -> Iterator[tuple[Input, bool]]:
    with _open_video(container.name, path) as video:
        sampling, frames, time_s = _Sampling(options), 0, 0.0
        try:
            for frame in video:
                frames, time_s = frame.number + 1, round(frame.time_s, 3)
                if time_s < options.start:
                    continue
                if options.end is not None and time_s >= options.end:
                    break
                if sampling.is_due(frame, time_s):
                    child = replace(container, frame=frame.number, time_s=time_s, scene=sampling.scene)
                    child = replace(child, parent=container.row, row=None)
                    done = is_done(child)
                    if not done:
                        try:
                            child = replace(child, pixels=frame.pixels())
                        except VideoError as error:
                            child = replace(child, failure=Failure("corrupt", str(error)))
                    yield child, done
            else:
                _check_end(video, frames, time_s)
        except VideoError as error:
            raise ContainerError(f"video {error}. Earlier frames are labeled") from error
    if not sampling.slot:
        last = f"the last one that was read is at {time_s:g} s"
        raise ContainerError(f"no frame between --start and --end: {last}", "outside_part", "skipped")


def _check_end(video: Video, frames: int, last_s: float) -> None:
    """Compare the length with the stated one of the video stream. Raises: ContainerError."""
    if frames == 0:
        raise ContainerError("no frame of the video can be decoded")
    if video.duration_s is None:
        return
    stated_s, read_s = video.duration_s, max(last_s, video.repeated_s) + 1 / video.fps
    # Check both: some formats estimate the number of frames from the length, others the length from the frame rate.
    lacks_frames = frames < stated_s * video.fps * (1 - _MISSING_SHARE)
    if lacks_frames and stated_s - read_s > max(_MISSING_S, stated_s * _MISSING_SHARE):
        raise ContainerError(
            f"video ends after {read_s:.1f} of {stated_s:.1f} s: truncated or damaged. Earlier frames are labeled"
        )
