"""Labels of a video source as JSON Lines, for other programs."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from mien.app.cli import app
from mien.app.live import Frame, SourceUnavailable, newest, read_frames
from mien.data.contract import decode
from tests.support import gradient_image, sample_photo
from tests.support.albums import write_video

FPS = 10.0


def command(artifact: Path, *arguments: str) -> Result:
    chosen = ["--model", str(artifact), "--device", "cpu", "--detector", "builtin"]
    return CliRunner().invoke(app, ["webcam", *arguments, *chosen])


def test_the_command_prints_a_line_per_frame_of_a_file_whose_people_keep_their_number_up_to_a_cut(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"12:30 vid\xe9o.mp4")
    picture = decode(sample_photo().read_bytes())
    tinted = (picture * (0.6, 1, 1)).astype(np.uint8)  # It is a cut, after which the face could be another one.
    write_video(tmp_path / "film.mp4", images=[picture] * 2 + [tinted] * 2, rate=FPS).rename(tmp_path / name)
    done = command(artifact, "--source", name, "--json")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["time_s"] for line in lines] == [0.0, 0.1, 0.2, 0.3]
    assert {(line["height"], line["width"]) for line in lines} == {picture.shape[:2]}
    assert [[face["person"] for face in line["faces"]] for line in lines] == [[1], [1], [2], [2]]


def test_the_first_frame_after_a_cut_says_so(tmp_path: Path) -> None:
    images = [np.full((48, 64, 3), (200, 0, 0) if number // 5 % 2 else (20, 20, 90), np.uint8) for number in range(20)]
    frames = read_frames(str(write_video(tmp_path / "film.mp4", images=images, rate=FPS)))
    assert [number for number, frame in enumerate(frames) if frame.cut] == [5, 10, 15]


def test_a_live_source_gives_the_newest_frame_and_then_its_error() -> None:
    together = threading.Barrier(2, timeout=60)

    def camera() -> Iterator[Frame]:
        for times_s in ((0.0,), (1.0, 2.0, 3.0), (4.0, 5.0)):
            yield from (Frame(time_s, gradient_image()) for time_s in times_s)
            together.wait()  # The last one is in its slot,
            together.wait()  # and taken.
        raise SourceUnavailable("camera 0: disconnected")

    frames = newest(camera())
    seen = [next(frames).time_s]
    together.wait()
    for _ in range(2):
        together.wait()
        together.wait()
        seen.append(next(frames).time_s)
    together.wait()
    with pytest.raises(SourceUnavailable, match="disconnected"):
        next(frames)
    assert seen == [0.0, 3.0, 5.0]


def test_a_source_that_cannot_be_opened_is_one_clear_message(artifact: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for source, message in (
        ("97", "camera 97: not found or in use"),
        ("missing.mp4", "no such file"),
        ("rtsp://ann:a#b[c@d@localhost:1/live", "source rtsp://localhost:1/live: cannot be opened"),
    ):
        with pytest.raises(SourceUnavailable, match=message):
            list(read_frames(source))
    assert capfd.readouterr() == ("", ""), "OpenCV's own warnings are not shown"
    for arguments in (("--json",), ("--source", "film.mp4")):
        assert command(artifact, *arguments).exit_code == 2
