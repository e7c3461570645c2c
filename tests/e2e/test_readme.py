"""Execution of the README: commands, requests and the table of columns."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.background import free_port
from mien.app.labeling.columns import FACE_COLUMNS
from mien.models.manifest import ArtifactError, artifact_dir, load_artifact
from tests.e2e.conftest import new_user
from tests.support import ROOT, code_blocks, output_of
from tests.support.serving import wait_until_ready

README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVED_AT = "127.0.0.1:8000"


def _run(language: str, text: str, *, cwd: Path, env: dict[str, str]) -> str:
    command = {"sh": ["sh", "-eu", "-c", text], "python": [sys.executable, "-c", text]}[language]
    return output_of(*command, cwd=cwd, env=env, timeout=250)


@pytest.fixture(scope="module", autouse=True)
def _a_released_model() -> None:
    try:
        load_artifact(artifact_dir(None))
    except ArtifactError as error:
        pytest.skip(f"the README's commands need the released model: {error}")
    for program in ("make", "curl"):
        if not shutil.which(program):
            pytest.skip(f"the README's commands need {program}, which is not installed here")


@pytest.fixture(scope="module")
def address(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a running service."""
    home = tmp_path_factory.mktemp("home")
    port, log = free_port(), home / "server.log"
    command, env = [sys.executable, "-m", "mien", "serve"], new_user(home) | {"MIEN_PORT": str(port)}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=clone, env=env, stdout=output, stderr=output) as service,
    ):
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", service, log)
            yield f"127.0.0.1:{port}"
        finally:
            service.terminate()


@pytest.mark.parametrize(("language", "text"), code_blocks("README.md", "test"))
def test_commands_run(language: str, text: str, clone: Path, empty_home: dict[str, str]) -> None:
    _run(language, text, cwd=clone, env=empty_home)


@pytest.mark.parametrize(("language", "text"), code_blocks("README.md", "test-with-service"))
def test_requests_succeed(language: str, text: str, address: str, clone: Path, empty_home: dict[str, str]) -> None:
    assert SERVED_AT in text
    said = _run(language, text.replace(SERVED_AT, address), cwd=clone, env=empty_home)
    assert any(label in said for label in ("surprise", "happiness", "neutral")), said


def test_the_table_of_columns_names_columns_of_the_output() -> None:
    named = set(re.findall(r"`(\w+)`", README.split("| column | meaning |")[1].split("\n\n")[0]))
    assert named
    assert named <= {column.name for column in FACE_COLUMNS}
