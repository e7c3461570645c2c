"""Videos of the sample portrait, and an MP4 whose index is at its start.

An MP4 file is a list of boxes: 4 bytes of size, 4 of kind, then the payload. `moov` is the index: in it, `stco` holds
where chunks of frames are in the file.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import cv2

from tests.albums import SIDE_PX, face_photo


def write_mp4(path: Path, *, frames: int, rate: float = 10.0, codec: str = "mp4v") -> Path:
    """A video of the sample portrait; MP4 or, by its name, Matroska."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), rate, (SIDE_PX, SIDE_PX))
    assert writer.isOpened()
    for number in range(frames):
        writer.write(cv2.cvtColor(face_photo(variant=number % 30), cv2.COLOR_RGB2BGR))
    writer.release()
    return path


def with_index_first(path: Path) -> None:
    """Move the index of an MP4 to its start, as for streaming, so that a truncated file loses only frames."""
    boxes = dict(_boxes(path.read_bytes()))
    index = bytearray(boxes.pop(b"moov"))
    chunks = index.index(b"stco") + 8
    places = f">{struct.unpack_from('>I', index, chunks)[0]}I"
    moved = [place + len(index) for place in struct.unpack_from(places, index, chunks + 4)]
    struct.pack_into(places, index, chunks + 4, *moved)
    path.write_bytes(boxes.pop(b"ftyp") + index + b"".join(boxes.values()))


def _boxes(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind of each box, and the whole box."""
    while payload:
        size, kind = struct.unpack(">I4s", payload[:8])
        yield kind, payload[:size]
        payload = payload[size:]
