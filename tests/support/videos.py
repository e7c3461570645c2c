"""MP4 with its index at the start, as for streaming.

An MP4 file is a list of boxes: 4 bytes of size, 4 of kind, then the payload. `moov` is the index: in it, `stco` holds
where chunks of frames are in the file.
"""

import struct
from collections.abc import Iterator
from pathlib import Path


def with_index_first(path: Path) -> None:
    """Move the index of an MP4 to its start, so that a truncated file loses only frames."""
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
