"""The epoch whose weights are kept: the best on validation, or the last."""

from pathlib import Path

import pytest
import torch

from mien.data.contract import Array
from mien.training import checkpoint
from mien.training.config import RecipeError
from mien.training.faces import Split, read_split
from mien.training.run_folder import load_best, read_facts
from mien.training.train import train
from tests.support.training import data_of, drawn_faces, metric_lines, small_recipe, stopped_after


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
