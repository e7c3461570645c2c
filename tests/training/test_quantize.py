"""Static int8 quantization: quantized nodes, calibration faces, and release criteria."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from mien.app.inference.classifier import Classifier
from mien.app.settings import Settings
from mien.data.contract import LABELS
from mien.models.manifest import Interval, artifact_dir, load_artifact, write_manifest
from mien.training.cli import main
from mien.training.config import DataSource
from mien.training.release import quantize
from mien.training.release.graphs import with_fp32_weights
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


def test_depthwise_convolutions_are_not_quantized() -> None:
    shapes = {"first": (4, 1, 3, 3), "depthwise": (4, 1, 3, 3), "pointwise": (8, 4, 1, 1)}
    weights = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), f"w_{name}") for name, shape in shapes.items()]
    nodes = [
        onnx.helper.make_node("Conv", [source, f"w_{name}"], [target], name=name, group=groups)
        for name, source, target, groups in (
            ("first", "crops", "a", 1), ("depthwise", "a", "b", 4), ("pointwise", "b", "logits", 1)
        )
    ]  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "drawn", [], [], weights)
    assert quantize.weighted_nodes(onnx.helper.make_model(graph)) == ["pointwise"]


def test_only_what_the_logits_need_is_quantized_and_the_first_convolution_is_not() -> None:
    model = with_fp32_weights(onnx.load(str(artifact_dir(None) / "model.onnx")))
    names = quantize.weighted_nodes(model)
    kinds = {node.name: node.op_type for node in model.graph.node}
    convolutions = [node.name for node in model.graph.node if node.op_type == "Conv"]
    # the first convolution computes luminance and mean, the second is the first of the network
    assert [name for name in names if kinds[name] == "Conv"] == convolutions[2:]
    assert sum(kinds[name] == "MatMul" for name in names) == 3 * 4  # qkv, projection and two of the MLP, three blocks
    assert len(names) == len(convolutions) - 2 + 12


def test_calibration_uses_the_same_train_faces_each_time(faces: Path) -> None:
    source = DataSource(kind="folders", root=faces, split="train")
    first = quantize.calibration_crops(source, faces=10)
    assert first.shape == (10, 112, 112, 3)
    assert np.array_equal(first, quantize.calibration_crops(source, faces=10))
    assert len(quantize.calibration_crops(source, faces=1000)) == 4 * len(LABELS)


def test_a_split_is_read_with_the_options_of_the_recipe() -> None:
    train = [{"kind": "ferplus", "split": "train", "options": {"protocol": "probability"}}]
    valid = {"kind": "ferplus", "split": "valid", "options": {}}
    manifest = load_artifact(artifact_dir(None)).model_copy(
        update={"recipe": {"data": {"train": train, "valid": valid}}}
    )
    root = Path("sets")
    assert quantize.source_of(manifest, "ferplus", root, "train").options == {"protocol": "probability"}
    assert quantize.source_of(manifest, "ferplus", root, "valid").options == {}
    held_out = {"kind": "folders", "split": "train", "options": {"valid_share": 0.2}}
    other = manifest.model_copy(update={"recipe": {"data": {"train": [held_out], "valid": valid}}})
    assert quantize.source_of(other, "folders", root, "valid").options == {"valid_share": 0.2}
    assert quantize.source_of(other, "muxspace", root, "valid").options == {}


@pytest.mark.usefixtures("quick")
def test_an_int8_graph_becomes_part_of_the_artifact_and_serves(
    faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, out = Path(shutil.copytree(artifact_dir(None), tmp_path / "before")), tmp_path / "after"
    released = load_artifact(artifact)
    graphs = {name: graph for name, graph in released.graphs.items() if name != "int8"}
    write_manifest(artifact, released.model_copy(update={"graphs": graphs}))
    command = ["quantize", str(artifact), "--data", f"folders={faces}", "--out", str(out), "--rounds", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("mean class accuracy", "ECE", "same label", "32 faces", "all met"))
    manifest = load_artifact(out)
    assert manifest.name == "after"
    assert {entry.faces for entry in manifest.graph("int8").metrics} == {len(valid_faces(faces))}
    assert "## Metrics of the int8 graph" in (out / "card.md").read_text(encoding="utf-8")
    assert (out / manifest.graph("int8").file).stat().st_size < 0.6 * (out / "model.onnx").stat().st_size
    crops = quantize.calibration_crops(DataSource(kind="folders", root=faces, split="train"))
    small, full = (Classifier(Settings(model=out, precision=precision)) for precision in ("int8", "fp32"))
    assert small.precision == "int8"
    assert (small.classify(crops).argmax(axis=1) == full.classify(crops).argmax(axis=1)).mean() > 0.9
    np.testing.assert_allclose(small.explain(crops), full.explain(crops), atol=0.05)
    assert main(["quantize", str(out), *command[2:4], "--out", str(out), "--rounds", "1"]) == 1
    assert "artifacts are never overwritten" in capsys.readouterr().err


def test_the_change_is_paired_by_face(artifact: Path, faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "BATCHES", (1, 8))
    graph, manifest = artifact / "model.fp32.onnx", load_artifact(artifact)
    same = quantize.compare(manifest, graph, graph, DataSource(kind="folders", root=faces, split="valid"), rounds=1)
    assert same.change == Interval(0.0, 0.0, 0.0)
    assert same.agreement == 1.0
    assert set(same.median_ms) == {1, 8}
    assert replace(same, median_ms={1: (2.0, 1.0)}).obstacles() == []
