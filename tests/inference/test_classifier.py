"""The classifier: calibrated probabilities, batches, invalid artifacts, verified devices, and the choice of int8."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

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
from mien.app.settings import Settings
from mien.data.contract import LABELS
from tests.inference.conftest import FakeGpu
from tests.support import RELEVANCE_GRID, random_crops, tiny_artifact


def opened(model: Path, **settings: Any) -> Classifier:
    return Classifier(Settings(model=model, **{"device": "cpu"} | settings))


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
    tmp_path: Path, gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_artifact(tmp_path / "tiny.explains", explain=True)
    on_cpu, crops = opened(folder), random_crops(300)
    rows, columns = RELEVANCE_GRID
    tiles = crops.astype(float).reshape(len(crops), rows, 16, columns, 16, 3).mean(axis=(2, 4, 5))
    assert on_cpu.explain(crops) == pytest.approx(tiles / tiles.sum(axis=(1, 2), keepdims=True), abs=1e-4)
    one = np.concatenate([on_cpu.classify(crop[None]) for crop in crops[: CPU_BATCH + 2]])
    rows = on_cpu.classify(crops[: CPU_BATCH + 2])
    assert rows == pytest.approx(one, abs=1e-6)
    assert (rows.dtype, rows.shape) == (np.float32, (CPU_BATCH + 2, len(LABELS)))
    assert len({row.tobytes() for row in rows}) == len(rows)
    for gpu.max_inputs, sizes in ((256, [1, 1, 32, 32, *[256] * 6]), (32, [1, 1, 32, 32, *[32, 1] * 2, *[32] * 20])):
        on_gpu = opened(folder, device="cuda", precision="fp32")
        assert on_gpu.max_batch == gpu.max_inputs
        gpu.shapes.clear()
        for count in (0, 1, 3, 33, 300):
            assert on_gpu.classify(crops[:count]) == pytest.approx(on_cpu.classify(crops[:count]), abs=1e-5)
            assert on_gpu.explain(crops[:count]) == pytest.approx(on_cpu.explain(crops[:count]), abs=1e-5)
        assert [shape[0] for shape in gpu.shapes] == sizes
    (warning,) = caplog.messages
    assert re.fullmatch(r"at most 32 inputs .* device cuda: the model does not run \(out of memory\)", warning)


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
