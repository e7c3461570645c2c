"""The model repository for Triton: graph, labels and configuration."""

import re
from pathlib import Path

import onnxruntime
import pytest
from typer.testing import CliRunner

from mien.app.cli.program import app
from mien.app.inference.runtime.triton import NAME, write_repository
from mien.data.contract import LABELS
from mien.models.manifest import ArtifactError, read_manifest, sha256_of
from tests.support import tiny_artifact


def test_the_repository_has_the_verified_graph_its_labels_and_its_configuration(tmp_path: Path) -> None:
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    command = ["models", "triton", str(tmp_path / "out"), "--model", str(artifact), "--half", "--gpu"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "out" / NAME
    assert sha256_of(folder / "1" / "model.onnx") == read_manifest(artifact).graph("fp16").sha256
    assert tuple((folder / "labels.txt").read_text().split()) == LABELS
    config = (folder / "config.pbtxt").read_text()
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    found = re.findall(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ ([\d, ]+) \]', config)
    kinds = {"tensor(uint8)": "UINT8", "tensor(float)": "FP32"}
    tensors = [*session.get_inputs(), *session.get_outputs()]
    assert found == [(one.name, kinds[one.type], ", ".join(map(str, one.shape[1:]))) for one in tensors]
    assert "KIND_GPU" in config
    assert config.count("{") == config.count("}")
    assert config.count("[") == config.count("]")


def test_a_damaged_artifact_is_not_exported(tmp_path: Path) -> None:
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    (artifact / "model.fp32.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match=r"model\.fp32\.onnx"):
        write_repository(artifact, tmp_path / "out")
    assert not (tmp_path / "out").exists()
