"""Image guard: rejection of images that are costly to decode, and the pixel limit of all threads."""

import struct
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress

import numpy as np
import pytest

from mien.app.inference import guard
from mien.app.inference.guard import MAX_RATIONALS, MAX_SCANS, PixelBudget
from mien.app.inference.labeler import decode_image
from mien.app.settings import InferenceSettings
from mien.data.contract import DecodeError, ImageTooLarge, UnsupportedImage, decode
from mien.data.contract.pixels import Probe
from tests.support import encoded, gradient_image
from tests.support.hostile import METADATA, flooded, with_scans


def pixels(payload: bytes, *, max_pixels: int = 50_000_000) -> int:
    """Pixels of a sender's image that the guard admits."""
    admitted = list[Probe]()
    decode_image(payload, InferenceSettings(max_pixels=max_pixels, max_bytes=10**9), admit=admitted.append)
    return admitted[0].width * admitted[0].height


def test_a_large_black_image_is_rejected_and_formats_that_take_more_memory_have_a_lower_limit() -> None:
    with pytest.raises(ImageTooLarge, match="3000x2000"):
        pixels(encoded(np.zeros((2000, 3000, 3), np.uint8)))
    assert pixels(encoded(np.zeros((1000, 2000, 3), np.uint8))) == 2_000_000
    noise = np.random.default_rng(0).integers(0, 256, (2000, 3000, 3), dtype=np.uint8)
    assert pixels(encoded(noise, "JPEG", quality=30)) == 6_000_000, "with enough bytes per pixel"
    image = gradient_image(500, 400)
    assert pixels(encoded(image), max_pixels=200_000) == 200_000
    assert guard.memory_px(Probe("AVIF", 500, 400)) == 240_000
    with pytest.raises(ImageTooLarge, match="WEBP image of 500x400 px: the limit is 150,000 pixels"):
        pixels(encoded(image, "WEBP"), max_pixels=200_000)


def test_formats_that_take_seconds_for_few_bytes_are_not_accepted_from_senders() -> None:
    for kind in ("PPM", "JPEG2000"):
        payload = encoded(gradient_image(50, 40), kind)
        assert decode(payload).shape == (40, 50, 3)
        with pytest.raises(UnsupportedImage, match=r"format \(JPEG, PNG, WEBP, BMP, GIF, TIFF, [AVIFHE, ]*\)$"):
            pixels(payload)


def test_a_tiff_of_either_order_and_size_has_a_limit_of_values() -> None:
    for order, name in (("<", b"II"), (">", b"MM")):
        for count in (MAX_RATIONALS, MAX_RATIONALS + 1):
            classic = name + struct.pack(order + "HIHHHII", 42, 8, 1, 282, 5, count, 0)
            big = name + struct.pack(order + "HHHQQHHQQ", 43, 8, 0, 16, 1, 282, 10, count, 0)
            for payload in (classic, big):
                with pytest.raises(DecodeError, match="TIFF with a tag") if count > MAX_RATIONALS else nullcontext():
                    guard.check_header(payload)


def test_a_jpeg_with_too_many_scans_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pixels(with_scans(MAX_SCANS)) == 64 * 64
    photo = with_scans(MAX_SCANS + 1)
    second = photo.index(b"\xff\xda", photo.index(b"\xff\xda") + 2)
    disguised = photo[:second] + b"\xff\xfe\x00\x04\xff\xd9" + photo[second:]  # a comment that looks like the end
    for rejected in (photo, disguised):
        with pytest.raises(DecodeError, match=f"JPEG with {MAX_SCANS + 1} scans"):
            pixels(rejected)
    monkeypatch.setattr(guard, "MAX_SCAN_PIXELS", 50 * 64 * 64)  # they also count by the pixels they pass over
    assert pixels(with_scans(50)) == 64 * 64
    with pytest.raises(DecodeError, match="with 51 scans at 64x64 px"):
        pixels(with_scans(51))


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("attack", METADATA)
def test_metadata_that_unpacks_to_much_work_costs_little(attack: str, times: int) -> None:
    # Calls and returns measure the time on any machine: 4 million take half a second.
    payload, budget = METADATA[attack](times), iter(range(5_000_000))
    sys.setprofile(lambda *_: next(budget))
    with suppress(DecodeError):
        pixels(payload)
    sys.setprofile(None)
    assert next(budget, None) is not None
    tracemalloc.start()
    with suppress(DecodeError):
        pixels(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(payload)


def test_metadata_padding_and_videos_as_real_photos_carry_them_are_accepted() -> None:
    video = b"\0\0\0\x18ftypmp42" + b"\xff\xda\x00\x02" * 5000  # after the image, of a motion photo
    depth = (b"\xff\xe1\xff\xff" + bytes(65_533)) * 20  # in extended XMP
    for progressive in (False, True):
        photo = encoded(gradient_image(64, 64), "JPEG", progressive=progressive)
        assert pixels(photo[:2] + depth + b"\xff" * 1000 + photo[2:] + video) == 64 * 64
    baseline = encoded(gradient_image(64, 64), "JPEG")
    assert guard.check_header(baseline[:-2] + video) == 1, "decoders stop after its only scan"
    for kind in ("JPEG", "PNG", "GIF"):
        assert pixels(flooded(kind, 2000)) == 64 * 64


def test_threads_wait_until_there_is_room_for_their_pixels() -> None:
    budget = PixelBudget(100)

    def decode_alone() -> None:
        with budget.reservation() as reserve:
            reserve(1000)  # more than the whole budget

    with ThreadPoolExecutor() as pool:
        with budget.reservation() as reserve:
            reserve(1)
            alone = pool.submit(decode_alone)
            with budget.reservation() as reserve_rest:
                reserve_rest(99)
            assert not wait([alone], timeout=0.05).done
        alone.result(10)
    assert budget._free == 100, "all is given back"
