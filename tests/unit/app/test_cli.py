"""The command line: quick to answer, clear in its errors, honest in its exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli import app
from app.detect.weights import YUNET_FILE
from tests.support import tiny_artefact

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("cv2", "numpy", "onnxruntime", "fastapi", "PIL")


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    return tiny_artefact(tmp_path / "tiny.test")


def mien(*arguments: str | Path, **environment: str | None) -> Result:
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["label", "--help"], ["models", "--help"]])
def test_help_is_answered_without_loading_what_labels(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom app.cli import main\nsys.argv[1:] = sys.argv[1:]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"loaded = [name for name in {HEAVY} if name in sys.modules]\nassert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_names_every_command() -> None:
    text = mien("--help").stdout
    for command in ("label", "review", "serve", "doctor", "models"):
        assert command in text


def test_doctor_proves_a_sound_installation(artefact: Path) -> None:
    done = mien("doctor", "--model", artefact, "--detector", "haar", "--device", "cpu")
    assert done.exit_code == 0, done.stdout
    assert "CPUExecutionProvider runs the model in fp32" in done.stdout
    assert "every file has its sha256" in done.stdout
    assert "haar" in done.stdout


def test_doctor_finds_a_damaged_model(artefact: Path) -> None:
    graph = artefact / "model.fp32.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    done = mien("doctor", "--model", artefact, "--detector", "haar", "--device", "cpu")
    assert done.exit_code == 1
    assert "bad" in done.stdout
    assert "model.fp32.onnx has sha256" in done.stdout


def test_doctor_finds_a_detector_file_of_other_bytes(artefact: Path, tmp_path: Path) -> None:
    (tmp_path / YUNET_FILE).write_bytes(b"not the network")
    done = mien("doctor", "--model", artefact, "--device", "cpu", MIEN_MODELS_DIR=str(tmp_path))
    assert done.exit_code == 1
    assert "has sha256" in done.stdout


def test_doctor_refuses_a_setting_that_means_nothing() -> None:
    done = mien("doctor", MIEN_DETECTION_THRESHOLD="7")
    assert done.exit_code == 1
    assert "MIEN_DETECTION_THRESHOLD" in done.stdout


def test_verify_says_which_artefact_is_sound(artefact: Path) -> None:
    assert mien("models", "verify", artefact).exit_code == 0
    (artefact / "card.md").write_text("another card")
    done = mien("models", "verify", artefact)
    assert done.exit_code == 1
    assert "card.md has sha256" in done.stdout


def test_models_list_names_the_detectors() -> None:
    done = mien("models", "list")
    assert done.exit_code == 0
    assert "detector haar" in done.stdout
    assert "detector yunet" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["label"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--files-from", "-"], 2, "give either FOLDER... or --files-from"),
        (["label", "x", "--every", "2", "--per-second", "1"], 2, "exclude each other"),
        (["label", "no/such/folder"], 1, "there is no such folder or file"),
        (["label", ".", "--write", "cvs"], 1, "expected one or several of"),
        (["review", "no/such/folder"], 1, "holds no journal"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    arguments: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mien(*arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.startswith("mien: ")
    assert "Traceback" not in done.stderr


def test_outputs_are_listed_with_the_default_ones_marked() -> None:
    lines = mien("label", "--list-outputs").stdout.splitlines()
    assert any(line.startswith("* csv") for line in lines)
    assert any(line.startswith("  parquet") for line in lines)
