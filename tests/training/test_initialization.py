"""Initial weights from a run: what is copied, resized and left random, and weights of another network."""

import logging
from pathlib import Path

import pytest
import torch
import yaml

from mien.data.contract import LABELS, contract_id
from mien.models.network import FaceNetwork
from mien.training import checkpoint
from mien.training.initialization import InitialWeightsError, load_initial
from mien.training.run_folder import RECIPE_NAME, RunError
from tests.support.models import DEIT
from tests.support.training import PLAIN_DEIT, TINY_CNN, small_recipe

POSITIONS = "backbone.network.pos_embed"


def initialized(folder: Path, model: dict[str, object], classes: tuple[str, ...] = LABELS) -> dict[str, torch.Tensor]:
    started = FaceNetwork(small_recipe(Path("faces"), model=model).model, len(classes))
    load_initial(started, folder, classes)
    return started.state_dict()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with random weights of a plain transformer."""
    torch.manual_seed(1)
    model = small_recipe(Path("faces"), model=PLAIN_DEIT).model
    (tmp_path / RECIPE_NAME).write_text(yaml.safe_dump({"model": model.model_dump(mode="json")}), encoding="utf-8")
    state = {"weights": FaceNetwork(model).state_dict(), "contract_id": contract_id(), "labels": list(LABELS)}
    checkpoint.save(tmp_path / checkpoint.BEST, state)
    return tmp_path


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


def test_a_head_for_other_classes_keeps_the_rows_of_the_classes_that_both_have(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    head = "backbone.network.head.weight"
    weights = checkpoint.read(run / checkpoint.BEST)["weights"]
    torch.manual_seed(2)
    started = initialized(run, PLAIN_DEIT, ("bored", "neutral", "fear"))
    assert torch.equal(started[head][1:], weights[head][[LABELS.index("neutral"), LABELS.index("fear")]])
    assert not torch.isin(started[head][0], weights[head]).any()
    assert "newly initialized: the classes bored" in caplog.text


def test_weights_of_another_network_are_rejected_by_name_and_shape(run: Path, tmp_path: Path) -> None:
    wider = PLAIN_DEIT | {"options": {"embed_dim": 48, "depth": 2, "num_heads": 2, "patch_px": 8}}
    with pytest.raises(InitialWeightsError, match=r"cls_token \(1, 1, 32\), expected \(1, 1, 48\)"):
        initialized(run, wider)
    with pytest.raises(InitialWeightsError, match="do not match the network"):
        initialized(run, TINY_CNN)
    with pytest.raises(RunError, match=r"neither manifest\.json nor best\.pt"):
        initialized(tmp_path / "nowhere", PLAIN_DEIT)
