"""Runs that are stopped or killed at any time, and resumed: the same files as of an uninterrupted run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.labeling.conftest import ROOT, Mien, tree
from tests.support.albums import make_album

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
        ("mien.app.labeling.batch", "open_pipeline", "kill", '"stopped": "SIGTERM"'),
        ("mien.app.labeling.batch", "open_pipeline", "kill_within_an_import", "stopped by SIGTERM"),
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


EVERYTHING = "csv,files,jsonl,parquet,annotated,crops,classes,coco,label-studio,fiftyone,report,timeline"


def killed_runs(mien: Mien, album: Path, out: Path, *, kills: int, seed: int, longest_s: float) -> Counter[str]:
    """Start the program `kills` times and kill it: at first while starting or labeling, at last while writing.

    longest_s: maximum time of labeling until a kill. Returns the numbers of kills by what the program was doing.
    """
    dice = random.Random(seed)  # noqa: S311  # repeatable times of the kills
    doing: Counter[str] = Counter()
    for number in range(kills):
        if number < kills * 4 // 5:
            choices = [("starting", "", 2.0), ("labeling", '"event": "start"', longest_s)]
        else:
            choices = [("writing", f'"output": "{name}"', 0.5) for name in EVERYTHING.split(",")]
        phase, event, wait_s = dice.choice(choices)
        process = mien.start("label", album, "--out", out, "--write", EVERYTHING, "--json-log")
        assert process.stderr is not None
        for line in process.stderr if event else ():
            if event.encode() in line:
                break
        time.sleep(dice.uniform(0.0, wait_s))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        doing[phase] += process.returncode == -signal.SIGKILL  # otherwise, it ended just before
    return doing


def finished(mien: Mien, album: Path, out: Path) -> None:
    """Rerun the same command until it finishes."""
    process = mien.start("label", album, "--out", out, "--write", EVERYTHING, "--quiet")
    _, err = process.communicate()
    assert process.returncode == 3, err.decode()


@pytest.mark.slow
def test_a_run_killed_repeatedly_ends_in_the_same_bytes(mien: Mien, album: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    mien.label(album, "--write", EVERYTHING, out=whole, exit_code=3)
    killed_runs(mien, album, broken, kills=6, seed=1, longest_s=3.0)
    finished(mien, album, broken)
    assert tree(broken) == tree(whole)


@pytest.mark.soak
def test_ten_thousand_files_and_a_hundred_kills_end_in_the_same_bytes(released_mien: Mien, tmp_path: Path) -> None:
    given = os.environ.get("MIEN_PHOTOS_DIR")
    album = make_album(tmp_path / "album", 10_000, photos=Path(given) if given else None)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    began = time.monotonic()
    finished(released_mien, album, whole)
    whole_s = time.monotonic() - began
    doing = killed_runs(released_mien, album, broken, kills=100, seed=2, longest_s=whole_s / 35)
    finished(released_mien, album, broken)
    files = tree(whole)
    print(f"killed while {dict(doing)}; {len(files):,} files; undisturbed run {whole_s:.0f} s")
    assert min(doing[phase] for phase in ("starting", "labeling", "writing")) > 5
    assert tree(broken) == files


def test_labeling_with_other_threads_gives_the_same_bytes(mien: Mien, album: Path, tmp_path: Path) -> None:
    for workers in ("1", "3"):
        mien.label(album, "--workers", workers, out=tmp_path / workers, exit_code=3)
    assert tree(tmp_path / "1") == tree(tmp_path / "3")
