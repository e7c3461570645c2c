"""Static int8 quantization: quantized nodes, calibration faces, and release criteria."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mien.app.inference.classifier import Classifier
from mien.app.settings import Settings
from mien.models.manifest import artifact_dir, load_artifact, read_manifest, scores_of, write_manifest
from mien.training import quantize
from mien.training.cli import main
from tests.support.training import drawn_faces, valid_faces


def test_an_int8_graph_becomes_part_of_the_artifact_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faces = drawn_faces(tmp_path / "faces", train=4, valid=2)
    artifact = Path(shutil.copytree(artifact_dir(None), tmp_path / "artifact"))
    (artifact / "model.int8.onnx").unlink()
    released = read_manifest(artifact)
    graphs = {name: graph for name, graph in released.graphs.items() if name != "int8"}
    write_manifest(artifact, released.model_copy(update={"graphs": graphs}))
    data = ["--data", f"folders={faces}"]
    for same, rise, status in ((1.01, 1.0, 1), (0.5, -1.0, 1), (0.5, 1.0, 0)):  # the model does not know drawn faces
        assert not (artifact / "model.int8.onnx").exists()
        monkeypatch.setattr(quantize, "MIN_SAME", same)
        monkeypatch.setattr(quantize, "MAX_NLL_RISE", rise)
        capsys.readouterr()
        assert main(["quantize", str(artifact), *data]) == status
    printed, losses = capsys.readouterr().out, []
    for precision in ("fp32", "int8"):
        file = tmp_path / f"{precision}.json"
        assert main(["evaluate", str(artifact), *data, "--precision", precision, "--json", str(file)]) == 0
        losses.append([scores["nll"]["value"] for scores in json.loads(file.read_text())["scores"]])
    natural, balanced = np.subtract(losses[1], losses[0])
    assert f" {balanced:+.3f}\n" in printed
    assert abs(balanced - natural) > 0.002
    manifest, crops = load_artifact(artifact), valid_faces(faces).crops
    assert {entry["faces"] for entry in scores_of(artifact, "int8")} == {len(crops)}
    assert "## Metrics of the int8 graph" in (artifact / "card.md").read_text(encoding="utf-8")
    assert (artifact / manifest.graph("int8").file).stat().st_size < 0.4 * (artifact / "model.onnx").stat().st_size
    small, full = (Classifier(Settings(model=artifact, precision=precision)) for precision in ("int8", "fp32"))
    assert small.precision == "int8"
    assert (small.classify(crops).argmax(axis=1) == full.classify(crops).argmax(axis=1)).mean() > 0.9
    np.testing.assert_allclose(small.explain(crops), full.explain(crops), atol=0.05)
    assert main(["quantize", str(artifact), *data]) == 1  # never overwritten
