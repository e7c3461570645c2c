"""Decoding of all supported formats to upright RGB pixels, and of damaged files."""

import struct
from contextlib import nullcontext
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from mien.data.contract import Array, DecodeError, ImageTooLarge, UnsupportedImage, decode
from mien.data.contract import pixels as module
from mien.data.contract.pixels import MAX_PIXELS, Probe, open_image, probe
from tests.support import encoded, gradient_image
from tests.support.hostile import png, png_chunk

FORMATS: dict[str, dict[str, Any]] = {name: {} for name in ("PNG", "TIFF", "BMP", "PPM", "JPEG2000", "GIF")}
FORMATS |= {"WEBP": {"lossless": True}, "JPEG": {"quality": 98, "subsampling": 0}}
LOSS = {"JPEG": 8, "GIF": 60}  # levels; the others are lossless


def four_colors() -> Array:
    """40x60 image with one color per quarter, which distinguishes all rotations and reflections."""
    image = np.zeros((40, 60, 3), np.uint8)
    image[:20, :30], image[:20, 30:] = (250, 10, 10), (10, 240, 10)
    image[20:, :30], image[20:, 30:] = (10, 10, 250), (240, 230, 20)
    return image


def _worst(found: Array, wanted: Array) -> int:
    assert found.shape == wanted.shape
    return int(cv2.absdiff(found, wanted).max())


def probed(payload: bytes, *, max_pixels: int = MAX_PIXELS) -> Probe:
    with open_image(payload, max_pixels) as image:
        return probe(image, payload, max_pixels=max_pixels)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "compressed TIFF", "PNG, at its end", "XMP"])
