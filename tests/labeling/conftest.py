"""An album, labeled as a whole, a small labeled folder with its review page, and `mien` as a separate process."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import Result
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.main import get_command
from typer.testing import CliRunner

from mien.app.cli import app
from mien.app.errors import LabelingError
from mien.app.inference.detector_files import create_detector
from mien.app.labeling import tables
from mien.app.labeling.journal import open_journal
from mien.app.labeling.review.server import create_review_app
from mien.app.labeling.run import Run
from mien.app.settings import Settings
from mien.data import quality
from tests.support import ROOT, encoded, environment_of, gradient_image
from tests.support.albums import face_photo, label_folder, rows_of, write_photos, write_video
from tests.support.hostile import png

ODD_NAMES = (
    "ünï cödé 名前.jpg",
    'with, comma "quote".jpg',
    "new\nline.jpg",
    "carriage\rreturn.jpg",
    "-dash.jpg",
    "=1+1.jpg",
    "a" * 200 + ".jpg",
)
# Files that are not labeled: their content, or the format of a face, and status, reason, a part of the error
UNREADABLE: dict[str, tuple[bytes | str, str, str, str]] = {
    "empty.jpg": (b"", "error", "empty", "no bytes"),
    "text.jpg": (b"not an image", "error", "unsupported", ""),
    "cut.jpg": (b"\xff\xd8\xff\xe0" + b"\0" * 40, "error", "unsupported", ""),
    "cut.mp4": (b"\0\0\0 ftypisom\0\0\2\0isomiso2avc1mp41", "error", "corrupt", "cannot be opened"),
    "notes.txt": (b"not an image, and not meant to be one", "skipped", "not_an_image", ""),
    "main.ts": (b"const a = 1;", "skipped", "not_an_image", "TypeScript"),
    # The names do not say that they are photos, but their bytes do.
    **dict.fromkeys(("IMG_0001", "x.jpg_original", "x.mpo"), ("JPEG", "error", "corrupt", "")),
    **dict.fromkeys(("a.zip", "b.CBZ"), ("TIFF", "error", "unsupported", "unzip it")),
    **dict.fromkeys(("c.tar.gz", "d.rar", "e.jpg.gz"), ("TIFF", "error", "unsupported", "unpack it")),
    "huge.png": (png(20_000, 20_000, b""), "error", "too_large", "limit"),
    **dict.fromkeys(("f.nef", "g.DNG", "h.tga"), ("TIFF", "error", "unsupported", "ImageMagick")),  # as camera raw
}
ALL = ("csv", "jsonl", "annotated", "crops", "coco", "report", "episodes", "xlsx", "video")


@dataclass(frozen=True, slots=True)
class Mien:
    """Starts `mien` with a test's artifact and the embedded detector, and labels into `out`."""

    environment: dict[str, str]
    out: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        command, pipe = [sys.executable, "-m", "mien", *map(str, arguments)], subprocess.PIPE
        where = {"cwd": ROOT, "env": self.environment, "start_new_session": True}
        self.started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, **where))
        return self.started[-1]

    def __call__(self, *arguments: str | Path, given: bytes | None = None) -> Result:
        """Call the program in this process, which is faster; `start` creates a separate process."""
        missing = {name: None for name in os.environ if name not in self.environment}
        runner = CliRunner(env=self.environment | missing)
        return runner.invoke(app, list(map(str, arguments)), input=given, catch_exceptions=False)

    def run(self, *arguments: str | Path, out: Path | None = None, given: bytes | None = None) -> Result:
        """Label with messages."""
        return self("label", *arguments, "--out", out or self.out, given=given)

    def label(
        self, *arguments: str | Path, out: Path | None = None, exit_code: int = 0, given: bytes | None = None
    ) -> list[dict[str, str]]:
        """Label without messages; returns the rows of `labels.csv`, if there is one."""
        done = self.run(*arguments, "--quiet", out=out, given=given)
        assert done.exit_code == exit_code, done.stderr
        folder = out or self.out
        return rows_of(folder) if (folder / "labels.csv").exists() else []

    def refuses(self, reason: str, *arguments: str | Path, exit_code: int = 1, **where: Any) -> None:
        """Label with an error that names the reason, and changes no output."""
        out = where.get("out", self.out)
        before = tree(out)
        done = self.run(*arguments, **where)
        assert (done.exit_code, reason in done.stderr) == (exit_code, True), done.stderr
        assert tree(out) == before


_command, _detector = cache(get_command), cache(create_detector)


