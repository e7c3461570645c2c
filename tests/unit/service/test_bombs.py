"""Small files of large pictures are refused, and pixels of all threads together are bounded."""

import threading

import numpy as np
import pytest

from app.bombs import MOST_SCANS, PixelBudget, check
from data.contract import DecodeError, ImageTooLarge, UnsupportedImage
from tests.support import encoded, picture

LIMIT = 50_000_000


def test_a_large_black_picture_is_refused_and_a_small_one_is_not() -> None:
    with pytest.raises(ImageTooLarge, match="3000x2000"):
        check(encoded(np.zeros((2000, 3000, 3), np.uint8)), max_pixels=LIMIT)
    assert check(encoded(np.zeros((1000, 2000, 3), np.uint8)), max_pixels=LIMIT) == 2_000_000


def test_a_large_picture_with_bytes_in_proportion_passes() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2000, 3000, 3), dtype=np.uint8)
    assert check(encoded(noise, "JPEG", quality=30), max_pixels=LIMIT) == 6_000_000


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    photo = encoded(picture(64, 64), "JPEG", progressive=True)
    assert check(photo, max_pixels=LIMIT) == 64 * 64
    with pytest.raises(DecodeError, match="scans"):
        check(photo[:-2] + b"\xff\xda\0\0" * MOST_SCANS + photo[-2:], max_pixels=LIMIT)


def test_what_is_no_picture_or_above_the_limit_is_refused_first() -> None:
    with pytest.raises(UnsupportedImage):
        check(b"no picture", max_pixels=LIMIT)
    with pytest.raises(ImageTooLarge):
        check(encoded(picture(200, 200)), max_pixels=1000)


def test_threads_wait_until_there_is_room_for_their_pixels() -> None:
    budget = PixelBudget(100)
    came_in = threading.Event()

    def later() -> None:
        with budget.hold(60):
            came_in.set()

    with budget.hold(50):
        thread = threading.Thread(target=later)
        thread.start()
        assert not came_in.wait(0.05)
        with budget.hold(50):
            pass
    assert came_in.wait(10)
    thread.join()


def test_a_picture_larger_than_the_whole_budget_is_let_in_alone() -> None:
    with PixelBudget(100).hold(1000):
        pass
