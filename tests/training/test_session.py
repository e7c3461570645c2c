"""Training step: reference losses, loader workers, two processes, and clear errors."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from mien.training import checkpoint
from mien.training.config import Recipe, RecipeError
from mien.training.run import OutOfMemory, Run, check_batch_size
from mien.training.run_folder import FACTS_NAME, RunError, read_facts
from mien.training.train import train
from tests.support import ROOT, output_of
from tests.support.training import (
    PLAIN_DEIT,
    TINY_DEIT,
    cpu,
    drawn_faces,
    kept_states,
    losses,
    small_recipe,
    stopped_after,
    with_runtime,
    write_recipe,
)

# fp32 on one thread of an x86-64 CPU
GOLDEN = {
    "cnn": [1.994, 2.013, 2.014, 1.766, 1.867, 1.831, 1.665, 1.969, 1.549, 1.830, 1.745, 1.569, 1.607, 1.803],
    "deit": [1.881, 1.926, 1.714, 1.689, 1.434, 1.400, 1.506, 1.654, 1.383, 1.657, 1.516, 1.267, 1.313, 1.411],
}  # fmt: skip


def test_losses_equal_the_recorded_ones(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces")
    cnn = train(small_recipe(root, loss={"label_smoothing": 0.1}), tmp_path / "cnn")
    assert list(losses(cnn).values()) == pytest.approx(GOLDEN["cnn"], abs=2e-3)
    distillation = {"mode": "hard", "teachers": [str(cnn)]}
    deit = small_recipe(root, model=TINY_DEIT, distillation=distillation)
    assert list(losses(train(deit, tmp_path / "deit")).values()) == pytest.approx(GOLDEN["deit"], abs=2e-3)


def test_without_an_average_the_last_weights_are_validated_and_kept(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    with kept_states():
        out = train(small_recipe(root, epochs=1, optim={"learning_rate": 3e-3, "ema_decay": None}), tmp_path / "run")
    last, best = checkpoint.read(out / checkpoint.LAST), checkpoint.read(out / checkpoint.BEST)
    assert "ema" not in last
    assert all(torch.equal(best["weights"][name], value) for name, value in last["network"].items())


def test_out_of_memory_points_at_accumulation_and_other_errors_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    for error, reported in (
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), OutOfMemory),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"), OutOfMemory),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), RuntimeError),
    ):
        monkeypatch.setattr(Run, "end_step", lambda *_, error=error, **_options: (_ for _ in ()).throw(error))
        with pytest.raises(reported, match="mat1" if reported is RuntimeError else r"runtime\.accumulate=2"):
            train(recipe, tmp_path / "run")


def test_a_run_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    with pytest.raises(RunError, match=r"file: cannot be created .*Choose another --out"):
        train(recipe, tmp_path / "file")


def run_of_three_steps(folder: Path, **state: Any) -> Run:
    recipe, length = small_recipe(folder / "faces"), {"epochs": 1, "steps_per_epoch": 3}
    return Run(recipe, folder / "run", {"data": {}}, state, runtime=cpu(), **length)


def save_and_stop(run: Run, *, step: int) -> None:
    with run:
        run.step = step
        run.save_last()
        raise KeyboardInterrupt


def test_a_run_that_is_resumed_in_fp16_starts_with_a_new_loss_scaler(tmp_path: Path) -> None:
    before, after = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pytest.raises(KeyboardInterrupt):
        save_and_stop(run_of_three_steps(tmp_path, network=before), step=2)
    with run_of_three_steps(tmp_path, network=after, scaler=torch.amp.GradScaler("cpu")) as run:
        assert run.step == 2
    assert torch.equal(before.weight, after.weight)


def test_a_run_records_the_device_that_it_uses_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # on a machine with a GPU, but runtime.device=cpu
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _device: "a GPU")
    for step in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            save_and_stop(run_of_three_steps(tmp_path, network=torch.nn.Linear(2, 2)), step=step)
    facts = read_facts(tmp_path / "run")
    for recorded in (facts, *facts["resumed"]):
        assert recorded["device"] == recorded["cpu"]
        assert recorded["processes"] == 1


def test_a_run_continues_its_own_run_of_wandb_and_no_other_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Mock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for folder, step in (("here", 1), ("here", 2), ("elsewhere", 1)):
        run = run_of_three_steps(tmp_path / folder, network=torch.nn.Linear(2, 2))
        run.recipe = with_runtime(run.recipe, wandb=True)
        with pytest.raises(KeyboardInterrupt):
            save_and_stop(run, step=step)
    first, resumed, other = (call.kwargs["id"] for call in wandb.init.call_args_list)
    assert first == resumed != other
    assert re.fullmatch(r"run-\d+", first)


STEADY = PLAIN_DEIT | {"name": "deit_tiny_distilled_patch16_224"}  # BatchNorm has statistics per process on the CPU


def recipe_of(root: Path, **changes: object) -> Recipe:
    mixed = {"mix": {"mixup": 0.4, "cutmix": 1.0, "probability": 0.5}}
    return small_recipe(root, model=STEADY, epochs=4, **(mixed | changes))


def train_in_two(recipe: Recipe, out: Path) -> None:
    path = write_recipe(out.parent / "recipe.yaml", recipe)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "mien.training.train", str(path), "--out", str(out)]
    output_of(*command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_of_one_and_can_be_resumed(tmp_path: Path) -> None:
    recipe = recipe_of(drawn_faces(tmp_path / "faces"))
    expected = losses(train(recipe, tmp_path / "one"))
    assert len(expected) == 28
    out = tmp_path / "two"
    train_in_two(recipe, out)
    found = losses(out)
    assert found == pytest.approx(expected, abs=1e-3)
    assert json.loads((out / FACTS_NAME).read_text())["processes"] == 2
    one, two = (checkpoint.read(folder / checkpoint.BEST) for folder in (tmp_path / "one", out))
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, atol=1e-3, rtol=1e-2)
    resumed = tmp_path / "resumed"
    with stopped_after(11):
        train(recipe, resumed)
    train_in_two(recipe, resumed)
    assert losses(resumed) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "complaint"),
    [(8, 3, "expected at least 12, two samples for each part"), (10, 1, "a multiple of 4"), (9, 1, "a multiple of 4")],
)
def test_a_batch_that_processes_cannot_share_evenly_is_rejected(
    tmp_path: Path, batch_size: int, accumulate: int, complaint: str
) -> None:
    recipe = recipe_of(tmp_path, batch_size=batch_size)
    with pytest.raises(RecipeError, match=complaint):
        check_batch_size(with_runtime(recipe, accumulate=accumulate), 2)
