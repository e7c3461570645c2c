"""Training step: reference losses, and options of a recipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mien.training.cli import main
from mien.training.loop import checkpoint
from mien.training.loop.run import OutOfMemory, Run
from mien.training.loop.run_folder import RunError
from mien.training.report.history import read_history
from mien.training.train import train
from tests.support_training import TINY_DEIT, drawn_faces, kept_states, losses, small_recipe, with_runtime

# fp32 on one thread of an x86-64 CPU
GOLDEN = {
    "cnn": [1.994, 2.013, 2.014, 1.766, 1.867, 1.831, 1.665, 1.969, 1.549, 1.830, 1.745, 1.569, 1.607, 1.803],
    "deit": [1.866, 1.893, 1.594, 1.590, 1.366, 1.298, 1.468, 1.461, 1.342, 1.508, 1.391, 1.194, 1.197, 1.186],
}  # fmt: skip


def test_losses_equal_the_recorded_ones(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces")
    cnn = train(small_recipe(root, loss={"label_smoothing": 0.1}), tmp_path / "cnn")
    assert list(losses(cnn).values()) == pytest.approx(GOLDEN["cnn"], abs=2e-3)
    distillation = {"mode": "hard", "teachers": [str(cnn)]}
    deit = small_recipe(root, model=TINY_DEIT, distillation=distillation)
    assert list(losses(train(deit, tmp_path / "deit")).values()) == pytest.approx(GOLDEN["deit"], abs=2e-3)


def test_two_loader_workers_give_the_losses_of_none(tmp_path: Path) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces"))
    with_two = train(with_runtime(recipe, workers=2), tmp_path / "two")
    assert losses(with_two) == losses(train(recipe, tmp_path / "none"))


def test_without_an_average_the_last_weights_are_validated_and_kept(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    with kept_states():
        out = train(small_recipe(root, epochs=1, optim={"learning_rate": 3e-3, "ema_decay": None}), tmp_path / "run")
    last, best = checkpoint.read(out / checkpoint.LAST), checkpoint.read(out / checkpoint.BEST)
    assert "ema" not in last
    assert all(torch.equal(best["weights"][name], value) for name, value in last["network"].items())


def test_a_run_of_one_short_epoch_can_be_reported(tmp_path: Path) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1)
    out = train(with_runtime(recipe, log_every_steps=10), tmp_path / "run")
    assert read_history(out, batch_size=recipe.batch_size).position.tolist() == [1.0]
    assert main(["report", str(out), "--out", str(tmp_path / "report.html")]) == 0
    assert "History" in (tmp_path / "report.html").read_text(encoding="utf-8")


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


@pytest.mark.skipif(sys.platform != "linux", reason="torch has GNU OpenMP on Linux only")
def test_waiting_threads_leave_their_core_to_other_programs() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    shown = {}
    for policy in ({}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        result = subprocess.run(
            [sys.executable, "-c", "import mien.training.train"],
            env=environment | policy | {"OMP_DISPLAY_ENV": "verbose"},
            capture_output=True,
            text=True,
            timeout=110,
            check=True,
        )
        rows = (row.split(" = ") for row in result.stderr.splitlines() if "GOMP_SPINCOUNT = " in row)
        shown[bool(policy)] = int(next(rows)[1].strip("'"))
    assert shown[False] < 100_000 < shown[True]
