"""Static int8 quantization: quantized nodes, calibration faces, and release criteria."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from mien.app.inference.classifier import Classifier
from mien.app.settings import Settings
from mien.models.manifest import Prior, artifact_dir, load_artifact, read_manifest, scores_of, write_manifest
from mien.training import quantize
from mien.training.cli import main
from mien.training.evaluate import PRIORS, open_model
from mien.training.metrics import negative_log_likelihood
from tests.support.training import drawn_faces, valid_faces


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("quantize") / "faces", train=4, valid=2)


def nll_rise(artifact: Path, root: Path, prior: Prior) -> float:
    """By how much the loss of the served probabilities is higher in int8."""
    faces, losses = valid_faces(root), []
    for precision in ("fp32", "int8"):
        model = open_model(artifact, precision)
        probabilities = model.probabilities(model.logits(faces.crops), faces.crops, prior)
        losses.append(negative_log_likelihood(probabilities, faces.labels).mean())
    return float(losses[1] - losses[0])


def test_an_int8_graph_becomes_part_of_the_artifact_and_serves(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = Path(shutil.copytree(artifact_dir(None), tmp_path / "artifact"))
    (artifact / "model.int8.onnx").unlink()
    released = read_manifest(artifact)
    graphs = {name: graph for name, graph in released.graphs.items() if name != "int8"}
    write_manifest(artifact, released.model_copy(update={"graphs": graphs}))
    command = ["quantize", str(artifact), "--data", f"folders={faces}"]
    for same, rise, status in ((1.01, 1.0, 1), (0.5, -1.0, 1), (0.5, 1.0, 0)):  # the model does not know drawn faces
        assert not (artifact / "model.int8.onnx").exists()
        monkeypatch.setattr(quantize, "MIN_SAME", same)
        monkeypatch.setattr(quantize, "MAX_NLL_RISE", rise)
        capsys.readouterr()
        assert main(command) == status
    rises = {prior: nll_rise(artifact, faces, prior) for prior in PRIORS}
    assert f" {rises['balanced']:+.3f}\n" in capsys.readouterr().out
    assert abs(rises["balanced"] - rises["natural"]) > 0.002
    manifest = load_artifact(artifact)
    assert {entry["faces"] for entry in scores_of(artifact, "int8")} == {len(valid_faces(faces))}
    assert "## Metrics of the int8 graph" in (artifact / "card.md").read_text(encoding="utf-8")
    assert (artifact / manifest.graph("int8").file).stat().st_size < 0.4 * (artifact / "model.onnx").stat().st_size
    crops = valid_faces(faces).crops
    small, full = (Classifier(Settings(model=artifact, precision=precision)) for precision in ("int8", "fp32"))
    assert small.precision == "int8"
    assert (small.classify(crops).argmax(axis=1) == full.classify(crops).argmax(axis=1)).mean() > 0.9
    np.testing.assert_allclose(small.explain(crops), full.explain(crops), atol=0.05)
    assert main(["evaluate", str(artifact), *command[2:], "--precision", "int8"]) == 0
    assert main(command) == 1  # never overwritten
