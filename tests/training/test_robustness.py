"""Corruptions of faces, and their table and figure for an artifact."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from mien.data.contract import Array
from mien.training import evaluate
from mien.training.cli import main
from mien.training.robustness import STRENGTHS, corrupt
from tests.support.data_sets import draw_face
from tests.support.training import drawn_faces

FACE = draw_face("happiness", 3)[0]


def distance(changed: Array) -> float:
    return float(np.abs(changed.astype(int) - FACE).mean())


@pytest.mark.parametrize("corruption", STRENGTHS)
def test_a_stronger_corruption_changes_more_and_the_same_seed_changes_alike(corruption: str) -> None:
    changes = [corrupt(FACE, corruption, strength, seed=1) for strength in STRENGTHS[corruption]]
    assert {(image.shape, image.dtype.name) for image in changes} == {((112, 112, 3), "uint8")}
    assert 0 < distance(changes[0]) < distance(changes[-1])
    assert np.array_equal(changes[2], corrupt(FACE, corruption, STRENGTHS[corruption][2], seed=1))


@pytest.mark.parametrize(("corruption", "row"), [("eyes covered, share", 42), ("mouth covered, share", 85)])
def test_an_occlusion_covers_what_it_names(corruption: str, row: int) -> None:
    changed = (corrupt(FACE, corruption, 0.2, seed=0) != FACE).any(axis=(1, 2))
    assert changed[row]
    assert not changed[row + 20]
    assert not changed[row - 20]


def test_the_command_measures_every_strength_and_draws_them(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Mock(wraps=evaluate.open_graph)
    monkeypatch.setattr(evaluate, "open_graph", opening)
    root, out, plot = drawn_faces(tmp_path / "faces", train=1, valid=2), tmp_path / "all.json", tmp_path / "all.png"
    arguments = ["evaluate", "--artifact", str(artifact), "--data", f"folders={root}", "--corruptions", "--faces", "10"]
    assert main([*arguments, "--json", str(out), "--plot", str(plot)]) == 0
    assert opening.call_count == 1
    rows = json.loads(out.read_text(encoding="utf-8"))["corruptions"]
    assert len(rows) == 1 + sum(map(len, STRENGTHS.values()))
    assert all(row["accuracy"]["low"] <= row["accuracy"]["value"] <= row["accuracy"]["high"] for row in rows)
    assert "10 faces" in capsys.readouterr().out
    assert plot.stat().st_size > 10_000
