"""`mien train` and similar commands: arguments are passed on; missing libraries are a one-line error."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.app.cli.program import app
from mien.app.cli.training import COMMANDS
from tests.data_sets import make_folders
from tests.support import ROOT, output_of


def test_a_module_named_data_in_the_working_directory_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("raise SystemExit('shadowed')\n", encoding="utf-8")
    make_folders(tmp_path / "faces")
    # like the installed program, whose folder is first in sys.path instead of the working directory
    command = [sys.executable, "-P", "-c", "from mien.app.cli import main; main()"]
    command += ["data", "check", "folders", "faces", "--json"]
    assert '"kind": "folders"' in output_of(*command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_help_and_usage_errors_import_no_training_library() -> None:
    program = (
        "import sys; from mien.training.cli import main\n"
        f"for name in {list(COMMANDS)}: assert main([*name.split(), '--help']) == 0\n"
        f"for name in {list(COMMANDS)}: assert main([*name.split(), '--no-such-option']) == 2\n"
        "print('imported:', 'torch' in sys.modules, 'albumentations' in sys.modules)"
    )
    assert "imported: False False" in output_of(sys.executable, "-c", program)


def test_without_torch_one_line_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda library: None if library == "torch" else found(library))
    result = CliRunner().invoke(app, ["train", "recipe.yaml"])
    assert result.exit_code == 1
    assert "torch not installed" in result.stderr
    assert "requirements/install.sh .venv-train train" in result.stderr
    assert "Traceback" not in result.output
