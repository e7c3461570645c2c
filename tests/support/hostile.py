"""Reproducible collection of malicious files that could crash, stall or exhaust a decoder."""

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from PIL import Image

from mien.data.contract import Array
from tests.support import encoded, gradient_image

SEED: Final = 2026
_SMALL: Final = gradient_image(96, 64)
_PNG: Final = encoded(gradient_image(64, 64))
_JPEG: Final = encoded(gradient_image(64, 64), "JPEG")
_ORIENTATION, _WIDTH_RESOLUTION, _MANY = 274, 282, 2_000_000


class Hostile(NamedTuple):
    """A file, its defect, and its declared media type."""

    name: str
    payload: bytes
    kind: str = "image/jpeg"


def corpus() -> Iterator[Hostile]:
    """All files, at least 500."""
    valid = dict(_valid())
    rng = random.Random(SEED)  # noqa: S311  # reproducible
    for name, payload in valid.items():
        yield Hostile(f"valid {name}", payload)
        for step in range(0, 10, 3):
            end = len(payload) * step // 10 if step else min(4, len(payload))
            yield Hostile(f"{name} cut {step} at {end}", payload[:end])
        for number in range(9):
            broken = bytearray(payload)
            # two thirds of the damage is in the header with its sizes and offsets
            reach = min(len(broken), 64) if number % 3 else len(broken)
            for _ in range(1 + number // 2):
                broken[rng.randrange(reach)] ^= 1 << rng.randrange(8)
            yield Hostile(f"{name} flipped {number}", bytes(broken))
        if " " not in name:
            yield Hostile(f"{name} with an archive after it", payload + b"PK\x05\x06" + bytes(18))
            yield Hostile(f"a page before {name}", b"<html><script>alert(1)</script></html>" + payload)
            yield Hostile(f"{name} as SVG", payload, "image/svg+xml")
            yield Hostile(f"noise after the head of {name}", payload[:12] + rng.randbytes(2000))
    yield from _bombs()
    yield Hostile("nothing but zeros", b"\0" * 5000)
    drawing = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield Hostile("SVG that reads a file", drawing, "image/svg+xml")
    yield Hostile("EPS with a program", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id)(r)file\n")
    yield Hostile("EXIF orientation 65535", encoded(_SMALL, "JPEG", orientation=65535))
    lost = b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(range(256))
    yield Hostile("EXIF that points nowhere", encoded(_SMALL, "JPEG", exif=lost))


def _valid() -> Iterator[tuple[str, bytes]]:
    """A small image in every supported format and mode, and in extreme shapes."""
    rgb = Image.fromarray(_SMALL)
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF"):
        yield kind, encoded(rgb, kind)
        for size in ((1, 1), (20_000, 1), (1, 20_000)):
            if kind != "WEBP" or size == (1, 1):  # limited to 16383 pixels per side
                yield f"{kind} {size}", encoded(rgb.resize(size), kind)
    deep: Array = np.asarray(rgb.convert("L")).astype(np.uint16) * 257
    yield "PNG 16 bit", encoded(deep)
    yield "TIFF float", encoded(Image.fromarray(deep.astype(np.float32) / 65535), "TIFF")
    for kind, mode, options in (
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        ("PNG", "RGBA", {}),
        ("PNG", "P", {"transparency": 3}),
        ("PNG", "1", {}),
        ("TIFF", "CMYK", {"compression": "tiff_lzw"}),
        ("WEBP", "RGBA", {"lossless": True}),
    ):
        yield f"{kind} {mode}", encoded(rgb.convert(mode), kind, **options)
    frames = [rgb.rotate(angle) for angle in range(0, 360, 6)]
    for kind in ("GIF", "WEBP", "PNG"):
        yield f"{kind} animated", encoded(rgb, kind, save_all=True, append_images=frames)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *extra: bytes, depth: int = 1, color: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    parts = (b"\x89PNG\r\n\x1a\n", png_chunk(b"IHDR", head), *extra, png_chunk(b"IDAT", data), png_chunk(b"IEND", b""))
    return b"".join(parts)


@cache
def _zeros(count: int) -> bytes:
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(count >> 20)]
    return b"".join([*parts, packer.compress(bytes(count & 0xFFFFF)), packer.flush()])


def _bombs() -> Iterator[Hostile]:
    """Decompression bombs: above and just below every limit, and in metadata."""
    row = 7000 // 8 + 1
    yield Hostile("PNG 30000x30000 black", png(30_000, 30_000, _zeros(30_000 * 3751)), "image/png")
    yield Hostile("PNG 7000x7000 black", png(7000, 7000, _zeros(7000 * row)), "image/png")
    yield Hostile("PNG RGBA 2200x2200", png(2200, 2200, _zeros(2200 * 8801), depth=8, color=6), "image/png")
    yield Hostile("PNG with more data than pixels", png(10, 10, _zeros(200 << 20)), "image/png")
    black = _zeros(100 * 14)
    for kind, data in ((b"zTXt", b"Comment\0\0"), (b"iCCP", b"profile\0\0"), (b"iTXt", b"Comment\0\1\0\0\0")):
        bomb = png_chunk(kind, data + _zeros(300 << 20))
        yield Hostile(f"PNG {kind.decode()} of 300 MB", png(100, 100, black, bomb), "image/png")
    yield Hostile("PNG of 1400000 IDAT", png(100, 100, black, png_chunk(b"IDAT", b"") * 1_400_000), "image/png")
    for compression in ("tiff_deflate", "tiff_lzw", "packbits"):
        image = Image.new("1", (7000, 7000))
        yield Hostile(f"TIFF 7000x7000 {compression}", encoded(image, "TIFF", compression=compression), "image/tiff")
    yield Hostile("GIF 7000x7000", encoded(Image.new("P", (7000, 7000)), "GIF"), "image/gif")
    yield Hostile("WEBP 3000x3000", encoded(Image.new("RGB", (3000, 3000)), "WEBP", method=0), "image/webp")
    yield Hostile("JPEG 7000x7000", encoded(Image.new("L", (7000, 7000)), "JPEG"))
    yield Hostile("JPEG of 3000 scans", with_scans(3000, 2000))
    yield Hostile("JPEG of 91 scans", with_scans(91, 3300))  # just within the limit of pixels
    for kind, parts in (("JPEG", 4_900_000), ("PNG", 1_400_000), ("GIF", 6_000_000), ("TIFF", 900_000)):
        yield Hostile(f"{kind} of {parts} comments", flooded(kind, parts), f"image/{kind.lower()}")
    tables = (b"\xff\xdb\0\x43\0" + b"\1" * 64) * 280_000
    yield Hostile("JPEG of 280000 tables", _JPEG[:2] + tables + _JPEG[2:])
    still = Image.new("P", (64, 64))
    many_frames = [still.rotate(number) for number in range(800)]
    yield Hostile("GIF of 800 frames", encoded(still, "GIF", save_all=True, append_images=many_frames), "image/gif")
    looped = struct.pack("<HHHII", 2, 256, 3, 1, 50) + struct.pack("<HHIII", 257, 3, 1, 50, 8)
    yield Hostile("TIFF that points to itself", b"II*\0\x08\0\0\0" + looped, "image/tiff")
    yield Hostile("TIFF of 60000 tags", b"II*\0\x08\0\0\0" + struct.pack("<H", 60_000) + bytes(12 * 60_000))


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
