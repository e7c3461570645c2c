"""The classifier: calibrated rows, any batch, refused artefacts, a device that is proven."""

import json
import logging
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from app import providers
from app.classify import CPU_BATCH, Classifier, calibrated, create_classifier
from app.errors import InvalidRequest, ProviderUnavailable
from app.providers import CPU
from app.settings import load_settings
from data.contract import CROP_PX, LABELS
from models.manifest import ArtefactError
from tests.support import RELEVANCE_GRID, random_crops, tiny_artefact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_artefact(tmp_path_factory.mktemp("artefacts") / "tiny.test")


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Classifier:
    return Classifier(folder, device="cpu", threads=1)


def test_rows_are_probabilities_in_float32(classifier: Classifier) -> None:
    rows = classifier.classify(random_crops(5))
    assert rows.shape == (5, len(LABELS))
    assert rows.dtype == np.float32
    assert rows.sum(axis=1) == pytest.approx(1, abs=1e-6)
    assert len({row.tobytes() for row in rows}) == 5


def test_no_crop_gives_no_row(classifier: Classifier) -> None:
    assert classifier.classify(np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)).shape == (0, len(LABELS))


def test_a_large_batch_gives_what_each_crop_gives_alone(classifier: Classifier) -> None:
    crops = random_crops(2 * CPU_BATCH + 3)
    alone = np.concatenate([classifier.classify(crop[None]) for crop in crops])
    assert np.abs(classifier.classify(crops) - alone).max() < 1e-6


def test_the_temperature_of_the_manifest_divides_the_logits(folder: Path, tmp_path: Path) -> None:
    crops = random_crops(4)
    hot = Classifier(tiny_artefact(tmp_path / "hot.test", temperature=3.0), device="cpu").classify(crops)
    cold = Classifier(tiny_artefact(tmp_path / "cold.test", temperature=1.0), device="cpu").classify(crops)
    powers = cold.astype(np.float64) ** (1 / 3)
    assert hot == pytest.approx(powers / powers.sum(axis=1, keepdims=True), abs=1e-5)


def test_softmax_survives_logits_of_any_size() -> None:
    rows = calibrated(np.array([[1e4, 0, -1e4, 0, 0, 0, 0], [-1e4] * 7], np.float32), 0.01)
    assert rows[0] == pytest.approx([1, 0, 0, 0, 0, 0, 0])
    assert rows[1] == pytest.approx([1 / 7] * 7)


