"""Labelling a video source, view by view, and serving the page to this machine."""

import io
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from app import webcam
from app.classify import Classifier
from app.cli import app
from app.detect import Face
from app.errors import StartupError
from app.pipeline import Pipeline
from app.settings import Settings
from app.video import Frame, VideoFile, open_source
from app.webcam import FileView, LinesView, Moment, TableView, label_video
from data.contract import Array
from tests.support import picture, tiny_artefact

FPS = 10.0
FRAMES = 12


class MovingFace:
    """Finds one face that moves a little to the right with each frame; none in the last."""

    name = "moving"

    def __init__(self) -> None:
        self.seen = 0

    def detect(self, image: Array) -> list[Face]:
        self.seen += 1
        if self.seen == FRAMES:
            return []
        x, y = 100.0 + 4 * self.seen, 120.0
        points = [(x - 16, y - 12), (x + 16, y - 12), (x, y + 2), (x - 12, y + 18), (x + 12, y + 18)]
        return [Face((x - 40.0, y - 40.0, 80.0, 80.0), np.array(points, np.float32), 0.9)]


class Still:
    """A source of equal pictures."""

    name, fps, live = "still", FPS, False

    def __init__(self) -> None:
        self.closed = False

    def frames(self) -> Iterator[Frame]:
        for number in range(FRAMES):
            yield Frame(number / FPS, picture())

    def close(self) -> None:
        self.closed = True


class Recorder:
    """A view that notes what it was shown and ends the run after `last` moments."""

    def __init__(self, last: int = FRAMES + 1, error: type[BaseException] | None = None) -> None:
        self.moments: list[Moment] = []
        self.closed = 0
        self._last, self._error = last, error

    def show(self, moment: Moment) -> bool:
        self.moments.append(moment)
        if self._error is not None and len(self.moments) == self._last:
            raise self._error
        return len(self.moments) < self._last

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_artefact(tmp_path_factory.mktemp("artefacts") / "tiny.test")


@pytest.fixture
def pipeline(artefact: Path) -> Pipeline:
    return Pipeline(MovingFace(), Classifier(artefact, device="cpu", threads=1), Settings(device="cpu"))


def test_a_face_keeps_its_number_and_every_view_sees_every_frame(pipeline: Pipeline) -> None:
    source, first, second = Still(), Recorder(), Recorder()
    summary = label_video(pipeline, source, [first, second])
    assert (summary.frames, summary.people) == (FRAMES, {1})
    assert len(first.moments) == len(second.moments) == FRAMES
    assert [len(moment.faces) for moment in first.moments] == [1] * (FRAMES - 1) + [0]
    assert (source.closed, first.closed, second.closed) == (True, 1, 1)
    assert "12 frames" in str(summary)
    assert "1 track of faces" in str(summary)


def test_the_picture_carries_the_box_of_the_track(pipeline: Pipeline) -> None:
    recorder = Recorder()
    label_video(pipeline, Still(), [recorder])
    drawn = recorder.moments[0].drawn
    changed = np.any(drawn != picture(), axis=2)
    columns = np.nonzero(changed.any(axis=0))[0]
    assert columns.min() == pytest.approx(64, abs=4)
    assert not np.any(recorder.moments[-1].drawn != picture())


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_closing_a_view_and_ctrl_c_end_the_run_well(
    pipeline: Pipeline, error: type[BaseException] | None, tmp_path: Path
) -> None:
    source, file = Still(), VideoFile(tmp_path / "out.mp4", FPS)
    summary = label_video(pipeline, source, [FileView(file), Recorder(5, error)])
    assert summary.frames == 5
    assert source.closed
    assert len(list(open_source(str(file.path)).frames())) == 5


def test_lines_tell_changes_and_nothing_twice(pipeline: Pipeline) -> None:
    text = io.StringIO()
    label_video(pipeline, Still(), [LinesView(Console(file=text, width=100))])
    lines = text.getvalue().splitlines()
    assert lines[0].split()[:4] == ["0.00", "s", "person", "1"]
    labels = [line.split()[4] for line in lines]
    assert all(one != other for one, other in itertools.pairwise(labels))


def test_the_table_shows_one_row_a_person(pipeline: Pipeline) -> None:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True)
    recorder = Recorder()
    label_video(pipeline, Still(), [recorder])
    view = TableView(console, "still")
    assert view.show(recorder.moments[0])
    view.close()
    console.print(view._table(recorder.moments[0]))  # what `show` draws, drawn at once
    assert "Expressions, not feelings" in text.getvalue()
    assert recorder.moments[0].faces[0].face.label in text.getvalue()


def film(path: Path) -> Path:
    photo = cv2.imread(str(Path(__file__).resolve().parents[3] / "samples" / "photos" / "astronaut.jpg"))
    file = VideoFile(path, FPS)
    for number in range(4):
        file.add(cv2.cvtColor(photo, cv2.COLOR_BGR2RGB), number / FPS)
    file.close()
    return path


def test_the_command_labels_a_video_and_writes_another(
    tmp_path: Path, artefact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    source, result = film(tmp_path / "film.mp4"), tmp_path / "labelled.mp4"
    chosen = ["--model", str(artefact), "--device", "cpu", "--detector", "haar"]
    answer = CliRunner().invoke(app, ["webcam", "--source", str(source), "--write", str(result), *chosen])
    assert answer.exit_code == 0, answer.output
    assert "person 1" in answer.stdout
    assert "4 frames" in answer.stderr
    plain, drawn = (list(open_source(str(path)).frames()) for path in (source, result))
    assert len(plain) == len(drawn) == 4
    changed = np.abs(plain[0].pixels.astype(int) - drawn[0].pixels.astype(int)).max(axis=2) > 80
    assert 0.001 < changed.mean() < 0.1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--write", "x.mp4"], 2, "needs --source"),
        (["--source", "missing.mp4"], 1, "no such file"),
        (["--source", "film.mp4", "--write", "film.mp4"], 1, "the source itself"),
        (["--source", "film.mp4", "--write", "film.gif"], 1, "one of .mp4"),
    ],
)
def test_what_cannot_work_is_told_in_a_line(
    tmp_path: Path, artefact: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    film(tmp_path / "film.mp4")
    monkeypatch.chdir(tmp_path)
    chosen = ["--model", str(artefact), "--device", "cpu", "--detector", "haar"]
    answer = CliRunner().invoke(app, ["webcam", *arguments, *chosen])
    assert answer.exit_code == code
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_page_is_served_here_alone_and_a_taken_port_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    opened: list[str] = []
    monkeypatch.setattr("app.server.run", served.append)
    monkeypatch.setattr(webcam, "_open_when_ready", lambda address, browser: opened.append(f"{address} {browser}"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(StartupError, match=f"port {port}"):
            webcam.serve(Settings(port=port), browser=True)
        busy = Settings().model_copy(update={"port": port, "host": "0.0.0.0"})  # noqa: S104  # must not be taken over
        busy.model_fields_set.discard("port")
        webcam.serve(busy, browser=True)
    (chosen,) = served
    assert chosen.host == "127.0.0.1"
    assert chosen.port not in {0, port}
    assert opened == [f"http://127.0.0.1:{chosen.port}/ True"]


def test_without_a_display_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not webcam.display_there()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert webcam.display_there()
