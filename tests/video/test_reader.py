"""Decoding of videos as cameras, phones and broadcasts make them; the clips are made by FFmpeg."""

from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.app.video.reader import Video, samples
from mien.app.video.writer import VideoWriter
from mien.data.contract import Array
from tests.support.albums import ffmpeg, write_video

QUARTERS = np.array([[40, 90], [140, 200]], np.uint8)  # gray levels of a picture's four quarters


def clip(path: Path, *options: str, picture: Array = QUARTERS, seconds: float = 1.0) -> Path:
    still = path.with_suffix(".png")
    cv2.imwrite(str(still), cv2.resize(picture, (320, 240), interpolation=cv2.INTER_NEAREST))
    ffmpeg("-loop", "1", "-framerate", "25", "-t", str(seconds), "-i", still, "-pix_fmt", "yuv420p", *options, path)
    return path


def quarters_of(path: Path, *, size: tuple[int, int] = (320, 240)) -> Array:
    """Gray levels of the four quarters of the first frame, which has this size."""
    with Video(str(path)) as video:
        pixels = next(iter(video)).pixels()
    height, width = pixels.shape[:2]
    assert (width, height) == size
    return cv2.resize(pixels, (2, 2), interpolation=cv2.INTER_AREA).mean(axis=2)


def test_of_two_fields_one_moment_is_shown_and_pixels_that_are_not_square_are_stretched(tmp_path: Path) -> None:
    lines = np.tile(np.array([[60], [220]], np.uint8), (120, 320))
    # stored as interlaced without compression of chroma or detail
    path = clip(tmp_path / "field.mkv", "-c:v", "ffv1", "-field_order", "tt", "-vf", "setfield=tff", picture=lines)
    assert quarters_of(path) == pytest.approx(60, abs=4)
    path = clip(tmp_path / "anamorphic.mp4", "-vf", "setsar=16/9")
    assert quarters_of(path, size=(569, 240)) == pytest.approx(QUARTERS, abs=6)


def test_rotated_and_mirrored_videos_are_upright(tmp_path: Path) -> None:
    plain, turned = clip(tmp_path / "plain.mp4", seconds=0.2), tmp_path / "turned.mp4"
    for stored, expected in (
        ("-display_hflip", QUARTERS[:, ::-1]),
        ("-display_rotation 180", QUARTERS[::-1, ::-1]),
        ("-display_rotation -90", np.rot90(QUARTERS, -1)),  # clockwise, as phones held upright write
        ("-display_rotation 90 -display_hflip", np.rot90(QUARTERS)[:, ::-1]),
    ):
        ffmpeg(*stored.split(), "-i", plain, "-c", "copy", turned)
        assert quarters_of(turned, size=(240, 320) if "90" in stored else (320, 240)) == pytest.approx(expected, abs=6)


def test_times_start_where_a_trimmed_video_starts(tmp_path: Path) -> None:
    whole = clip(tmp_path / "whole.mp4", "-g", "25", seconds=4)
    trimmed = tmp_path / "trimmed.mp4"
    ffmpeg("-ss", "1.5", "-i", whole, "-c", "copy", trimmed)
    with Video(str(trimmed)) as video:
        found = [frame.time_s for frame in video]
    assert found[0] == pytest.approx(0.0, abs=0.05)
    assert found[-1] == pytest.approx(2.5 - 0.04, abs=0.06)
    np.testing.assert_allclose(np.diff(found), 0.04, atol=0.002)


def test_a_written_video_keeps_colors_and_uneven_times_and_fits_other_sizes(tmp_path: Path) -> None:
    red, times_s = np.full((48, 64, 3), (200, 0, 0), np.uint8), [0.0, 0.01, 0.5, 0.55, 2.0]
    with closing(VideoWriter(tmp_path / "12:30.mp4")) as writer:  # not the URL of a protocol
        for number, time_s in enumerate(times_s):
            writer.add(np.repeat(red, 1 + (number == 3), axis=0), time_s)
        writer.add(red, times_s[-1])  # of a clock that stands still
    with Video(str(tmp_path / "12:30.mp4")) as video:
        frames = [(frame.time_s, frame.pixels()) for frame in video]
    assert [time_s for time_s, _ in frames] == pytest.approx([*times_s, times_s[-1]], abs=0.001)
    for _, pixels in frames:
        assert pixels.shape == red.shape
        assert pixels.mean(axis=(0, 1)) == pytest.approx([200, 0, 0], abs=12)


@pytest.mark.parametrize(
    ("transfer", "shown"), [("arib-std-b67", [[121, 168], [201, 245]]), ("smpte2084", [[133, 245], [204, 255]])]
)
def test_hdr_is_toned_down(tmp_path: Path, transfer: str, shown: list[list[int]]) -> None:
    """Blue, green and red signals of four quarters, and their mean gray levels by the formulas of ITU-R BT.2100."""
    signals = np.array([[(90, 110, 120), (147, 147, 147)], [(128, 180, 190), (189, 189, 189)]], np.uint8)
    codec = ("-pix_fmt", "yuv420p10le", "-c:v", "libx265", "-x265-params", "log-level=error:crf=4")
    marks = f"scale=out_color_matrix=bt2020,setparams=color_trc={transfer}"
    path = clip(tmp_path / "hdr.mp4", "-vf", marks, *codec, picture=signals)
    assert quarters_of(path) == pytest.approx(np.array(shown), abs=2)


def test_a_sample_stands_until_the_next_one_a_cut_or_the_end(tmp_path: Path) -> None:
    path = bytes(clip(tmp_path / "a.mp4", seconds=4.56))
    for per_second, end_s, ends in ((0.25, None, [4.0, 4.56]), (0.25, 9.0, [4.0, 4.56]), (2.0, 1.2, [0.52, 1.0, 1.2])):
        found = list(samples(path, per_second=per_second, end_s=end_s))
        assert [sample.until_s for sample in found] == pytest.approx(ends, abs=0.005)
    dark, bright = (np.full((64, 64, 3), level, np.uint8) for level in (20, 220))
    path = write_video(tmp_path / "a.mp4", images=[dark] * 6 + [bright] * 6, rate=8.0)
    first, second = samples(bytes(path), per_second=1.0)
    assert (first.until_s, second.time_s, second.scene) == (0.75, 1.0, 1)
