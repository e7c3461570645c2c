"""Training step: reference losses, and options of a recipe."""

from pathlib import Path

import pytest
import torch

from mien.training.loop import checkpoint
from mien.training.loop.run_folder import RunError
from mien.training.loop.session import OutOfMemory, Session
from mien.training.report.command import main as report
from mien.training.report.history import read_history
from mien.training.train import train
from tests.support_training import TINY_DEIT, drawn_faces, losses, small_recipe, with_runtime

# recorded before training and pretraining came to share their step; fp32 on one thread of an x86-64 CPU
GOLDEN = {
    "cnn": [
        1.9617,
        2.0029,
        1.8643,
        1.9127,
        2.1825,
        1.829,
        2.0476,
        2.2392,
        1.9744,
        1.926,
        1.8332,
        1.9656,
        1.9922,
        2.0714,
    ],
    "deit": [
        1.9639,
        1.9005,
        1.8769,
        1.8702,
        1.8895,
        1.9438,
        1.9194,
        1.8889,
        1.7666,
        1.8721,
        1.8959,
        1.8477,
        1.8529,
        1.8932,
    ],
}


def test_losses_equal_the_recorded_ones(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces")
    cnn = train(small_recipe(root, loss={"class_balance": 0.9, "label_smoothing": 0.1}), tmp_path / "cnn")
    assert list(losses(cnn).values()) == pytest.approx(GOLDEN["cnn"], abs=2e-3)
    distillation = {"mode": "hard", "teachers": [str(cnn)]}
    deit = small_recipe(root, model=TINY_DEIT, distillation=distillation)
    assert list(losses(train(deit, tmp_path / "deit")).values()) == pytest.approx(GOLDEN["deit"], abs=2e-3)


def test_without_an_average_the_last_weights_are_validated_and_kept(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    out = train(small_recipe(root, epochs=1, optim={"learning_rate": 3e-3, "ema_decay": None}), tmp_path / "run")
    last, best = checkpoint.read(out / checkpoint.LAST), checkpoint.read(out / checkpoint.BEST)
    assert "ema" not in last
    assert all(torch.equal(best["weights"][name], value) for name, value in last["network"].items())


def test_a_run_of_one_short_epoch_can_be_reported(tmp_path: Path) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    out = train(with_runtime(recipe, log_every_steps=10), tmp_path / "run")
    assert read_history(out, batch_size=recipe.batch_size).position.tolist() == [1.0]
    assert report([str(out), "--out", str(tmp_path / "report.html")]) == 0
    assert "History" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_points_at_accumulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def too_large(*_: object) -> None:
        raise error

    monkeypatch.setattr(Session, "optimizer_step", too_large)
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    with pytest.raises(OutOfMemory, match=r"batch_size 8.*runtime\.accumulate=2"):
        train(recipe, tmp_path / "run")


def test_other_errors_of_torch_are_not_reported_as_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Session, "optimizer_step", broken)
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(recipe, tmp_path / "run")


def test_a_run_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    with pytest.raises(RunError, match=r"file: cannot be created .*Choose another --out"):
        train(recipe, tmp_path / "file")
