"""The command line: start time, error messages and exit codes."""

import importlib.util
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mien.app.cli import app
from mien.app.cli.training import COMMANDS
from mien.app.inference import detector_files
from tests.support import ROOT, output_of, tiny_artifact

HEAVY = ("cv2", "numpy", "onnxruntime", "fastapi", "PIL")
TRAINING = ("torch", "timm", "albumentations")
SAMPLES = str(ROOT / "samples" / "photos")


def mien(*arguments: str | Path, **environment: str | None) -> Result:
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("commands", "heavy"),
    [
        (["--version", "label --help", "serve --help", "page --help"], HEAVY),
        ([f"{name} {option}" for name in COMMANDS for option in ("--help", "--no-such-option")], TRAINING),
    ],
)
def test_help_and_usage_errors_load_no_heavy_library(commands: list[str], heavy: tuple[str, ...]) -> None:
    program = f"""
import sys
from mien.app.cli import main
for command in {commands}:
    sys.argv = ["mien", *command.split()]
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    assert (status or 0) == 2 * command.endswith("option"), (command, status)
print("loaded:", [name for name in {heavy} if name in sys.modules])
"""
    assert output_of(sys.executable, "-c", program, cwd=ROOT).endswith("loaded: []\n")


def test_doctor_reports_what_cannot_be_served_or_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_artifact(tmp_path / "tiny.test")
    (tmp_path / detector_files.YUNET_FILE).write_bytes(b"not the network")

    def doctor(**environment: str | None) -> Result:
        embedded = {"MIEN_DETECTOR": "builtin"} | environment
        return mien("doctor", "--model", "tiny.test", "--device", "cpu", **embedded)

    assert doctor().exit_code == 0
    done = doctor(MIEN_DETECTOR=None, MIEN_MODELS_DIR=".")
    assert (done.exit_code, f"{detector_files.YUNET_FILE} has sha256" in done.stdout) == (1, True), done.stdout
    Path("tiny.test/model.fp32.onnx").write_bytes(b"damaged")
    done = doctor()
    assert (done.exit_code, "model.fp32.onnx has sha256" in done.stdout) == (1, True), done.stdout
    monkeypatch.setitem(sys.modules, "mien.app.cli.checks", None)  # as without libGL.so.1, which cv2 needs
    done = doctor()
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "a package cannot be imported" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["label"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--every", "2", "--per-second", "1"], 2, "cannot be combined"),
        (["label", SAMPLES, "--out", ""], 2, "the path is empty"),  # It is not the current folder.
        (["review", "no/such/folder"], 1, "has no journal"),
    ],
)
def test_a_usage_error_is_a_message_and_an_exit_code(
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mien(*arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert done.stderr.startswith(("mien: ", "Usage: mien "))
    assert not list(tmp_path.iterdir()), "no output folder is left"


def test_a_setting_of_the_service_does_not_stop_labeling(tmp_path: Path) -> None:
    done = mien("label", "no/such/folder", "--out", tmp_path / "out", MIEN_PORT="http")
    assert "no/such/folder does not exist" in done.stderr
    assert "MIEN_PORT" in mien("serve", MIEN_PORT="http").stderr


def test_without_torch_one_line_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda library: None if library == "torch" else found(library))
    result = mien("train", "recipe.yaml")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert "requirements/install.sh .venv-train train" in result.stderr
