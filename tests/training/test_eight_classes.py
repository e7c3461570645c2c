"""Eight classes: contempt in training, export, evaluation and report."""

import re
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import EIGHT_LABELS
from mien.data.tree import DatasetError
from mien.models.manifest import artifact_dir, load_artifact
from mien.training.cli import main
from mien.training.config import DistillationConfig, RecipeError
from mien.training.evaluate import Scores, evaluate_model, open_model
from mien.training.faces import Split
from mien.training.release.export import export
from mien.training.release.graphs import ExportError
from mien.training.teachers import Teachers
from mien.training.train import train
from tests.support.data_sets import make_ferplus
from tests.support.training import TINY_CNN, data_of, small_recipe, valid_faces
from tests.training.conftest import EIGHT_OPTIONS, Eight, Trained

OPTIONS = [part for name, value in EIGHT_OPTIONS.items() for part in ("--option", f"{name}={value}")]


def scores_of(artifact: Path, faces: Split) -> Scores:
    model = open_model(artifact)
    faces = faces.for_classes(model.labels, of=model.name)
    return evaluate_model(model, faces, model.logits(faces.crops))[0]


def test_the_artifact_names_eight_labels_and_is_evaluated_and_compared_on_them(
    eight: Eight, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = load_artifact(eight.artifact)
    assert (manifest.labels, manifest.color) == (EIGHT_LABELS, "RGB")
    assert {(entry.data, entry.split) for entry in manifest.metrics} == {("folders", "valid")}
    assert manifest.output.shape == (-1, 8)
    assert len(manifest.prior_correction) == 8
    scored = scores_of(eight.artifact, valid_faces(eight.root, **EIGHT_OPTIONS))
    assert "contempt" in scored.recall
    assert np.array(scored.confusion).shape == (8, 8)
    card = (eight.artifact / "card.md").read_text(encoding="utf-8")
    assert "neutral, contempt" in card
    assert "--option classes=8 --option valid_share=0.2" in card
    assert main(["compare", str(eight.artifact), str(eight.run), "--data", f"folders={eight.root}", *OPTIONS]) == 0
    assert "recall, contempt" in capsys.readouterr().out


def test_networks_with_different_classes_neither_teach_together_nor_are_averaged(
    eight: Eight, trained: Trained, tmp_path: Path
) -> None:
    folders = (eight.artifact, trained.artifact)
    named = f"{re.escape(str(folders[0]))} .*contempt; {re.escape(str(folders[1]))} .*neutral$"
    with pytest.raises(RecipeError, match="does not know contempt"):
        Teachers(DistillationConfig(mode="soft", teachers=folders), EIGHT_LABELS)
    with pytest.raises(ExportError, match=named):
        export(folders, "drawn", arch="both", artifacts_dir=tmp_path)


def test_eight_classes_are_evaluated_on_votes_for_seven(eight: Eight, tmp_path: Path) -> None:
    ferplus = make_ferplus(tmp_path / "ferplus")
    scored = scores_of(eight.artifact, valid_faces(ferplus, "ferplus"))
    assert scored.kl_to_votes is not None
    assert scored.kl_to_votes.value > 0
    with pytest.raises(DatasetError, match=r"has contempt, .* does not. Use the option classes=surprise"):
        scores_of(artifact_dir(None), valid_faces(ferplus, "ferplus", classes=8))


def test_seven_classes_are_not_measured_on_faces_of_eight(
    eight: Eight, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", f"folders={eight.root}", *OPTIONS]
    for command in (["compare"], ["report", "--out", str(tmp_path / "a.html")]):
        assert main([*command, str(eight.run), str(trained.student), *data]) == 1
        assert f"run {trained.student.name} does not. Use the option classes=surprise," in capsys.readouterr().err


def test_seven_and_eight_classes_are_not_mixed_and_seven_initialize_all_but_the_head(
    eight: Eight, trained: Trained, tmp_path: Path
) -> None:
    data = data_of(eight.root, **EIGHT_OPTIONS)
    mixed = small_recipe(eight.root, data=data | {"valid": data_of(trained.faces)["valid"]})
    with pytest.raises(RecipeError, match=r"train has .*contempt, valid .*neutral\. Set data\.classes"):
        train(mixed, tmp_path / "mixed")
    for views in ("augmented", "fixed"):
        distillation = {"mode": "soft", "teachers": [str(trained.teacher)], "views": views}
        with pytest.raises(RecipeError, match=r"does not know contempt"):
            train(small_recipe(eight.root, data=data, distillation=distillation), tmp_path / views)
    model = TINY_CNN | {"init_from": str(trained.teacher)}
    assert (train(small_recipe(eight.root, data=data, model=model, epochs=1), tmp_path / "run") / "best.pt").exists()
