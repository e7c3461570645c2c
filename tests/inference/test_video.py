"""Decoding of videos as cameras, phones and broadcasts make them; the clips are made by FFmpeg."""

from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image

from mien.app.inference.video import Sound, Video, VideoError
from mien.app.inference.video_writer import VideoWriter
from mien.data.contract import Array

pytest.importorskip("imageio_ffmpeg")
from tests.support.videos import ffmpeg

QUARTERS = np.array([[40, 90], [140, 200]], np.uint8)  # gray levels of a picture's four quarters


def picture(path: Path, quarters: Array = QUARTERS, *, width: int = 320, height: int = 240) -> Path:
    cv2.imwrite(str(path), cv2.resize(quarters, (width, height), interpolation=cv2.INTER_NEAREST))
    return path


def clip(path: Path, *options: str, source: Path | None = None, seconds: float = 1.0) -> Path:
    still = source or picture(path.with_suffix(".png"))
    ffmpeg("-loop", "1", "-framerate", "25", "-t", str(seconds), "-i", still, "-pix_fmt", "yuv420p", *options, path)
    return path


def quarters_of(pixels: Array) -> Array:
    height, width = pixels.shape[:2]
    rows, columns = (height // 4, 3 * height // 4), (width // 4, 3 * width // 4)
    return pixels[np.ix_(rows, columns)].mean(axis=2)


def times(path: Path) -> list[float]:
    with Video(str(path)) as video:
        return [frame.time_s for frame in video]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return clip(tmp_path_factory.mktemp("plain") / "plain.mp4").read_bytes()


def with_matrix(plain: bytes, turned: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Write an MP4 with another display matrix (a, b, c, d) in its track header, whose nine numbers are 16.16."""
    payload = bytearray(plain)
    track = payload.index(b"tkhd")
    at = track + 4 + 40 if payload[track + 4] == 0 else track + 4 + 52
    a, b, c, d = matrix
    for index, value in enumerate((a, b, 0, c, d, 0)):
        payload[at + 4 * index : at + 4 * index + 4] = (value << 16).to_bytes(4, "big", signed=True)
    turned.write_bytes(payload)
    return turned


def test_of_two_fields_only_one_moment_is_shown(tmp_path: Path) -> None:
    lines = tmp_path / "lines.png"
    cv2.imwrite(str(lines), np.tile(np.array([[60], [220]], np.uint8), (120, 320)))
    # stored as interlaced without compression of chroma or detail
    path = clip(tmp_path / "field.mkv", "-c:v", "ffv1", "-field_order", "tt", "-vf", "setfield=tff", source=lines)
    with Video(str(path)) as video:
        pixels = next(iter(video)).pixels()
    assert pixels.shape == (240, 320, 3)
    assert quarters_of(pixels) == pytest.approx(60, abs=4)


@pytest.mark.parametrize(("aspect", "size"), [("16/9", (569, 240)), ("8/9", (320, 270))])
def test_pixels_that_are_not_square_are_stretched(tmp_path: Path, aspect: str, size: tuple[int, int]) -> None:
    path = clip(tmp_path / "anamorphic.mp4", "-vf", f"setsar={aspect}")
    with Video(str(path)) as video:
        pixels = next(iter(video)).pixels()
    assert (pixels.shape[1], pixels.shape[0]) == size
    np.testing.assert_allclose(quarters_of(pixels), QUARTERS, atol=6)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ((1, 0, 0, 1), QUARTERS),
        ((-1, 0, 0, 1), QUARTERS[:, ::-1]),
        ((1, 0, 0, -1), QUARTERS[::-1]),
        ((-1, 0, 0, -1), QUARTERS[::-1, ::-1]),
        ((0, 1, -1, 0), np.rot90(QUARTERS, -1)),  # clockwise, as phones held upright write
        ((0, -1, 1, 0), np.rot90(QUARTERS)),
        ((0, 1, 1, 0), QUARTERS.T),
        ((0, -1, -1, 0), QUARTERS[::-1, ::-1].T),
    ],
)
def test_rotated_and_mirrored_videos_are_upright(
    plain: bytes, tmp_path: Path, matrix: tuple[int, int, int, int], expected: Array
) -> None:
    with Video(str(with_matrix(plain, tmp_path / "turned.mp4", matrix))) as video:
        np.testing.assert_allclose(quarters_of(next(iter(video)).pixels()), expected, atol=6)


def test_frames_with_side_data_that_pyav_does_not_know_are_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = 6, "camera"
    photo = tmp_path / "frame.jpg"
    Image.open(picture(tmp_path / "frame.png")).save(photo, exif=exif)
    with Video(str(clip(tmp_path / "camera.avi", "-c:v", "copy", source=photo))) as video:
        np.testing.assert_allclose(quarters_of(next(iter(video)).pixels()), np.rot90(QUARTERS, -1), atol=6)


def test_times_start_where_a_trimmed_video_starts(tmp_path: Path) -> None:
    whole = clip(tmp_path / "whole.mp4", "-g", "25", seconds=4)
    trimmed = tmp_path / "trimmed.mp4"
    ffmpeg("-ss", "1.5", "-i", whole, "-c", "copy", trimmed)
    found = times(trimmed)
    assert found[0] == pytest.approx(0.0, abs=0.05)
    assert found[-1] == pytest.approx(2.5 - 0.04, abs=0.06)
    np.testing.assert_allclose(np.diff(found), 0.04, atol=0.002)


@pytest.mark.parametrize("suffix", [".mkv", ".ts", ".mp4"])
def test_the_length_is_that_of_the_pictures_not_of_the_sound(tmp_path: Path, suffix: str) -> None:
    silent, path = clip(tmp_path / "silent.mp4", seconds=2), tmp_path / f"long{suffix}"
    ffmpeg("-i", silent, "-f", "lavfi", "-t", "6", "-i", "anullsrc", "-c:v", "copy", "-c:a", "aac", path)
    with Video(str(path)) as video:
        assert video.duration_s is None or video.duration_s == pytest.approx(2.0, abs=0.1)
        assert len(list(video)) == 50


def test_a_stated_length_that_is_not_a_time_is_ignored(tmp_path: Path) -> None:
    path = clip(tmp_path / "silent.mkv")
    ffmpeg("-i", path, "-f", "lavfi", "-t", "1", "-i", "anullsrc", "-c:v", "copy", tmp_path / "sound.mkv")
    path.write_bytes((tmp_path / "sound.mkv").read_bytes().replace(b"00:00:01", b"ab:cd:01"))
    with Video(str(path)) as video:
        assert video.duration_s is None
        assert len(list(video)) == 25


def test_joined_transport_streams_are_one_recording(tmp_path: Path) -> None:
    first, second = clip(tmp_path / "1.ts"), clip(tmp_path / "2.ts", "-output_ts_offset", "3600")
    joined = tmp_path / "joined.ts"
    joined.write_bytes(first.read_bytes() + second.read_bytes() + first.read_bytes())
    found = times(joined)
    assert len(found) == 75
    np.testing.assert_allclose(np.diff(found), 0.04, atol=0.01)


def test_covers_are_not_frames_and_the_default_stream_is_chosen(tmp_path: Path) -> None:
    dark, bright = (
        clip(tmp_path / f"{level}.mp4", source=picture(tmp_path / f"{level}.png", np.full((1, 1), level, np.uint8)))
        for level in (50, 200)
    )
    path = tmp_path / "two.mkv"
    streams = "-map 0 -map 1 -c copy -disposition:v:0 0 -disposition:v:1 default"
    ffmpeg("-i", dark, "-i", bright, *streams.split(), path)
    with Video(str(path)) as video:
        assert next(iter(video)).pixels().mean() == pytest.approx(200, abs=5)
    sound = tmp_path / "song.m4a"
    streams = "-map 0 -map 1 -c:v png -disposition:v:0 attached_pic"
    silence = ("-f", "lavfi", "-t", "1", "-i", "anullsrc")
    ffmpeg(*silence, "-i", picture(tmp_path / "cover.png"), *streams.split(), sound)
    with pytest.raises(VideoError, match="no video"):
        Video(str(sound))


def test_a_file_that_is_not_a_video_is_an_error(plain: bytes, tmp_path: Path) -> None:
    for payload in (b"", b"const answer = 42;\n" * 20, plain[:400]):
        (path := tmp_path / "b.mp4").write_bytes(payload)
        with pytest.raises(VideoError, match="cannot be opened"):
            Video(str(path))


@pytest.mark.parametrize(
    ("suffix", "parts", "written_s"),
    [
        (".avi", (("-ar", "11127", "-c:a", "pcm_s16le"),), 1),  # a rate that AAC does not have
        (".ts", (("-c:a", "mp2", "-ac", "2"), ("-c:a", "mp2", "-ac", "1")), 2),  # as at the next program
        (".mkv", (("-c:a", "aac"),), 0),  # of a codec that FFmpeg does not know
    ],
)
def test_sound_is_written_as_aac_whatever_it_is(
    tmp_path: Path, suffix: str, parts: tuple[tuple[str, ...], ...], written_s: int
) -> None:
    source, written, part = tmp_path / f"source{suffix}", tmp_path / "written.mp4", tmp_path / f"part{suffix}"
    with source.open("wb") as file:
        for options in parts:
            inputs = ("-f", "lavfi", "-i", "color=size=64x64:rate=10", "-f", "lavfi", "-i", "sine")
            ffmpeg(*inputs, "-t", "1", *options, part)
            file.write(part.read_bytes().replace(b"A_AAC", b"A_XYZ"))
    with Video(str(source)) as video, closing(VideoWriter(written, sound_of=bytes(source))) as writer:
        for frame in video:
            writer.add(frame.pixels(), frame.time_s)
    with Sound(str(written)) as sound:
        samples = sum(frame.samples for frame, _ in sound.frames()) if sound.rate else 0
        assert samples / (sound.rate or 1) == pytest.approx(written_s, abs=0.1)
