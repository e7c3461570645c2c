"""Killed and resumed runs have the same losses as an uninterrupted run."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from mien.models.manifest import artifact_dir, sha256_of
from mien.training import checkpoint
from mien.training.run_folder import FACTS_NAME, RECIPE_NAME, RunError, read_facts, run_lock
from mien.training.train import train
from tests.support.training import (
    TINY_CNN,
    data_of,
    drawn_faces,
    losses,
    metric_lines,
    small_recipe,
    stopped_after,
    with_runtime,
)
from tests.training.conftest import Trained


def test_runs_of_one_recipe_are_equal_and_another_seed_changes_them(trained: Trained, tmp_path: Path) -> None:
    first = losses(trained.teacher)  # with two loader workers
    assert losses(train(trained.teacher_recipe(), tmp_path / "second")) == first
    assert losses(train(trained.teacher_recipe(seed=1), tmp_path / "third")) != first


@pytest.fixture
def out(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the teacher's run."""
    return Path(shutil.copytree(trained.teacher, tmp_path / "run"))


def test_a_run_of_another_recipe_or_with_a_damaged_file_is_rejected(trained: Trained, out: Path) -> None:
    with pytest.raises(RunError, match=r"another recipe \(seed 0, now 3, loss.label_smoothing 0\.0, now 0\.1\)"):
        train(trained.teacher_recipe(seed=3, loss={"label_smoothing": 0.1}), out)
    for name in (FACTS_NAME, RECIPE_NAME):  # the recipe is read first
        (out / name).write_text("{", encoding="utf-8")
        with pytest.raises(RunError, match=f"{name} is damaged"):
            train(trained.teacher_recipe(), out)


def test_a_second_process_is_turned_away_until_the_first_one_ends(trained: Trained, tmp_path: Path) -> None:
    recipe, out = trained.teacher_recipe(), tmp_path / "run"
    out.mkdir()
    with run_lock(out), pytest.raises(RunError, match="another process trains in this folder"):
        train(recipe, out)
    assert {path.name for path in out.iterdir()} <= {".lock"}
    assert losses(train(recipe, out)) == losses(trained.teacher)


