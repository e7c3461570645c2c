"""`MIEN_TRITON`: classification on a real Triton server, which dies and comes back."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.background import free_port
from mien.app.errors import ProviderUnavailable
from mien.app.inference.classifier import TritonClassifier
from mien.app.inference.runtime.triton import NAME, write_repository
from tests.integration.service.conftest import Serve
from tests.support import sample_photo, tiny_artifact

# The wheel has Triton's server with its Python backend, and no other. That was built for NumPy 1, hence DLPack.
_WHEEL = importlib.util.find_spec("pytriton")
if _WHEEL is None or _WHEEL.origin is None:
    pytest.skip("no Triton server: pip install --no-deps nvidia-pytriton", allow_module_level=True)
pytest.importorskip("tritonclient.grpc", reason="pip install 'mien[triton]'")
_MODEL = """
import os, time
from pathlib import Path
import numpy as np
import onnxruntime
import triton_python_backend_utils as backend

class TritonPythonModel:
    def initialize(self, arguments):
        self.folder = Path(__file__).parent
        self.session = onnxruntime.InferenceSession(str(self.folder / "model.onnx"), providers=["CPUExecutionProvider"])

    def execute(self, requests):
        while (self.folder / "stalled").exists():
            time.sleep(0.1)
        responses = []
        for request in requests:
            crops = np.from_dlpack(backend.get_input_tensor_by_name(request, "crops"))
            (logits,) = self.session.run(["logits"], {"crops": crops})
            responses.append(backend.InferenceResponse([backend.Tensor.from_dlpack("logits", logits)]))
        return responses
"""


class Triton:
    """A Triton server with the released repository format and a Python model around its graph."""

    def __init__(self, folder: Path, artifact: Path) -> None:
        self.port, self.folder = free_port(), folder
        model = write_repository(artifact, folder / "models")
        self.version = model / "1"
        config = (model / "config.pbtxt").read_text()
        (model / "config.pbtxt").write_text(config.replace('platform: "onnxruntime_onnx"', 'backend: "python"'))
        (self.version / "model.py").write_text(f"import sys\nsys.path += {sys.path!r}\n{_MODEL}")
        root = Path(str(_WHEEL.origin)).parent / "tritonserver"
        shutil.copytree(root / "backends", folder / "backends")
        stub = root / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
        shutil.copy(stub / "triton_python_backend_stub", folder / "backends" / "python")
        self._program = root / "bin" / "tritonserver"

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}/{NAME}"

    def start(self) -> None:
        command = [self._program, f"--model-repository={self.folder / 'models'}", f"--grpc-port={self.port}"]
        command += [f"--backend-directory={self.folder / 'backends'}", "--allow-http=false", "--allow-metrics=false"]
        libraries = Path(str(_WHEEL.origin)).resolve().parents[1] / "nvidia_pytriton.libs"
        environment = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
        log = (self.folder / "triton.log").open("ab")
        with log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 60
        while "Started GRPCInferenceService" not in (self.folder / "triton.log").read_text():
            assert time.monotonic() < end, (self.folder / "triton.log").read_text()
            assert self.process.poll() is None, (self.folder / "triton.log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, 9)
        self.process.wait(20)
        (self.folder / "triton.log").unlink()


@pytest.fixture
def triton(tmp_path: Path, artifact: Path) -> Iterator[Triton]:
    server = Triton(tmp_path / "triton", artifact)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_the_service_classifies_on_triton_through_a_stall_and_a_death(
    serve: Serve, triton: Triton, artifact: Path, tmp_path: Path
) -> None:
    photo = sample_photo().read_bytes()
    (local,) = serve(precision="fp32").ask(photo)["images"]
    server = serve(triton=triton.url, triton_timeout_s=1)
    body = server.ask(photo)
    (remote,) = body["images"]
    assert body["provider"] == "Triton"
    assert len(remote["faces"]) == 1
    assert remote["faces"][0]["probabilities"] == pytest.approx(local["faces"][0]["probabilities"], abs=2e-6)

    def refused() -> float:
        start = time.monotonic()
        headers = {"content-type": "image/jpeg"}
        response = httpx.post(f"{server.url}/v1/expressions", content=photo, headers=headers, timeout=30)
        assert (response.status_code, response.json()["type"]) == (503, "urn:mien:problem:backend-unavailable")
        assert re.fullmatch(r"\d+", response.headers["retry-after"])
        assert httpx.get(f"{server.url}/health").status_code == 200
        return time.monotonic() - start

    (triton.version / "stalled").touch()
    assert refused() < 10, "a server that does not respond"
    (triton.version / "stalled").unlink()
    triton.kill()
    assert refused() < 10, "a dead server"
    triton.start()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            (again,) = server.ask(photo)["images"]
            break
        except httpx.HTTPStatusError:
            time.sleep(0.2)
    assert again["faces"] == remote["faces"]
    with pytest.raises(ProviderUnavailable, match=r"artifact tiny\.test, expected other\.test"):
        TritonClassifier(tiny_artifact(tmp_path / "other.test"), triton.url, timeout_s=5)
    triton.kill()
    with pytest.raises(ProviderUnavailable, match="Triton at grpc://"):
        TritonClassifier(artifact, triton.url, timeout_s=1)
