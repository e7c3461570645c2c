"""The model repository for Triton: the artefact's own graph, and a configuration that fits it."""

import re
from pathlib import Path

import onnxruntime
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.triton import NAME, write_repository
from data.contract import LABELS
from models.manifest import ArtefactError, read_manifest, sha256_of
from tests.explaining import explaining_artefact


def test_the_repository_holds_the_verified_graph_and_its_labels(artefact: Path, tmp_path: Path) -> None:
    folder = write_repository(artefact, tmp_path / "out", precision="fp16")
    assert folder == tmp_path / "out" / NAME
    assert sha256_of(folder / "1" / "model.onnx") == read_manifest(artefact).graph("fp16").sha256
    assert tuple((folder / "labels.txt").read_text().split()) == LABELS


def test_the_configuration_says_what_the_graph_takes_and_gives(tmp_path: Path) -> None:
    artefact = explaining_artefact(tmp_path / "explaining.test")
    folder = write_repository(artefact, tmp_path / "out", device="gpu")
    config = (folder / "config.pbtxt").read_text()
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    told = re.findall(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ ([\d, ]+) \]', config)
    kinds = {"tensor(uint8)": "UINT8", "tensor(float)": "FP32"}
    tensors = [*session.get_inputs(), *session.get_outputs()]
    assert told == [(one.name, kinds[one.type], ", ".join(map(str, one.shape[1:]))) for one in tensors]
    assert "KIND_GPU" in config
    assert 'key: "temperature" value: { string_value: "1.5" }' in config
    assert config.count("{") == config.count("}")
    assert config.count("[") == config.count("]")


def test_a_damaged_artefact_is_not_exported(tmp_path: Path) -> None:
    artefact = explaining_artefact(tmp_path / "explaining.test")
    (artefact / "model.fp32.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtefactError, match=r"model\.fp32\.onnx"):
        write_repository(artefact, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_it(artefact: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["models", "triton", str(tmp_path / "out"), "--model", str(artefact)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / NAME / "config.pbtxt").is_file()