def test_a_finished_run_is_left_as_it_is_also_of_an_earlier_release_or_with_another_cache_or_missing_classes(
    trained: Trained, out: Path, tmp_path: Path
) -> None:
    recipe = trained.teacher_recipe()
    stored = yaml.safe_load((out / RECIPE_NAME).read_text(encoding="utf-8"))
    del stored["model"]["init_from"]  # added later
    stored |= {"patience_epochs": None, "optim": stored["optim"] | {"momentum": 0.9, "ema_warmup": True}}  # removed
    (out / RECIPE_NAME).write_text(yaml.safe_dump(stored), encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"}
    data = recipe.data.model_copy(update={"cache_dir": tmp_path / "cache", "allow_missing_classes": True})
    assert train(with_runtime(recipe.model_copy(update={"data": data}), tensorboard=True), out) == out
    assert {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".lock"} == before
    stored["patience_epochs"] = 3
    (out / RECIPE_NAME).write_text(yaml.safe_dump(stored), encoding="utf-8")
    with pytest.raises(RunError, match="another recipe"):
        train(recipe, out)


def test_a_run_killed_during_validation_validates_that_epoch_after_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_runtime(small_recipe(drawn_faces(tmp_path / "faces")), checkpoint_every_steps=7)
    with monkeypatch.context() as stopped:
        stopped.setattr("mien.training.train.predict", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "run")
    (tmp_path / "run" / ".a1.part.pt").write_bytes(b"half of a checkpoint")
    train(recipe, tmp_path / "run")
    assert [line["epoch"] for line in metric_lines(tmp_path / "run") if "epoch" in line] == [0, 1]
    assert not list((tmp_path / "run").glob(".*.part*"))


def test_a_finished_run_keeps_its_position_and_not_the_state_of_its_optimizer(trained: Trained) -> None:
    assert not (trained.teacher / checkpoint.PREVIOUS).exists()
    assert (
        (trained.teacher / checkpoint.LAST).stat().st_size < 10_000 < (trained.teacher / checkpoint.BEST).stat().st_size
    )
    assert checkpoint.read(trained.teacher / checkpoint.LAST)["step"] == 20


def test_each_source_is_recorded_and_rejected_if_it_changed_since_the_start(tmp_path: Path) -> None:
    root, more = (drawn_faces(tmp_path / name, train=count, valid=1) for name, count in (("a", 2), ("b", 3)))
    sources = [{"kind": "folders", "split": "train", "root": str(folder)} for folder in (root, more)]
    recipe = small_recipe(root, epochs=1, data=data_of(root) | {"train": sources})
    out = train(recipe, tmp_path / "run")
    before = read_facts(out)
    assert before["faces"] == {"folders/train": 15, "folders/train (2)": 20, "folders/valid": 8}
    assert before["learned_from"].keys() == {"folders/train", "folders/train (2)"}
    for changed, name in (
        ({"data": {**before["data"], "folders/train 2": "0" * 64}}, "folders/train 2"),
        ({"contract_id": "0" * 12}, "the crop contract"),
    ):
        (out / FACTS_NAME).write_text(json.dumps(before | changed), encoding="utf-8")
        with pytest.raises(RunError, match=f": {name} changed since the run started"):
            train(recipe, out)
    (out / FACTS_NAME).write_text(json.dumps(before), encoding="utf-8")
    for folder, name in ((root, "folders/train"), (more, r"folders/train \(2\)")):
        changed = next((folder / "train").rglob("*.png"))
        changed.rename(tmp_path / "changed.png")
        with pytest.raises(RunError, match=f"{name} changed since the run started"):
            train(recipe, out)
        (tmp_path / "changed.png").rename(changed)
    assert read_facts(out) == before
    assert {"timm", "numpy", "opencv"} <= before["libraries"].keys()
    assert before["threads"] == 1
    assert before["cpu"]


def test_a_run_resumes_with_the_same_data_elsewhere_and_names_other_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = drawn_faces(tmp_path / "faces", train=4, valid=1)
    out = train(small_recipe(root, epochs=1), tmp_path / "run")
    root = root.rename(tmp_path / "moved")
    facts = read_facts(out)
    older = facts | {"torch": "2.0", "libraries": facts["libraries"] | {"timm": "0.9"}}
    (out / FACTS_NAME).write_text(json.dumps(older), encoding="utf-8")
    assert train(small_recipe(root, epochs=1), out) == out
    assert f"torch 2.0, now {facts['torch']}, timm 0.9, now {facts['libraries']['timm']}" in caplog.text
    source = {"kind": "folders", "split": "train", "root": str(root), "fraction": 0.5}
    data = data_of(root) | {"train": [source], "allow_missing_classes": True}
    with pytest.raises(RunError, match=r"another recipe \(data.train.0.fraction 1.0, now 0.5\)"):
        train(small_recipe(root, epochs=1, data=data), out)


def test_a_run_is_not_resumed_with_another_teacher(trained: Trained, tmp_path: Path) -> None:
    teachers = [Path(shutil.copytree(trained.teacher, tmp_path / name / "teacher")) for name in ("a", "b")]
    state = checkpoint.read(teachers[1] / checkpoint.BEST)
    checkpoint.save(teachers[1] / checkpoint.BEST, state | {"epoch": 7})
    distillation = {"mode": "hard", "teachers": list(map(str, teachers))}
    recipe = small_recipe(trained.faces, epochs=1, distillation=distillation)
    out = train(recipe, tmp_path / "run")
    assert read_facts(out)["weights_from"].keys() == {"teacher", "b/teacher"}
    assert train(recipe, out) == out
    checkpoint.save(teachers[0] / checkpoint.BEST, state | {"epoch": 8})
    with pytest.raises(RunError, match="teacher changed since the run started"):
        train(recipe, out)


def test_a_fine_tuned_run_inherits_the_provenance_of_its_initialization_and_teacher(
    trained: Trained, tmp_path: Path
) -> None:
    teacher = trained.teacher
    own = drawn_faces(tmp_path / "own", train=3, valid=1)
    values = {"mode": "hard", "teachers": [str(teacher)]}
    recipe = small_recipe(own, epochs=1, distillation=values, model=TINY_CNN | {"init_from": str(teacher)})
    facts = read_facts(train(recipe, tmp_path / "run"))
    assert facts["weights_from"] == {"teacher": sha256_of(teacher / checkpoint.BEST)}
    inherited = read_facts(teacher)["data"]["folders/train"]
    own_hash = facts["data"]["folders/train"]
    assert own_hash != inherited
    assert facts["learned_from"] == {"folders/train": own_hash, "folders/train of teacher": inherited}
    taught = small_recipe(own, epochs=1, distillation={"mode": "hard", "teachers": [str(artifact_dir(None))]})
    facts = read_facts(train(taught, tmp_path / "second"))
    assert {"ferplus/train", "folders/train"} <= facts["learned_from"].keys()
    assert len(facts["weights_from"]) >= 1


def test_the_means_of_an_epoch_are_those_of_its_steps_also_after_a_stop(tmp_path: Path) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=4, valid=1))  # two epochs of three steps
    with stopped_after(3 + 2):
        train(recipe, tmp_path / "run")
    lines = metric_lines(train(recipe, tmp_path / "run"))
    by_step = losses(tmp_path / "run")
    means = [line["train_loss"] for line in lines if "train_loss" in line]
    assert means == [pytest.approx(sum(by_step[3 * epoch + step] for step in (1, 2, 3)) / 3) for epoch in (0, 1)]
