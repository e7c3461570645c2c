"""The command line: start time, error messages and exit codes; checks of data; training."""

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import cv2
import pytest
from click.testing import Result
from typer.testing import CliRunner

from mien.app.cli import checks
from mien.app.cli.data import main
from mien.app.cli.program import app
from mien.app.cli.training import COMMANDS
from mien.app.inference.detect import detector_names
from mien.app.inference.detect.weights import YUNET_FILE
from mien.data.contract import decode
from tests.support import ROOT, output_of, sample_photo, tiny_artifact
from tests.support.data_sets import write_image

HEAVY = ("cv2", "numpy", "onnxruntime", "fastapi", "PIL")
TRAINING = ("torch", "timm", "albumentations")
SAMPLES = str(ROOT / "samples" / "photos")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return tiny_artifact(tmp_path / "tiny.test")


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


def doctor(artifact: Path, **environment: str | None) -> Result:
    return mien("doctor", "--model", artifact, "--device", "cpu", **{"MIEN_DETECTOR": "builtin"} | environment)


def test_doctor_passes_for_a_working_installation(artifact: Path) -> None:
    done = doctor(artifact)
    assert done.exit_code == 0, done.stdout
    for words in ("the model runs on CPUExecutionProvider in fp32", "all hashes match", "builtin"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "model.fp32.onnx has sha256"),
        ({"MIEN_DETECTOR": None, "MIEN_MODELS_DIR": "."}, f"{YUNET_FILE} has sha256"),
        ({"MIEN_DETECTION_THRESHOLD": "7"}, "MIEN_DETECTION_THRESHOLD"),
        ({"MIEN_EXTRA_MODELS": "accurat"}, "not an artifact folder"),
        ({"MIEN_EXTRA_MODELS": "second.test", "MIEN_PRECISION": "fp16"}, "no fp16 graph"),
    ],
)
def test_doctor_reports_what_cannot_be_served(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str | None], message: str
) -> None:
    monkeypatch.chdir(artifact.parent)
    tiny_artifact(Path("second.test").absolute(), precisions=("fp32",))
    Path(YUNET_FILE).write_bytes(b"not the network")
    if not environment:
        (artifact / "model.fp32.onnx").write_bytes(b"damaged")
    done = doctor(artifact, **environment)
    assert done.exit_code == 1
    assert message in done.stdout


def test_doctor_reports_a_package_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    command = [sys.executable, "-m", "mien", "doctor"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "libGL.so.1" in done.stderr


def test_models_list_has_every_detector_and_the_names_by_which_models_are_selected() -> None:
    lines = mien("models", "list").stdout.splitlines()
    assert all(any(f"detector {name}" in line for line in lines) for name in detector_names())
    (fast,) = (line for line in lines if " fast, " in line)
    (accurate,) = (line for line in lines if " accurate, " in line)
    assert fast.startswith("* deit_")
    assert accurate.startswith("  accurate_")


def test_a_reader_that_closes_the_pipe_ends_a_command_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "list_models", Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe")))
    done = mien("models", "list")
    assert (done.exit_code, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["label"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--files-from", "-"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--null"], 2, "--null needs --files-from"),
        (["label", "x", "--every", "2", "--per-second", "1"], 2, "cannot be combined"),
        *((["label", "x", option, "inf"], 2, "expected finite") for option in ("--min-face", "--per-second", "--end")),
        (["label", "no/such/folder"], 1, "no/such/folder does not exist"),
        (["label", ""], 1, "Input (empty) does not exist"),
        (["label", ".", "--write", "cvs"], 2, "cvs"),
        (["label", SAMPLES, "--ignore", "*"], 1, "--ignore"),
        # an empty value is not the default or the current folder
        (["label", SAMPLES, "--out", ""], 2, "the path is empty"),
        (["label", SAMPLES, "--write", ""], 2, "no output is named"),
        (["page", ""], 2, "the path is empty"),
        (["review", "no/such/folder"], 1, "has no journal"),
        (["review", "out", "--all"], 2, "--all needs --export"),
        (["review", "out", "--export", "x", "--sample", "9", "--reviewer", "anna"], 2, "cannot be combined"),
    ],
)
def test_a_usage_error_is_a_message_and_an_exit_code(
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mien(*arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.startswith(("mien: ", "Usage: mien "))
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "no output folder is left"


FACE = (slice(70, 170), slice(170, 270))  # of the sample


@pytest.mark.parametrize("whole", [True, False])
def test_whole_photos_in_class_folders_are_a_problem_and_crops_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: bool
) -> None:
    photo = decode(sample_photo().read_bytes())
    for number, name in enumerate(("happy", "sad", "fear", "anger", "disgust", "neutral", "surprise")):
        (tmp_path / name).mkdir()
        shown = photo if whole else cv2.convertScaleAbs(photo[FACE], alpha=1, beta=number)
        write_image(tmp_path / name / "a.png", shown)
    with pytest.raises(SystemExit):
        main(["check", "folders", str(tmp_path)])
    output = capsys.readouterr().out
    assert ("7 of 7 images examined have no face of at least 45%" in output) == whole
    assert ("no problems" in output) != whole


def test_without_torch_one_line_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda library: None if library == "torch" else found(library))
    result = CliRunner().invoke(app, ["train", "recipe.yaml"])
    assert result.exit_code == 1
    assert "torch not installed" in result.stderr
    assert "requirements/install.sh .venv-train train" in result.stderr
    assert "Traceback" not in result.output
