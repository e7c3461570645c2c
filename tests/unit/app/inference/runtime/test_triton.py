"""The model repository for Triton: graph, labels and configuration."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

from mien.app.cli.program import app
from mien.app.inference.pipeline import build_pipeline
from mien.app.inference.runtime.triton import NAME, write_repository
from mien.app.settings import load_settings
from mien.data.contract import LABELS
from mien.models.manifest import ArtifactError, read_manifest, sha256_of
from tests.support import ROOT, sample_photo, tiny_artifact


def test_the_repository_contains_the_verified_graph_and_its_labels(artifact: Path, tmp_path: Path) -> None:
    folder = write_repository(artifact, tmp_path / "out", precision="fp16")
    assert folder == tmp_path / "out" / NAME
    assert sha256_of(folder / "1" / "model.onnx") == read_manifest(artifact).graph("fp16").sha256
    assert tuple((folder / "labels.txt").read_text().split()) == LABELS


def test_the_configuration_matches_inputs_and_outputs_of_the_graph(tmp_path: Path) -> None:
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    folder = write_repository(artifact, tmp_path / "out", device="gpu")
    config = (folder / "config.pbtxt").read_text()
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    found = re.findall(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ ([\d, ]+) \]', config)
    kinds = {"tensor(uint8)": "UINT8", "tensor(float)": "FP32"}
    tensors = [*session.get_inputs(), *session.get_outputs()]
    assert found == [(one.name, kinds[one.type], ", ".join(map(str, one.shape[1:]))) for one in tensors]
    assert "KIND_GPU" in config
    assert 'key: "temperature" value: { string_value: "1.5" }' in config
    assert config.count("{") == config.count("}")
    assert config.count("[") == config.count("]")


def test_a_damaged_artifact_is_not_exported(tmp_path: Path) -> None:
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    (artifact / "model.fp32.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match=r"model\.fp32\.onnx"):
        write_repository(artifact, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_repository(artifact: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["models", "triton", str(tmp_path / "out"), "--model", str(artifact)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / NAME / "config.pbtxt").is_file()


class StandIn(BaseHTTPRequestHandler):
    """Triton's HTTP protocol (KServe v2) for one model of a repository, with no more than the configuration says."""

    folder: Path

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        assert self.path == f"/v2/models/{NAME}/config"
        pairs = re.findall(r'key: "(\w+)" value: \{ string_value: "(.*?)" \}', self._config())
        self._send({"parameters": {key: {"string_value": value} for key, value in pairs}})

    def do_POST(self) -> None:
        assert self.path == f"/v2/models/{NAME}/infer"
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (tensor,) = request["inputs"]
        described = (tensor["name"], f"TYPE_{tensor['datatype']}", ", ".join(map(str, tensor["shape"][1:])))
        assert described in re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ ([\d, ]+) \]', self._config())
        feed = {tensor["name"]: np.array(tensor["data"], np.uint8).reshape(tensor["shape"])}
        names = [output["name"] for output in request["outputs"]]
        session = onnxruntime.InferenceSession(
            str(self.folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        found = zip(names, session.run(names, feed), strict=True)
        self._send({"outputs": [{"name": name, "data": values.ravel().tolist()} for name, values in found]})

    def _config(self) -> str:
        return (self.folder / "config.pbtxt").read_text()

    def _send(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """An artifact, and the port where its exported repository is served."""
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    handler = type("Handler", (StandIn,), {"folder": write_repository(artifact, tmp_path / "out")})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield artifact, server.server_port
        server.shutdown()


def test_the_guides_client_gets_the_probabilities_of_the_classifier(triton: tuple[Path, int]) -> None:
    artifact, port = triton
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python test-with-triton\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)
    code = example.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pipeline = build_pipeline(load_settings(model=artifact, device="cpu", precision="fp32"))
    expected = [(face.label, face.confidence) for face in pipeline.analyze(sample_photo().read_bytes()).faces]
    assert expected
    found = [line.split() for line in done.stdout.splitlines()]
    assert [(label, float(value)) for label, value in found] == [
        (label, pytest.approx(value, abs=1e-5)) for label, value in expected
    ]
