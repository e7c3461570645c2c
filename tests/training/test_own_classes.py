"""Own classes: trained on folders of any names, exported, evaluated, served and labeled; and a fine-tuned release."""

import csv
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from mien.app.cli.program import app as mien_app
from mien.app.inference.in_browser import browser_pipeline
from mien.app.labeling.corrections import decision
from mien.app.labeling.files import LabelingError
from mien.app.labeling.journal import open_journal
from mien.app.main import create_app
from mien.app.settings import InferenceSettings, Settings
from mien.data.contract import LABELS
from mien.data.contract.palette import COLORS
from mien.models.manifest import artifact_dir, load_artifact
from mien.training import checkpoint
from mien.training.cli import main
from mien.training.config import Recipe, read_as
from mien.training.evaluate import compare, open_model
from mien.training.release.export import export
from mien.training.train import train
from mien.training.weights import load_network
from tests.support import ROOT, encoded, eventually
from tests.support.albums import face_photo, label_folder, rows_of, write_photos
from tests.support.data_sets import make_folders
from tests.support.training import data_of, small_recipe, valid_faces
from tests.training.conftest import one_graph

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
        return export([run], "own", arch="tiny", artifacts_dir=root.parent / "artifacts", conditions=False)


def test_the_artifact_names_the_classes_and_is_evaluated_on_folders_of_some_of_them(
    artifact: Path, root: Path, tmp_path: Path
) -> None:
    manifest = load_artifact(artifact)
    assert manifest.labels == CLASSES
    assert set(manifest.metrics[0].recall) == set(CLASSES)
    assert manifest.metrics[0].accuracy.value > 0.5
    assert manifest.metrics[0].happiness_against_neutral is None
    out = tmp_path / "results.json"
    data = ["--data", f"folders={root}", "--option", "classes=wide_awake,bored", "--option", "ignore=Happy faces"]
    plot, predictions = tmp_path / "scores.pdf", tmp_path / "predictions.csv"
    files = ["--json", str(out), "--plot", str(plot), "--predictions", str(predictions)]
    assert main(["evaluate", "--artifact", str(artifact), *data, *files]) == 0
    (first, *_) = json.loads(out.read_text(encoding="utf-8"))["evaluations"]
    assert set(first["recall"]) == {"wide_awake", "bored"}
    assert plot.stat().st_size > 5000
    rows = list(csv.DictReader(predictions.read_text(encoding="utf-8").splitlines()))
    assert [*rows[0]] == ["face", "label", "predicted", "p_bored", "p_happiness", "p_wide_awake"]
    natural, balanced = json.loads(out.read_text(encoding="utf-8"))["evaluations"]
    correct = sum(row["label"] == row["predicted"] for row in rows) / len(rows)
    assert (len(rows), correct) == (balanced["faces"], pytest.approx(balanced["accuracy"]["value"]))
    assert sum(faces for faces, _, _ in natural["reliability"]) == len(rows)
    assert main(["evaluate", "--artifact", str(root.parent / "run"), *data]) == 0
    assert main(["compare", str(artifact), str(root.parent / "run"), *data]) == 0
    assert main(["evaluate", "--artifact", "fast", *data]) == 1


