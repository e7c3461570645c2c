"""Training runs: recorded losses, schedule, what is rejected, what stops a run, and the epoch and head it keeps."""

import math
import shutil
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mien.training.losses
from mien.data.contract import LABELS
from mien.models.backbones import UnknownBackbone
from mien.models.network import FaceNetwork
from mien.training.config import OptimConfig, RecipeError, RuntimeConfig
from mien.training.evaluate import predict
from mien.training.run import BEST, LAST, RunError, TrainingDiverged, load
from mien.training.train import build_optimizer, build_scheduler, choose_device, train
from mien.training.weights import Teachers, load_trained
from tests.support.data_sets import make_folders
from tests.support.training import (
    TINY_DEIT,
    data_of,
    drawn_faces,
    losses,
    metric_lines,
    small_recipe,
    valid_faces,
    with_runtime,
)
from tests.training.conftest import Trained


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("train") / "faces")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 needs a GPU, and torch sees none")
def test_half_precision_trains_on_a_gpu(root: Path, tmp_path: Path) -> None:
    recipe = with_runtime(small_recipe(root), device="cuda", precision="fp16")
    assert all(math.isfinite(loss) for loss in losses(train(recipe, tmp_path / "run")).values())


def test_a_class_without_a_training_face_is_named_faces_of_validation_are_rejected_and_their_copies_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 5)})
    data = data_of(root, valid_share=0.4)

    def train_on(path: Path, **options: object) -> None:
        more = {"kind": "folders", "split": "train", "root": str(path), "options": {"valid_share": 0.2} | options}
        train(small_recipe(root, data=data | {"train": [more]}, epochs=1), tmp_path / "run")

    (tmp_path / "link").symlink_to(root)
    with pytest.raises(RecipeError, match="7 of 14 faces of valid are also in train"):
        train_on(tmp_path / "link")
    for path in [*shutil.copytree(root, tmp_path / "copy").rglob("*.png")]:
        path.rename(path.with_stem(f"copy_{path.stem}"))
    with pytest.raises(RecipeError, match="no faces of disgust among 24"):
        train_on(tmp_path / "copy", ignore=["disgust"])
    train_on(tmp_path / "copy")
    assert "12 of 14 faces of valid have the pixels of a training face" in caplog.text


# Losses of the steps, and negative log likelihood of each epoch; fp32 on one thread of an x86-64 CPU.
GOLDEN = {
    "cnn": [
        1.941, 1.874, 1.948, 1.987, 2.036, 1.871, 1.875, 1.930, 1.759, 1.983, 1.705, 1.653, 1.879, 1.733, 1.877, 1.836,
    ],
    "deit": [
        1.036, 1.141, 1.197, 1.259, 1.342, 1.032, 1.219, 0.765, 1.354, 0.983, 1.149, 1.350, 1.234, 0.508, 1.055, 1.168,
        1.843, 1.841,
    ],
}  # fmt: skip


