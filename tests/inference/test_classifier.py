"""The classifier: probabilities, batches, verified devices, and the choice of int8; and the number of cores."""

import ctypes
import logging
import os
import re
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest

from mien.app import cpu_count
from mien.app.cpu_count import cores, cpu_quota
from mien.app.errors import ProviderUnavailable
from mien.app.inference import classifier as classifier_module
from mien.app.inference.classifier import (
    CPU,
    CPU_BATCH,
    CUDA,
    Classifier,
    cuda_unavailable_reason,
    has_int8_instructions,
)
from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.atomic import write_atomic
from mien.data.contract import LABELS
from tests.inference.conftest import FakeGpu
from tests.support import random_crops, tiny_artifact


def opened(model: Path, **settings: Any) -> Classifier:
    return Classifier(load_settings(model=model, **{"device": "cpu"} | settings))


@pytest.mark.parametrize("prior", ["balanced", "natural"])
def test_probabilities_follow_the_formula_of_the_manifest_under_each_prior(tmp_path: Path, prior: str) -> None:
    correction = (0.0, 1.2, 2.0, -0.7, 0.3, 0.9, -1.1)
    folder = tiny_artifact(tmp_path / "tiny.prior", temperature=1.7, prior_correction=correction)
    crops = random_crops(20)
    session = onnxruntime.InferenceSession(folder / "model.fp32.onnx", providers=[CPU])
    scaled = session.run(["logits"], {"crops": crops})[0].astype(float) / 1.7
    powers = np.exp(scaled + (np.array(correction) if prior == "balanced" else 0))
    rows = opened(folder, prior=prior).classify(crops)
    assert rows == pytest.approx(powers / powers.sum(axis=1, keepdims=True), abs=1e-5)
    plain = np.exp(scaled).argmax(axis=1)
    assert (rows.argmax(axis=1) != plain).any() == (prior == "balanced"), "the correction changes labels"


