"""A release: operating point, graphs in half precision, and weights for another network."""

import copy
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from mien.data.contract import LABELS, Array, softmax
from mien.models.backbones.mobilefacenet import NAME
from mien.models.network import FaceNetwork
from mien.training import metrics
from mien.training.evaluate import open_graph, run_graph
from mien.training.initialization import InitialWeightsError, load_initial
from mien.training.release.graphs import ReleasedEnsemble, store_weights_in_half, with_fp32_weights
from mien.training.release.operating_point import MAX_ECE, fit_operating_point
from mien.training.release.quantize import weighted_nodes
from mien.training.run_folder import load_best
from tests.support import random_crops
from tests.support.models import crops
from tests.support.training import TINY_DEIT, small_recipe, untrained_run
from tests.training.conftest import Trained


@pytest.fixture(scope="module")
def faces() -> tuple[Array, Array]:
    """Logits of an overconfident classifier that rarely predicts rare classes, and the labels."""
    random = np.random.default_rng(0)
    frequency = np.array([0.13, 0.02, 0.01, 0.27, 0.11, 0.09, 0.37])
    labels = random.choice(len(LABELS), size=4000, p=frequency)
    evidence = random.normal(0, 1, (len(labels), len(LABELS)))
    evidence[np.arange(len(labels)), labels] += 2.5
    return (2.5 * evidence + np.log(frequency)) * 2, labels


def _mean_class(probabilities: Array, labels: Array) -> float:
    return metrics.mean_class_accuracy(metrics.confusion(probabilities.argmax(axis=1), labels))


def test_rare_classes_gain_and_calibration_holds(faces: tuple[Array, Array]) -> None:
    logits, labels = faces
    point = fit_operating_point(logits, labels)
    natural, balanced = point.cross_fitted["natural"], point.cross_fitted["balanced"]
    assert _mean_class(balanced, labels) > _mean_class(natural, labels) + 0.01
    assert metrics.ece(balanced, labels) <= max(MAX_ECE, metrics.ece(natural, labels))
    offsets = dict(zip(LABELS, point.prior_correction, strict=True))
    assert offsets["disgust"] > offsets["fear"] > 0 > offsets["happiness"] > offsets["neutral"]
    assert sum(offsets.values()) == pytest.approx(0, abs=1e-3)
    assert point.temperature == pytest.approx(metrics.fit_temperature(logits, labels), abs=1e-4)


def test_a_weight_of_the_correction_that_is_given_replaces_the_fitted_one(faces: tuple[Array, Array]) -> None:
    logits, labels = faces
    given, fitted = fit_operating_point(logits, labels, 0.33), fit_operating_point(logits, labels)
    frequency = np.log((np.bincount(labels) + 0.5) / len(labels))
    assert given.prior_correction == pytest.approx(0.33 * (frequency.mean() - frequency), abs=1e-4)
    assert given.tau == 0.33 != fitted.tau
    assert given.temperature == fitted.temperature
    np.testing.assert_array_equal(given.cross_fitted["natural"], fitted.cross_fitted["natural"])
    assert np.abs(given.cross_fitted["balanced"] - fitted.cross_fitted["balanced"]).max() > 0.01


def test_without_a_gain_there_is_no_correction() -> None:
    labels = np.arange(700) % len(LABELS)
    logits = np.eye(len(LABELS))[labels] * 8
    point = fit_operating_point(logits, labels)
    assert point.tau == 0
    assert repr(point.prior_correction) == repr((0.0,) * len(LABELS)), "a card shows no -0.00"


def test_a_correction_that_gains_one_rare_face_for_five_others_is_not_chosen() -> None:
    disgust, neutral = LABELS.index("disgust"), LABELS.index("neutral")
    labels = np.arange(700) % len(LABELS)
    labels = np.delete(labels, np.flatnonzero(labels == disgust)[4:])
    logits = np.eye(len(LABELS))[labels] * 8
    wrong, gained = np.flatnonzero(labels == disgust)[:2]
    logits[wrong] = np.eye(len(LABELS))[neutral] * 8
    for face in (gained, *np.flatnonzero(labels == neutral)[:5]):
        logits[face, [disgust, neutral]] = 8 - 0.01, 8  # a small correction makes these six disgust
    assert fit_operating_point(logits, labels).tau == 0


