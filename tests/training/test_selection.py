"""Epoch and head whose weights are kept: the best on validation of those that were trained, or the last."""

from itertools import count
from pathlib import Path

import pytest
import torch

from mien.data.contract import Array
from mien.models.network import FaceNetwork
from mien.training import checkpoint
from mien.training.config import RecipeError
from mien.training.faces import Split, read_split
from mien.training.run_folder import load_best, read_facts
from mien.training.train import train
from tests.support.training import TINY_CNN, TINY_DEIT, data_of, drawn_faces, metric_lines, small_recipe, stopped_after
from tests.training.conftest import Trained


def test_the_epoch_with_the_highest_score_is_kept_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.5, 0.7, 0.6])

    def scripted(_logits: Array, _valid: Split) -> dict[str, float]:
        return dict.fromkeys(("accuracy", "mean_class_accuracy"), next(scores))

    monkeypatch.setattr("mien.training.train._score", scripted)
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=4, valid=1), epochs=3)  # three steps per epoch
    with stopped_after(8):  # in the third epoch
        train(recipe, tmp_path / "run")
    state = checkpoint.read(tmp_path / "run" / checkpoint.BEST)
    assert (state["epoch"], state["accuracy"]) == (1, 0.7)
    train(recipe, tmp_path / "run")
    after = checkpoint.read(tmp_path / "run" / checkpoint.BEST)
    assert after["epoch"] == 1
    assert all(torch.equal(after["weights"][name], weight) for name, weight in state["weights"].items())
    assert [line["valid_accuracy"] for line in metric_lines(tmp_path / "run") if "epoch" in line] == [0.5, 0.7, 0.6]


def test_without_validation_all_faces_are_trained_on_and_the_last_epoch_is_kept(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    data = data_of(root)
    sources = [*data["train"], data["valid"]]  # type: ignore[misc]
    recipe = small_recipe(root, data=data | {"train": sources, "valid": None}, select="last")
    run = train(recipe, tmp_path / "run")
    _, state = load_best(run)
    assert (state["epoch"], state["head"], len(state["labels"])) == (1, "class", 7)
    assert sum(read_facts(run)["faces"].values()) == 23
    assert read_facts(run)["learned_from"].keys() == {"folders/train", "folders/valid"}
    assert not [line for line in metric_lines(run) if "valid_accuracy" in line]
    with pytest.raises(RecipeError, match=r"select accuracy needs data\.valid"):
        small_recipe(root, data=data | {"valid": None})


def test_the_lowest_negative_log_likelihood_selects_epoch_and_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies, likelihoods = iter([0.5, 0.7, 0.9]), iter([2.5, 1.9, 2.2])

    def scripted(_logits: Array, _valid: Split) -> dict[str, float]:
        shares = dict.fromkeys(("accuracy", "mean_class_accuracy"), next(accuracies))
        return shares | {"negative_log_likelihood": next(likelihoods)}

    monkeypatch.setattr("mien.training.train._score", scripted)
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    run = train(small_recipe(root, epochs=3, select="negative_log_likelihood"), tmp_path / "run")
    assert checkpoint.read(run / checkpoint.BEST)["epoch"] == 1
    assert [line["valid_negative_log_likelihood"] for line in metric_lines(run) if "epoch" in line] == [2.5, 1.9, 2.2]


def test_validation_reports_the_likelihood_of_the_labels(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    recipe = small_recipe(root, epochs=1)
    network, state = load_best(train(recipe, tmp_path / "run"))
    valid = read_split(recipe.data.held_out, color="luminance", cache_dir=recipe.data.cache_dir)
    with torch.no_grad():
        logits = network(torch.from_numpy(valid.crops.copy())).class_logits
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(valid.labels))
    assert state["negative_log_likelihood"] == pytest.approx(float(expected), rel=1e-4)


HEADS = {"class": "backbone.network.head.weight", "distillation": "backbone.network.head_dist.weight"}


@pytest.mark.parametrize(
    ("mode", "weight", "heads"),
    [
        ("none", 0.5, ["class"]),
        ("soft", 0.5, ["class"]),
        ("hard", 1.0, ["class"]),
        ("token-soft", 0.5, ["class", "distillation", "mean"]),
        ("token-hard", 1.0, ["distillation"]),
        ("token-soft", 0.0, ["class"]),
    ],
)
def test_only_heads_that_were_trained_are_selected(
    mode: str, weight: float, heads: list[str], trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    scores = count()

    def rising(_logits: Array, _valid: Split) -> dict[str, float]:  # the last candidate is the best one
        return dict.fromkeys(("accuracy", "mean_class_accuracy"), next(scores) / 100)

    monkeypatch.setattr("mien.training.train._score", rising)
    recipe = small_recipe(
        root,
        model=TINY_DEIT,
        epochs=1,
        optim={"learning_rate": 3e-3, "warmup_epochs": 0, "weight_decay": 0, "ema_decay": None},
        distillation={"mode": mode, "weight": weight, "teachers": [str(trained.teacher)] if mode != "none" else []},
    )
    run = train(recipe, tmp_path / "run")
    assert metric_lines(run)[-1]["head"] == heads[-1]
    torch.manual_seed(recipe.seed)
    initial = FaceNetwork(recipe.model).state_dict()
    best = checkpoint.read(run / checkpoint.BEST)["weights"]
    changed = [head for head, name in HEADS.items() if not torch.equal(initial[name], best[name])]
    assert changed == [head for head in heads if head != "mean"]


def test_the_weights_that_are_kept_are_the_mean_with_those_of_the_start_also_after_a_stop(tmp_path: Path) -> None:
    faces = drawn_faces(tmp_path / "faces", train=4, valid=1)

    def weights(run: Path) -> dict[str, torch.Tensor]:
        kept: dict[str, torch.Tensor] = checkpoint.read(run / checkpoint.BEST)["weights"]
        return kept

    first = train(small_recipe(faces, select="last", epochs=1), tmp_path / "first")
    recipe = small_recipe(faces, model=TINY_CNN | {"init_from": str(first)}, select="last")
    start, end = weights(first), weights(train(recipe, tmp_path / "end"))
    recipe = recipe.model_copy(update={"start_share": 0.25})
    with stopped_after(4):
        train(recipe, tmp_path / "mean")
    for name, value in weights(train(recipe, tmp_path / "mean")).items():
        expected = 0.75 * end[name] + 0.25 * start[name] if value.is_floating_point() else end[name]
        torch.testing.assert_close(value, expected)
