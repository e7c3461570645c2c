"""Cross-validation, and paired comparison of two artifacts."""

from pathlib import Path

import numpy as np
import pytest

from mien.models.manifest import default_artifact_dir
from mien.training.compare import compare
from mien.training.compare import main as compare_main
from mien.training.config import DataSource, FoldConfig
from mien.training.cross_validate import main
from mien.training.loop.batches import load_faces
from tests.support_training import drawn_faces, small_recipe, write_recipe


def test_cross_validation_scores_every_face_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drawn_faces(tmp_path / "faces", train=6, valid=1)
    recipe = write_recipe(tmp_path / "recipe.yaml", small_recipe(root, epochs=1))
    assert main([str(recipe), "--folds", "2", "--runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "42 faces" in shown
    assert len(shown.split("accuracy by fold, %: ")[1].split(", ")) == 2
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"small_fold_0", "small_fold_1"}


def test_an_interrupted_cross_validation_says_how_to_resume_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mien.training.cross_validate.train", interrupted)
    assert main([str(write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path)))]) == 130
    assert "rerun the same command to resume" in caplog.text


@pytest.mark.parametrize("folds", ["0", "1"])
def test_fewer_than_two_folds_are_a_usage_error(folds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["recipe.yaml", "--folds", folds])
    assert f"--folds {folds}: expected at least 2" in capsys.readouterr().err


def test_a_fold_and_the_others_partition_the_faces(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=5, valid=1)
    keys = []
    for take in ("fold", "others"):
        fold = FoldConfig(of=5, index=3, take=take)
        source = DataSource(kind="folders", split="train", root=root, fold=fold)
        keys.append(set(load_faces(source, color="luminance", cache_dir=tmp_path / "cache").keys))
    assert not keys[0] & keys[1]
    assert (len(keys[0]), len(keys[1])) == (7, 28)


def test_gains_are_paired_by_face() -> None:
    labels = np.repeat([0, 1], 50)
    before, after = labels.copy(), labels.copy()
    before[:10] = after[:5] = 1
    found = {row.name: row for row in compare(before, after, labels)}
    assert (found["accuracy"].before, found["accuracy"].after) == (0.9, 0.95)
    assert found["accuracy"].gain.value == pytest.approx(0.05)
    assert 0 <= found["accuracy"].gain.low < found["accuracy"].gain.high < 0.12
    assert found["recall, surprise"].gain.value == pytest.approx(0.1)


def test_an_artifact_gains_nothing_over_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, artifact = drawn_faces(tmp_path / "faces", train=1, valid=2), str(default_artifact_dir())
    assert compare_main([artifact, artifact, "--data", f"folders={root}"]) == 0
    assert "+0.00 (+0.00 to +0.00)" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        compare_main([artifact, artifact, "--data", "folders"])
    assert "expected KIND=ROOT" in capsys.readouterr().err
