"""Initial weights from runs and artifacts: what is copied, resized and left random; and both as teachers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir, read_manifest, read_report
from mien.models.network import FaceNetwork, select_head
from mien.training import evaluate
from mien.training.config import DistillationConfig, RecipeError
from mien.training.run import BEST, RunError, load, save
from mien.training.weights import Teachers, load_initial
from tests.support.models import DEIT, crops
from tests.support.training import PLAIN_DEIT, TINY_CNN, TINY_DEIT, small_recipe, untrained_run, valid_faces
from tests.training.conftest import Own, Trained

POSITIONS = "backbone.pos_embed"


def started(folder: Path, model: dict[str, object], classes: tuple[str, ...] = LABELS) -> FaceNetwork:
    network = FaceNetwork(small_recipe(Path("faces"), model=model).model, len(classes))
    load_initial(network, folder, classes)
    return network


def initialized(folder: Path, model: dict[str, object], classes: tuple[str, ...] = LABELS) -> dict[str, torch.Tensor]:
    return started(folder, model, classes).state_dict()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with random weights of a plain transformer."""
    return untrained_run(tmp_path, PLAIN_DEIT)


def test_weights_are_copied_and_positions_resized_to_tokens_and_grid(run: Path, tmp_path: Path) -> None:
    weights = load(run / BEST)["weights"]
    same = initialized(run, PLAIN_DEIT)
    assert all(torch.equal(same[name], value) for name, value in weights.items())
    distilled = initialized(run, PLAIN_DEIT | {"name": DEIT})  # everything except its distillation token
    assert distilled[POSITIONS].shape == (1, 51, 32)
    torch.testing.assert_close(distilled[POSITIONS][:, 2:], weights[POSITIONS][:, 1:])
    torch.testing.assert_close(distilled[POSITIONS][:, :1], weights[POSITIONS][:, :1])
    larger = initialized(run, PLAIN_DEIT | {"img_size": 112})
    assert larger[POSITIONS].shape == (1, 197, 32)
    two_tokens = untrained_run(tmp_path / "distilled", PLAIN_DEIT | {"name": DEIT})
    positions = load(two_tokens / BEST)["weights"][POSITIONS]
    torch.testing.assert_close(initialized(two_tokens, PLAIN_DEIT)[POSITIONS][:, 1:], positions[:, 2:])


def test_a_network_with_fewer_blocks_gets_every_second_one_of_a_deeper_network(tmp_path: Path) -> None:
    options = {"embed_dim": 32, "num_heads": 2, "patch_px": 8, "stem": "hybrid", "stem_widths": [8, 16]}
    deep = TINY_DEIT | {"options": options | {"depth": 4, "stem_blocks": [2, 0, 2]}}
    small = TINY_DEIT | {"options": options | {"depth": 2, "stem_blocks": [1, 0, 1]}}
    run = untrained_run(tmp_path, deep)
    weights = load(run / BEST)["weights"]
    taken = {"blocks.0": "blocks.1", "blocks.1": "blocks.3"}
    taken |= {"patch_embed.layers.3": "patch_embed.layers.4", "patch_embed.layers.10": "patch_embed.layers.12"}
    for name, value in initialized(run, small).items():
        for part, source in taken.items():
            if name.startswith(f"backbone.{part}."):
                assert torch.equal(value, weights[name.replace(part, source, 1)]), name
    other = TINY_DEIT | {"options": options | {"depth": 4, "stem_blocks": [3, 0, 0]}}
    for model in (other, TINY_CNN):  # fewer layers, but more in one place; no positions
        with pytest.raises(RunError, match="do not match the network"):
            initialized(run, model)


def test_a_head_for_other_classes_keeps_the_rows_of_the_classes_that_both_have(run: Path) -> None:
    head = "backbone.head.weight"
    weights = load(run / BEST)["weights"]
    rows = initialized(run, PLAIN_DEIT, ("bored", "neutral", "fear"))[head]
    assert torch.equal(rows[1:], weights[head][[LABELS.index("neutral"), LABELS.index("fear")]])
    assert not torch.isin(rows[0], weights[head]).any()


def test_a_network_that_an_artifact_initializes_or_that_teaches_equals_its_graph(trained: Trained, own: Own) -> None:
    crops = valid_faces(trained.faces).crops
    for folder, model in ((trained.artifact, TINY_DEIT), (own.artifact, TINY_CNN)):
        manifest = read_manifest(folder)
        expected = evaluate.run_graph(evaluate.open_graph(folder / "model.onnx"), crops)
        network = started(folder, model, manifest.labels).eval()
        teachers = Teachers(DistillationConfig(mode="soft", teachers=(folder,)), manifest.labels).eval()
        with torch.no_grad():
            logits = select_head(network(torch.from_numpy(crops)), read_report(folder)["head"])
            with torch.autocast("cpu", torch.bfloat16):
                taught = teachers(torch.from_numpy(crops))
        np.testing.assert_allclose(logits.numpy(), expected, atol=2e-2)  # half precision
        np.testing.assert_allclose(taught.numpy(), expected, atol=0.1)


def test_teachers_are_joined_by_the_names_of_their_classes_and_their_mean_probability(
    trained: Trained, tmp_path: Path
) -> None:
    run, artifact = Path(shutil.copytree(trained.teacher, tmp_path / "teacher")), artifact_dir(None)
    state, gray = load(run / BEST), crops(4, channels=1)

    def shares(*folders: Path) -> torch.Tensor:
        with torch.no_grad():
            return Teachers(DistillationConfig(mode="soft", teachers=folders))(gray).softmax(-1)

    alone = shares(run)
    torch.testing.assert_close(shares(run, artifact), (alone + shares(artifact)) / 2, atol=1e-5, rtol=1e-4)
    save(run / BEST, state | {"labels": list(reversed(LABELS))})
    torch.testing.assert_close(shares(run), alone.flip(1))
    for change, error, message in (
        ({"labels": ["joy", *LABELS[1:]]}, RecipeError, "does not know surprise"),
        ({"contract_id": "0000"}, RunError, "this build has"),
    ):
        save(run / BEST, state | change)
        with pytest.raises(error, match=message):
            shares(run)
