"""Masked autoencoding: learning, resuming, and initialization from its encoder or from a finished run."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from mien.models.backbones import UnknownBackbone
from mien.models.masked_autoencoder import MaskConfig, MaskedAutoencoder
from mien.models.network import FaceNetwork
from mien.training.config import RecipeError
from mien.training.loop import checkpoint
from mien.training.loop.run_folder import RunError, load_best, read_facts
from mien.training.pretrain import PretrainRecipe, pretrain
from mien.training.release.initialization import InitialWeightsError, load_initial
from mien.training.train import train
from tests.integration.training.conftest import Trained
from tests.support_training import PLAIN_DEIT, TINY_CNN, TINY_DEIT, drawn_faces, losses, small_recipe

DISTILLED = PLAIN_DEIT | {"name": "deit_tiny_distilled_patch16_224"}
POSITIONS = "backbone.network.pos_embed"


def pretrain_recipe(root: Path, **changes: object) -> PretrainRecipe:
    values = small_recipe(root, model=PLAIN_DEIT).model_dump(mode="json")
    shared = {key: values[key] for key in ("name", "epochs", "batch_size", "model", "runtime")}
    shared["optim"] = {"learning_rate": 3e-3, "warmup_epochs": 0.2}
    shared["data"] = {key: values["data"][key] for key in ("train", "cache_dir")}
    shared["mask"] = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}
    return PretrainRecipe.model_validate(shared | changes)


def state_of(folder: Path, model: dict[str, object], root: Path) -> dict[str, torch.Tensor]:
    network = FaceNetwork(small_recipe(root, model=model).model)
    load_initial(network, folder)
    return network.state_dict()


def masked(root: Path, mask_ratio: float = 0.75) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(FaceNetwork(pretrain_recipe(root).model), MaskConfig(mask_ratio=mask_ratio)).eval()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of a plain encoder; a test that changes it works on a copy. Its faces are beside it."""
    folder = tmp_path_factory.mktemp("mae")
    return pretrain(pretrain_recipe(drawn_faces(folder / "faces", valid=1), epochs=4), folder / "run")


def test_the_loss_falls_and_a_resumed_run_has_the_losses_of_an_uninterrupted_one(
    pretrained: Path, tmp_path: Path
) -> None:
    whole, out = losses(pretrained), shutil.copytree(pretrained, tmp_path / "run")
    assert len(whole) == 28
    assert sum(list(whole.values())[-7:]) < 0.95 * sum(list(whole.values())[:7])
    (out / checkpoint.LAST).unlink()
    pretrain(pretrain_recipe(pretrained.parent / "faces", epochs=4), out)
    assert losses(out) == pytest.approx(whole, rel=1e-5)


