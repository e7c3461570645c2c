"""Reproducible collection of malicious files that could crash, stall or exhaust a decoder."""

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from PIL import Image

from tests.support import encoded, gradient_image

_SMALL: Final = Image.fromarray(gradient_image(96, 64))
_PNG: Final = encoded(gradient_image(64, 64))
_JPEG: Final = encoded(gradient_image(64, 64), "JPEG")
_ORIENTATION, _WIDTH_RESOLUTION, _MANY = 274, 282, 2_000_000


def corpus() -> Iterator[tuple[str, bytes]]:
    """Names and contents of at least 500 files: valid ones, their damaged copies, and those made to be costly."""
    rng = random.Random(2026)  # noqa: S311  # reproducible
    for name, payload in _valid():
        yield name, payload
        for number in range(12):
            broken = bytearray(payload)
            # two thirds of the damage is in the header with its sizes and offsets
            reach = min(len(broken), 64) if number % 3 else len(broken)
            for _ in range(1 + number // 2):
                broken[rng.randrange(reach)] ^= 1 << rng.randrange(8)
            yield f"{name} flipped {number}", bytes(broken)
    yield from _bombs().items()
    yield from ((f"metadata: {name}", write(1)) for name, write in METADATA.items())


def _valid() -> Iterator[tuple[str, bytes]]:
    """A small image in every supported format and mode, in extreme shapes, and as an animation."""
    kinds = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")
    animated = {"save_all": True, "append_images": [_SMALL.rotate(angle) for angle in range(0, 360, 6)]}
    variants: list[tuple[str, str, dict[str, Any]]] = [
        *((kind, "RGB", {}) for kind in kinds),
        *((kind, "RGB", animated) for kind in ("GIF", "WEBP", "PNG")),
        ("JPEG", "RGB", {"progressive": True}), ("JPEG", "CMYK", {}), ("PNG", "I;16", {}), ("PNG", "RGBA", {}),
        ("PNG", "P", {"transparency": 3}), ("PNG", "1", {}), ("WEBP", "RGBA", {"lossless": True}), ("TIFF", "F", {}),
        ("TIFF", "CMYK", {"compression": "tiff_lzw"}),
    ]  # fmt: skip
    for kind, mode, options in variants:
        image = _SMALL.convert("L") if mode == "I;16" else _SMALL
        yield f"{kind} {mode} {options.keys()}", encoded(image.convert(mode), kind, **options)
    for size in ((1, 1), (20_000, 1), (1, 20_000)):
        for kind in kinds:
            if kind != "WEBP" or size == (1, 1):  # limited to 16383 pixels per side
                yield f"{kind} {size}", encoded(_SMALL.resize(size), kind)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *extra: bytes, depth: int = 1, color: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    parts = (b"\x89PNG\r\n\x1a\n", png_chunk(b"IHDR", head), *extra, png_chunk(b"IDAT", data), png_chunk(b"IEND", b""))
    return b"".join(parts)


def _bombs() -> dict[str, bytes]:
    """Decompression bombs: above and just below every limit, and in metadata."""
    texts = {b"zTXt": b"Comment\0\0", b"iCCP": b"profile\0\0", b"iTXt": b"Comment\0\1\0\0\0"}
    looped = struct.pack("<HHHII", 2, 256, 3, 1, 50) + struct.pack("<HHIII", 257, 3, 1, 50, 8)
    lost = b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(range(256))
    many = zlib.compress(bytes(300 << 20))
    return {
        "PNG 7000x7000": png(7000, 7000, zlib.compress(bytes(7000 * 876))),
        "PNG RGBA 2200x2200": png(2200, 2200, zlib.compress(bytes(2200 * 8801)), depth=8, color=6),
        "PNG with more data than pixels": png(10, 10, many),
        **{
            f"PNG with {kind!r} of 300 MB": png(100, 100, zlib.compress(bytes(1400)), png_chunk(kind, text + many))
            for kind, text in texts.items()
        },
        "WEBP 3000x3000": encoded(Image.new("RGB", (3000, 3000)), "WEBP", method=0),
        "JPEG of 91 scans": with_scans(91, 3300),  # just within the limit of pixels
        "TIFF that points to itself": b"II*\0\x08\0\0\0" + looped,
        "EXIF orientation 65535": encoded(_SMALL, "JPEG", orientation=65535),
        "EXIF that points nowhere": encoded(_SMALL, "JPEG", exif=lost),
    }


def with_scans(count: int, side: int = 64) -> bytes:
    """A progressive JPEG of one gray whose last scan, of a few bytes, is repeated until there are `count`."""
    whole = encoded(Image.new("L", (side, side), 90), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * (1 + count - whole.count(b"\xff\xda")) + whole[-2:]


def flooded(kind: str, parts: int) -> bytes:
    """An image of 64x64 pixels with many comments, text chunks, blocks or tags."""
    image = b"" if kind == "TIFF" else encoded(gradient_image(64, 64), kind)
    if kind == "JPEG":
        return image[:2] + b"\xff\xfe\0\2" * parts + image[2:]
    if kind == "PNG":
        return image[:33] + png_chunk(b"tEXt", b"k\0") * parts + image[33:]
    if kind == "GIF":
        palette_end = 13 + (3 << (image[10] & 7) + 1)
        return image[:palette_end] + b"!\xfe\0" * parts + image[palette_end:]
    return b"II" + struct.pack("<HHHQQ", 43, 8, 0, 16, parts) + struct.pack("<HHQQ", 256, 1, 1, 64) * parts


def _header(*tags: int, values: int) -> bytes:
    """A TIFF or EXIF header of 64x64 pixels with tags of so many rational numbers, which all lie at one place."""
    sizes = struct.pack("<HHII", 256, 3, 1, 64) + struct.pack("<HHII", 257, 3, 1, 64)
    entries = sizes + b"".join(struct.pack("<HHII", tag, 5, values, 200) for tag in tags)
    head = b"II*\0\x08\0\0\0" + struct.pack("<H", 2 + len(tags)) + entries
    return head.ljust(200, b"\0") + b"\1\0\0\0" * 2 * values


def _with_exif(exif: bytes) -> bytes:
    """A JPEG with EXIF in as many segments as it takes."""
    parts = [b"Exif\0\0" + exif[start : start + 65_000] for start in range(0, len(exif), 65_000)]
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts)
    return b"\xff\xd8" + segments + _JPEG[2:]


# About 20 MB each, the limit of the service, or so many times as much
METADATA: Final[dict[str, Callable[[int], bytes]]] = {
    "fill bytes": lambda n: b"\xff\xd8" + b"\xff" * (19_500_000 * n) + _JPEG[2:],
    "escaped fill bytes": lambda n: b"\xff\xd8" + b"\xff\0" * (9_700_000 * n) + _JPEG[2:],
    "orientation at the end": lambda n: (
        _PNG[:-12] + png_chunk(b"eXIf", _header(_ORIENTATION, values=_MANY * n)) + _PNG[-12:]
    ),
    "orientation of a WebP": lambda n: encoded(gradient_image(), "WEBP", exif=_header(_ORIENTATION, values=_MANY * n)),
    "orientation in segments": lambda n: _with_exif(_header(_ORIENTATION, _WIDTH_RESOLUTION, values=_MANY * n)),
    "resolution of a TIFF": lambda n: _header(_WIDTH_RESOLUTION, 283, values=_MANY * n),
    "overlapping tags": lambda n: _header(*range(30_000, 32_000), values=_MANY * n),
    "comments": lambda n: flooded("JPEG", 4_800_000 * n),
    "chunks": lambda n: flooded("PNG", 1_300_000 * n),
    "blocks": lambda n: flooded("GIF", 6_000_000 * n),
    "tags": lambda n: flooded("TIFF", 900_000 * n),
}
