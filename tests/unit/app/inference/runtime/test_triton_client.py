"""The classifier on a Triton server: probabilities, time limits, a dead server and its return."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from mien.app.errors import BackendUnavailable, ProviderUnavailable
from mien.app.inference.classifier import Classifier
from mien.app.inference.runtime.triton import NAME, write_repository
from mien.app.settings import Settings
from tests.support import eventually, random_crops, tiny_artifact
from tests.unit.app.conftest import ONE_PHOTO, Connect


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Triton's protocol over one exported model; its configuration is read by Triton's own schema."""

    def __init__(self, folder: Path) -> None:
        config = (folder / "config.pbtxt").read_text(encoding="utf-8")
        self.config = text_format.Parse(config, model_config_pb2.ModelConfig())
        self.session = onnxruntime.InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
        self.delay_s, self.port = 0.0, 0
        self.start()

    def start(self) -> None:
        self.server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    def stop(self) -> None:
        self.server.stop(None).wait()

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}/{NAME}"

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if request.name != self.config.name:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        return service_pb2.ModelConfigResponse(config=self.config)

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self.delay_s)
        (tensor,) = request.inputs
        if tensor.shape[0] > self.config.max_batch_size:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the batch is too large")
        crops = np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(tensor.shape)
        names = [output.name for output in request.outputs]
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        for name, values in zip(names, self.session.run(names, {tensor.name: crops}), strict=True):
            response.outputs.add(name=name, datatype="FP32", shape=values.shape)
            response.raw_output_contents.append(values.tobytes())
        return response


@pytest.fixture(scope="module")
def explaining(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_artifact(tmp_path_factory.mktemp("artifacts") / "explaining.test", explain=True)


@pytest.fixture
def triton(explaining: Path, tmp_path: Path) -> Iterator[Triton]:
    server = Triton(write_repository(explaining, tmp_path))
    yield server
    server.stop()


def test_probabilities_and_attention_equal_those_of_the_local_graph(triton: Triton, explaining: Path) -> None:
    remote = Classifier(Settings(model=explaining, triton=triton.address))
    local = Classifier(Settings(model=explaining, device="cpu", precision="fp32"))
    assert (remote.provider, local.provider) == ("Triton", "CPUExecutionProvider")
    crops = random_crops(300)
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(remote.classify, [crops] * 4):
            assert np.array_equal(rows, local.classify(crops))
    assert np.array_equal(remote.explain(crops[:3]), local.explain(crops[:3]))
    assert remote.classify(crops[:0]).shape == (0, 7)


def test_a_slow_server_is_not_waited_for(triton: Triton, explaining: Path) -> None:
    remote = Classifier(Settings(model=explaining, triton=triton.address, triton_timeout_s=0.3))
    triton.delay_s = 5
    begun = time.monotonic()
    with pytest.raises(BackendUnavailable, match="does not respond"):
        remote.classify(random_crops(1))
    assert time.monotonic() - begun < 2


def test_requests_fail_while_the_server_is_away_and_succeed_when_it_returns(
    connect: Connect, triton: Triton, explaining: Path
) -> None:
    client = connect(classifies=Classifier(Settings(model=explaining, triton=triton.address)))
    assert client.get("/ready").json()["provider"] == "Triton"
    (expected,) = client.post("/v1/expressions", **ONE_PHOTO).json()["images"]
    triton.stop()
    response = client.post("/v1/expressions", **ONE_PHOTO)
    assert (response.status_code, response.json()["type"]) == (503, "urn:mien:problem:backend-unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert client.get("/health").status_code == 200
    triton.start()
    eventually(lambda: client.post("/v1/expressions", **ONE_PHOTO).status_code == 200)
    assert client.post("/v1/expressions", **ONE_PHOTO).json()["images"][0]["faces"] == expected["faces"]


def test_another_graph_is_refused_at_the_start(triton: Triton, artifact: Path) -> None:
    with pytest.raises(ProviderUnavailable, match=r"artifact explaining\.test, expected tiny\.test"):
        Classifier(Settings(model=artifact, triton=triton.address))


@pytest.mark.parametrize("model", [NAME, "absent"])
def test_a_missing_server_or_model_is_named_at_the_start(model: str, triton: Triton, explaining: Path) -> None:
    if model == NAME:
        triton.stop()
    address = triton.address.replace(NAME, model)
    with pytest.raises(ProviderUnavailable, match=f"Triton at {address}"):
        Classifier(Settings(model=explaining, triton=address))
