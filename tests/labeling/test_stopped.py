"""Runs that are stopped or killed at any time, and resumed: the same files as of an uninterrupted run."""

import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.labeling.conftest import ROOT, Mien, labeled, tree
from tests.support import eventually

# The program sends itself SIGTERM when a native module is imported.
AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime.capi._pybind_state":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
from mien.app.cli import main
main()
"""


def test_a_signal_while_the_program_is_imported_exits_with_4(mien: Mien, photos: Path) -> None:
    command = [sys.executable, "-c", AT_IMPORT, "label", photos, "--out", mien.out]
    done = subprocess.run(command, cwd=ROOT, env=mien.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr == "mien: stopped by SIGTERM. Rerun the same command to resume.\n"


def test_a_signal_at_start_while_labeling_or_writing_exits_with_4_and_a_rerun_ends_in_the_same_files(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mien.label(photos, out=tmp_path / "whole")
    for name in ("run.open_labeler", "run.scan", "executors.annotate", "report.render_page", "run.write_atomic"):
        function, out = f"mien.app.labeling.{name}", tmp_path / name
        real = pkgutil.resolve_name(function)

        def killing(*arguments: Any, function: str = function, real: Any = real, **options: Any) -> Any:
            monkeypatch.setattr(function, real)  # A second signal would end the run at once.
            os.kill(os.getpid(), signal.SIGTERM)
            return real(*arguments, **options)

        monkeypatch.setattr(function, killing)
        stopped = mien.run(photos, out=out)
        assert (stopped.exit_code, "topped by SIGTERM" in stopped.output) == (4, True), stopped.output
        assert len(mien.label(photos, out=out)) == 5
        assert tree(out) == tree(tmp_path / "whole"), name


@pytest.mark.slow
def test_a_run_killed_repeatedly_ends_in_the_same_bytes(mien: Mien, album: Path, tmp_path: Path) -> None:
    whole, broken, everything = (
        tmp_path / "whole",
        tmp_path / "broken",
        "csv,jsonl,annotated,crops,coco,report,episodes",
    )
    mien.label(album, "--write", everything, out=whole, exit_code=3)

    def kill_when(is_due: Callable[[], object]) -> None:
        process = mien.start("label", album, "--out", broken, "--write", everything)
        eventually(lambda: is_due() or process.poll())
        process.kill()
        process.communicate()

    kill_when(lambda: labeled(broken))
    kill_when((broken / "coco.json").exists)  # Other outputs are still written.
    mien.label(album, "--write", everything, out=broken, exit_code=3)
    assert tree(broken) == tree(whole)
