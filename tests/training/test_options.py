"""Options of a recipe, and combinations that a run rejects."""

import math
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from mien.data.contract import LABELS
from mien.data.readers.base import Sample
from mien.data.tree import DatasetError
from mien.models.manifest import artifact_dir
from mien.training import checkpoint
from mien.training.config import DataSource, DistillationConfig, RecipeError, RuntimeConfig
from mien.training.faces import _target
from mien.training.run import Clock
from mien.training.run_folder import RunError, load_best
from mien.training.runtime import choose_device
from mien.training.teachers import Teachers
from mien.training.train import train
from tests.support.data_sets import make_folders
from tests.support.models import crops
from tests.support.training import (
    PLAIN_DEIT,
    TINY_CNN,
    data_of,
    drawn_faces,
    kept_states,
    losses,
    metric_lines,
    small_recipe,
    stopped_after,
    with_runtime,
)
from tests.training.conftest import Trained


def test_a_batch_in_parts_is_learned_as_a_whole(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2)
    optim = {"name": "sgd", "learning_rate": 0.5, "warmup_epochs": 0, "clip_grad_norm": None, "ema_decay": None}
    recipe = small_recipe(root, model=PLAIN_DEIT, loss={"logit_adjustment": 0.5}, optim=optim)
    runs = [train(with_runtime(recipe, accumulate=count), tmp_path / str(count)) for count in (1, 3)]
    whole, parts = (losses(run) for run in runs)
    assert len(set(whole.values())) == 2
    assert parts == pytest.approx(whole, abs=1e-5, rel=1e-4)
    whole_weights, weights = (checkpoint.read(run / checkpoint.BEST)["weights"] for run in runs)
    for name, weight in whole_weights.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=1e-3)


def test_missing_weights_are_reported_before_the_data_is_read(tmp_path: Path) -> None:
    for changes, key in (
        ({"distillation": {"mode": "soft", "teachers": ["runs/none"]}}, "distillation.teachers"),
        ({"model": TINY_CNN | {"init_from": "runs/none"}}, "model.init_from"),
    ):
        with pytest.raises(RecipeError, match=rf"{key} runs/none: not found"):
            train(small_recipe(tmp_path / "no faces", **changes), tmp_path / "run")


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
    assert all(0 <= line["accuracy"] <= 1 for line in metric_lines(tmp_path / "run") if "loss" in line)


def test_waiting_time_is_measured_between_request_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 3.0, 4.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = Clock()
    clock.batch_loaded()
    clock.step_done(50)
    assert clock.rates() == {"faces_per_s": 5.0, "data_wait_share": 0.3}


def test_half_precision_on_the_cpu_is_rejected_with_alternatives() -> None:
    with pytest.raises(RecipeError, match="use bf16 or fp32"):
        choose_device(RuntimeConfig(device="cpu", precision="fp16"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 needs a GPU, and torch sees none")
def test_half_precision_trains_on_a_gpu(tmp_path: Path) -> None:
    recipe = with_runtime(small_recipe(drawn_faces(tmp_path / "faces")), device="cuda", precision="fp16")
    with kept_states():
        out = train(recipe, tmp_path / "run")
    assert all(math.isfinite(loss) for loss in losses(out).values())
    assert "scaler" in checkpoint.read(out / checkpoint.LAST)


def test_a_compiled_network_has_the_losses_of_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # it generates no C++
    recipe = small_recipe(drawn_faces(tmp_path / "faces"), model=PLAIN_DEIT, epochs=1)
    expected = losses(train(recipe, tmp_path / "plain"))
    out = train(with_runtime(recipe, compile=True), tmp_path / "compiled")
    assert losses(out) == pytest.approx(expected, abs=1e-3)
    assert not any("_orig_mod" in name for name in checkpoint.read(out / checkpoint.BEST)["weights"])


def test_a_class_without_a_training_face_is_named_unless_the_recipe_allows_it(tmp_path: Path) -> None:
    counts = dict.fromkeys(LABELS, 3)
    root = make_folders(tmp_path / "faces", {"train": counts | {"disgust": 0}, "valid": dict.fromkeys(LABELS, 1)})
    recipe = small_recipe(root, epochs=1)
    with pytest.raises(RecipeError, match=r"no faces of disgust among 18.* data\.classes=\[surprise,fear,happiness"):
        train(recipe, tmp_path / "run")
    allowed = recipe.model_copy(update={"data": recipe.data.model_copy(update={"allow_missing_classes": True})})
    assert losses(train(allowed, tmp_path / "run"))


def test_a_face_of_validation_is_never_trained_on_and_copies_of_it_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 5)})
    recipe = small_recipe(root, data=data_of(root, valid_share=0.4), epochs=1)

    def trained_on(path: Path) -> None:
        less = recipe.data.train[0].model_copy(update={"root": path, "options": {"valid_share": 0.2}})
        data = recipe.data.model_copy(update={"train": (less,)})
        train(recipe.model_copy(update={"data": data}), tmp_path / "run")

    (tmp_path / "link").symlink_to(root)
    for path in (root, tmp_path / "link"):
        with pytest.raises(RecipeError, match="7 of 14 faces of valid are also in train"):
            trained_on(path)
    trained_on(Path(shutil.copytree(root, tmp_path / "copy")))
    assert "7 of 14 faces of valid have the pixels of a training face" in caplog.text


