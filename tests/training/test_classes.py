"""Own and eight classes: trained, exported, evaluated, served and labeled."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from mien.app.service.app import create_app
from mien.app.service.page import browser_pipeline
from mien.app.settings import InferenceSettings, Settings
from mien.data.contract import EIGHT_LABELS, LABELS
from mien.data.contract.labels import COLORS
from mien.data.errors import DatasetError
from mien.models.manifest import artifact_dir, load_artifact, scores_of
from mien.training.cli import main
from mien.training.config import Recipe, RecipeError, read_as
from mien.training.data import with_classes
from mien.training.evaluate import open_model
from mien.training.run import BEST, load
from mien.training.train import train
from mien.training.weights import load_trained
from tests.support import ROOT, encoded, tiny_artifact
from tests.support.albums import face_photo, label_folder, rows_of, write_photos
from tests.support.data_sets import make_ferplus, make_folders
from tests.support.training import TINY_CNN, data_of, small_recipe, valid_faces
from tests.training.conftest import CLASSES, Own, Trained


def test_the_artifact_names_the_classes_and_is_evaluated_on_folders_of_some_of_them(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, artifact = load_artifact(own.artifact), own.artifact
    assert manifest.labels == CLASSES
    assert "--option classes=bored,happiness,wide_awake" in (artifact / "card.md").read_text(encoding="utf-8")
    assert scores_of(artifact)[0]["accuracy"]["value"] > 0.5
    out = tmp_path / "results.json"
    data = ["--data", f"folders={own.root}", "--option", "classes=wide_awake,bored", "--option", "ignore=Happy faces"]
    predictions = tmp_path / "predictions.csv"
    files = ["--json", str(out), "--predictions", str(predictions)]
    assert main(["evaluate", str(artifact), *data, *files]) == 0
    natural, balanced = json.loads(out.read_text(encoding="utf-8"))["scores"]
    assert set(natural["recall"]) == {"wide_awake", "bored"}
    rows = list(csv.DictReader(predictions.read_text(encoding="utf-8").splitlines()))
    assert [*rows[0]] == ["face", "label", "predicted", "p_bored", "p_happiness", "p_wide_awake"]
    correct = sum(row["label"] == row["predicted"] for row in rows) / len(rows)
    assert (len(rows), correct) == (balanced["faces"], pytest.approx(balanced["accuracy"]["value"]))
    assert main(["compare", str(artifact), str(own.run), *data]) == 0
    other = tiny_artifact(tmp_path / "tiny.other", labels=[*"abcdefg"])
    assert main(["compare", "fast", str(other), *data]) == 1
    assert "have no class in common" in capsys.readouterr().err


def test_service_page_and_outputs_show_the_classes_of_the_model(own: Own, tmp_path: Path) -> None:
    settings = Settings(model=own.artifact, detector="builtin", device="cpu")
    photo = {"files": [("images", ("a.jpg", encoded(face_photo(), "JPEG"), "image/jpeg"))]}
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        (face,) = client.post("/v1/expressions", **photo).json()["images"][0]["faces"]
    assert set(face["probabilities"]) == set(CLASSES)
    assert [*browser_pipeline(own.artifact, InferenceSettings()).facts["colors"]] == [*COLORS, "bored", "wide_awake"]

    photos, out = write_photos(tmp_path / "photos", count=2), tmp_path / "out"
    label_folder(photos, out, settings, "csv", "coco", "report")
    row = rows_of(out)[0]
    assert sum(float(row[f"p_{name}"]) for name in CLASSES) == pytest.approx(1, abs=1e-4)
    assert [name for name in row if name.startswith("p_")] == [f"p_{name}" for name in CLASSES]
    assert [*row][8] == "confidence"
    assert [*row][9 + len(CLASSES)] == "detector"
    coco = json.loads((out / "coco.json").read_text(encoding="utf-8"))
    assert coco["categories"][coco["annotations"][0]["category_id"] - 1]["name"] == row["label"]
    assert "wide_awake" in (out / "report.html").read_text(encoding="utf-8")


def test_the_release_can_be_fine_tuned_on_new_faces(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 10)})
    released = artifact_dir(None)
    roots = [f"data.train.0.root={root}", f"data.valid.root={root}", f"data.cache_dir={tmp_path / 'cache'}"]
    source = [f"model.init_from={released}", f"distillation.teachers=[{released}]"]
    budget = ["epochs=4", "batch_size=12", "optim.learning_rate=1e-3", "optim.ema_decay=0.5", "runtime.workers=0"]
    recipe = read_as(Recipe, ROOT / "training/recipes/folders_hybrid_small.yaml", [*roots, *source, *budget])
    run = train(recipe, tmp_path / "run")
    faces = valid_faces(root, valid_share=0.2)
    assert len(faces) == 14
    models = [open_model(folder) for folder in (released, run)]
    sides = [model.probabilities(model.logits(faces.crops), faces, "natural") for model in models]
    before, after = ((side.argmax(axis=1) == faces.labels).mean() for side in sides)
    assert after - before > 0.1


def test_seven_and_eight_classes_are_not_mixed_and_a_frozen_network_of_seven_gets_a_head_for_eight(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(EIGHT_LABELS, 5)})
    data = data_of(root, classes=8, valid_share=0.2)
    mixed = small_recipe(root, data=data | {"valid": data_of(trained.faces)["valid"]})
    with pytest.raises(RecipeError, match=r"train has .*contempt, valid .*neutral\. Set data\.classes"):
        train(mixed, tmp_path / "mixed")
    model = TINY_CNN | {"init_from": str(trained.teacher), "frozen": True}
    run = train(small_recipe(root, data=data, model=model, epochs=1), tmp_path / "run")
    before, after = (load(folder / BEST)["weights"] for folder in (trained.teacher, run))
    assert [name for name in before if not torch.equal(before[name], after[name])] == [
        "backbone.fc.weight", "backbone.fc.bias"
    ]  # fmt: skip
    network, _, labels = load_trained(run)
    assert (labels, len(network.backbone.get_classifier().weight)) == (EIGHT_LABELS, 8)
    options = ["--data", f"folders={root}", "--option", "classes=8", "--option", "valid_share=0.2"]
    assert main(["compare", str(trained.teacher), str(run), *options]) == 0
    assert "recall, contempt" in capsys.readouterr().out


def test_votes_for_seven_classes_are_votes_for_eight_but_not_the_other_way_round(tmp_path: Path) -> None:
    root = make_ferplus(tmp_path / "ferplus")
    seven, eight = valid_faces(root, "ferplus"), valid_faces(root, "ferplus", classes=8)
    wider = with_classes(seven, EIGHT_LABELS, of="a network")
    assert np.array_equal(wider.votes[:, [*map(EIGHT_LABELS.index, LABELS)]], seven.votes)
    assert np.array_equal(wider.targets.sum(axis=1), seven.targets.sum(axis=1))
    assert [EIGHT_LABELS[label] for label in wider.labels] == [LABELS[label] for label in seven.labels]
    with pytest.raises(DatasetError, match=r"has contempt, a network does not. Use the option classes=surprise"):
        with_classes(eight, LABELS, of="a network")
    with pytest.raises(DatasetError, match=r"surprise, .* a network does not\. They have no class in common"):
        with_classes(seven, ("bored",), of="a network")
