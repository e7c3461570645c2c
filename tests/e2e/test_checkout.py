"""A checkout in a folder with a space: commands of the README and of make, and the wheel that is built from it.

release.yml installs the wheel and labels with it.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir
from tests.support import ROOT, code_blocks, environment_of, output_of
from tests.support.serving import serving

SERVED_AT = "127.0.0.1:8000"
RUNTIME = "app/static/page/runtime/ort.wasm.min.mjs"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked and new files of the repository, and a `.venv` with the interpreter of the tests."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what is in the repository is unknown")
    for program in ("make", "curl"):
        if not shutil.which(program):
            pytest.skip(f"the README's commands need {program}, which is not installed here")
    folder = tmp_path_factory.mktemp("e2e") / "my mien"
    listed = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(lambda name: os.path.lexists(ROOT / name), listed.split("\0")[:-1]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    (folder / ".venv" / "bin").mkdir(parents=True)
    for program, arguments in {"python": "", "mien": "-m mien"}.items():
        script = folder / ".venv" / "bin" / program
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    return folder


def run(language: str, text: str, checkout: Path, home: Path) -> str:
    """Run a code block as a new user, with the detector file if the tests have it; returns its output."""
    environment = environment_of(device="cpu", models_dir=os.environ.get("MIEN_MODELS_DIR"))
    environment |= {"HOME": str(home), "LANG": "C.UTF-8"}
    command = {"sh": ["sh", "-eu", "-c", text], "python": [sys.executable, "-c", text]}[language]
    return output_of(*command, cwd=checkout, env=environment, timeout=250)


@pytest.mark.parametrize(("language", "text"), code_blocks("README.md", "test"))
def test_commands_run(language: str, text: str, checkout: Path, tmp_path: Path) -> None:
    run(language, text, checkout, tmp_path)


def test_requests_succeed(checkout: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "service", artifact_dir(None)) as service:
        for language, text in code_blocks("README.md", "test-with-service"):
            assert SERVED_AT in text
            said = run(language, text.replace(SERVED_AT, f"127.0.0.1:{service.port}"), checkout, tmp_path)
            assert any(label in said for label in LABELS), said


@pytest.mark.parametrize("setting", ["PHOTOS", "OUT", "SITE"])
def test_an_empty_folder_of_make_is_not_the_current_one(setting: str, checkout: Path) -> None:
    with pytest.raises(AssertionError, match=f"{setting} is empty"):
        output_of("make", "-n", "page" if setting == "SITE" else "label", f"{setting}=", cwd=checkout)


def test_changes_to_the_recipe_reach_training(checkout: Path) -> None:
    changes = ["epochs=3", "optim.learning_rate=3e-4"]
    printed = output_of("make", "-n", "train", "RECIPE=training/recipes/ferplus_teacher.yaml", *changes, cwd=checkout)
    command = next(line for line in printed.splitlines() if "-m mien train" in line)
    assert all(change in command.split() for change in changes)
    assert "RECIPE=" not in command


def test_the_wheel_has_one_top_level_name_with_all_modules_and_data_and_no_link(checkout: Path) -> None:
    (checkout / RUNTIME).parent.mkdir(exist_ok=True)
    (checkout / RUNTIME).touch()  # as `make runtime` does; git ignores it
    output_of(sys.executable, "-m", "hatchling", "build", "--target", "wheel", cwd=checkout, timeout=100)
    (wheel,) = (checkout / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"
    assert {name.split("/")[0] for name in names} == {"mien", info}
    expected = {
        f"mien/{path.relative_to(checkout).as_posix()}"
        for folder in ("app", "data", "models", "training")
        for path in (checkout / folder).rglob("*")
        if path.suffix in {".py", ".html", ".js", ".css", ".yaml", ".json", ".onnx", ".wasm"}
    }
    assert {"mien/__init__.py", "mien/__main__.py", "mien/py.typed", f"mien/{RUNTIME}", *expected} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("mien/mien")]


@pytest.mark.registry
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_every_pin_has_a_wheel_for_every_python_and_platform() -> None:
    subprocess.run(["sh", "check.sh"], cwd=ROOT / "requirements", check=True)
