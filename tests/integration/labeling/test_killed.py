"""Runs that are killed at any time and resumed: same bytes as an uninterrupted run."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.albums import make_album
from tests.integration.labeling.conftest import Mien, tree

EVERYTHING = "csv,files,jsonl,parquet,annotated,crops,classes,coco,label-studio,fiftyone,report,timeline"


def killed_runs(mien: Mien, album: Path, out: Path, *, kills: int, seed: int, longest_s: float) -> Counter[str]:
    """Kill the program `kills` times at random times. Returns the numbers of kills by phase.

    longest_s: maximum time until a kill; shortened where a run ends before it.
    """
    dice = random.Random(seed)  # noqa: S311  # repeatable times of the kills
    doing: Counter[str] = Counter()
    while doing.total() < kills:
        began = time.monotonic()
        process = mien.start("label", album, "--out", out, "--write", EVERYTHING, "--json-log")
        try:
            process.communicate(timeout=dice.uniform(0.2, longest_s))
            longest_s = time.monotonic() - began  # it ended first: kill earlier
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            _, log = process.communicate()
            if process.returncode == -signal.SIGKILL:  # otherwise, it ended just before
                doing[phase_of(log)] += 1
    return doing


def killed_while_writing(mien: Mien, album: Path, out: Path, *, kills: int, seed: int) -> Counter[str]:
    """Kill the program `kills` times while it writes outputs. Returns the numbers of kills by output."""
    dice = random.Random(seed)  # noqa: S311  # repeatable times of the kills
    outputs = EVERYTHING.split(",")
    at: Counter[str] = Counter()
    for _ in range(kills):
        process = mien.start("label", album, "--out", out, "--write", EVERYTHING, "--json-log")
        assert process.stderr is not None
        aim = dice.choice(outputs)
        for line in process.stderr:
            if f'"output": "{aim}"'.encode() in line:
                break
        time.sleep(dice.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        at[aim] += process.returncode == -signal.SIGKILL
    return at


def finished(mien: Mien, album: Path, out: Path) -> None:
    """Rerun the same command until it finishes."""
    process = mien.start("label", album, "--out", out, "--write", EVERYTHING, "--quiet")
    _, err = process.communicate()
    assert process.returncode == 3, err.decode()


def phase_of(log: bytes) -> str:
    """Phase of a killed run: its last complete event."""
    events = [json.loads(line)["event"] for line in log.splitlines(keepends=True) if line.endswith(b"\n")]
    if "writing" in events:
        return "writing"
    return "labeling" if "start" in events else "starting"


@pytest.mark.slow
def test_a_run_killed_repeatedly_ends_in_the_same_bytes(mien: Mien, album: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert mien("label", album, "--out", whole, "--write", EVERYTHING, "--quiet").exit_code == 3
    killed_runs(mien, album, broken, kills=5, seed=1, longest_s=3.0)
    killed_while_writing(mien, album, broken, kills=1, seed=1)
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
    # four kills in five occur while labeling, the others while outputs are written
    doing = killed_runs(released_mien, album, broken, kills=80, seed=2, longest_s=5.0 + whole_s / 35)
    at = killed_while_writing(released_mien, album, broken, kills=20, seed=3)
    finished(released_mien, album, broken)
    files = tree(whole)
    print(
        f"killed while {dict(doing)}, while writing {dict(at)}; {len(files):,} files; undisturbed run {whole_s:.0f} s"
    )
    assert min(doing["starting"], doing["labeling"], at.total()) > 5
    assert tree(broken) == files


def test_a_run_stopped_by_a_signal_reports_it_and_can_be_resumed(mien: Mien, album: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    mien("label", album, "--out", whole)
    process = mien.start("label", album, "--out", stopped)
    deadline = time.monotonic() + 60
    while not (stopped / "annotated" / "000").is_dir():  # labeling is under way
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "Stopped by SIGTERM" in out.decode()
    assert not (stopped / "labels.csv").exists()
    again = mien("label", album, "--out", stopped)
    assert again.exit_code == 3
    assert "already labeled" in again.stderr
    assert tree(stopped) == tree(whole)


def test_labeling_with_other_threads_gives_the_same_bytes(mien: Mien, album: Path, tmp_path: Path) -> None:
    mien("label", album, "--out", tmp_path / "one", "--workers", "1", "--quiet")
    mien("label", album, "--out", tmp_path / "three", "--workers", "3", "--quiet")
    assert tree(tmp_path / "one") == tree(tmp_path / "three")
