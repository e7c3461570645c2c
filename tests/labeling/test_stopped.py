"""Runs that are stopped or killed at any time, and resumed: the same files as of an uninterrupted run."""

import json
import os
import pkgutil
import random
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mien.app.labeling.options import DEFAULT_OUTPUTS
from mien.app.settings import Settings
from tests.labeling.conftest import ROOT, Mien, tree
from tests.support.albums import label_folder, make_album, write_photos

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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("typer", ["--json-log"]),
        ("filelock", []),
        ("cv2", []),
        ("onnxruntime.capi._pybind_state", ["--json-log"]),
        ("mien.app.labeling.run", []),
    ],
)
def test_a_signal_while_the_program_is_imported_exits_with_4(
    mien: Mien, photos: Path, name: str, options: list[str]
) -> None:
    command = [sys.executable, "-c", AT_IMPORT.format(name=name), "label", photos, "--out", mien.out, *options]
    done = subprocess.run(command, cwd=ROOT, env=mien.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "SIGTERM" in done.stderr
    if options:
        assert [json.loads(line)["code"] for line in done.stderr.splitlines()] == [4]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill_within_an_import() -> None:
    """A native library raises ImportError instead."""
    try:
        kill()
    except BaseException as error:
        raise ImportError("initialization failed") from error


def kill_within_a_callback() -> None:
    """Python loses the exception."""
    weakref.finalize(type("Thing", (), {})(), kill)


@pytest.fixture(scope="module")
def whole(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the files of a run that is not stopped."""
    base = tmp_path_factory.mktemp("whole")
    label_folder(write_photos(base / "photos", count=5), base / "out", settings, *DEFAULT_OUTPUTS)
    return tree(base / "out")


@pytest.mark.parametrize(
    ("function", "kill"),
    [
        ("batch.open_pipeline", kill),
        ("batch.open_pipeline", kill_within_an_import),
        ("run.clear_parts", kill_within_a_callback),
        ("run.scan", kill),
        ("batch.annotate", kill),
        ("outputs.report.render_page", kill),
        ("run.write_atomic", kill),
    ],
)
def test_a_signal_at_start_while_labeling_or_writing_exits_with_4_and_a_rerun_ends_in_the_same_files(
    mien: Mien, photos: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch, function: str, kill: Any
) -> None:
    function = f"mien.app.labeling.{function}"
    real = pkgutil.resolve_name(function)

    def killing(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(function, real)  # a second signal would end the run at once
        kill()
        return real(*arguments, **options)

    monkeypatch.setattr(sys, "unraisablehook", Mock())
    monkeypatch.setattr(function, killing)
    stopped = mien.run(photos, "--json-log")
    assert stopped.exit_code == 4, stopped.stderr
    last = json.loads(stopped.stderr.splitlines()[-1])
    assert "SIGTERM" in last["error" if last["event"] == "failed" else "stopped"]
    assert len(mien.label(photos)) == 5
    assert tree(mien.out) == whole


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


def test_labeling_with_other_threads_gives_the_same_bytes(mien: Mien, album: Path, labeled_album: Path) -> None:
    out = album.with_name("three threads")
    mien.label(album, "--workers", "3", out=out, exit_code=3)
    assert tree(out) == tree(labeled_album)
