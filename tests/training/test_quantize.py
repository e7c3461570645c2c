"""Static int8 quantization: quantized nodes, calibration faces, and release criteria."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from mien.app.inference.classifier import Classifier
from mien.app.settings import Settings
from mien.models.manifest import Interval, artifact_dir, load_artifact, write_manifest
from mien.training.cli import main
from mien.training.config import DataSource
from mien.training.release import quantize
from mien.training.release.quantize import Comparison, QuantizationError
from tests.support import tiny_artifact
from tests.support.training import drawn_faces, valid_faces


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("quantize") / "faces", train=4, valid=2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip timing and accept any loss, which are meaningless for drawn faces."""
    monkeypatch.setattr(quantize, "median_ms", lambda *_given, **_named: (2.0, 1.0))  # a test below times graphs
    monkeypatch.setattr(quantize, "MAX_LOSS", 1.0)


def comparison(*, change: float = 0.0, int8_ms: float = 1.0) -> Comparison:
    """Of two graphs, without metrics of each."""
    return Comparison((), (), 1.0, Interval(change, change, change), {1: (2.0, 1.0), 8: (2.0, int8_ms)})


def test_a_graph_that_is_slower_or_worse_is_not_released_and_leaves_no_file(tmp_path: Path) -> None:
    assert comparison(change=-0.005).obstacles() == []
    assert comparison(change=-0.0061).obstacles() == ["mean class accuracy drops by 0.61 points, the limit is 0.5"]
    artifact = tiny_artifact(tmp_path / "tiny.test")
    before = sorted(artifact.iterdir())
    with pytest.raises(QuantizationError, match="not faster than fp32 at batch 8"):
        quantize.release(artifact, load_artifact(artifact), artifact, comparison(int8_ms=3.0), artifact)
    assert sorted(artifact.iterdir()) == before


@pytest.mark.usefixtures("quick")
def test_an_int8_graph_becomes_part_of_the_artifact_and_serves(faces: Path, tmp_path: Path) -> None:
    artifact, out = Path(shutil.copytree(artifact_dir(None), tmp_path / "before")), tmp_path / "after"
    released = load_artifact(artifact)
    graphs = {name: graph for name, graph in released.graphs.items() if name != "int8"}
    write_manifest(artifact, released.model_copy(update={"graphs": graphs}))
    command = ["quantize", str(artifact), "--data", f"folders={faces}", "--out", str(out), "--rounds", "1"]
    assert main(command) == 0
    manifest = load_artifact(out)
    assert {entry.faces for entry in manifest.graph("int8").metrics} == {len(valid_faces(faces))}
    assert "## Metrics of the int8 graph" in (out / "card.md").read_text(encoding="utf-8")
    assert (out / manifest.graph("int8").file).stat().st_size < 0.6 * (out / "model.onnx").stat().st_size
    crops = quantize.calibration_crops(DataSource(kind="folders", root=faces, split="train"))
    small, full = (Classifier(Settings(model=out, precision=precision)) for precision in ("int8", "fp32"))
    assert small.precision == "int8"
    assert (small.classify(crops).argmax(axis=1) == full.classify(crops).argmax(axis=1)).mean() > 0.9
    np.testing.assert_allclose(small.explain(crops), full.explain(crops), atol=0.05)
    assert main(["quantize", str(out), *command[2:4], "--out", str(out), "--rounds", "1"]) == 1  # never overwritten