def test_a_rotated_image_is_decoded_upright(kind: str) -> None:
    for orientation in range(1, 9):
        stored = Image.fromarray(four_colors())
        stored.getexif()[0x0112] = orientation
        upright, exif = np.asarray(ImageOps.exif_transpose(stored)), stored.getexif().tobytes()
        if kind == "compressed TIFF":
            payload = encoded(stored, "TIFF", exif=exif, compression="tiff_lzw")
        elif kind == "XMP":
            xmp = f'<x tiff:Orientation="{orientation}"/>'.encode()
            payload = encoded(four_colors(), "WEBP", lossless=True, xmp=xmp)
        elif kind == "PNG, at its end":
            whole = encoded(four_colors())
            payload = whole[:-12] + png_chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")) + whole[-12:]
        else:
            payload = encoded(stored, kind, exif=exif, **FORMATS[kind])
        assert _worst(decode(payload), upright) <= 8, orientation
        seen = probed(payload)
        assert (seen.height, seen.width, 3) == upright.shape
    assert decode(encoded(four_colors(), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")).shape == (40, 60, 3), "if damaged"


def test_transparent_pixels_lie_on_white() -> None:
    colors = np.dstack([np.full((2, 1, 3), (200, 0, 100), np.uint8), np.array([[[0]], [[128]]], np.uint8)])
    assert np.abs(decode(encoded(colors))[:, 0].astype(int) - [(255, 255, 255), (227, 127, 177)]).max() <= 1
    palette = Image.fromarray(four_colors()).quantize(4)
    for image, kind, clear in (
        (palette, "PNG", int(np.asarray(palette)[0, 0])),
        (palette, "GIF", int(np.asarray(palette)[0, 0])),
        (four_colors(), "PNG", (250, 10, 10)),
    ):
        pixels = decode(encoded(image, kind, transparency=clear))
        assert pixels[0, 0].tolist() == [255, 255, 255]
        assert _worst(pixels[20:], four_colors()[20:]) <= 8


@pytest.mark.parametrize(
    ("kind", "values", "levels"),
    [
        ("PNG", np.uint16([0, 128, 129, 385, 386, 65406, 65407, 65535]), [0, 0, 1, 1, 2, 254, 255, 255]),
        ("TIFF", np.float32([-3.0, 0.0, 0.5, 1.0, 7.0, np.nan]), [0, 0, 128, 255, 255, 0]),
        ("TIFF", np.int32([7, 65535, -9, 70_000]), [0, 255, 0, 255]),
    ],
)
def test_sixteen_bits_and_floats_from_zero_to_one_become_the_nearest_level(
    kind: str, values: Array, levels: list[int]
) -> None:
    assert decode(encoded(values[None], kind))[0, :, 0].tolist() == levels


def test_a_phones_jpeg_with_a_second_image_is_a_jpeg() -> None:
    photo = Image.fromarray(gradient_image(1200, 800))
    payload = encoded(photo, "MPO", save_all=True, append_images=[photo.resize((60, 40))])
    assert probed(payload).format == "JPEG"
    assert decode(payload, reduce_to_px=300).shape == (200, 300, 3)


@pytest.mark.parametrize(("at_least_px", "size"), [(None, 1600), (801, 1600), (800, 800), (1, 200)])
def test_a_jpeg_is_reduced_no_further_than_asked(at_least_px: int | None, size: int) -> None:
    for orientation, shape in ((1, (size * 3 // 4, size, 3)), (6, (size, size * 3 // 4, 3))):
        payload = encoded(np.zeros((1200, 1600, 3), np.uint8), "JPEG", orientation=orientation)
        assert decode(payload, reduce_to_px=at_least_px).shape == shape


NOISE = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
DEEP = NOISE.astype(np.uint16) * 16
PLANAR, PLANAR_8 = (  # by their tag
    cv2.imencode(".tif", pixels, [cv2.IMWRITE_TIFF_COMPRESSION, 1])[1].tobytes()
    .replace(struct.pack("<HHII", 284, 3, 1, 1), struct.pack("<HHII", 284, 3, 1, 2))
    for pixels in (DEEP, NOISE)
)  # fmt: skip
WHOLE: dict[str, bytes] = {kind: encoded(NOISE, kind, **options) for kind, options in FORMATS.items()} | {
    "deep gray TIFF": encoded(DEEP[..., 0], "TIFF"),
    "deep PNG": cv2.imencode(".png", DEEP)[1].tobytes(),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_truncated_file_is_an_error_at_every_length(kind: str) -> None:
    payload = WHOLE[kind]
    whole = decode(payload)
    for length in range(0, len(payload) - 40, max(1, len(payload) // 60)):
        with pytest.raises(DecodeError):
            decode(payload[:length])
    for length in range(len(payload) - 40, len(payload)):  # trailers may be gone when every pixel is there
        try:
            pixels = decode(payload[:length])
        except DecodeError:
            continue
        assert np.array_equal(pixels, whole)
    tall = encoded(NOISE.repeat(5, 0), "JPEG")
    for share, outcome in ((0.55, nullcontext()), (0.45, pytest.raises(DecodeError))):  # more than a half is needed
        with outcome:
            decode(tall[: int(len(tall) * share)], incomplete=True)


def test_other_formats_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "formats", lambda: module.FORMATS)
    for payload, message in (
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "JPEG, PNG, WEBP, BMP, GIF, TIFF"),
        (b"\0" * 1000, "JPEG, PNG"),
        (b"\0\0\0\x1cftypheic\0\0\0\0mif1heic" + bytes(100), "HEIC needs the package pillow-heif"),
        (PLANAR, "a plane of 16 bits for each color"),
    ):
        with pytest.raises(UnsupportedImage, match=message):
            decode(payload)
    assert decode(PLANAR_8).shape == NOISE.shape


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_and_its_pixels_are_limited(kind: str) -> None:
    payload = encoded(gradient_image(96, 64), kind, **FORMATS[kind])
    pixels = decode(payload, max_pixels=64 * 96)
    assert _worst(pixels, gradient_image(96, 64)) <= LOSS.get(kind, 0)
    assert not pixels.flags.writeable, "a copy may be drawn on"
    for read in (decode, probed):
        with pytest.raises(ImageTooLarge, match="96x64"):
            read(payload, max_pixels=64 * 96 - 1)
    with pytest.raises(ImageTooLarge, match="9000x9000"):
        decode(png(9000, 9000, b""))  # without pixels, which would be another error
