"""Why CUDA cannot run here, told before anything is tried."""

import ctypes
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from app import providers
from app.errors import ProviderUnavailable
from app.providers import (
    CPU,
    CUDA,
    GRAPH_ID,
    NO_GRAPH,
    TENSORRT,
    cuda_obstacle,
    open_session,
    tensorrt_obstacle,
    tensorrt_options,
)
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

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
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


class Asked:
    """What a session was opened and run with; it computes on the CPU, and its nodes are said to be elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, nodes: dict[str, int]) -> None:
        self.providers: list[Any] = []
        self.runs: list[Any] = []
        self.opened = 0
        real = onnxruntime.InferenceSession
        asked = self

        class Session(real):  # type: ignore[misc, valid-type]
            def __init__(self, source: Any, options: Any, providers: list[Any]) -> None:
                super().__init__(source, options, providers=[CPU])
                asked.providers, asked.opened = providers, asked.opened + 1

            def run(self, names: Any, feed: Any, options: Any = None) -> Any:
                asked.runs.append(options.get_run_config_entry(GRAPH_ID))
                return super().run(names, feed, options)

        monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
        monkeypatch.setattr(providers, "_nodes", lambda _session: nodes)


def opened(device: Any, **options: Any) -> providers.Session:
    graph = tiny_graph().SerializeToString()
    return open_session(graph, device, threads=1, warm_up={"crops": random_crops(1)}, options=options)


def test_a_cuda_session_asks_for_a_modest_arena_and_true_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Driver(1), ALL)
    asked = Asked(monkeypatch, nodes={CUDA: 9})
    session = opened("cuda", enable_cuda_graph="1")
    assert (session.device, session.provider) == ("cuda", CUDA)
    (name, options), last = asked.providers
    assert (name, last) == (CUDA, CPU)
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert options["use_tf32"] == "0"
    assert options["enable_cuda_graph"] == "1"
    assert asked.runs == [NO_GRAPH], "the run that proves the provider is not the one that is captured"


def test_graphs_are_asked_for_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Driver(1), ALL)
    asked = Asked(monkeypatch, nodes={CUDA: 9})
    opened("auto")
    assert "enable_cuda_graph" not in asked.providers[0][1]


TENSORRT_LIBRARIES = {"libnvinfer.so.10", "libnvonnxparser.so.10"}


def test_a_tensorrt_session_keeps_its_engines_and_falls_to_cuda_by_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(monkeypatch, Driver(1), ALL | TENSORRT_LIBRARIES)
    asked = Asked(monkeypatch, nodes={TENSORRT: 200, CUDA: 2})
    session = opened(
        "tensorrt", **tensorrt_options(tmp_path / "engines", {"crops": (112, 112, 3)}, largest=256, half=True)
    )
    assert (session.device, session.provider) == ("cuda", TENSORRT)
    assert [one if isinstance(one, str) else one[0] for one in asked.providers] == [TENSORRT, CUDA, CPU]
    options = asked.providers[0][1]
    assert options["trt_engine_cache_path"] == str(tmp_path / "engines")
    assert (tmp_path / "engines").is_dir()
    assert (options["trt_engine_cache_enable"], options["trt_fp16_enable"]) == ("1", "1")
    assert options["trt_profile_min_shapes"] == "crops:1x112x112x3"
    assert options["trt_profile_max_shapes"] == "crops:256x112x112x3"


def test_tensorrt_that_takes_no_node_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Driver(1), ALL | TENSORRT_LIBRARIES)
    Asked(monkeypatch, nodes={CUDA: 202})
    with pytest.raises(ProviderUnavailable, match=r"device tensorrt: none of .* \(202 on CUDAExecutionProvider\)"):
        opened("tensorrt")


def test_tensorrt_without_its_libraries_is_refused_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Driver(1), ALL)
    asked = Asked(monkeypatch, nodes={TENSORRT: 1})
    with pytest.raises(ProviderUnavailable, match=r"device tensorrt: .*libnvinfer\.so\.10.*tensorrt-cu13"):
        opened("tensorrt")
    assert asked.opened == 0


def test_tensorrt_needs_all_that_cuda_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, None, ALL | TENSORRT_LIBRARIES)
    assert tensorrt_obstacle() == "no NVIDIA driver was found (libcuda.so.1)"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    assert "no TensorRT provider" in str(tensorrt_obstacle())


def test_engines_that_cannot_be_kept_are_told_with_the_setting(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ProviderUnavailable, match="MIEN_TENSORRT_CACHE"):
        tensorrt_options(blocked / "engines", {"crops": (112, 112, 3)}, largest=256, half=False)
