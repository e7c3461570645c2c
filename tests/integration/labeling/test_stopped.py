"""SIGTERM at any time: exit code 4, only JSON lines, and a rerun resumes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.labeling.conftest import ROOT, Mien

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
import importlib, os, signal
module = importlib.import_module({module!r})
real = getattr(module, {function!r})
def killing(*arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*arguments, **options)
setattr(module, {function!r}, killing)
from mien.app.cli import main
main()
"""
# A signal during the import of a native library: the library raises ImportError instead.
LOST = """
import os, signal, mien.app.labeling.run
def open_pipeline(*_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException as error:
        raise ImportError("initialization failed") from error
mien.app.labeling.run.open_pipeline = open_pipeline
from mien.app.cli import main
main()
"""


def stopped(mien: Mien, program: str, photos: Path, *options: str) -> str:
    """Standard error of a run that sends itself SIGTERM; checks its exit code."""
    command = [sys.executable, "-c", program, "label", photos, "--out", photos.parent / "out", *options]
    done = subprocess.run(command, cwd=ROOT, env=mien.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    return done.stderr


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
    said = stopped(mien, AT_IMPORT.format(name=name), photos, *options)
    assert "SIGTERM" in said
    if options:
        assert [json.loads(line)["code"] for line in said.splitlines()] == [4]


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("mien.app.labeling.run", "open_pipeline"),
        ("mien.app.labeling.run", "scan"),
        ("mien.app.labeling.outputs.report", "render_page"),
        ("mien.app.labeling.run", "write_atomic"),
    ],
)
def test_a_signal_at_start_or_while_writing_exits_with_4_and_a_rerun_completes(
    mien: Mien, photos: Path, module: str, function: str
) -> None:
    said = stopped(mien, AT_CALL.format(module=module, function=function), photos, "--json-log")
    assert all(json.loads(line) for line in said.splitlines())
    assert '"code": 4' in said or '"stopped": "SIGTERM"' in said
    assert len(mien.label(photos, out=photos.parent / "out")) == 5


def test_a_signal_that_a_library_turns_into_another_error_exits_with_4(mien: Mien, photos: Path) -> None:
    assert "stopped by SIGTERM" in stopped(mien, LOST, photos)


def test_a_signal_that_python_lost_stops_the_run_at_the_next_step(mien: Mien, photos: Path) -> None:
    program = (
        "import os, signal, weakref\nfrom mien.app.labeling import run\nreal = run.clear_parts\n"
        "class Thing: pass\n"
        "def clear_parts(out):\n    thing = Thing()\n"
        "    weakref.finalize(thing, os.kill, os.getpid(), signal.SIGTERM)\n    del thing\n    real(out)\n"
        "run.clear_parts = clear_parts\nfrom mien.app.cli import main\nmain()\n"
    )
    stopped(mien, program, photos, "--quiet")


def test_a_signal_to_a_real_process_in_its_first_second_exits_with_4(mien: Mien, photos: Path) -> None:
    process = mien.start("label", photos, "--out", photos.parent / "out", "--json-log")
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc to see when the program handles signals")
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:  # from the first lines of the program on
        assert process.poll() is None
        caught = next(int(line.split()[1], 16) for line in status.read_text().splitlines() if "SigCgt" in line)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 4
    assert json.loads(said)["code"] == 4
