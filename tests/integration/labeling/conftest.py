"""Fixtures of the labeling tests: an artifact, an album, and `mien` as a separate process."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mien.app.cli.program import app
from tests.albums import make_album, rows_of, write_photos
from tests.support import ROOT, environment_of


@dataclass(frozen=True, slots=True)
class Mien:
    """Starts `mien` with a test's artifact and the embedded detector."""

    environment: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str | Path, stdin: int | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mien", *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdin=stdin, stdout=pipe, stderr=pipe)
        self.started.append(process)
        return process

    def end(self) -> None:
        """End the processes that still run, and close their pipes."""
        for process in self.started:
            with process:  # waits, and closes the pipes
                process.kill()

    def __call__(self, *arguments: str | Path, given: bytes | None = None) -> Result:
        """Call the program in this process, which is faster; `start` creates a separate process."""
        missing = {name: None for name in os.environ if name not in self.environment}
        runner = CliRunner(env=self.environment | missing)
        given_arguments = list(map(str, arguments))
        with patch.object(sys, "argv", ["mien", *given_arguments]):
            return runner.invoke(app, given_arguments, input=given, catch_exceptions=False)

    def label(
        self, *arguments: str | Path, out: Path, exit_code: int = 0, given: bytes | None = None
    ) -> list[dict[str, str]]:
        """Label into `out` without messages; returns the rows of its `labels.csv`, if it has one."""
        done = self("label", *arguments, "--out", out, "--quiet", given=given)
        assert done.exit_code == exit_code, done.stderr
        return rows_of(out) if (out / "labels.csv").exists() else []


@pytest.fixture
def mien(artifact: Path) -> Iterator[Mien]:
    program = Mien(environment_of(model=artifact, detector="builtin", device="cpu"))
    yield program
    program.end()


@pytest.fixture
def released_mien() -> Mien:
    """`mien` with the released model, and with YuNet if `MIEN_MODELS_DIR` is set."""
    return Mien(environment_of(device="cpu", models_dir=os.environ.get("MIEN_MODELS_DIR")))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five photos of a face, named 0.jpg to 4.jpg."""
    return write_photos(tmp_path / "photos", count=5)


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_album(tmp_path_factory.mktemp("album"), 40)


def tree(out: Path) -> dict[str, str]:
    """Hashes of all files in `out` except internal state, without dates and times."""
    files = (
        path
        for path in sorted(out.rglob("*"))
        if path.is_file() and ".mien" not in path.parts and path.name != "run.json"
    )
    return {str(path.relative_to(out)): hashlib.sha256(_undated(path)).hexdigest() for path in files}


def _undated(path: Path) -> bytes:
    payload = path.read_bytes()
    return re.sub(rb"<time>[^<]*</time>", b"", payload) if path.suffix == ".html" else payload


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of 64 KB, which `resize` makes larger."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def resize(disk: Path, size: str) -> None:
    """Change the size of `small_disk`."""
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)
