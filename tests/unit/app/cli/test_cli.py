"""The command line: start time, error messages and exit codes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mien.app.cli.options import OnDevice
from mien.app.cli.program import app
from mien.app.inference.detect import detector_names
from mien.app.inference.detect.weights import YUNET_FILE
from mien.app.settings import Device
from tests.support import ROOT, output_of, tiny_artifact

HEAVY = ("cv2", "numpy", "onnxruntime", "fastapi", "PIL")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return tiny_artifact(tmp_path / "tiny.test")


def mien(*arguments: str | Path, **environment: str | None) -> Result:
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        *((name, HEAVY) for name in ("--version", "label --help", "serve --help", "page --help")),
        ("train --help", ("torch", "timm")),
    ],
)
def test_help_loads_no_heavy_library(arguments: str, heavy: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom mien.app.cli import main\nsys.argv[1:] = sys.argv[1:]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"loaded = [name for name in {heavy} if name in sys.modules]\nassert not loaded, loaded\n"
    )
    output_of(sys.executable, "-c", code, *arguments.split(), cwd=ROOT)


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


def test_verify_reports_a_damaged_artifact(artifact: Path) -> None:
    assert "accurate_112" in mien("models", "verify", "accurate").stdout
    assert mien("models", "verify", artifact).exit_code == 0
    (artifact / "card.md").write_text("another card")
    done = mien("models", "verify", artifact)
    assert done.exit_code == 1
    assert "card.md has sha256" in done.stdout


def test_device_names_are_those_of_the_settings() -> None:
    literal, _none = get_args(get_args(OnDevice)[0])
    assert get_args(literal) == get_args(Device)


def test_models_list_has_every_detector_and_the_names_by_which_models_are_selected() -> None:
    lines = mien("models", "list").stdout.splitlines()
    assert all(any(f"detector {name}" in line for line in lines) for name in detector_names())
    (fast,) = (line for line in lines if " fast, " in line)
    (accurate,) = (line for line in lines if " accurate, " in line)
    assert fast.startswith("* deit_")
    assert accurate.startswith("  accurate_")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["label"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--files-from", "-"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--null"], 2, "--null needs --files-from"),
        (["label", "x", "--every", "2", "--per-second", "1"], 2, "cannot be combined"),
        (["label", "no/such/folder"], 1, "no/such/folder does not exist"),
        (["label", ""], 1, "Input (empty) does not exist"),
        (["label", ".", "--write", "cvs"], 2, "cvs"),
        (["review", "no/such/folder"], 1, "has no journal"),
        (["review", "out", "--all"], 2, "--all needs --export"),
        (["review", "out", "--export", "x", "--sample", "9", "--reviewer", "anna"], 2, "cannot be combined"),
    ],
)
def test_a_usage_error_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mien(*arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.startswith("mien: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "no output folder is left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["label", str(ROOT / "samples" / "photos"), "--out", ""], "the path is empty"),
        (["label", str(ROOT / "samples" / "photos"), "--write", ""], "no output is named"),
        (["page", ""], "the path is empty"),
    ],
)
def test_an_empty_value_is_not_the_default_or_the_current_folder(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mien(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_list_outputs_marks_the_defaults() -> None:
    lines = mien("label", "--list-outputs").stdout.splitlines()
    assert any(line.startswith("* csv") for line in lines)
    assert any(line.startswith("  parquet") for line in lines)
