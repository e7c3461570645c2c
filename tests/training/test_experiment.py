"""Experiments: variants of a recipe, trained on drawn faces and compared in one table."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from mien.training import experiment as module
from mien.training.cli import main
from mien.training.config import DataSource
from mien.training.experiment import Plot, compare, recipes_of, write_figure
from tests.support.training import TINY_DEIT, data_of, drawn_faces, metric_lines, small_recipe, write_recipe


def test_rows_are_compared_with_the_first_one_face_by_face_and_seed_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, runs = drawn_faces(tmp_path / "faces", train=3, valid=2), tmp_path / "runs"
    experiment = tmp_path / "position.yaml"
    plot = {"x": "numbers", "panels": {"alone": {"ViT": {10: "learned", 100: "none"}}}}
    write_recipe(tmp_path / "base.yaml", small_recipe(root, model=TINY_DEIT))
    values = {
        "base": "base.yaml",
        "common": ["epochs=1"],
        "rows": {"learned": [], "none": ["model.options.position=none"]},
        "plot": plot,
    }
    experiment.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    files = {"plot": "plot.svg", "table": "table.csv", "json": "results.json"}
    drawn = [part for name, file in files.items() for part in (f"--{name}", str(tmp_path / file))]
    assert main(["experiment", str(experiment), "--seeds", "2", "--runs", str(runs), *drawn]) == 0
    figure = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    for word in ("ViT", "alone", "numbers", "validation accuracy, %", "10", "100"):
        assert f">{word}<" in figure
    assert {path.name for path in runs.iterdir()} == {
        f"position_{row}_{seed}" for row in ("learned", "none") for seed in (0, 1)
    }
    table = capsys.readouterr().out
    assert "±" in table
    lines = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert [line["row"] for line in csv.DictReader(lines)] == ["learned", "none"]
    assert len(json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))[1]["scores"]) == 2
    assert table.count("\n| ") == 3
    recipes = recipes_of(experiment, seeds=range(2), runs=runs)
    results = compare(recipes, runs)
    write_figure(tmp_path / "again.svg", results, Plot.model_validate(plot))
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == figure
    left, right = {"ViT": {10: "learned"}, "CNN": {10: "none"}}, {"CNN": {10: "none"}, "RNN": {10: "learned"}}
    figures = list[Figure]()
    monkeypatch.setattr(module, "save", lambda drawn, _path: figures.append(drawn))
    both = Plot(x="numbers", panels={"left": left, "right": right})
    write_figure(tmp_path / "both.svg", results, both)
    names = ["ViT", "CNN", "RNN"]
    lines = [line for axes in figures[0].axes for line in axes.get_lines() if line.get_label() in names]
    assert len({(line.get_label(), line.get_color()) for line in lines}) == 3
    assert len({line.get_color() for line in lines}) == 3
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == names
    # without a teacher, the distillation head is not trained
    assert [(result.row, result.head) for result in results] == [("learned", "class"), ("none", "class")]
    logged = metric_lines(runs / "position_none_0")[-1]
    chosen = {result.row: result for result in results if result.chosen}
    assert chosen["none"].by_seed("accuracy")[0] == pytest.approx(logged["valid_accuracy"])
    assert chosen["learned"].gain.value == chosen["learned"].gain.high == 0
    assert [len(chosen[row].mcnemar_p) for row in ("learned", "none")] == [0, 2]
    for result in results:
        assert result.minutes > 0
        for metric in ("accuracy", "mean_class_accuracy"):
            assert getattr(result, metric).value == pytest.approx(np.mean(result.by_seed(metric)))
    difference = chosen["none"].accuracy.value - chosen["learned"].accuracy.value
    assert chosen["none"].gain.value == pytest.approx(difference)
    (train_split, *_) = compare(recipes, runs, split="train")
    assert (train_split.scores[0].split, train_split.scores[0].faces) == ("train", 20)


def test_rows_without_validation_are_compared_on_another_split_and_refused_before_training_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, runs, experiment = drawn_faces(tmp_path / "faces", train=2, valid=2), tmp_path / "runs", tmp_path / "all.yaml"
    data = data_of(root) | {"valid": None}
    write_recipe(tmp_path / "base.yaml", small_recipe(root, data=data, select="last", epochs=1))
    rows = {"slow": [], "fast": ["optim.learning_rate=1e-2"]}
    experiment.write_text(yaml.safe_dump({"base": "base.yaml", "rows": rows}, sort_keys=False), encoding="utf-8")
    command = ["experiment", str(experiment), "--runs", str(runs)]
    assert main(command) == 1
    assert "has no validation split" in capsys.readouterr().err
    assert not runs.exists()
    assert main([*command, "--split", "valid", "--json", str(tmp_path / "results.json")]) == 0
    (first, _) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (first["scores"][0]["split"], first["scores"][0]["faces"]) == ("valid", 15)
    assert first["minutes"] > 0
    recipes = recipes_of(experiment, runs=runs)
    for row, split in (("slow", "valid"), ("fast", "train")):  # 15 faces each, but others
        (recipe,) = recipes[row]
        source = DataSource(kind="folders", split=split, root=root)
        recipes[row] = [recipe.model_copy(update={"data": recipe.data.model_copy(update={"valid": source})})]
    (_, other) = compare(recipes, runs)
    assert (other.gain, other.mcnemar_p) == (None, ())
