"""Killed and resumed runs have the same losses as an uninterrupted run; damaged and unwritten checkpoints."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from mien.models.manifest import sha256_of
from mien.training.run import BEST, LAST, RUN_INFO, RunError, load, read_run_info, save
from mien.training.train import train
from tests.support import environment_of, eventually
from tests.support.training import (
    TINY_CNN,
    data_of,
    drawn_faces,
    metric_lines,
    small_recipe,
    with_runtime,
    write_recipe,
)
from tests.training.conftest import Trained


def test_a_run_of_another_recipe_or_with_a_damaged_file_is_rejected(trained: Trained, tmp_path: Path) -> None:
    out = Path(shutil.copytree(trained.teacher, tmp_path / "run"))
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


def test_a_second_process_is_turned_away_until_ctrl_c_ends_the_first_one_in_one_line_and_has_the_same_losses(
    trained: Trained, tmp_path: Path
) -> None:
    recipe, out = with_runtime(trained.teacher_recipe(), workers=1), tmp_path / "run"
    command = [sys.executable, "-m", "mien", "train", write_recipe(tmp_path / "recipe.yaml", recipe), "--out", out]
    first = subprocess.Popen(
        command,
        env=environment_of(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # A terminal sends Ctrl-C to the loader's worker, too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    eventually(lambda: (out / LAST).exists() or first.poll() is not None)
    os.killpg(first.pid, signal.SIGSTOP)
    with pytest.raises(RunError, match="another process trains in this folder"):
        train(recipe, out)
    for sent in (signal.SIGINT, signal.SIGCONT):
        os.killpg(first.pid, sent)
    _, shown = first.communicate(timeout=60)
    assert (first.returncode, shown) == (130, "interrupted; rerun the same command to resume\n")
    resumed, whole = (  # The other one had two workers.
        [line | {"faces_per_s": None} for line in metric_lines(run)] for run in (train(recipe, out), trained.teacher)
    )
    assert resumed == whole


def test_data_teachers_and_initial_weights_are_recorded_and_must_not_change_before_the_end(
    trained: Trained, tmp_path: Path
) -> None:
    root, more = (drawn_faces(tmp_path / name, train=count, valid=1) for name, count in (("a", 2), ("b", 3)))
    sources = [{"kind": "folders", "split": "train", "root": str(folder)} for folder in (root, more)]
    teachers = [Path(shutil.copytree(trained.teacher, tmp_path / name / "teacher")) for name in ("c", "d")]
    state = load(teachers[1] / BEST)
    save(teachers[1] / BEST, state | {"epoch": 7})
    recipe = small_recipe(
        root,
        epochs=1,
        data=data_of(root) | {"train": sources},
        distillation={"mode": "hard", "teachers": list(map(str, teachers))},
        model=TINY_CNN | {"init_from": str(trained.teacher)},
    )
    out = train(recipe, tmp_path / "run")
    before, inherited = read_run_info(out), read_run_info(trained.teacher)["data"]["folders/train"]
    assert before["faces"] == {"folders/train": 15, "folders/train (2)": 20, "folders/valid": 8}
    own = {name: before["data"][name] for name in ("folders/train", "folders/train (2)")}
    assert before["learned_from"] == own | {"folders/train of teacher": inherited}
    assert inherited not in own.values()
    hashes = [sha256_of(teacher / BEST) for teacher in teachers]
    assert before["weights_from"] == dict(zip(("teacher", "d/teacher"), hashes, strict=True))

    def assert_rejected(changed: str) -> None:
        with pytest.raises(RunError, match=rf"of another recipe or other data \({changed} \w+, now \w+\)"):
            train(recipe, out)

    save(teachers[1] / BEST, state | {"epoch": 8})
    assert_rejected("d/teacher")
    save(teachers[1] / BEST, state | {"epoch": 7})
    (out / RUN_INFO).write_text(json.dumps(before | {"contract_id": "0" * 12}), encoding="utf-8")
    assert_rejected("the crop contract")
    (out / RUN_INFO).write_text(json.dumps(before), encoding="utf-8")
    elsewhere = recipe.data.model_copy(update={"cache_dir": tmp_path / "cache"})
    assert train(with_runtime(recipe.model_copy(update={"data": elsewhere}), threads=2), out) == out
    assert read_run_info(out) == before
    next((more / "train").rglob("*.png")).unlink()
    assert_rejected(r"folders/train \(2\)")
    assert read_run_info(out) == before


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
