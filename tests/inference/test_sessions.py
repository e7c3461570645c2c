"""Session options, verified providers, reasons why CUDA cannot run, and the number of cores."""

import ctypes
import logging
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
from mien.app.inference import classifier as classifier_module
from mien.app.inference.classifier import CPU, CUDA, Classifier, cuda_unavailable_reason, open_session
from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.atomic import write_atomic
from tests.inference.conftest import FakeGpu
from tests.support import random_crops, tiny_artifact, tiny_graph


def test_what_cuda_lacks_is_named_and_auto_then_uses_the_cpu(
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a machine whose driver, unless `gpus` is None, has this number; all libraries but those that it lacks."""
    cudnn, missing = "libcudnn.so.9", metadata.PackageNotFoundError("onnxruntime-gpu")
    libraries = {"libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", cudnn}

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
        loadable.update(in_wheels)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, CPU])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(ctypes, "CDLL", load)
    gpus, providers = 1, [CUDA]
    for in_wheels in (set[str](), {cudnn}):
        loadable = libraries - in_wheels
        assert cuda_unavailable_reason() is None
    in_wheels = set()
    classifier_module._log_fallback.cache_clear()  # Each reason is logged once.
    for machine in (
        (None, 1, [CUDA], "", r"no NVIDIA driver was found \(libcuda.so.1\)"),
        (0, 1, [CUDA], "", "the NVIDIA driver sees no GPU"),
        (1, 1, [CUDA], cudnn, "these CUDA 13 libraries are missing: libcudnn.so.9"),
        (1, 1, [], "", "this build of onnxruntime .* has no CUDA provider"),
        (1, 2, [], "", "both installed.*pip uninstall onnxruntime onnxruntime-gpu.*install onnxruntime-gpu"),
    ):
        gpus, wheels, providers, lacks, reason = machine
        loadable = libraries - {lacks}
        monkeypatch.setattr(metadata, "version", Mock(side_effect=["1.30", "1.31" if wheels == 2 else missing] * 2))
        caplog.clear()
        with caplog.at_level(logging.INFO):
            classifier = Classifier(load_settings(model=artifact, device="auto"))
        assert (classifier.provider, classifier.precision) == (CPU, "fp32")
        assert [record.levelname for record in caplog.records] == ["WARNING" if gpus else "INFO"]
        assert re.search(f"using the CPU .*{reason}", caplog.text)
        with pytest.raises(ProviderUnavailable, match=f"device cuda: .*{reason}.*Install the GPU libraries"):
            open_session(b"", "cuda", threads=1, warm_up={})
    assert capfd.readouterr().out == ""


def test_a_graph_that_fails_its_warm_up_is_rejected_with_the_reason() -> None:
    with pytest.raises(ProviderUnavailable, match=r"device cpu: the model does not run \(.*crops.*\)"):
        open_session(tiny_graph().SerializeToString(), "cpu", threads=1, warm_up={"faces": random_crops(1)})


def test_a_cuda_session_uses_a_small_arena_and_no_tf32_and_a_detector_runs_where_the_model_does(
    tmp_path: Path, gpu: FakeGpu
) -> None:
    model = tiny_artifact(tmp_path / "tiny.test", precisions=("fp32", "int8"))
    for device, precision, provider in (("cuda", "fp32", CUDA), ("auto", "fp32", CUDA), ("auto", "int8", CPU)):
        gpu.max_inputs = 1
        labeler = Labeler.open(load_settings(model=model, device=device, precision=precision, detector="builtin"))
        assert labeler.classifier.provider == provider
        assert bool(labeler.detector._canvases) == (provider == CUDA)
    (name, options), last = gpu.providers
    assert (name, last[0]) == (CUDA, CPU)
    assert {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}.items() <= options.items()
    gpu.nodes = gpu.nodes[:1]
    graph, inputs = tiny_graph().SerializeToString(), {"threads": 1, "warm_up": {"crops": random_crops(1)}}
    assert open_session(graph, "auto", **inputs).provider == CPU
    with pytest.raises(ProviderUnavailable, match="runs none of the model's nodes"):
        open_session(graph, "cuda", **inputs)


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
