"""Eight classes: contempt is trained, exported, evaluated, reported, served and labeled as the artifact names it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from mien.app.cli.program import app as mien_app
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.run import label
from mien.app.main import create_app
from mien.app.settings import Settings
from mien.data.command import app as data_app
from mien.data.contract import EIGHT_LABELS
from mien.models.manifest import load_artifact
from mien.training.compare import main as compare
from mien.training.config import Recipe, RecipeError
from mien.training.evaluate import evaluate
from mien.training.export import export
from mien.training.report.command import main as report
from mien.training.train import train
from tests.albums import face_photo
from tests.data_sets import make_affectnet, make_folders
from tests.support import encoded
from tests.support_training import TINY_CNN, data_of, drawn_faces, small_recipe


def recipe_of(root: Path, **changes: object) -> Recipe:
    return small_recipe(root, data=data_of(root, "affectnet", classes=8), epochs=1, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Data, run and artifact."""
    folder = tmp_path_factory.mktemp("eight")
    root = make_affectnet(folder / "affectnet")
    run = train(recipe_of(root), folder / "run")
    return root, run, export([run], "eight", arch="tiny", artifacts_dir=folder / "artifacts")


@pytest.fixture
def settings(trained: tuple[Path, Path, Path]) -> Settings:
    return Settings(model=trained[2], detector="builtin", device="cpu", prior="natural")


def test_the_artifact_names_eight_labels_and_is_evaluated_on_them(trained: tuple[Path, Path, Path]) -> None:
    root, _, folder = trained
    manifest = load_artifact(folder)
    assert manifest.labels == EIGHT_LABELS
    assert manifest.output.shape == (-1, 8)
    assert len(manifest.prior_correction) == 8
    scored = evaluate(folder, "affectnet", root, "valid", {"classes": 8})[1][0]
    assert "contempt" in scored.recall
    assert np.array(scored.confusion).shape == (8, 8)
    assert "neutral, contempt" in (folder / "card.md").read_text(encoding="utf-8")


def test_the_report_has_a_row_for_contempt(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    assert report([str(trained[1]), "--out", str(tmp_path / "report.html")]) == 0
    assert "contempt" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_service_returns_eight_probabilities(settings: Settings) -> None:
    photo = encoded(face_photo(), "JPEG")
    app = create_app(settings)
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/v1/models").json()["models"][0]["labels"] == list(EIGHT_LABELS)
        answer = client.post("/v1/expressions", content=photo, headers={"Content-Type": "image/jpeg"}).json()
    (face,) = answer["images"][0]["faces"]
    assert list(face["probabilities"]) == list(EIGHT_LABELS)
    assert sum(face["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_doctor_passes_for_eight_classes(trained: tuple[Path, Path, Path]) -> None:
    arguments = ["doctor", "--model", str(trained[2]), "--detector", "builtin", "--device", "cpu"]
    done = CliRunner().invoke(mien_app, arguments)
    assert done.exit_code == 0, done.output


def test_labeling_writes_the_eighth_probability_and_category(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.jpg").write_bytes(encoded(face_photo(), "JPEG"))
    request = LabelOptions(
        inputs=[str(tmp_path / "photos")], out=tmp_path / "out", outputs=["csv", "coco", "report"], workers=1
    )
    label(request, settings, Reporter())
    with (tmp_path / "out" / "labels.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert sum(float(row[f"p_{name}"]) for name in EIGHT_LABELS) == pytest.approx(1, abs=1e-4)
    coco = json.loads((tmp_path / "out" / "coco.json").read_text(encoding="utf-8"))
    assert [category["name"] for category in coco["categories"]] == list(EIGHT_LABELS)
    assert "contempt" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_class_folders_with_contempt_are_checked_trained_released_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folders(tmp_path / "folders", {"": dict.fromkeys(EIGHT_LABELS, 10)})
    checked = CliRunner().invoke(data_app, ["check", "folders", str(root), "--option", "classes=8", "--json"])
    assert checked.exit_code == 0
    assert json.loads(checked.stdout)["counts"]["all"]["contempt"] == 10
    data = data_of(root, classes=8, valid_share=0.2)
    run = train(small_recipe(root, data=data, epochs=1), tmp_path / "run")
    artifact = export([run], "mine", arch="tiny", artifacts_dir=tmp_path / "artifacts")
    assert load_artifact(artifact).labels == EIGHT_LABELS
    assert "--option classes=8 --option valid_share=0.2" in (artifact / "card.md").read_text(encoding="utf-8")
    arguments = [str(artifact), str(artifact), "--data", f"folders={root}"]
    assert compare([*arguments, "--option", "classes=8", "--option", "valid_share=0.2"]) == 0
    assert "recall, contempt" in capsys.readouterr().out


def test_seven_and_eight_classes_in_one_recipe_are_refused(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    recipe = recipe_of(trained[0])
    seven = recipe.data.valid.model_copy(update={"options": {}})
    mixed = recipe.model_copy(update={"data": recipe.data.model_copy(update={"valid": seven})})
    with pytest.raises(RecipeError, match=r"train has 8 classes, valid 7\. Give both the same options\.classes"):
        train(mixed, tmp_path / "run")


def test_a_teacher_with_seven_classes_is_refused_and_its_weights_initialize_all_but_the_head(
    trained: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    seven = train(small_recipe(drawn_faces(tmp_path / "faces", train=2, valid=1), epochs=1), tmp_path / "seven")
    for views in ("augmented", "fixed"):
        taught = recipe_of(trained[0], distillation={"mode": "soft", "teachers": [str(seven)], "views": views})
        with pytest.raises(RecipeError, match=r"teachers: 7 classes, this recipe has 8"):
            train(taught, tmp_path / views)
    started = train(recipe_of(trained[0], model=TINY_CNN | {"init_from": str(seven)}), tmp_path / "started")
    assert (started / "best.pt").exists()
