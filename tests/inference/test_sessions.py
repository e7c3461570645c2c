"""Session options, verified providers, reasons why CUDA cannot run, and the number of cores."""

import ctypes
import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import onnxruntime
import pytest

from mien.app import cpu_count
from mien.app.cpu_count import cores, cpu_quota
from mien.app.errors import ProviderUnavailable
from mien.app.inference import labeler
from mien.app.inference.classifier import CPU, CUDA, cuda_unavailable_reason, open_session
from mien.app.settings import load_settings
from mien.data.atomic import write_atomic
from tests.support import random_crops, tiny_graph


def machine(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int | None = 1,
    *,
    missing: str = "",
    in_wheels: str = "",
    providers: tuple[str, ...] = (CUDA,),
) -> None:
    """Fake a machine whose driver, unless `gpus` is None, has this number; all libraries but one, or one in a wheel."""
    libraries = {"libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudnn.so.9"}
    loadable = libraries - {missing}

    def write_count(count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = gpus
        return 0

    def load(name: str) -> object:
        if name == "libcuda.so.1" and gpus is not None:
            return Mock(cuInit=lambda _: 0, cuDeviceGetCount=write_count)
        if name not in loadable:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    def preload() -> None:
        print("Failed to load libcublas.so.13")
        loadable.add(in_wheels)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, CPU])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(ctypes, "CDLL", load)


def test_what_cuda_lacks_is_named_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cudnn = "libcudnn.so.9"
    for wheel in ("", cudnn):
        machine(monkeypatch, missing=wheel, in_wheels=wheel)
        assert cuda_unavailable_reason() is None
    for gpus, wheels, lacks, reason in (
        (None, 1, {}, r"no NVIDIA driver was found \(libcuda.so.1\)"),
        (0, 1, {}, "the NVIDIA driver sees no GPU"),
        (1, 1, {"missing": cudnn}, "these CUDA 13 libraries are missing: libcudnn.so.9"),
        (1, 1, {"providers": ()}, "no CUDA provider"),
        (1, 2, {"providers": ()}, "both installed.*pip uninstall onnxruntime onnxruntime-gpu.*install onnxruntime-gpu"),
    ):
        machine(monkeypatch, gpus, **lacks)
        missing = metadata.PackageNotFoundError("onnxruntime-gpu")
        monkeypatch.setattr(metadata, "version", Mock(side_effect=["1.30", "1.31" if wheels == 2 else missing]))
        assert re.search(reason, str(cuda_unavailable_reason()))
    assert capfd.readouterr().out == ""


def test_a_graph_that_fails_its_warm_up_is_rejected_with_the_reason() -> None:
    with pytest.raises(ProviderUnavailable, match=r"device cpu: the model does not run \(.*crops.*\)"):
        open_session(tiny_graph().SerializeToString(), "cpu", threads=1, warm_up={"faces": random_crops(1)})


def test_a_cuda_session_uses_a_small_arena_and_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    monkeypatch.setattr(onnxruntime, "InferenceSession", fake := Mock())
    nodes = [Mock(ep_name=name, get_nodes=lambda count=count: [0] * count) for name, count in ((CPU, 3), (CUDA, 2))]
    parts = fake.return_value.get_provider_graph_assignment_info
    parts.return_value = [*nodes, nodes[1]]
    for device in ("cuda", "auto"):
        assert open_session(b"", device, threads=1, warm_up={}).provider == CUDA
        (name, options), last = fake.call_args.kwargs["providers"]
        assert (name, last[0]) == (CUDA, CPU)
        assert {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}.items() <= options.items()
    parts.return_value = nodes[:1]
    assert open_session(b"", "auto", threads=1, warm_up={}).provider == CPU
    with pytest.raises(ProviderUnavailable, match="runs none of the model's nodes"):
        open_session(b"", "cuda", threads=1, warm_up={})


def test_a_detector_runs_where_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    created = Mock()
    monkeypatch.setattr(labeler, "create_detector", created)
    for provider, device, expected in ((CUDA, "cuda", "cuda"), (CUDA, "auto", "auto"), (CPU, "auto", "cpu")):
        monkeypatch.setattr(labeler, "Classifier", Mock(return_value=Mock(provider=provider)))
        labeler.Labeler.open(load_settings(device=device))
        assert created.call_args.args[1] == expected


def test_cores_are_limited_by_affinity_and_the_quota_of_the_tightest_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    for number, (own, group, limit, expected) in enumerate(
        (
            ("/", ".", "50000 100000\n", (0.5, 1)),
            ("/", ".", "max 100000\n", (None, 8)),
            ("/user.slice/mien.service", "user.slice", "150000 100000", (1.5, 2)),
        )
    ):
        groups = tmp_path / str(number)
        for name, text in (("self", f"0::{own}\n"), (f"{group}/cpu.max", limit), ("another/cpu.max", "4 1")):
            write_atomic(groups / name, text)
        quota = cpu_quota(groups, groups / "self")
        monkeypatch.setattr(cpu_count, "cpu_quota", lambda quota=quota: quota)
        assert (quota, cores()) == expected
