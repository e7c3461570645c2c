"""Killed at any point, the same command goes on, and ends in the bytes of a run that nobody disturbed."""

import csv
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.albums import make_album
from tests.integration.labelling.conftest import Mien, TreeOf

EVERYTHING = "csv,files,jsonl,parquet,annotated,crops,classes,coco,label-studio,fiftyone,report"


def killed_runs(mien: Mien, album: Path, out: Path, *, kills: int, seed: int) -> int:
    """Run until done, killing the process `kills` times at random moments; returns how many runs it took."""
    dice = random.Random(seed)  # noqa: S311  # moments to kill at, no secret
    runs = 0
    span_s = 1.0
    while True:
        runs += 1
        began = time.monotonic()
        process = mien.start("label", album, "--out", out, "--write", EVERYTHING, "--quiet")
        if runs <= kills:
            try:
                process.communicate(timeout=dice.uniform(0.2, span_s))
                span_s = time.monotonic() - began  # it ended before the kill: aim earlier
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                span_s += 0.5
                continue
        _, err = process.communicate()
        assert process.returncode == 3, err.decode()
        if runs > kills:
            return runs


def test_a_run_killed_again_and_again_ends_in_the_same_bytes(
    mien: Mien, album: Path, tmp_path: Path, tree_of: TreeOf
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert mien("label", album, "--out", whole, "--write", EVERYTHING, "--quiet").exit_code == 3
    killed_runs(mien, album, broken, kills=6, seed=1)
    assert tree_of(broken) == tree_of(whole)


@pytest.mark.soak
def test_ten_thousand_files_and_a_hundred_kills_end_in_the_same_bytes(
    mien: Mien, tmp_path: Path, tree_of: TreeOf
) -> None:
    album = make_album(tmp_path / "album", 10_000)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = mien.start("label", album, "--out", whole, "--write", EVERYTHING, "--quiet")
    _, err = process.communicate()
    assert process.returncode == 3, err.decode()
    killed_runs(mien, album, broken, kills=100, seed=2)
    assert tree_of(broken) == tree_of(whole)


def test_a_run_stopped_by_a_signal_says_so_and_goes_on_later(
    mien: Mien, album: Path, tmp_path: Path, tree_of: TreeOf
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    mien("label", album, "--out", whole)
    process = mien.start("label", album, "--out", stopped)
    deadline = time.monotonic() + 60
    while not (stopped / "annotated" / "000").is_dir():  # labelling is under way
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "Stopped by SIGTERM" in out.decode()
    assert not (stopped / "labels.csv").exists()
    again = mien("label", album, "--out", stopped)
    assert again.exit_code == 3
    assert "are done already" in again.stderr
    assert tree_of(stopped) == tree_of(whole)


def test_labelling_with_other_threads_gives_the_same_bytes(
    mien: Mien, album: Path, tmp_path: Path, tree_of: TreeOf
) -> None:
    mien("label", album, "--out", tmp_path / "one", "--workers", "1", "--quiet")
    mien("label", album, "--out", tmp_path / "three", "--workers", "3", "--quiet")
    assert tree_of(tmp_path / "one") == tree_of(tmp_path / "three")


def test_a_limited_run_goes_on_where_it_stopped(mien: Mien, album: Path, tmp_path: Path, tree_of: TreeOf) -> None:
    out = tmp_path / "out"
    assert mien("label", album, "--out", out, "--limit", "20", "--quiet").exit_code == 3  # the dead link
    with (out / "labels.csv").open(encoding="utf-8", newline="") as file:
        named = {row["file"] for row in csv.DictReader(file) if row["reason"] not in ("not_found", "special_file")}
    assert len(named) == 20
    mien("label", album, "--out", out, "--quiet")
    mien("label", album, "--out", tmp_path / "whole", "--quiet")
    assert tree_of(out) == tree_of(tmp_path / "whole")
