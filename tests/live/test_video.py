"""Reading and writing of videos: files, cameras, frame rates and error messages."""

import os
import queue
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mien.app.live import video
from mien.app.live.video import Connection, LiveSource, SourceUnavailable, open_source, without_password
from mien.app.live.views import VideoFile
from mien.data.contract import Array

FPS = 20.0


def shade(level: int) -> Array:
    return np.full((48, 64, 3), level, np.uint8)


def film(path: Path, frames: int = 30) -> Path:
    file = VideoFile(path)
    for number in range(frames):
        file.add(shade(8 * number), number / FPS)
    file.close(complete=True)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="not a file name there")
def test_every_frame_goes_in_and_comes_out_in_order_whatever_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsdecode(b"12:30 vid\xe9o.mp4")
    film(tmp_path / "film.mp4").rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    with closing(open_source(name)) as source:
        frames = list(source.frames())
    assert [round(frame.pixels.mean() / 8) for frame in frames] == list(range(30))
    assert [frame.time_s for frame in frames] == pytest.approx([number / FPS for number in range(30)], abs=0.002)


def test_colors_stay_red_green_blue_and_the_first_frame_after_a_cut_says_so(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "film.mp4")
    for number in range(20):
        file.add(np.full((48, 64, 3), (200, 0, 0) if number // 5 % 2 else (20, 20, 90), np.uint8), number / FPS)
    file.close(complete=True)
    with closing(open_source(str(file.path))) as source:
        frames = list(source.frames())
    assert [number for number, frame in enumerate(frames) if frame.cut] == [5, 10, 15]
    assert frames[7].pixels.mean(axis=(0, 1)) == pytest.approx([200, 0, 0], abs=12)


def test_uneven_frame_times_are_kept_and_other_sizes_fitted(tmp_path: Path) -> None:
    file, times = VideoFile(tmp_path / "live.mp4"), [0.0, 0.01, 0.5, 0.55, 2.0]
    for number, time_s in enumerate(times):
        file.add(np.repeat(shade(40 * number), 1 + (number == 3), axis=0), time_s)
    file.add(shade(200), times[-1])  # of a clock that stands still
    file.close(complete=True)
    with closing(open_source(str(file.path))) as source:
        frames = list(source.frames())
    assert [frame.time_s for frame in frames] == pytest.approx([*times, times[-1]], abs=0.001)
    assert [frame.pixels.mean() for frame in frames] == pytest.approx([0, 40, 80, 120, 160, 200], abs=4)
    assert {frame.pixels.shape for frame in frames} == {(48, 64, 3)}


class Camera:
    """Fake capture device of the frames that a test puts into `frames`; None ends it."""

    def __init__(self) -> None:
        self.frames: queue.Queue[Array | None] = queue.Queue()
        self.reads = 0
        self.released = False

    def read(self) -> Array | None:
        if self.reads:
            self.frames.task_done()  # the caller has taken the frame of the last read
        self.reads += 1
        return self.frames.get()

    def release(self) -> None:
        self.released = True


def test_a_live_source_gives_the_newest_frame_and_never_an_old_one() -> None:
    camera = Camera()
    source = LiveSource("camera", connect=lambda: Connection(camera.read, camera.release))
    frames = source.frames()
    seen = []
    for newest in (1, 4, 5, 60):
        for number in range(seen[-1] + 1 if seen else 1, newest + 1):
            camera.frames.put(shade(number))
        if seen:
            camera.frames.join()
        seen.append(int(next(frames).pixels[0, 0, 0]))
    camera.frames.put(None)
    assert list(frames) == []
    source.close()
    assert camera.released
    assert seen == [1, 4, 5, 60]


def test_a_source_is_opened_again_after_outages_with_growing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_FIRST_WAIT_S", 0.001)
    first, second, third = cameras = [Camera() for _ in range(3)]
    attempts: list[Camera | None] = [first, None, None, second, third]

    def connect() -> Connection:
        camera = attempts.pop(0) if attempts else None
        if camera is None:
            raise SourceUnavailable("not reachable")
        return Connection(camera.read, camera.release)

    said: list[str] = []
    source = LiveSource("cam", connect=connect, say=said.append)
    frames, seen = source.frames(), []
    for level, camera in enumerate(cameras):
        camera.frames.put(shade(level))
        seen.append(int(next(frames).pixels[0, 0, 0]))
        camera.frames.put(None)
    source.close()
    assert seen == [0, 1, 2]
    waits = [line.split()[-2] for line in said if "lost" in line]
    assert waits[:4] == ["0.001", "0.002", "0.004", "0.001"]


def test_a_source_that_cannot_be_opened_is_one_clear_message(capfd: pytest.CaptureFixture[str]) -> None:
    for source, message in (("97", "camera 97: not found or in use"), ("missing.mp4", "no such file")):
        with pytest.raises(SourceUnavailable, match=message):
            open_source(source)
    assert capfd.readouterr() == ("", ""), "OpenCV's own warnings are not shown"


def test_an_address_is_shown_without_its_password() -> None:
    for address, shown in (
        ("rtsp://ann:a#b[c@d@camera.local:554/live", "rtsp://camera.local:554/live"),
        ("film@home.mp4", "film@home.mp4"),
    ):
        assert without_password(address) == shown
