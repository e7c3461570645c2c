"""Initial weights from a run or a released artifact: what is copied, resized and left random, and mismatches."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir, read_manifest, write_manifest
from mien.models.network import FaceNetwork, select_head
from mien.training import checkpoint, evaluate
from mien.training.config import DistillationConfig
from mien.training.initialization import InitialWeightsError, load_initial
from mien.training.run_folder import RunError
from mien.training.teachers import Teachers
from tests.support import random_crops
from tests.support.models import DEIT
from tests.support.training import PLAIN_DEIT, TINY_CNN, TINY_DEIT, small_recipe, untrained_run, valid_faces
from tests.training.conftest import COLOR_CNN, Eight, Trained

POSITIONS = "backbone.network.pos_embed"


def started(folder: Path, model: dict[str, object], classes: tuple[str, ...] = LABELS) -> FaceNetwork:
    torch.manual_seed(2)
    network = FaceNetwork(small_recipe(Path("faces"), model=model).model, len(classes))
    load_initial(network, folder, classes)
    return network


def initialized(folder: Path, model: dict[str, object], classes: tuple[str, ...] = LABELS) -> dict[str, torch.Tensor]:
    return started(folder, model, classes).state_dict()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with random weights of a plain transformer."""
    torch.manual_seed(1)
    return untrained_run(tmp_path, PLAIN_DEIT)


def test_weights_are_copied_and_positions_resized_to_tokens_and_grid(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    weights = checkpoint.read(run / checkpoint.BEST)["weights"]
    same = initialized(run, PLAIN_DEIT)
    assert "newly initialized: none" in caplog.text
    assert all(torch.equal(same[name], value) for name, value in weights.items())
    distilled = initialized(run, PLAIN_DEIT | {"name": DEIT})  # everything except its distillation token
    assert distilled[POSITIONS].shape == (1, 51, 32)
    torch.testing.assert_close(distilled[POSITIONS][:, 2:], weights[POSITIONS][:, 1:])
    torch.testing.assert_close(distilled[POSITIONS][:, :1], weights[POSITIONS][:, :1])
    larger = initialized(run, PLAIN_DEIT | {"img_size": 112})
    assert larger[POSITIONS].shape == (1, 197, 32)
    assert "positions from 7x7 to 14x14" in caplog.text


def test_a_network_with_fewer_blocks_gets_every_second_one_of_a_deeper_network(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    options = {"embed_dim": 32, "num_heads": 2, "patch_px": 8, "stem": "hybrid", "stem_widths": [8, 16]}
    deep = TINY_DEIT | {"options": options | {"depth": 4, "stem_blocks": [2, 0, 2]}}
    small = TINY_DEIT | {"options": options | {"depth": 2, "stem_blocks": [1, 0, 1]}}
    run = untrained_run(tmp_path, deep)
    weights = checkpoint.read(run / checkpoint.BEST)["weights"]
    small_weights = initialized(run, small)
    stem, blocks = "backbone.network.patch_embed.layers", "backbone.network.blocks"
    taken = {
        f"{blocks}.0": f"{blocks}.1",
        f"{blocks}.1": f"{blocks}.3",
        f"{stem}.3": f"{stem}.4",
        f"{stem}.10": f"{stem}.12",
    }
    for name, value in small_weights.items():
        part = next((part for part in taken if name.startswith(f"{part}.")), None)
        if part is not None:
            assert torch.equal(value, weights[name.replace(part, taken[part], 1)]), name
    assert torch.equal(small_weights[f"{stem}.7.weight"], weights[f"{stem}.8.weight"])
    assert "2 of 4 layers of backbone.network.blocks; newly initialized: none" in caplog.text
    with pytest.raises(InitialWeightsError, match="do not match the network"):
        initialized(run, TINY_DEIT | {"options": options | {"depth": 6, "stem_blocks": [1, 0, 1]}})


def test_a_head_for_other_classes_keeps_the_rows_of_the_classes_that_both_have(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    head = "backbone.network.head.weight"
    weights = checkpoint.read(run / checkpoint.BEST)["weights"]
    rows = initialized(run, PLAIN_DEIT, ("bored", "neutral", "fear"))[head]
    assert torch.equal(rows[1:], weights[head][[LABELS.index("neutral"), LABELS.index("fear")]])
    assert not torch.isin(rows[0], weights[head]).any()
    assert "newly initialized: the classes bored" in caplog.text


def test_weights_of_another_network_are_rejected_by_name_and_shape(run: Path, tmp_path: Path) -> None:
    wider = PLAIN_DEIT | {"options": {"embed_dim": 48, "depth": 2, "num_heads": 2, "patch_px": 8}}
    with pytest.raises(InitialWeightsError, match=r"cls_token \(1, 1, 32\), expected \(1, 1, 48\)"):
        initialized(run, wider)
    with pytest.raises(RunError, match="not a run folder"):
        initialized(tmp_path / "nowhere", PLAIN_DEIT)


PLAIN_STEM = TINY_DEIT | {"options": PLAIN_DEIT["options"]}
MODELS = {"hybrid": TINY_DEIT, "cnn": COLOR_CNN}


@pytest.fixture(scope="module")
def artifacts(trained: Trained, eight: Eight) -> dict[str, Path]:
    """One per network."""
    return {"hybrid": trained.artifact, "cnn": eight.artifact}


@pytest.mark.parametrize("name", MODELS)
def test_a_network_that_an_artifact_initializes_or_that_teaches_equals_its_graph(
    name: str, trained: Trained, artifacts: dict[str, Path]
) -> None:
    folder, manifest = artifacts[name], read_manifest(artifacts[name])
    crops = valid_faces(trained.faces).crops
    expected = evaluate.run_graph(evaluate.open_graph(folder / "model.onnx"), crops)
    network = started(folder, MODELS[name], manifest.labels).eval()
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
            started(folder, other)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InitialWeightsError, match="damaged or was replaced"):
        started(damaged, TINY_DEIT)


def test_an_artifact_without_weights_cannot_initialize_and_teaches_by_its_graph(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(artifacts["cnn"], tmp_path / "graphs_only"))
    manifest = read_manifest(folder)
    write_manifest(folder, manifest.model_copy(update={"files": {"card.md": manifest.files["card.md"]}}))
    for graphs, why in ((folder, "export its run again"), (artifact_dir("accurate"), "it averages several networks")):
        with pytest.raises(InitialWeightsError, match=rf"no model\.safetensors; {why}"):
            started(graphs, TINY_CNN)
    crops = torch.from_numpy(random_crops(3))
    by_graph, by_weights = (
        Teachers(DistillationConfig(mode="soft", teachers=(teacher,)))(crops) for teacher in (folder, artifacts["cnn"])
    )
    torch.testing.assert_close(by_graph, by_weights, atol=1e-3, rtol=1e-3)