@pytest.mark.parametrize(
    "crops",
    [
        np.zeros((2, CROP_PX, CROP_PX, 3), np.float32),
        np.zeros((2, 96, 96, 3), np.uint8),
        np.zeros((CROP_PX, CROP_PX, 3), np.uint8),
    ],
)
def test_crops_of_another_shape_or_type_are_refused(classifier: Classifier, crops: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        classifier.classify(crops)


def test_threads_may_share_a_classifier(classifier: Classifier) -> None:
    batches = [random_crops(3, seed=seed) for seed in range(8)]
    expected = [classifier.classify(batch) for batch in batches]
    answers: dict[int, np.ndarray] = {}

    def work(index: int) -> None:
        for _ in range(5):
            answers[index] = classifier.classify(batches[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(answers[index], expected[index]) for index in range(8))


def test_the_half_precision_graph_agrees(folder: Path, classifier: Classifier) -> None:
    half = Classifier(folder, device="cpu", precision="fp16")
    assert half.precision == "fp16"
    crops = random_crops(16)
    assert np.abs(half.classify(crops) - classifier.classify(crops)).max() < 5e-3


def test_a_graph_that_can_tell_says_where_it_looked(tmp_path: Path) -> None:
    classifier = Classifier(tiny_artefact(tmp_path / "tiny.explains", explain=True), device="cpu")
    crops = random_crops(CPU_BATCH + 2)
    crops[0, 16:32, 32:48] = 255
    maps = classifier.explain(crops)
    assert maps.shape == (CPU_BATCH + 2, *RELEVANCE_GRID)
    assert maps.sum(axis=(1, 2)) == pytest.approx(1, abs=1e-5)
    assert np.unravel_index(maps[0].argmax(), RELEVANCE_GRID) == (1, 2)
    assert classifier.explain(crops[:0]).shape == (0, *RELEVANCE_GRID)
    assert classifier.classify(crops).sum(axis=1) == pytest.approx(1, abs=1e-6)


def test_a_graph_that_cannot_tell_is_the_callers_mistake(classifier: Classifier) -> None:
    with pytest.raises(InvalidRequest, match=r"tiny\.test cannot tell where it looked"):
        classifier.explain(random_crops(1))


def test_a_damaged_graph_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny_artefact(tmp_path / "tiny.damaged")
    graph = folder / "model.fp32.onnx"
    body = bytearray(graph.read_bytes())
    body[len(body) // 2] ^= 1
    graph.write_bytes(body)
    with pytest.raises(ArtefactError, match=r"tiny\.damaged: model\.fp32\.onnx has sha256 .* damaged or was replaced"):
        Classifier(folder, device="cpu")


def test_an_artefact_of_another_contract_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = tiny_artefact(tmp_path / "tiny.old", contract_id="0123456789ab")
    with pytest.raises(ArtefactError, match=r"contract 0123456789ab, this build .* check out commit 0000"):
        Classifier(folder, device="cpu")


def test_labels_in_another_order_are_refused(tmp_path: Path) -> None:
    folder = tiny_artefact(tmp_path / "tiny.shuffled", labels=LABELS[::-1])
    with pytest.raises(ArtefactError, match="labels"):
        Classifier(folder, device="cpu")


def test_a_manifest_with_a_typo_is_refused(tmp_path: Path) -> None:
    folder = tiny_artefact(tmp_path / "tiny.typo")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["temprature"] = manifest.pop("temperature")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ArtefactError, match="manifest"):
        Classifier(folder, device="cpu")


def test_the_settings_name_the_artefact(folder: Path) -> None:
    classifier = create_classifier(load_settings(model=folder, device="cpu", threads=1))
    assert (classifier.manifest.name, classifier.provider, classifier.precision) == ("tiny.test", CPU, "fp32")


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "cuda_obstacle", lambda: "no NVIDIA driver was found (libcuda.so.1)")


def test_cuda_refuses_where_it_cannot_run_and_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=r"device cuda: no NVIDIA driver .* mien\[gpu\]"):
        Classifier(folder, device="cuda")


def test_auto_falls_back_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_gpu(monkeypatch)
    with caplog.at_level(logging.INFO, logger=providers.__name__):
        classifier = Classifier(folder, device="auto")
    assert (classifier.provider, classifier.precision) == (CPU, "fp32")
    assert "no NVIDIA driver" in caplog.text


def test_tensorrt_refuses_where_it_cannot_run_and_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpu(monkeypatch)
    with pytest.raises(ProviderUnavailable, match=r"device tensorrt: no NVIDIA driver .* TensorRT 10"):
        Classifier(folder, device="tensorrt", engine_cache=tmp_path)


def test_int8_is_refused_on_tensorrt(folder: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="int8 is for CPUs"):
        Classifier(folder, device="tensorrt", precision="int8")


def test_cuda_that_silently_runs_on_the_cpu_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session opens and answers, but every node was given to the CPU: what a missing library looks like."""
    monkeypatch.setattr(providers, "cuda_obstacle", lambda: None)
    session = onnxruntime.InferenceSession

    def on_the_cpu(source: str, options: onnxruntime.SessionOptions, **_: object) -> onnxruntime.InferenceSession:
        return session(source, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", on_the_cpu)
    with pytest.raises(ProviderUnavailable, match=r"none of the model's nodes runs there \(\d+ on CPUExecution"):
        Classifier(folder, device="cuda")


def test_nothing_is_printed_where_there_is_no_gpu(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if providers.cuda_obstacle() is None:
        pytest.skip("this machine has a GPU")
    Classifier(folder, device="auto").classify(random_crops(1))
    assert capfd.readouterr() == ("", "")