def test_a_gpu_gives_the_probabilities_and_attention_maps_of_the_cpu_at_the_sizes_of_batch_it_has_memory_for(
    artifact: Path, gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    on_cpu, crops = opened(artifact), random_crops(300)
    tiles = crops.astype(float).reshape(len(crops), 7, 16, 7, 16, 3).mean(axis=(2, 4, 5))
    assert on_cpu.explain(crops) == pytest.approx(tiles / tiles.sum(axis=(1, 2), keepdims=True), abs=1e-4)
    one = np.concatenate([on_cpu.classify(crop[None]) for crop in crops[: CPU_BATCH + 2]])
    rows = on_cpu.classify(crops[: CPU_BATCH + 2])
    assert rows == pytest.approx(one, abs=1e-6)
    assert (rows.dtype, rows.shape) == (np.float32, (CPU_BATCH + 2, len(LABELS)))
    assert len({row.tobytes() for row in rows}) == len(rows)
    for gpu.max_inputs, sizes in ((256, [1, 1, 32, 32, *[256] * 6]), (32, [1, 1, 32, 32, *[32, 1] * 2, *[32] * 20])):
        on_gpu = opened(artifact, device="cuda", precision="fp32")
        assert on_gpu.max_batch == gpu.max_inputs
        gpu.shapes.clear()
        for count in (0, 1, 3, 33, 300):
            assert on_gpu.classify(crops[:count]) == pytest.approx(on_cpu.classify(crops[:count]), abs=1e-5)
            assert on_gpu.explain(crops[:count]) == pytest.approx(on_cpu.explain(crops[:count]), abs=1e-5)
        assert [shape[0] for shape in gpu.shapes] == sizes
    (warning,) = caplog.messages
    assert re.fullmatch(r"at most 32 inputs .* device cuda: the model does not run \(out of memory\)", warning)
    assert opened(artifact, device="auto").precision == "fp16"


def test_int8_is_chosen_on_a_cpu_whose_cpuinfo_names_its_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cpu_info = tiny_artifact(tmp_path / "tiny.test", precisions=("fp32", "int8")), tmp_path / "cpuinfo"
    monkeypatch.setattr(classifier_module.sys, "platform", "linux")
    monkeypatch.setattr(classifier_module, "has_int8_instructions", partial(has_int8_instructions, cpu_info))
    assert opened(folder).precision == "fp32"
    for text, expected in (
        ("flags : fpu avx2 avx512_vnni erms", "int8"),
        ("flags : fpu avx2 amx_tile amx_int8", "int8"),
        ("Features : fp asimd asimddp", "int8"),
        ("flags : fpu avx2 avx512f avx512vnni_like", "fp32"),
    ):
        cpu_info.write_text(f"processor : 0\n{text}\n", encoding="utf-8")
        assert (opened(folder).precision, opened(folder, precision="fp32").precision) == (expected, "fp32")
    with pytest.raises(ProviderUnavailable, match="precision int8 is for CPUs"):
        opened(folder, precision="int8", device="cuda")


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
    for gpu.nodes in ([(CPU, 3), (CUDA, 2)], [(CPU, 3)]):
        assert opened(model, device="auto", precision="fp32").provider == CPU
    with pytest.raises(ProviderUnavailable, match="runs none of the model's nodes"):
        opened(model, device="cuda", precision="fp32")


def test_what_cuda_lacks_is_named_and_auto_then_uses_the_cpu(
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver, cudnn = "libcuda.so.1", "libcudnn.so.9"
    libraries = {driver, "libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", cudnn}
    providers, gpus, in_wheels = [CUDA], 1, set[str]()

    def load(name: str) -> Any:
        if name not in loadable:
            raise OSError(f"{name}: cannot open shared object file")
        return Mock(cuInit=lambda _: 0, cuDeviceGetCount=lambda count: setattr(count._obj, "value", gpus) or 0)

    def preload() -> None:
        print("Failed to load libcublas.so.13")
        loadable.update(in_wheels)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*providers, CPU])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0")
    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(ctypes, "CDLL", load)
    for in_wheels in (set(), {cudnn}):
        loadable = libraries - in_wheels
        assert cuda_unavailable_reason() is None
    in_wheels = set()
    classifier_module._log_fallback.cache_clear()  # Each reason is logged once.
    missing = metadata.PackageNotFoundError("onnxruntime-gpu")
    for machine in (
        ([CUDA], driver, 1, missing, r"no NVIDIA driver was found \(libcuda.so.1\)"),
        ([CUDA], "", 0, missing, "the NVIDIA driver sees no GPU"),
        ([CUDA], cudnn, 1, missing, "these CUDA 13 libraries are missing: libcudnn.so.9"),
        ([], "", 1, missing, "this build of onnxruntime .* has no CUDA provider"),
        ([], "", 1, "1.31", "both installed.*pip uninstall onnxruntime onnxruntime-gpu.*install onnxruntime-gpu"),
    ):
        providers, lacks, gpus, wheel, reason = machine
        loadable = libraries - {lacks}
        monkeypatch.setattr(metadata, "version", Mock(side_effect=["1.30", wheel] * 2))
        caplog.clear()
        with caplog.at_level(logging.INFO):
            classifier = opened(artifact, device="auto")
        assert (classifier.provider, classifier.precision) == (CPU, "fp32")
        assert caplog.records[0].levelname == ("INFO" if lacks == driver or not gpus else "WARNING")
        assert re.search(f"using the CPU .*{reason}", caplog.text)
        with pytest.raises(ProviderUnavailable, match=f"device cuda: .*{reason}.*Install the GPU libraries"):
            opened(artifact, device="cuda")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("auto", 5e-3)])
def test_gpu_and_cpu_give_the_same_probabilities(
    artifact: Path, precision: str, tolerance: float, capfd: pytest.CaptureFixture[str]
) -> None:
    if (reason := cuda_unavailable_reason()) is not None:
        pytest.skip(f"no GPU to test: {reason}")
    on_gpu, on_cpu = opened(artifact, device="auto", precision=precision), opened(artifact, precision="fp32")
    assert (on_gpu.provider, on_gpu.precision) == (CUDA, "fp16" if precision == "auto" else precision)
    for count in (1, 3, 257):
        crops = random_crops(count)
        assert np.abs(on_gpu.classify(crops) - on_cpu.classify(crops)).max() < tolerance
    assert capfd.readouterr().err == ""


def test_cores_are_limited_by_affinity_and_the_quota_of_the_tightest_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    version_1 = {"cpu/a/cpu.cfs_quota_us": "150000\n", "cpu/a/cpu.cfs_period_us": "50000\n"}
    version_1 |= {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "50000\n"}
    for number, (own, files, expected) in enumerate(
        (
            ("0::/", {"cpu.max": "50000 100000\n"}, (0.5, 1)),
            ("0::/", {"cpu.max": "max 100000\n"}, (None, 8)),
            ("0::/user.slice/mien.service", {"user.slice/cpu.max": "150000 100000"}, (1.5, 2)),
            ("5:memory:/\n4:cpu,cpuacct:/a/b", version_1, (3, 3)),
        )
    ):
        groups = tmp_path / str(number)
        for name, text in ({"self": own, "another/cpu.max": "4 1"} | files).items():
            write_atomic(groups / name, text)
        quota = cpu_quota(groups, groups / "self")
        monkeypatch.setattr(cpu_count, "cpu_quota", lambda quota=quota: quota)
        assert (quota, cores()) == expected
