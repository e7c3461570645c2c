"""Videos that were cut off or whose frame rate varies, made from an MP4 of OpenCV's by changing its index.

An MP4 file is a tree of boxes: 4 bytes of size, 4 of kind, then the payload. `moov` is the index: in it, `stts` holds
the durations of frames and `stco` where chunks of them are in the file.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2

from tests.albums import SIDE_PX, face_photo

Change = Callable[[bytes, bytes], bytes]
_BRANCHES = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def write_mp4(path: Path, *, frames: int, rate: float = 10.0, codec: str = "mp4v") -> Path:
    """A video of the sample portrait; MP4 or, by its name, Matroska."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), rate, (SIDE_PX, SIDE_PX))
    assert writer.isOpened()
    for number in range(frames):
        writer.write(cv2.cvtColor(face_photo(variant=number % 30), cv2.COLOR_RGB2BGR))
    writer.release()
    return path


def with_durations(path: Path, durations: Sequence[float]) -> None:
    """Give each frame of an MP4 its own duration, as shares of the present one."""

    def change(kind: bytes, payload: bytes) -> bytes:
        if kind != b"stts":
            return payload
        (ticks,) = struct.unpack(">I", payload[12:16])
        entries = [(1, round(ticks * share)) for share in durations]
        return payload[:4] + struct.pack(">I", len(entries)) + b"".join(struct.pack(">II", *one) for one in entries)

    path.write_bytes(_changed(path.read_bytes(), change))


def with_index_first(path: Path) -> None:
    """Move the index of an MP4 to its start, as for streaming, so that a truncated file loses only frames."""
    boxes = dict(_boxes(path.read_bytes()))
    moved = len(_box(b"moov", boxes[b"moov"]))

    def change(kind: bytes, payload: bytes) -> bytes:
        if kind != b"stco":
            return payload
        places = struct.unpack(f">{len(payload) // 4 - 2}I", payload[8:])
        return payload[:8] + struct.pack(f">{len(places)}I", *(place + moved for place in places))

    order = (b"ftyp", b"moov", *(kind for kind in boxes if kind not in (b"ftyp", b"moov")))
    index = _changed(_box(b"moov", boxes[b"moov"]), change)
    path.write_bytes(b"".join(index if kind == b"moov" else _box(kind, boxes[kind]) for kind in order))


def _boxes(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    while payload:
        size, kind = struct.unpack(">I4s", payload[:8])
        yield kind, payload[8:size]
        payload = payload[size:]


def _box(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", len(payload) + 8, kind) + payload


def _changed(payload: bytes, change: Change) -> bytes:
    return b"".join(
        _box(kind, _changed(inner, change) if kind in _BRANCHES else change(kind, inner))
        for kind, inner in _boxes(payload)
    )
