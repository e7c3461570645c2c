"""Killed and resumed runs have the same losses as an uninterrupted run; damaged and unwritten checkpoints."""

import errno
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from filelock import FileLock

from mien.models.manifest import sha256_of
from mien.training.run import BEST, LAST, RUN_INFO, RunError, load, read_run_info, save
from mien.training.train import train
from tests.support.training import (
    TINY_CNN,
    data_of,
    drawn_faces,
    losses,
    metric_lines,
    small_recipe,
    with_runtime,
)
from tests.training.conftest import Trained


@pytest.fixture
def out(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the teacher's run."""
    return Path(shutil.copytree(trained.teacher, tmp_path / "run"))


def test_a_run_of_another_recipe_or_with_a_damaged_file_is_rejected(trained: Trained, out: Path) -> None:
    recipe = trained.teacher_recipe(seed=3, loss={"label_smoothing": 0.1})
    for removed in (None, LAST):
        (out / str(removed)).unlink(missing_ok=True)
        with pytest.raises(
            RunError, match=r"another recipe or other data \(seed 0, now 3, loss.label_smoothing 0\.0, now 0\.1\)"
        ):
            train(recipe, out)
    (out / LAST).touch()
    (out / RUN_INFO).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=f"{RUN_INFO} is damaged"):
        train(trained.teacher_recipe(), out)


def test_a_second_process_is_turned_away_until_the_first_one_ends_and_has_the_same_losses(
    trained: Trained, tmp_path: Path
) -> None:
    recipe, out = trained.teacher_recipe(), tmp_path / "run"
    out.mkdir()
    with FileLock(out / ".lock"), pytest.raises(RunError, match="another process trains in this folder"):
        train(recipe, out)
    assert {path.name for path in out.iterdir()} <= {".lock"}
    assert losses(train(recipe, out)) == losses(trained.teacher)  # with two loader workers


def test_a_finished_run_is_left_as_it_is_also_with_another_cache(trained: Trained, out: Path, tmp_path: Path) -> None:
    recipe = trained.teacher_recipe()
    before = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"}
    data = recipe.data.model_copy(update={"cache_dir": tmp_path / "cache"})
    assert train(with_runtime(recipe.model_copy(update={"data": data}), threads=2), out) == out
    assert {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"} == before


def test_a_run_that_failed_during_validation_validates_that_epoch_after_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces"), select="last")
    recipe = with_runtime(recipe, checkpoint_every_steps=7)
    with monkeypatch.context() as stopped:
        stopped.setattr("mien.training.train.predict", Mock(side_effect=torch.OutOfMemoryError))
        with pytest.raises(RunError, match="out of memory on cpu at batch_size 8"):
            train(recipe, tmp_path / "run")
    (tmp_path / "run" / ".a1.part.pt").write_bytes(b"half of a checkpoint")
    train(recipe, tmp_path / "run")
    assert [line["epoch"] for line in metric_lines(tmp_path / "run") if "epoch" in line] == [0, 1]
    assert not list((tmp_path / "run").glob(".*.part*"))
    assert load(tmp_path / "run" / BEST)["epoch"] == 1


def test_each_source_is_recorded_and_rejected_if_it_changed_since_the_start(tmp_path: Path) -> None:
    root, more = (drawn_faces(tmp_path / name, train=count, valid=1) for name, count in (("a", 2), ("b", 3)))
    sources = [{"kind": "folders", "split": "train", "root": str(folder)} for folder in (root, more)]
    recipe = small_recipe(root, epochs=1, data=data_of(root) | {"train": sources})
    out = train(recipe, tmp_path / "run")
    before = read_run_info(out)
    assert before["faces"] == {"folders/train": 15, "folders/train (2)": 20, "folders/valid": 8}
    assert before["learned_from"].keys() == {"folders/train", "folders/train (2)"}
    (out / RUN_INFO).write_text(json.dumps(before | {"contract_id": "0" * 12}), encoding="utf-8")
    with pytest.raises(RunError, match=r"\(the crop contract 0{12}, now \w{12}\)"):
        train(recipe, out)
    (out / RUN_INFO).write_text(json.dumps(before), encoding="utf-8")
    next((more / "train").rglob("*.png")).unlink()
    with pytest.raises(RunError, match=r"other data \(folders/train \(2\) \w{64}, now \w{64}\)"):
        train(recipe, out)
    assert read_run_info(out) == before


def test_a_run_is_not_resumed_with_another_teacher(trained: Trained, tmp_path: Path) -> None:
    teachers = [Path(shutil.copytree(trained.teacher, tmp_path / name / "teacher")) for name in ("a", "b")]
    state = load(teachers[1] / BEST)
    save(teachers[1] / BEST, state | {"epoch": 7})
    distillation = {"mode": "hard", "teachers": list(map(str, teachers))}
    recipe = small_recipe(trained.faces, epochs=1, distillation=distillation)
    out = train(recipe, tmp_path / "run")
    assert read_run_info(out)["weights_from"].keys() == {"teacher", "b/teacher"}
    assert train(recipe, out) == out
    save(teachers[0] / BEST, state | {"epoch": 8})
    with pytest.raises(RunError, match=r"other data \(teacher \w{64}, now"):
        train(recipe, out)


def test_a_fine_tuned_run_inherits_the_provenance_of_its_initialization_and_teacher(
    trained: Trained, tmp_path: Path
) -> None:
    teacher = trained.teacher
    own = drawn_faces(tmp_path / "own", train=3, valid=1)
    values = {"mode": "hard", "teachers": [str(teacher)]}
    recipe = small_recipe(own, epochs=1, distillation=values, model=TINY_CNN | {"init_from": str(teacher)})
    run_info = read_run_info(train(recipe, tmp_path / "run"))
    assert run_info["weights_from"] == {"teacher": sha256_of(teacher / BEST)}
    inherited = read_run_info(teacher)["data"]["folders/train"]
    own_hash = run_info["data"]["folders/train"]
    assert own_hash != inherited
    assert run_info["learned_from"] == {"folders/train": own_hash, "folders/train of teacher": inherited}


def test_a_damaged_checkpoint_is_named_and_one_that_is_not_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, weights = tmp_path / LAST, {"w": torch.arange(20_000, dtype=torch.float32)}

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    save(last, {"step": 1, "weights": weights})
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"No space left on device.*unchanged"):
        save(last, {"step": 2, "weights": weights})
    assert load(last)["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [LAST]
    content = last.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :], b""):
        last.write_bytes(damaged)
        with pytest.raises(RunError, match=r"last\.pt: (damaged|cannot be read)"):
            load(last)
