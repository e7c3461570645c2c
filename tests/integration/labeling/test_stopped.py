"""SIGTERM at any time: exit code 4, only JSON lines, and a rerun ends in the same files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.labeling.conftest import ROOT, Mien, tree

# The program sends itself SIGTERM when a module is imported.
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
from mien.app.cli import main
main()
"""
# The program sends itself SIGTERM when a function is called.
AT_CALL = """
import importlib, os, signal, weakref
module = importlib.import_module({module!r})
real = getattr(module, {function!r})
def kill():
    os.kill(os.getpid(), signal.SIGTERM)
def kill_within_an_import():  # a native library raises ImportError instead
    try:
        kill()
    except BaseException as error:
        raise ImportError("initialization failed") from error
def kill_within_a_callback():  # Python loses its exception
    weakref.finalize(type("Thing", (), {{}})(), kill)
def killing(*arguments, **options):
    setattr(module, {function!r}, real)  # a second signal would end the run at once
    {kill}()
    return real(*arguments, **options)
setattr(module, {function!r}, killing)
from mien.app.cli import main
main()
"""


def stopped(mien: Mien, program: str, photos: Path, *options: str) -> tuple[str, str]:
    """Standard output and error of a run that sends itself SIGTERM; checks its exit code."""
    command = [sys.executable, "-c", program, "label", photos, "--out", photos.parent / "out", *options]
    done = subprocess.run(command, cwd=ROOT, env=mien.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("typer", ("--json-log",)),
        ("filelock", ()),
        ("cv2", ()),
        ("onnxruntime.capi._pybind_state", ("--json-log",)),
        ("mien.app.labeling.run", ()),
    ],
)
def test_a_signal_while_the_program_is_imported_exits_with_4(
    mien: Mien, photos: Path, name: str, options: tuple[str, ...]
) -> None:
    _, said = stopped(mien, AT_IMPORT.format(name=name), photos, *options)
    assert "SIGTERM" in said
    if options:
        assert [json.loads(line)["code"] for line in said.splitlines()] == [4]


@pytest.mark.parametrize(
    ("module", "function", "kill", "message"),
    [
        ("mien.app.labeling.executors", "open_pipeline", "kill", '"stopped": "SIGTERM"'),
        ("mien.app.labeling.executors", "open_pipeline", "kill_within_an_import", "stopped by SIGTERM"),
        ("mien.app.labeling.run", "clear_parts", "kill_within_a_callback", '"stopped": "SIGTERM"'),
        ("mien.app.labeling.run", "scan", "kill", '"stopped": "SIGTERM"'),
        ("mien.app.labeling.batch", "annotate", "kill", "Stopped by SIGTERM"),
        ("mien.app.labeling.outputs.report", "render_page", "kill", '"stopped": "SIGTERM"'),
        ("mien.app.labeling.run", "write_atomic", "kill", '"stopped": "SIGTERM"'),
    ],
)
def test_a_signal_at_start_while_labeling_or_writing_exits_with_4_and_a_rerun_ends_in_the_same_files(
    mien: Mien, photos: Path, tmp_path: Path, module: str, function: str, kill: str, message: str
) -> None:
    options = ["--json-log"] if '"' in message else []
    said, log = stopped(mien, AT_CALL.format(module=module, function=function, kill=kill), photos, *options)
    assert message in said + log
    assert all(json.loads(line) for line in log.splitlines() if options)
    for out in (tmp_path / "out", tmp_path / "whole"):
        assert len(mien.label(photos, out=out)) == 5
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
