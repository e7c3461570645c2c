"""Own and eight classes: trained, exported, evaluated, served and labeled; and a fine-tuned release."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
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
from mien.training.data import Split, with_classes
from mien.training.evaluate import compare, open_model, scores_of_model
from mien.training.export import export
from mien.training.train import train
from tests.support import ROOT, encoded
from tests.support.albums import face_photo, label_folder, rows_of, write_photos
from tests.support.data_sets import make_ferplus, make_folders
from tests.support.training import TINY_CNN, data_of, small_recipe, valid_faces
from tests.training.conftest import EIGHT_OPTIONS, Eight, Trained, one_graph

CLASSES = ("bored", "happiness", "wide_awake")  # in the order of the recipe; one is an expression
FOLDERS = {"anger": "Wide awake", "happiness": "Happy faces", "sadness": "bored"}


def own_folders(root: Path) -> Path:
    """Drawn angry, happy and sad faces under other names, in unequal numbers."""
    make_folders(root, {"train": {"anger": 36, "happiness": 24, "sadness": 12}, "valid": dict.fromkeys(FOLDERS, 4)})
    for split in ("train", "valid"):
        for drawn, name in FOLDERS.items():
            (root / split / drawn).rename(root / split / name)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_folders(tmp_path_factory.mktemp("own") / "faces")


@pytest.fixture(scope="module")
def artifact(root: Path) -> Path:
    recipe = small_recipe(root, data=data_of(root) | {"classes": list(CLASSES)}, epochs=6)
    run = train(recipe, root.parent / "run")
    with one_graph():
        return export(run, "own", arch="tiny", artifacts_dir=root.parent / "artifacts")


def test_the_artifact_names_the_classes_and_is_evaluated_on_folders_of_some_of_them(
    artifact: Path, root: Path, tmp_path: Path
) -> None:
    manifest = load_artifact(artifact)
    assert manifest.labels == CLASSES
    assert scores_of(artifact)[0]["accuracy"]["value"] > 0.5
    out = tmp_path / "results.json"
    data = ["--data", f"folders={root}", "--option", "classes=wide_awake,bored", "--option", "ignore=Happy faces"]
    predictions = tmp_path / "predictions.csv"
    files = ["--json", str(out), "--predictions", str(predictions)]
    assert main(["evaluate", str(artifact), *data, *files]) == 0
    natural, balanced = json.loads(out.read_text(encoding="utf-8"))["scores"]
    assert set(natural["recall"]) == {"wide_awake", "bored"}
    rows = list(csv.DictReader(predictions.read_text(encoding="utf-8").splitlines()))
    assert [*rows[0]] == ["face", "label", "predicted", "p_bored", "p_happiness", "p_wide_awake"]
    correct = sum(row["label"] == row["predicted"] for row in rows) / len(rows)
    assert (len(rows), correct) == (balanced["faces"], pytest.approx(balanced["accuracy"]["value"]))
    assert main(["compare", str(artifact), str(root.parent / "run"), *data]) == 0


def test_service_page_and_outputs_show_the_classes_of_the_model(artifact: Path, tmp_path: Path) -> None:
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    photo = {"files": [("images", ("a.jpg", encoded(face_photo(), "JPEG"), "image/jpeg"))]}
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        (face,) = client.post("/v1/expressions", **photo).json()["images"][0]["faces"]
    assert set(face["probabilities"]) == set(CLASSES)
    assert [*browser_pipeline(artifact, InferenceSettings()).facts["colors"]] == [*COLORS, "bored", "wide_awake"]

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
    sides = [model.probabilities(model.logits(faces.crops), faces.crops, "natural") for model in models]
    gains = {row["name"]: row["after"] - row["before"] for row in compare(sides[0], sides[1], faces.labels)}
    assert gains["accuracy"] > 0.1


OPTIONS = [part for name, value in EIGHT_OPTIONS.items() for part in ("--option", f"{name}={value}")]


def first_scores(artifact: Path, faces: Split) -> dict[str, Any]:
    model = open_model(artifact)
    faces = with_classes(faces, model.labels, of=model.name)
    return scores_of_model(model, faces, model.logits(faces.crops))[0]


def test_the_artifact_names_eight_labels_and_is_evaluated_and_compared_on_them(
    eight: Eight, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = load_artifact(eight.artifact)
    assert (manifest.labels, manifest.color) == (EIGHT_LABELS, "RGB")
    assert (manifest.output.shape, len(manifest.prior_correction)) == ((-1, 8), 8)
    assert "--option classes=8 --option valid_share=0.2" in (eight.artifact / "card.md").read_text(encoding="utf-8")
    assert main(["compare", str(eight.artifact), str(eight.run), "--data", f"folders={eight.root}", *OPTIONS]) == 0
    assert "recall, contempt" in capsys.readouterr().out


def test_eight_classes_are_evaluated_on_votes_for_seven(eight: Eight, tmp_path: Path) -> None:
    ferplus = make_ferplus(tmp_path / "ferplus")
    assert first_scores(eight.artifact, valid_faces(ferplus, "ferplus"))["kl_to_votes"].value > 0
    with pytest.raises(DatasetError, match=r"has contempt, .* does not. Use the option classes=surprise"):
        first_scores(artifact_dir(None), valid_faces(ferplus, "ferplus", classes=8))


def test_seven_and_eight_classes_are_not_mixed_and_seven_initialize_all_but_the_head(
    eight: Eight, trained: Trained, tmp_path: Path
) -> None:
    data = data_of(eight.root, **EIGHT_OPTIONS)
    mixed = small_recipe(eight.root, data=data | {"valid": data_of(trained.faces)["valid"]})
    with pytest.raises(RecipeError, match=r"train has .*contempt, valid .*neutral\. Set data\.classes"):
        train(mixed, tmp_path / "mixed")
    model = TINY_CNN | {"init_from": str(trained.teacher)}
    assert (train(small_recipe(eight.root, data=data, model=model, epochs=1), tmp_path / "run") / "best.pt").exists()
