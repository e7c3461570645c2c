"""YuNet's graph with a dynamic input size.

YuNet is published for images of 640x640 px, but only the declared shapes require that size. They are edited in the
serialized model, because serving does not need the `onnx` package otherwise; the file is pinned by its hash.
"""

from pathlib import Path
from typing import Final

_SIZES: Final = (20, 40, 80, 160, 320, 640, 400, 1600, 6400)  # declared heights, widths and numbers of cells
_DIM, _VALUE, _DENOTATION = 0x0A, 0x08, 0x1A  # protobuf tags of a dimension, of its size, and of its comment


def dynamic_graph(path: Path) -> bytes:
    """Return the model with unknown sizes instead of the declared ones."""
    model = path.read_bytes()
    for size in _SIZES:
        varint = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
        comment = b"-" * (len(varint) - 1)  # of the same length, because messages contain their lengths
        head = bytes([_DIM, 1 + len(varint)])
        model = model.replace(head + bytes([_VALUE]) + varint, head + bytes([_DENOTATION, len(comment)]) + comment)
    return model