def test_service_page_and_outputs_show_the_classes_of_the_model(artifact: Path, tmp_path: Path) -> None:
    settings = Settings(model=artifact, detector="builtin", device="cpu", jobs_dir=tmp_path / "jobs")
    photo = {"files": [("images", ("a.jpg", encoded(face_photo(), "JPEG"), "image/jpeg"))]}
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert client.get("/v1/models").json()["models"][0]["labels"] == list(CLASSES)
        (face,) = client.post("/v1/expressions", params={"annotate": True}, **photo).json()["images"][0]["faces"]
        job = client.post("/v1/jobs", **photo).headers["Location"]
        eventually(lambda: client.get(job).json()["state"] in ("done", "failed"))
        (row,) = csv.DictReader(client.get(f"{job}/results", params={"format": "csv"}).text.splitlines())
    assert face["probabilities"] == {name: pytest.approx(float(row[f"p_{name}"]), abs=1e-4) for name in CLASSES}
    doctor = ["doctor", "--model", str(artifact), "--detector", "builtin", "--device", "cpu"]
    assert CliRunner().invoke(mien_app, doctor).exit_code == 0
    colors = browser_pipeline(artifact, InferenceSettings()).facts["colors"]
    assert [*colors] == [*COLORS, "bored", "wide_awake"]
    assert len({colors[name] for name in CLASSES}) == 3

    photos, out = write_photos(tmp_path / "photos", count=2), tmp_path / "out"
    label_folder(photos, out, settings, "csv", "jsonl", "coco", "report", "label-studio", "parquet")
    row = rows_of(out)[0]
    assert sum(float(row[f"p_{name}"]) for name in CLASSES) == pytest.approx(1, abs=1e-4)
    assert row["p_anger"] == ""
    assert [*row][-2:] == ["p_bored", "p_wide_awake"]
    coco = json.loads((out / "coco.json").read_text(encoding="utf-8"))
    assert coco["categories"][coco["annotations"][0]["category_id"] - 1]["name"] == row["label"]
    assert "wide_awake" in (out / "report.html").read_text(encoding="utf-8")
    journal = open_journal(out)
    image = next(journal.images())
    assert decision(image, image.faces[0], "bored").label == "bored"
    with pytest.raises(LabelingError, match="expected one of bored, happiness, wide_awake, not_a_face"):
        decision(image, image.faces[0], "anger")
    journal.close()


def test_five_of_the_seven_classes_serve_five(tmp_path: Path) -> None:
    five = ["surprise", "happiness", "sadness", "anger", "neutral"]
    root = make_folders(tmp_path / "faces", {"train": dict.fromkeys(five, 6), "valid": dict.fromkeys(five, 2)})
    distillation = {"mode": "soft", "teachers": [str(artifact_dir(None))]}  # it knows all of them, and two others
    recipe = small_recipe(root, epochs=1, data=data_of(root) | {"classes": five}, distillation=distillation)
    assert checkpoint.read(train(recipe, tmp_path / "run") / "best.pt")["labels"] == five


def test_a_released_model_starts_other_classes_with_new_rows_of_its_head(root: Path, tmp_path: Path) -> None:
    recipe = small_recipe(
        root, model={"init_from": "fast", "frozen": True}, data=data_of(root) | {"classes": list(CLASSES)}, epochs=1
    )
    assert recipe.model.family == "deit"
    weights = checkpoint.read(train(recipe, tmp_path / "run") / "best.pt")["weights"]
    released = load_network(artifact_dir("fast"))[0].state_dict()
    changed = {name for name, weight in weights.items() if not weight.equal(released[name])}
    assert {name.rsplit(".", 1)[0] for name in changed} == {"backbone.network.head", "backbone.network.head_dist"}


def test_the_release_can_be_fine_tuned_on_new_faces(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "faces", {"": dict.fromkeys(LABELS, 10)})
    released = artifact_dir(None)
    roots = [f"data.train.0.root={root}", f"data.valid.root={root}", f"data.cache_dir={tmp_path / 'cache'}"]
    source = [f"model.init_from={released}", f"distillation.teachers=[{released}]"]
    budget = ["epochs=2", "batch_size=12", "optim.learning_rate=1e-3", "optim.ema_decay=0.5", "runtime.workers=0"]
    recipe = read_as(Recipe, ROOT / "training/recipes/folders_hybrid_small.yaml", [*roots, *source, *budget])
    run = train(recipe, tmp_path / "run")
    faces = valid_faces(root, valid_share=0.2)
    assert len(faces) == 14
    models = [open_model(folder) for folder in (released, run)]
    sides = [model.probabilities(model.logits(faces.crops), "natural") for model in models]
    gains = {gain.name: gain.gain.value for gain in compare(sides[0], sides[1], faces.labels)}
    assert gains["accuracy"] > 0.1
