"""Training runs: reference losses, options, two processes, and what a run rejects."""

import math
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from mien.data.contract import LABELS
from mien.data.readers.base import Sample
from mien.data.tree import DatasetError
from mien.training import checkpoint
from mien.training.config import DataSource, RecipeError
from mien.training.faces import _target
from mien.training.run import check_batch_size
from mien.training.run_folder import read_facts
from mien.training.train import train
from tests.support import ROOT, output_of
from tests.support.data_sets import make_folders
from tests.support.training import (
    PLAIN_DEIT,
    TINY_DEIT,
    data_of,
    drawn_faces,
    losses,
    metric_lines,
    small_recipe,
    stopped_after,
    with_runtime,
    write_recipe,
)


def test_a_batch_in_parts_is_learned_as_a_whole(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2)
    optim = {"name": "sgd", "learning_rate": 0.5, "warmup_epochs": 0, "clip_grad_norm": None, "ema_decay": None}
    recipe = small_recipe(root, model=PLAIN_DEIT, loss={"logit_adjustment": 0.5}, optim=optim)
    runs = [train(with_runtime(recipe, accumulate=count), tmp_path / str(count)) for count in (1, 3)]
    whole, parts = (losses(run) for run in runs)
    assert len(set(whole.values())) == 2
    assert parts == pytest.approx(whole, abs=1e-5, rel=1e-4)
    whole_weights, weights = (checkpoint.read(run / checkpoint.BEST)["weights"] for run in runs)
    torch.testing.assert_close(weights, whole_weights, atol=1e-5, rtol=1e-3)


def test_random_choices_resume_with_the_same_losses(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", valid=1)
    optim = {"learning_rate": 3e-3, "warmup_epochs": 0.2, "ema_decay": 0.5, "layer_decay": 0.8}
    data = data_of(root) | {"sampler": "class"}
    recipe = small_recipe(root, mix={"mixup": 0.8, "cutmix": 1.0}, optim=optim, data=data)
    expected = losses(train(recipe, tmp_path / "whole"))
    with stopped_after(5):
        train(recipe, tmp_path / "run")
    assert losses(train(recipe, tmp_path / "run")) == pytest.approx(expected, rel=1e-5)
    of_average, resumed = (
        [line["valid_negative_log_likelihood"] for line in metric_lines(tmp_path / run) if "epoch" in line]
        for run in ("whole", "run")
    )
    assert resumed == pytest.approx(of_average, rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 needs a GPU, and torch sees none")
def test_half_precision_trains_on_a_gpu(tmp_path: Path) -> None:
    recipe = with_runtime(small_recipe(drawn_faces(tmp_path / "faces")), device="cuda", precision="fp16")
    assert all(math.isfinite(loss) for loss in losses(train(recipe, tmp_path / "run")).values())


def test_a_compiled_network_has_the_losses_of_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # it generates no C++
    recipe = small_recipe(drawn_faces(tmp_path / "faces"), model=PLAIN_DEIT, epochs=1)
    expected = losses(train(recipe, tmp_path / "plain"))
    out = train(with_runtime(recipe, compile=True), tmp_path / "compiled")
    assert losses(out) == pytest.approx(expected, abs=1e-3)
    assert not any("_orig_mod" in name for name in checkpoint.read(out / checkpoint.BEST)["weights"])


def test_a_class_without_a_training_face_is_named(tmp_path: Path) -> None:
    counts = dict.fromkeys(LABELS, 3)
    root = make_folders(tmp_path / "faces", {"train": counts | {"disgust": 0}, "valid": dict.fromkeys(LABELS, 1)})
    recipe = small_recipe(root, epochs=1)
    with pytest.raises(RecipeError, match="no faces of disgust among 18"):
        train(recipe, tmp_path / "run")


def test_a_face_of_validation_is_never_trained_on_and_copies_of_it_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 5)})
    data = data_of(root, valid_share=0.4)

    def train_on(path: Path) -> None:
        more = {"kind": "folders", "split": "train", "root": str(path), "options": {"valid_share": 0.2}}
        train(small_recipe(root, data=data | {"train": [more]}, epochs=1), tmp_path / "run")

    (tmp_path / "link").symlink_to(root)
    with pytest.raises(RecipeError, match="7 of 14 faces of valid are also in train"):
        train_on(tmp_path / "link")
    train_on(Path(shutil.copytree(root, tmp_path / "copy")))
    assert "7 of 14 faces of valid have the pixels of a training face" in caplog.text


def test_invalid_vote_shares_are_rejected_with_the_name_of_the_face() -> None:
    source = DataSource(kind="votes", split="train", target="votes")
    for shares in ((0.1,) * 8, (0.5,) * 7, (1.5, -0.5, 0, 0, 0, 0, 0), (float("nan"),) * 7):
        with pytest.raises(DatasetError, match=r"train/1\.png has vote shares"):
            _target(Sample("train/1.png", "train", LABELS[0], shares), source, LABELS)


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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_and_weights_of_one(tmp_path: Path) -> None:
    root, out = drawn_faces(tmp_path / "faces"), tmp_path / "two"
    # without BatchNorm, which has statistics per process on the CPU
    recipe = small_recipe(root, model=PLAIN_DEIT, mix={"mixup": 0.4, "cutmix": 1.0, "probability": 0.5})
    path = write_recipe(tmp_path / "recipe.yaml", recipe)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "mien.training.train", str(path), "--out", str(out)]
    output_of(*command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    one = train(recipe, tmp_path / "one")
    assert losses(out) == pytest.approx(losses(one), abs=1e-3)
    assert read_facts(out)["processes"] == 2
    weights, expected = (checkpoint.read(folder / checkpoint.BEST)["weights"] for folder in (out, one))
    torch.testing.assert_close(weights, expected, atol=1e-3, rtol=1e-2)


def test_a_batch_that_processes_cannot_share_evenly_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a multiple of 4"):
        check_batch_size(small_recipe(tmp_path, batch_size=10), 2)
