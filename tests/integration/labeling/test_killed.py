"""Runs that are killed at any time and resumed: same bytes as an uninterrupted run."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.albums import make_album
from tests.integration.labeling.conftest import Mien, tree

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
