"""Why CUDA cannot run here, told before anything is tried."""

import ctypes

import onnxruntime
import pytest

from app.errors import ProviderUnavailable
from app.providers import CPU, cuda_obstacle, open_session
from tests.support import random_crops, tiny_graph


class Driver:
    """Stands for libcuda.so.1: a driver that sees some GPUs."""

    def __init__(self, gpus: int, *, status: int = 0) -> None:
        self.gpus, self.status = gpus, status

    def cuInit(self, flags: int) -> int:  # noqa: N802  # the driver's name for it
        return self.status

    def cuDeviceGetCount(self, count: object) -> int:  # noqa: N802
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = self.gpus  # type: ignore[arg-type]
        return 0


def machine(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, libraries: set[str]) -> list[str]:
    """A machine with this driver and these libraries; preloading finds none more. Returns what was preloaded."""
    preloaded: list[str] = []

    def load(name: str) -> object:
        if name == "libcuda.so.1" and driver is not None:
            return driver
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    def preload() -> None:
        print("Failed to load libcublas.so.13")
        preloaded.append("asked")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(ctypes, "CDLL", load)
    return preloaded


ALL = {"libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10"}


def test_a_build_without_cuda_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Driver(1), ALL)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    assert "no CUDA provider" in str(cuda_obstacle())


def test_a_machine_without_a_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, None, ALL)
    assert cuda_obstacle() == "no NVIDIA driver was found (libcuda.so.1)"


@pytest.mark.parametrize("driver", [Driver(0), Driver(1, status=100)])
def test_a_driver_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    machine(monkeypatch, driver, ALL)
    assert cuda_obstacle() == "the NVIDIA driver sees no GPU"


def test_missing_libraries_are_named_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    preloaded = machine(monkeypatch, Driver(1), {"libcudart.so.13", "libcurand.so.10"})
    assert cuda_obstacle() == "these CUDA 13 libraries are missing: libcublasLt.so.13, libcublas.so.13"
    assert preloaded == ["asked"]
    assert capfd.readouterr().out == ""


def test_a_complete_machine_has_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    preloaded = machine(monkeypatch, Driver(1), ALL)
    assert cuda_obstacle() is None
    assert preloaded == []


def test_a_cpu_session_counts_its_nodes() -> None:
    session = open_session(tiny_graph().SerializeToString(), "cpu", threads=1, warm_up={"crops": random_crops(1)})
    assert (session.device, session.provider) == ("cpu", CPU)
    assert session.nodes[CPU] >= 5


def test_a_graph_that_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(ProviderUnavailable, match=r"device cpu: the model does not run there \(.*crops.*\)"):
        open_session(tiny_graph().SerializeToString(), "cpu", threads=1, warm_up={"faces": random_crops(1)})
