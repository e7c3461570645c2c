"""Session options, verified providers, and reasons why CUDA cannot run."""

import ctypes
from typing import Any
from unittest.mock import Mock

import onnxruntime
import pytest

from mien.app.errors import ProviderUnavailable
from mien.app.inference.detect import create_detector
from mien.app.inference.runtime import sessions
from mien.app.inference.runtime.sessions import (
    CPU,
    CUDA,
    GRAPH_ID,
    NO_GRAPH,
    cuda_unavailable_reason,
    open_session,
)
from mien.app.settings import load_settings
from tests.support import random_crops, tiny_graph


def driver_of(gpus: int) -> Mock:
    """Fake libcuda.so.1 with a number of GPUs."""

    def write_count(count: object) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = gpus
        return 0

    return Mock(cuInit=lambda _: 0, cuDeviceGetCount=write_count)


ALL = {"libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudnn.so.9"}


def machine(
    monkeypatch: pytest.MonkeyPatch,
    driver: Mock | None,
    libraries: set[str] = ALL,
    providers: tuple[str, ...] = (CUDA,),
) -> list[str]:
    """Fake a machine with this driver and these libraries; returns a log of preload calls."""
    preloaded: list[str] = []

    def load(name: str) -> object:
        if name == "libcuda.so.1" and driver is not None:
            return driver
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    def preload() -> None:
        print("Failed to load libcublas.so.13")
        preloaded.append("recorded")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, CPU])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(ctypes, "CDLL", load)
    return preloaded


@pytest.mark.parametrize(
    ("driver", "missing", "providers", "reason"),
    [
        (driver_of(1), set(), (CUDA,), None),
        (None, set(), (CUDA,), "no NVIDIA driver was found (libcuda.so.1)"),
        (driver_of(0), set(), (CUDA,), "the NVIDIA driver sees no GPU"),
        (driver_of(1), {"libcudnn.so.9"}, (CUDA,), "these CUDA 13 libraries are missing: libcudnn.so.9"),
        (driver_of(1), set(), (), "no CUDA provider"),
    ],
)
def test_what_cuda_lacks_is_named_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    driver: Mock | None,
    missing: set[str],
    providers: tuple[str, ...],
    reason: str | None,
) -> None:
    preloaded = machine(monkeypatch, driver, ALL - missing, providers)
    found = cuda_unavailable_reason()
    assert found == reason or (reason and found and reason in found)
    assert preloaded == ["recorded"] * bool(missing)
    assert capfd.readouterr().out == ""


def test_a_graph_that_fails_its_warm_up_is_rejected_with_the_reason() -> None:
    with pytest.raises(ProviderUnavailable, match=r"device cpu: the model does not run \(.*crops.*\)"):
        open_session(tiny_graph().SerializeToString(), "cpu", threads=1, warm_up={"faces": random_crops(1)})


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_cuda_session_uses_a_small_arena_and_no_tf32(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    machine(monkeypatch, driver_of(1))
    monkeypatch.setattr(onnxruntime, "InferenceSession", fake := Mock())
    monkeypatch.setattr(sessions, "_nodes", lambda _session: {CUDA: 9})
    session = open_session(tiny_graph().SerializeToString(), device, threads=1, warm_up={"crops": random_crops(1)})
    assert (session.device, session.provider) == ("cuda", CUDA)
    (name, options), last = fake.call_args.kwargs["providers"]
    assert (name, last[0]) == (CUDA, CPU)
    assert {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}.items() <= options.items()
    assert "enable_cuda_graph" not in options, "only on request"
    (run,) = fake.return_value.run.call_args_list
    assert run.args[2].get_run_config_entry(GRAPH_ID) == NO_GRAPH, "the warm-up run must not be captured"
    monkeypatch.setattr(sessions, "_nodes", lambda _session: {CPU: 9})
    with pytest.raises(ProviderUnavailable, match="runs none of the model's nodes"):
        open_session(b"", "cuda", threads=1, warm_up={})


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_detector_runs_on_the_cpu_of_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    machine(monkeypatch, driver_of(1))
    session = Mock(wraps=onnxruntime.InferenceSession)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    create_detector(load_settings(device=device, detector="builtin"))
    assert [call.kwargs["providers"] for call in session.call_args_list] == [[(CPU, {})]]