def test_losses_equal_the_recorded_ones(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, taught_on = Teachers.forward, set()

    def forwarding(teachers: Teachers, crops: torch.Tensor) -> torch.Tensor:
        taught_on.add(crops.dtype)
        return forward(teachers, crops)

    def assert_as_recorded(name: str, **changes: Any) -> Path:
        run = train(small_recipe(root, **changes), tmp_path / name)
        validated = [line["valid_negative_log_likelihood"] for line in metric_lines(run) if "epoch" in line]
        assert [*losses(run).values(), *validated] == pytest.approx(GOLDEN[name], abs=2e-3)
        means = [line["train_loss"] for line in metric_lines(run) if "train_loss" in line]
        assert means == pytest.approx(np.reshape([*losses(run).values()], (2, -1)).mean(axis=1))
        return run

    # SAM, smoothing, and an average that soon forgets the initial weights
    optim = {"learning_rate": 3e-3, "warmup_epochs": 0.2, "ema_decay": 0.999, "sam_rho": 0.05}
    mix = {"mixup": 0.8, "cutmix": 1.0, "probability": 0.8}
    cnn = assert_as_recorded("cnn", loss={"label_smoothing": 0.1}, optim=optim, mix=mix)
    # frequencies, layers of different rates, faces without labels, and a teacher of mixed crops, which are not uint8
    monkeypatch.setattr(Teachers, "forward", forwarding)
    data = data_of(root)
    data["train"] += [data["train"][0] | {"target": "teacher", "fraction": 0.3}]
    assert_as_recorded(
        "deit",
        data=data,
        model=TINY_DEIT,
        distillation={"mode": "soft", "teachers": [str(cnn)], "weight": 0.25, "temperature": 2.0},
        loss={"logit_adjustment": 0.5},
        mix=mix,
        optim={"learning_rate": 3e-3, "layer_decay": 0.7, "ema_decay": 0.5},
    )
    assert taught_on == {torch.float32}


@pytest.mark.parametrize(("warmup_epochs", "epochs", "peak"), [(1.0, 5, 10), (None, 1, 1), (None, 30, 10)])
def test_a_cosine_starts_at_the_end_of_a_warm_up_that_is_short_in_a_short_training(
    warmup_epochs: float | None, epochs: int, peak: int
) -> None:
    optim = OptimConfig(learning_rate=0.02, min_learning_rate=0.0, warmup_epochs=warmup_epochs)
    optimizer = build_optimizer(nn.Linear(2, 2), optim)
    scheduler, rates = build_scheduler(optimizer, optim, epochs=epochs, steps_per_epoch=10), list[float]()
    for step in range(10 * epochs):
        scheduler.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    cosine = np.cos(np.linspace(0, np.pi, 10 * epochs - peak, endpoint=False))
    assert rates == pytest.approx([*0.02 * np.arange(peak) / peak, *0.01 + 0.01 * cosine])


def test_a_loss_is_a_file_of_its_name_and_wrong_names_are_rejected(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halved.py").write_text("def loss(logits, targets, config):\n    return logits.sum() * 0 + 0.5\n")
    monkeypatch.setattr(mien.training.losses, "__path__", [*mien.training.losses.__path__, str(tmp_path)])
    run = train(small_recipe(root, epochs=1, loss={"name": "halved"}), tmp_path / "run")
    assert {line["loss"] for line in metric_lines(run) if "loss" in line} == {0.5}
    token = {"mode": "token-hard", "teachers": [str(run)]}
    for recipe, error, message in (
        (small_recipe(root, loss={"name": "focal"}), RecipeError, "'focal': expected one of cross_entropy, halved"),
        # before data are read
        (small_recipe(tmp_path / "no data", distillation=token | {"teachers": ["nobody"]}), RecipeError, "nobody: not"),
        (small_recipe(root, distillation=token), UnknownBackbone, "this model has no distillation token"),
    ):
        with pytest.raises(error, match=message):
            train(recipe, tmp_path / "other")


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_is_saved(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = iter([torch.tensor(norm) for norm in (1.0, 1.0, torch.nan, 1.0)])

    def clip(parameters: Any, _norm: float) -> torch.Tensor:
        norm = next(norms)
        for weight in parameters:
            weight.grad += 0 * norm
        return norm

    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", clip)
    recipe = with_runtime(small_recipe(root), log_every_steps=5)  # checkpoints of steps 2, 4, ...
    batch = "folders/train/anger/train001.png, folders/train/surprise/train017.png, "
    with pytest.raises(TrainingDiverged, match=f"step 2: loss or gradient is not finite.*inspect this batch: {batch}"):
        train(recipe, tmp_path / "run")
    state = load(tmp_path / "run" / LAST)
    assert state["step"] == 2
    assert all(value.isfinite().all() for value in state["network"].values() if value.is_floating_point())


def test_the_automatic_precision_is_bf16_where_the_device_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mien.training.train.set_fused_attn", lambda _enabled: None)
    started = process_time()
    choose_device(RuntimeConfig(device="cpu", threads=1))
    assert process_time() - started < 3  # s, also where bf16 is emulated
    for device, computes_bf16, expected in (
        ("cuda", True, torch.bfloat16),
        ("cuda", False, torch.float16),
        ("cpu", True, torch.bfloat16),
        ("cpu", False, torch.float32),
    ):
        supports = partial(lambda computes, including_emulation=True: computes or including_emulation, computes_bf16)
        monkeypatch.setattr("torch.cuda.is_available", partial(str.__eq__, device, "cuda"))
        monkeypatch.setattr("torch.cuda.is_bf16_supported", supports)  # A T4 emulates it.
        monkeypatch.setattr("mien.training.train._multiplies_faster_in_bf16", partial(bool, computes_bf16))
        assert choose_device(RuntimeConfig(threads=1)) == (torch.device(device), expected)


@pytest.mark.parametrize(
    ("select", "values", "kept"),
    [("accuracy", [0.5, 0.7, 0.6], 1), ("negative_log_likelihood", [2.5, 1.9, 2.2], 1), ("last", [0.5, 0.7, 0.6], 2)],
)
def test_the_epoch_with_the_best_score_is_kept_also_if_a_validation_fails_which_a_rerun_repeats(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: str, values: list[float], kept: int
) -> None:
    scores, run = iter([*values[:2], torch.OutOfMemoryError(), values[2]]), tmp_path / "run"
    name = "accuracy" if select == "last" else select

    def scripted(*_arguments: object) -> dict[str, float]:
        if isinstance(score := next(scores), Exception):
            raise score
        rising = len(metric_lines(run)) / 100  # the others would select the last epoch
        others = {"accuracy": rising, "mean_class_accuracy": rising, "negative_log_likelihood": -rising}
        return others | {name: score}

    monkeypatch.setattr("mien.training.train.validate", scripted)
    recipe = with_runtime(small_recipe(root, epochs=3, select=select), checkpoint_every_steps=7)  # those of an epoch
    with pytest.raises(RunError, match="out of memory on cpu at batch_size 8"):
        train(recipe, run)
    (run / ".a1.part.pt").write_bytes(b"half of a checkpoint")
    train(recipe, run)
    assert not list(run.glob(".*.part*"))
    state = load(run / BEST)
    assert (state["epoch"], state[name]) == (kept, values[kept])
    assert [line[f"valid_{name}"] for line in metric_lines(run) if "epoch" in line] == values
    assert [line["step"] for line in metric_lines(run) if "loss" in line] == [*range(1, 22)]


HEADS = {"class": "backbone.head.weight", "distillation": "backbone.head_dist.weight"}


@pytest.mark.parametrize(
    ("mode", "weight", "heads", "loss"),
    [
        ("soft", 0.5, ["class"], 0.974),
        ("token-soft", 0.5, ["class", "distillation", "mean"], 0.975),
        ("token-hard", 1.0, ["distillation"], 1.8085),
    ],
)
def test_the_head_of_a_recipe_is_one_that_it_trains(
    mode: str, weight: float, heads: list[str], loss: float, root: Path, trained: Trained, tmp_path: Path
) -> None:
    recipe = small_recipe(
        root,
        model=TINY_DEIT,
        epochs=1,
        optim={"learning_rate": 3e-3, "warmup_epochs": 0, "weight_decay": 0, "ema_decay": None},
        distillation={"mode": mode, "weight": weight, "teachers": [str(trained.teacher)]},
    )
    run = train(recipe, tmp_path / "run")
    best, line = load(run / BEST), metric_lines(run)[-1]
    assert (best["head"], losses(run)[1]) == (heads[-1], pytest.approx(loss, abs=2e-3))
    of_head = predict(load_trained(run)[0], (valid := valid_faces(root)).crops, head=heads[-1])  # type: ignore[arg-type]
    assert line["valid_accuracy"] == pytest.approx((of_head.argmax(axis=1) == valid.labels).mean())
    torch.manual_seed(recipe.seed)
    initial = FaceNetwork(recipe.model).state_dict()
    changed = [head for head, name in HEADS.items() if not torch.equal(initial[name], best["weights"][name])]
    assert changed == [head for head in heads if head != "mean"]
