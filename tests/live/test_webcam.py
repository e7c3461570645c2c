"""Labeling a video source, view by view, and serving the page to this machine."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from mien.app.cli.program import app
from mien.app.inference.classifier import Classifier
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Photo
from mien.app.live import webcam
from mien.app.live.video import Frame, open_source
from mien.app.live.views import JsonLinesView, Moment, VideoFile
from mien.app.live.webcam import label_video
from mien.app.settings import Settings
from mien.data.contract import decode
from tests.support import gradient_image, sample_photo
from tests.support.albums import write_video
from tests.support.app import upright_face

FPS = 10.0
FRAMES = 12


def still() -> Mock:
    """A source of identical frames."""
    return Mock(frames=lambda: (Frame(number / FPS, gradient_image()) for number in range(FRAMES)))


def recorder(*shown: object) -> Mock:
    """A view that first returns or raises these, and then continues."""
    return Mock(**{"show.side_effect": itertools.chain(shown, itertools.repeat(True))})


def opening(*views: object) -> list[Callable[[], Any]]:
    """Functions that open these views, or raise if one is an error."""
    return [Mock(side_effect=[view]) for view in views]


@pytest.fixture
def labeler(classifier: Classifier) -> Labeler:
    """Finds one face that moves a little to the right with each frame; none in the last."""
    faces = [[upright_face(100.0 + 4 * number, 120.0)] for number in range(1, FRAMES)]
    return Labeler(Mock(**{"detect.side_effect": [*faces, []]}), classifier, Settings(device="cpu"))


def test_json_lines_have_the_faces_with_their_tracks_and_end_with_the_reader(
    labeler: Labeler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    label_video(labeler, still(), [JsonLinesView])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["time_s"] for line in lines] == [number / FPS for number in range(FRAMES)]
    assert [[face["track"] for face in line["faces"]] for line in lines] == [[1]] * (FRAMES - 1) + [[]]
    closed = Mock(**{"write.side_effect": BrokenPipeError, "fileno.return_value": os.open(os.devnull, os.O_WRONLY)})
    monkeypatch.setattr("sys.stdout", closed)
    assert not JsonLinesView().show(Moment(Frame(0.0, gradient_image()), Photo(640, 480, ()), 0.0))


@pytest.mark.parametrize("stop", [lambda: False, lambda: signal.raise_signal(signal.SIGTERM) or True])
def test_closing_a_view_or_a_signal_ends_the_run_normally(
    labeler: Labeler, stop: Callable[[], bool], tmp_path: Path
) -> None:
    source, file, last = still(), VideoFile(tmp_path / "out.mp4"), Mock()
    last.show.side_effect = lambda moment: stop() if moment.frame.time_s == 4 / FPS else True
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        summary = label_video(labeler, source, opening(file, last))
    finally:
        assert signal.signal(signal.SIGTERM, before) is signal.SIG_IGN
    assert summary.frames == 5
    source.close.assert_called_once()
    assert len(list(open_source(str(file.path)).frames())) == 5


def test_an_error_closes_the_source_and_all_views_and_keeps_the_existing_video(
    labeler: Labeler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the video of yesterday")
    unclosed = recorder(False)
    unclosed.close.side_effect = OSError("disk full")
    for failing, message in ((recorder(True, OSError("as a test")), "as a test"), (unclosed, "disk full")):
        source, first, file = still(), recorder(), VideoFile(path)
        with pytest.raises(OSError, match=message):
            label_video(labeler, source, opening(file, first, failing))
        source.close.assert_called_once()
        first.close.assert_called_once_with(complete=False)
        assert path.read_bytes() == b"the video of yesterday"
        assert "out.part.mp4" in capsys.readouterr().err, "what was written is named"
        path.with_name("out.part.mp4").unlink()


def test_ctrl_c_before_the_first_frame_is_no_error_and_an_existing_table_is_kept(
    labeler: Labeler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "episodes.csv"
    table.write_text("of yesterday")
    source = Mock(fps=FPS, **{"frames.side_effect": KeyboardInterrupt})
    source.name = "camera 0"
    monkeypatch.setattr(webcam, "open_source", lambda *_, **__: source)
    assert webcam.run(labeler, "0", write=table, window=False).frames == 0
    assert table.read_text() == "of yesterday"
    source.frames.side_effect = still().frames
    webcam.run(labeler, "0", write=table, window=False)
    assert table.read_text().startswith("person,")


def command(artifact: Path, *arguments: str) -> Result:
    chosen = ["--model", str(artifact), "--device", "cpu", "--detector", "builtin"]
    return CliRunner().invoke(app, ["webcam", *arguments, *chosen])


def film(path: Path) -> Path:
    return write_video(path, images=[decode(sample_photo().read_bytes())] * 4, rate=FPS)


def test_the_command_labels_a_video_and_writes_another(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    source, result = film(tmp_path / "film.mp4"), tmp_path / "labeled.mp4"
    answer = command(artifact, "--source", str(source), "--write", str(result))
    assert answer.exit_code == 0, answer.output
    assert "person 1" in answer.stdout
    plain, drawn = (list(open_source(str(path)).frames()) for path in (source, result))
    assert len(plain) == len(drawn) == 4
    changed = np.abs(plain[0].pixels.astype(int) - drawn[0].pixels.astype(int)).max(axis=2) > 80
    assert 0.001 < changed.mean() < 0.1


def test_neither_the_source_nor_an_interrupted_recording_is_overwritten(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film(tmp_path / "film.mp4").with_name("labeled.part.mp4").touch()
    monkeypatch.chdir(tmp_path)
    for written, words in (("film.mp4", "this file is the source"), ("labeled.mp4", "labeled.part.mp4 exists")):
        answer = command(artifact, "--source", "film.mp4", "--write", written)
        assert (answer.exit_code, words in answer.stderr) == (1, True), answer.output
