"""Initialization from a released artifact: same logits as the graph, trainable, and errors for mismatches."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir, read_manifest, write_manifest
from mien.models.network import FaceNetwork, select_head
from mien.training import evaluate
from mien.training.config import DistillationConfig
from mien.training.initialization import InitialWeightsError, load_initial
from mien.training.run_folder import RunError
from mien.training.teachers import Teachers
from tests.support.training import PLAIN_DEIT, TINY_CNN, TINY_DEIT, small_recipe, valid_faces
from tests.training.conftest import COLOR_CNN, Eight, Trained

PLAIN_STEM = TINY_DEIT | {"options": PLAIN_DEIT["options"]}
MODELS = {"hybrid": TINY_DEIT, "cnn": COLOR_CNN}


@pytest.fixture(scope="module")
def artifacts(trained: Trained, eight: Eight) -> dict[str, Path]:
    """One per network."""
    return {"hybrid": trained.artifact, "cnn": eight.artifact}


def started(model: dict[str, object], folder: Path, classes: tuple[str, ...] = LABELS) -> FaceNetwork:
    torch.manual_seed(1)
    network = FaceNetwork(small_recipe(Path("faces"), model=model).model, len(classes))
    load_initial(network, folder, classes)
    return network


@pytest.mark.parametrize("name", MODELS)
def test_a_network_that_an_artifact_initializes_or_that_teaches_equals_its_graph(
    name: str, trained: Trained, artifacts: dict[str, Path]
) -> None:
    folder, manifest = artifacts[name], read_manifest(artifacts[name])
    crops = valid_faces(trained.faces).crops
    expected = evaluate.run_graph(evaluate.open_graph(folder / "model.onnx"), crops)
    network = started(MODELS[name], folder, manifest.labels).eval()
    teachers = Teachers(DistillationConfig(mode="soft", teachers=(folder,)), manifest.labels).eval()
    with torch.no_grad():
        logits = select_head(network(torch.from_numpy(crops)), manifest.head)
        with torch.autocast("cpu", torch.bfloat16):
            taught = teachers(torch.from_numpy(crops))
    np.testing.assert_allclose(logits.numpy(), expected, atol=2e-2)  # half precision
    np.testing.assert_allclose(taught.numpy(), expected, atol=0.1)


def test_an_artifact_of_another_network_or_damaged_is_rejected(artifacts: dict[str, Path], tmp_path: Path) -> None:
    folder = artifacts["hybrid"]
    for other in (TINY_CNN, PLAIN_STEM):
        with pytest.raises(InitialWeightsError, match="do not match the network"):
            started(other, folder)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InitialWeightsError, match="damaged or was replaced"):
        started(TINY_DEIT, damaged)


def test_an_artifact_without_weights_cannot_initialize_or_teach(artifacts: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(artifacts["cnn"], tmp_path / "graphs_only"))
    manifest = read_manifest(folder)
    write_manifest(folder, manifest.model_copy(update={"files": {"card.md": manifest.files["card.md"]}}))
    for graphs, why in ((folder, "export its run again"), (artifact_dir("accurate"), "it averages several networks")):
        with pytest.raises(InitialWeightsError, match=rf"no model\.safetensors; {why}"):
            started(TINY_CNN, graphs)
    with pytest.raises(RunError, match=r"no model\.safetensors; export its run again"):
        Teachers(DistillationConfig(mode="soft", teachers=(folder,)))
