"""A student starts from a released artefact: same answers as the graph, ready to learn, and only where the two fit."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.layers.drop import DropPath

from models.network import FaceNetwork, Head, select_head
from tests.support_training import TINY_CNN, TINY_DEIT, drawn_faces, small_recipe
from training import evaluate, export
from training.initial import InitialWeightsError, load_initial
from training.loader import load_faces
from training.run import build_network, load_best
from training.train import train

PLAIN_STEM = TINY_DEIT | {"options": {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_px": 8}}
MODELS = {"hybrid": TINY_DEIT, "cnn": TINY_CNN}


@dataclass(frozen=True)
class Released:
    """An artefact of a short run, and the head that it answers with."""

    folder: Path
    head: Head


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("drawn") / "faces")


@pytest.fixture(scope="module")
def artefacts(root: Path) -> dict[str, Released]:
    """One per network."""
    out = root.parent
    found = {}
    for name, model in MODELS.items():
        run = train(small_recipe(root, model=model), out / name)
        folder = export.export(run, name, artefacts_dir=out / "artefacts")
        found[name] = Released(folder, load_best(run)[1]["head"])
    return found


def faces_of(root: Path) -> np.ndarray:
    source = small_recipe(root).data.train[0]
    return np.array(load_faces(source, colour="luminance", cache_dir=root.parent / "cache").crops)


def started(root: Path, model: dict[str, object], folder: Path) -> FaceNetwork:
    torch.manual_seed(1)
    network = build_network(small_recipe(root, model=model).model)
    load_initial(network, folder, faces_of(root))
    return network


def logits(network: FaceNetwork, crops: np.ndarray, head: Head) -> np.ndarray:
    with torch.no_grad():
        return select_head(network(torch.from_numpy(crops)), head).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_the_network_answers_as_the_graph_that_it_started_from(
    name: str, root: Path, artefacts: dict[str, Released]
) -> None:
    source = artefacts[name]
    crops, _, _ = evaluate.read_split("folders", root, "valid", {})
    expected = evaluate.run_graph(evaluate.open_graph(source.folder / "model.onnx"), crops)
    network = started(root, MODELS[name], source.folder).eval()
    np.testing.assert_allclose(logits(network, crops, source.head), expected, atol=1e-4)


def test_training_starts_from_the_same_answers_although_batches_normalise_themselves(
    root: Path, artefacts: dict[str, Released]
) -> None:
    source = artefacts["hybrid"]
    network, crops = started(root, TINY_DEIT, source.folder), faces_of(root)
    before = logits(network.eval(), crops, source.head)
    network.train()
    for module in network.modules():
        if isinstance(module, DropPath):
            module.eval()
    np.testing.assert_allclose(logits(network, crops, source.head), before, atol=5e-3)


def test_a_run_starts_from_an_artefact_and_says_what_is_fresh(
    root: Path, artefacts: dict[str, Released], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = artefacts["hybrid"]
    model = TINY_DEIT | {"init_from": str(source.folder)}
    with caplog.at_level(logging.INFO):
        run = train(small_recipe(root, model=model, epochs=1), tmp_path / "next")
    fresh = {"class": "head_dist.weight", "distillation": "head.weight", "mean": "none"}[source.head]
    assert fresh in caplog.text.split("fresh: ")[1].splitlines()[0]
    assert load_best(run)[1]["epoch"] == 0


def test_an_artefact_of_another_network_or_damaged_is_refused(
    root: Path, artefacts: dict[str, Released], tmp_path: Path
) -> None:
    folder = artefacts["hybrid"].folder
    for other in (TINY_CNN, PLAIN_STEM):
        with pytest.raises(InitialWeightsError, match="another network"):
            started(root, other, folder)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    graph = damaged / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(InitialWeightsError, match="damaged or was replaced"):
        started(root, TINY_DEIT, damaged)