def test_no_face_is_scored_by_a_temperature_that_was_fitted_on_it() -> None:
    logits = np.random.default_rng(1).normal(size=(50, 7))
    labels = logits.argmax(axis=1)
    before = fit_operating_point(logits, labels).cross_fitted["natural"]
    labels[0] = (labels[0] + 1) % 7
    after = fit_operating_point(logits, labels).cross_fitted["natural"]
    assert np.array_equal(before[0], after[0])
    assert not np.array_equal(before, after)


def test_a_graph_with_weights_in_half_precision_is_half_as_large_and_has_the_same_output(
    trained: Trained, tmp_path: Path
) -> None:
    released, full, stored = trained.artifact / "model.onnx", tmp_path / "full.onnx", tmp_path / "stored.onnx"
    onnx.save(with_fp32_weights(onnx.load(str(released))), str(full))
    store_weights_in_half(Path(shutil.copy(full, stored)))
    assert stored.stat().st_size == pytest.approx(released.stat().st_size, rel=0.01)
    assert stored.stat().st_size < 0.6 * full.stat().st_size
    faces = crops(4, channels=3).numpy()
    expected, *others = (softmax(run_graph(open_graph(path), faces)) for path in (released, full, stored))
    np.testing.assert_allclose(others, [expected] * 2, atol=1e-5)
    names = weighted_nodes(onnx.load(str(full)))
    assert len(names) == 6 + 2 * 4  # convolutions of the stem except the first one, matrices of two blocks
    assert weighted_nodes(onnx.load(str(stored))) != names
    assert weighted_nodes(with_fp32_weights(onnx.load(str(stored)))) == names


def test_a_trained_mobilefacenet_initializes_the_stem_of_a_student(tmp_path: Path) -> None:
    def of(name: str, **options: object) -> dict[str, object]:
        return {"family": "mobilefacenet", "name": name, "normalization": "fixed", "options": options}

    trained, _ = load_best(untrained_run(tmp_path, of(NAME)))
    student = FaceNetwork(small_recipe(tmp_path, model=of("deit_tiny_distilled_patch16_224", depth=1)).model)
    before = copy.deepcopy(student.state_dict())
    load_initial(student, tmp_path)
    stem, convolutions = "backbone.network.patch_embed.", trained.state_dict()
    for name, tensor in student.state_dict().items():
        if name.startswith(stem) and "projection" not in name:
            torch.testing.assert_close(tensor, convolutions["backbone." + name.removeprefix(stem)])
        else:
            torch.testing.assert_close(tensor, before[name])
    with pytest.raises(InitialWeightsError, match="do not match"):
        load_initial(FaceNetwork(small_recipe(Path("faces"), model=TINY_DEIT).model), tmp_path)


class Linear(nn.Module):
    """A network with seven logits, linear in the mean color of the left and right half of a crop."""

    explains = False

    def __init__(self, seed: int) -> None:
        super().__init__()
        weight = np.random.default_rng(seed).normal(0, 3, (6, 7)).astype(np.float32)
        self.weight = nn.Parameter(torch.from_numpy(weight), requires_grad=False)

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:
        halves = crops.float().unflatten(2, (2, -1)).mean(dim=(1, 3)).flatten(1) / 255  # (N, 6)
        return (halves @ self.weight,)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_mean_of_networks_averages_the_probabilities_at_each_ones_temperature(mirrored: bool) -> None:
    members, temperatures = [Linear(1), Linear(2)], [2.0, 0.5]
    crops = torch.from_numpy(random_crops(12))
    (logits,) = ReleasedEnsemble(members, temperatures, mirrored=mirrored)(crops)  # type: ignore[arg-type]

    def mean(views: Tensor) -> Array:
        parts = [softmax(member(views)[0].numpy(), t) for member, t in zip(members, temperatures, strict=True)]
        assert np.abs(parts[0] - parts[1]).max() > 0.2
        return np.asarray(np.mean(parts, axis=0))

    expected = (mean(crops) + mean(crops.flip(2))) / 2 if mirrored else mean(crops)
    assert softmax(logits.numpy()) == pytest.approx(expected, abs=1e-5)
