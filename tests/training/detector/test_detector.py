"""A detector from recipe to release, on drawn faces: resumed, exported and evaluated."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch

from mien.models.detector.decode import detect_rows
from mien.models.detector.manifest import default_detector_dir, load_detector
from mien.training import checkpoint
from mien.training.cli import main
from mien.training.config import read_as
from mien.training.detector import evaluate as evaluate_command
from mien.training.detector import export as export_command
from mien.training.detector.config import TEACHER_FILE, DetectorRecipe
from mien.training.detector.evaluate import THRESHOLDS
from mien.training.detector.images import load_images
from mien.training.detector.train import build_detector, train
from mien.training.evaluate import open_graph
from mien.training.run_folder import RunError, parameters, read_facts
from tests.support import ROOT
from tests.support.detector import drawn_face, small_detector_recipe
from tests.support.training import losses, stopped_after


def test_a_stopped_run_resumes_to_the_same_weights_but_not_on_other_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_detector_recipe(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", Mock(side_effect=AssertionError("each step would wait for the device")))
        whole = train(recipe, tmp_path / "whole")
    with stopped_after(3):
        train(recipe, tmp_path / "stopped")
    train(recipe, tmp_path / "stopped")
    expected, found = (checkpoint.read(folder / "best.pt")["weights"] for folder in (whole, tmp_path / "stopped"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert len(read_facts(tmp_path / "stopped")["resumed"]) == 1
    logged = losses(tmp_path / "stopped")
    assert logged == losses(whole)
    assert list(logged) == [1, 2, 3, 4, 5, 6]
    for image in sorted((tmp_path / "drawn").iterdir())[:20]:
        image.unlink()
    with pytest.raises(RunError, match="changed since the run started"):
        train(recipe, whole)


@pytest.mark.timeout(120)
def test_workers_start_after_opencv_has_started_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2.setNumThreads(2)
    cv2.resize(np.zeros((2000, 2000, 3), np.uint8), (1000, 1000))  # as YuNet's labels are computed
    values = small_detector_recipe(tmp_path, monkeypatch, steps=2).model_dump(mode="json")
    values["runtime"]["workers"] = 1
    assert list(losses(train(DetectorRecipe.model_validate(values), tmp_path / "run"))) == [1, 2]


@pytest.mark.timeout(600)  # exporting takes minutes where other processes need the cores
def test_the_commands_release_and_score_a_run_that_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_detector_recipe(tmp_path, monkeypatch, steps=40)
    shutil.copy(default_detector_dir() / "model.onnx", tmp_path / "teacher.onnx")  # in place of YuNet's
    run, artifacts = train(recipe, tmp_path / "run"), tmp_path / "artifacts"
    logged = list(losses(run).values())
    assert np.mean(logged[-10:]) < 0.85 * np.mean(logged[:10])
    options = ["detector", "export", str(run), "--tag", "v1", "--artifacts", str(artifacts), "--default"]
    with monkeypatch.context() as patch:
        read = Mock(wraps=load_images)
        for module in (export_command, evaluate_command):
            patch.setattr(module, "load_images", read)
        assert main(options) == 0
    assert {call.args[1] for call in read.call_args_list} == {"valid"}  # the test split is for the end
    folder = default_detector_dir(artifacts)
    manifest = load_detector(folder)
    assert manifest.name == folder.name == "tiny.v1"
    assert {metric.name for metric in manifest.metrics} >= {"recall, 12 to 24 px", "recall, rotated by 90 degrees"}
    assert str(tmp_path) not in (folder / "manifest.json").read_text()
    assert "| YuNet |" in (folder / "card.md").read_text()
    assert manifest.score_threshold in THRESHOLDS
    image, _ = drawn_face(96, (48, 48), 24)
    assert detect_rows(open_graph(folder / "model.onnx").run, image, threshold=0.05).shape[1] == 15
    assert main(options) == 1  # the artifact exists

    values = recipe.model_dump(mode="json")
    values["model"]["init_from"], values["scenes"]["hard_share"] = str(folder), 0.3
    values["optim"]["learning_rate"], values["steps"], values["loss"]["cells"] = 1e-9, 1, True
    further = DetectorRecipe.model_validate(values)
    started = checkpoint.read(train(further, tmp_path / "further") / "best.pt")["weights"]
    trained = checkpoint.read(run / "best.pt")["weights"]
    assert all(torch.allclose(started[key], trained[key], atol=1e-3) for key in trained if "weight" in key)
    assert list(read_facts(tmp_path / "further")["init_from"]) == ["tiny.v1"]

    models, out = tmp_path / "models", tmp_path / "metrics.json"
    models.mkdir()
    (tmp_path / "teacher.onnx").rename(models / TEACHER_FILE)
    monkeypatch.setenv("MIEN_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MIEN_MODELS_DIR", str(models))
    monkeypatch.chdir(tmp_path)
    assert main(["detector", "evaluate", "--json", str(out), "--artifact", str(folder)]) == 0
    metrics = json.loads(out.read_text())["metrics"]
    assert set(metrics) == {"tiny.v1", "YuNet"}
    assert any(metric["estimate"] for metric in metrics["tiny.v1"])


def test_recipes_state_the_size_of_their_network() -> None:
    for path in (ROOT / "training" / "recipes" / "detector").glob("*.yaml"):
        recipe = read_as(DetectorRecipe, path, [])
        assert f"{parameters(build_detector(recipe.model)):,}" in path.read_text(encoding="utf-8"), recipe.name