def test_pretraining_with_a_moving_average_saves_the_average(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces", train=4)
    optim = {"learning_rate": 3e-3, "ema_decay": 0.9}
    out = pretrain(pretrain_recipe(root, epochs=1, optim=optim), tmp_path / "run")
    state, kept = checkpoint.read(out / checkpoint.LAST), checkpoint.read(out / checkpoint.ENCODER)["weights"]
    assert all(torch.equal(kept[name], state["ema"][f"network.{name}"]) for name in kept)
    assert any(not torch.equal(kept[name], state["network"][f"network.{name}"]) for name in kept)


def test_pretraining_starts_from_an_earlier_encoder(pretrained: Path, tmp_path: Path) -> None:
    root, model = pretrained.parent / "faces", PLAIN_DEIT | {"init_from": str(pretrained)}
    out = pretrain(pretrain_recipe(root, epochs=1, model=model), tmp_path / "run")
    assert losses(out)[1] < losses(pretrained)[1]
    assert read_facts(out)["weights_from"].keys() == {"run"}


def test_missing_initial_weights_are_reported_before_the_data_is_read(tmp_path: Path) -> None:
    recipe = pretrain_recipe(tmp_path / "no faces", model=PLAIN_DEIT | {"init_from": "runs/none"})
    with pytest.raises(RecipeError, match=r"model\.init_from runs/none: not found"):
        pretrain(recipe, tmp_path / "run")


def test_masked_patches_never_reach_the_encoder(tmp_path: Path) -> None:
    model = masked(tmp_path)
    pixels = torch.randn(1, 1, 56, 56)
    changed = pixels.clone()
    changed[:, :, :8, :8] += 1.0  # the first patch
    visible = torch.arange(1, 13)[None]
    torch.testing.assert_close(model._encode(pixels, visible), model._encode(changed, visible))
    assert model._encode(pixels, visible).shape == (1, 13, 32)
    assert not torch.equal(model._encode(pixels, visible - 1), model._encode(changed, visible - 1))


def test_the_loss_covers_masked_patches_only_and_normalizes_each(tmp_path: Path) -> None:
    model = masked(tmp_path)
    targets = model._targets(torch.randn(2, 1, 56, 56) * 5 + 3)
    assert targets.shape == (2, 49, 64)
    torch.testing.assert_close(targets.mean(-1), torch.zeros(2, 49), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.var(-1), torch.ones(2, 49), atol=1e-3, rtol=0)
    with torch.no_grad():
        model.decoder_pred.weight.zero_()
        model.decoder_pred.bias.zero_()
        crops = torch.randint(0, 256, (2, 112, 112, 1), dtype=torch.uint8)
        # nothing painted on patches of variance 1: the mean square over 64 pixels is 63/64
        assert float(model(crops, torch.rand(2, 49))) == pytest.approx(63 / 64, rel=1e-3)


def test_a_convolutional_stem_cannot_be_masked(tmp_path: Path) -> None:
    for model in (TINY_DEIT, TINY_CNN):
        with pytest.raises(UnknownBackbone, match="stem patch"):
            MaskedAutoencoder(FaceNetwork(small_recipe(tmp_path, model=model).model), MaskConfig())


def test_a_changed_augmentation_leaves_the_other_strengths_as_they_are(tmp_path: Path) -> None:
    augment = pretrain_recipe(tmp_path, augment={"flip": 0.4}).augment
    assert (augment.flip, augment.brightness, augment.erase) == (0.4, 0.0, 0.0)


def test_every_mask_has_a_patch_and_heads_share_the_width_of_the_decoder(tmp_path: Path) -> None:
    crops = torch.randint(0, 256, (2, 112, 112, 1), dtype=torch.uint8)
    for ratio in (0.01, 0.99):
        assert torch.isfinite(masked(tmp_path, ratio)(crops, torch.rand(2, 49)))
    with pytest.raises(ValueError, match="a multiple of decoder_heads"):
        MaskConfig(decoder_heads=5)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_evaluation_splits_are_never_used_for_training(tmp_path: Path, split: str) -> None:
    with pytest.raises(ValueError, match="not for training"):
        pretrain_recipe(tmp_path, data={"train": [{"kind": "folders", "split": split}]})


def test_students_are_initialized_from_a_pretrained_encoder(
    pretrained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, encoder = pretrained.parent / "faces", checkpoint.read(pretrained / checkpoint.ENCODER)["weights"]
    caplog.set_level(logging.INFO)
    plain = state_of(pretrained, PLAIN_DEIT, root)
    assert "newly initialized: backbone.network.head\n" in caplog.text
    assert all(torch.equal(plain[key], value) for key, value in encoder.items())
    distilled = state_of(pretrained, DISTILLED, root)  # everything except its distillation token
    assert distilled[POSITIONS].shape == (1, 51, 32)
    torch.testing.assert_close(distilled[POSITIONS][:, 2:], encoder[POSITIONS][:, 1:])
    torch.testing.assert_close(distilled[POSITIONS][:, :1], encoder[POSITIONS][:, :1])
    larger = state_of(pretrained, PLAIN_DEIT | {"img_size": 112}, root)
    assert larger[POSITIONS].shape == (1, 197, 32)
    assert "positions from 7x7 to 14x14" in caplog.text
    train(small_recipe(root, model=PLAIN_DEIT | {"init_from": str(pretrained)}, epochs=1), tmp_path / "student")
    assert load_best(tmp_path / "student")[1]["epoch"] == 0


def test_a_run_can_be_initialized_from_a_finished_run_with_its_heads(trained: Trained) -> None:
    weights = load_best(trained.student)[0].state_dict()
    started = state_of(trained.student, TINY_DEIT, trained.faces)
    assert all(torch.equal(started[key], value) for key, value in weights.items())


def test_weights_of_another_network_are_rejected_by_name_and_shape(pretrained: Path, tmp_path: Path) -> None:
    root = pretrained.parent / "faces"
    wider = PLAIN_DEIT | {"options": {"embed_dim": 48, "depth": 2, "num_heads": 2, "patch_px": 8}}
    with pytest.raises(InitialWeightsError, match=r"cls_token \(1, 1, 32\), expected \(1, 1, 48\)"):
        state_of(pretrained, wider, root)
    with pytest.raises(InitialWeightsError, match="do not match the network"):
        state_of(pretrained, TINY_CNN, root)
    with pytest.raises(RunError, match=r"neither manifest\.json, encoder"):
        state_of(tmp_path / "nowhere", PLAIN_DEIT, root)
