"""Epoch whose weights are kept: the best on validation, or the last; and the head, which the recipe fixes."""

from pathlib import Path

import pytest
import torch

from mien.models.network import FaceNetwork
from mien.training.evaluate import predict
from mien.training.train import train
from mien.training.weights import BEST, load, load_best, read_run_info
from tests.support.training import (
    TINY_DEIT,
    data_of,
    drawn_faces,
    metric_lines,
    small_recipe,
    stopped_after,
    valid_faces,
)
from tests.training.conftest import Trained


@pytest.mark.parametrize(
    ("select", "values"), [("accuracy", [0.5, 0.7, 0.6]), ("negative_log_likelihood", [2.5, 1.9, 2.2])]
)
def test_the_epoch_with_the_best_score_is_kept_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: str, values: list[float]
) -> None:
    scores = iter(values)

    def scripted(*_arguments: object) -> dict[str, float]:
        rising = len(metric_lines(run)) / 100  # the others would select the last epoch
        others = {"accuracy": rising, "mean_class_accuracy": rising, "negative_log_likelihood": -rising}
        return others | {select: next(scores)}

    monkeypatch.setattr("mien.training.train.validate", scripted)
    run = tmp_path / "run"
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=4, valid=1), epochs=3, select=select)  # of three steps
    with stopped_after(8):  # in the third epoch
        train(recipe, run)
    best = (run / BEST).read_bytes()
    train(recipe, run)
    assert (run / BEST).read_bytes() == best
    state = load(run / BEST)
    assert (state["epoch"], state[select]) == (1, values[1])
    assert [line[f"valid_{select}"] for line in metric_lines(run) if "epoch" in line] == values


def test_without_validation_all_faces_are_trained_on_and_the_last_epoch_is_kept(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    data = data_of(root)
    sources = [*data["train"], data["valid"]]  # type: ignore[misc]
    recipe = small_recipe(root, data=data | {"train": sources, "valid": None}, select="last")
    run = train(recipe, tmp_path / "run")
    _, state = load_best(run)
    assert (state["epoch"], state["head"], len(state["labels"])) == (1, "class", 7)
    assert sum(read_run_info(run)["faces"].values()) == 23
    assert read_run_info(run)["learned_from"].keys() == {"folders/train", "folders/valid"}


HEADS = {"class": "backbone.head.weight", "distillation": "backbone.head_dist.weight"}


@pytest.mark.parametrize(
    ("mode", "weight", "heads"),
    [
        ("soft", 0.5, ["class"]),
        ("token-soft", 0.5, ["class", "distillation", "mean"]),
        ("token-hard", 1.0, ["distillation"]),
    ],
)
def test_the_head_of_a_recipe_is_one_that_it_trains(
    mode: str, weight: float, heads: list[str], trained: Trained, tmp_path: Path
) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    recipe = small_recipe(
        root,
        model=TINY_DEIT,
        epochs=1,
        optim={"learning_rate": 3e-3, "warmup_epochs": 0, "weight_decay": 0, "ema_decay": None},
        distillation={"mode": mode, "weight": weight, "teachers": [str(trained.teacher)]},
    )
    run = train(recipe, tmp_path / "run")
    best, line = load(run / BEST), metric_lines(run)[-1]
    assert best["head"] == line["head"] == heads[-1]
    of_head = predict(load_best(run)[0], (valid := valid_faces(root)).crops, head=heads[-1])  # type: ignore[arg-type]
    assert line["valid_accuracy"] == pytest.approx((of_head.argmax(axis=1) == valid.labels).mean())
    torch.manual_seed(recipe.seed)
    initial = FaceNetwork(recipe.model).state_dict()
    changed = [head for head, name in HEADS.items() if not torch.equal(initial[name], best["weights"][name])]
    assert changed == [head for head in heads if head != "mean"]