@pytest.fixture(scope="module", autouse=True)
def command_and_detector_are_made_once() -> Iterator[None]:
    """They take a third of the time of a run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", _command)
        patch.setattr("mien.app.inference.labeler.create_detector", _detector)
        yield


@pytest.fixture
def mien(artifact: Path, tmp_path: Path) -> Iterator[Mien]:
    program = Mien(environment_of(model=artifact, detector="builtin", device="cpu"), tmp_path / "out")
    yield program
    for process in program.started:
        with process:  # It waits, and closes the pipes.
            process.kill()


@pytest.fixture(scope="session")
def settings(artifact: Path) -> Settings:
    """The settings of `mien`, for the functions that it calls."""
    return Settings(model=artifact, detector="builtin", device="cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new folder for inputs."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five photos of a face, named 0.jpg to 4.jpg."""
    return write_photos(tmp_path / "photos", count=5)


class Labeled(NamedTuple):
    """A finished run: inputs, outputs and record."""

    photos: Path
    out: Path
    run: Run


@pytest.fixture(scope="session")
def album(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Labeled:
    """100 images, every seventh without a face, a video, and odd, broken and linked files; labeled by one process."""
    photos, out = tmp_path_factory.mktemp("album"), tmp_path_factory.mktemp("whole") / "out"
    for number in range(100):
        image = face_photo(variant=number % 30) if number % 7 else gradient_image(160, 120)
        kind = "jpg" if number % 7 else "png"
        (photos / f"{number:02d}.{kind}").write_bytes(encoded(image, kind.replace("jpg", "jpeg")))
    write_video(photos / "clip.avi", frames=10)
    odd = write_photos(photos / "odd", *ODD_NAMES, os.fsdecode(b"latin-\xe9.jpg"), ".hidden.jpg", "locked.jpg")
    (odd / "locked.jpg").chmod(0)  # an error, except for root
    for name, (content, *_) in UNREADABLE.items():
        made = content if isinstance(content, bytes) else encoded(face_photo(), content)
        (odd / name).write_bytes(made[:600] if content == "JPEG" else made)
    (odd / "twice.jpg").hardlink_to(odd / ODD_NAMES[0])
    for name, target in {"linked.jpg": ODD_NAMES[0], "dangling.jpg": "nowhere.jpg", "loop": "."}.items():
        (odd / name).symlink_to(target)
    os.mkfifo(odd / "pipe.jpg")
    return Labeled(photos, out, label_folder(photos, out, settings, *ALL[:-2]))


def tree(out: Path) -> dict[str, str]:
    """Hashes of all files in `out` except internal state, without dates and times."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "run.json"]
    payloads = {path.relative_to(out): path.read_bytes() for path in files if ".mien" not in path.parts}
    undated = {path: re.sub(rb"<time>[^<]*</time>", b"", payload) for path, payload in payloads.items()}
    return {str(path): hashlib.sha256(payload).hexdigest() for path, payload in undated.items()}


def labeled(out: Path) -> int:
    """Number of images whose results are committed."""
    with suppress(LabelingError), closing(open_journal(out)) as journal:
        return journal.progress()[1]
    return 0


@pytest.fixture(scope="session")
def finished(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Labeled:
    base = tmp_path_factory.mktemp("finished")
    photos = write_photos(base / "photos", count=5)
    (photos / "none.png").write_bytes(encoded(gradient_image(), "PNG"))
    (photos / "<b>&amp;.jpg").write_bytes(b"broken")
    (photos / "=1+1").write_text("words")
    write_video(photos / "clip.avi", frames=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(quality.LIMITS, "small", 200)
        patch.setattr(tables, "_MAX_ROWS", 4)
        return Labeled(photos, base / "out", label_folder(photos, base / "out", settings, *ALL))


@pytest.fixture
def own(finished: Labeled, tmp_path: Path) -> Labeled:
    """A copy of the run and, for another run, of its photos."""
    photos, out = (
        shutil.copytree(folder, tmp_path / folder.name, symlinks=True) for folder in (finished.photos, finished.out)
    )
    return Labeled(photos, out, finished.run)


def page_data(report: str) -> dict[str, Any]:
    """The data in the page of a report."""
    data: dict[str, Any] = json.loads(report.partition('type="application/json">')[2].partition("</script>")[0])
    return data


def opened(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.fixture
def page(own: Labeled) -> Iterator[TestClient]:
    with opened(create_review_app(own.out)) as page:
        yield page


def decide(page: TestClient, file: str, label: str, **more: object) -> int:
    return page.post("/api/decisions", json={"file": file, "face": 0, "label": label} | more).status_code