@pytest.mark.parametrize(
    "shares", [(0.1,) * 8, (0.5,) * 7, (1.5, -0.5, 0, 0, 0, 0, 0), (float("nan"),) * 7], ids=["8", "sum", "sign", "nan"]
)
def test_invalid_vote_shares_are_rejected_with_the_name_of_the_face(shares: tuple[float, ...]) -> None:
    sample = Sample("train/1.png", "train", LABELS[0], shares)
    with pytest.raises(DatasetError, match=r"train/1\.png has vote shares"):
        _target(sample, DataSource(kind="votes", split="train", target="votes"), LABELS)


def test_a_teacher_of_other_labels_or_another_contract_is_rejected(trained: Trained, tmp_path: Path) -> None:
    teacher = shutil.copytree(trained.teacher, tmp_path / "teacher")
    state = checkpoint.read(teacher / checkpoint.BEST)
    config, gray = DistillationConfig(mode="soft", teachers=(teacher,)), crops(2, channels=1)
    expected = Teachers(config).eval()(gray)
    checkpoint.save(teacher / checkpoint.BEST, state | {"labels": list(reversed(LABELS))})
    torch.testing.assert_close(Teachers(config).eval()(gray), expected.flip(1))  # by name
    assert Teachers(config).to("meta").columns.is_meta  # a list of columns would be uploaded in each step
    for change, error, message in (
        ({"labels": ["joy", *LABELS[1:]]}, RecipeError, "does not know surprise"),
        ({"contract_id": "0000"}, RunError, "this build has"),
    ):
        checkpoint.save(teacher / checkpoint.BEST, state | change)
        with pytest.raises(error, match=message):
            Teachers(config)


def test_a_released_artifact_teaches_alone_and_together_with_a_run(trained: Trained) -> None:
    run, artifact = trained.teacher, artifact_dir(None)
    alone = Teachers(DistillationConfig(mode="soft", teachers=(artifact,))).eval()
    gray = crops(4, channels=1)
    with torch.no_grad():
        logits = alone(gray)
        torch.testing.assert_close(alone(gray.expand(-1, -1, -1, 3)), logits)
        network, state = load_best(run)
        both = Teachers(DistillationConfig(mode="soft", teachers=(run, artifact))).eval()(gray)
        expected = (logits.softmax(-1) + network(gray).class_logits.softmax(-1)) / 2
    assert state["head"] == "class"
    assert logits.shape == (4, 7)
    torch.testing.assert_close(both.softmax(-1), expected, atol=1e-5, rtol=1e-4)


def test_a_token_mode_names_the_models_that_have_a_distillation_token(trained: Trained, tmp_path: Path) -> None:
    distillation = {"mode": "token-soft", "teachers": [str(trained.teacher)]}
    with pytest.raises(RecipeError, match=r"test_resnet has no distillation token.*_distilled_\*"):
        train(small_recipe(trained.faces, distillation=distillation), tmp_path / "run")
