"""The examples of CONTRIBUTING.md run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mien.app.settings import Settings
from mien.data.contract import align, fit
from mien.data.readers.base import ReaderOptions
from mien.models.backbones import BackboneConfig
from mien.models.network import heads_of
from mien.training.config import LossConfig, Recipe, read_as
from tests.support import ROOT, encoded, gradient_image


def test_every_kind_of_addition_has_an_example_that_runs(tmp_path: Path) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    pattern = r"^## Add an? ([\w ]+)\n.*?^```(\w+) check\n(.*?)^```"
    examples = {kind: code for kind, *code in re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL)}
    assert list(examples) == ["data set", "detector", "loss", "backbone", "recipe"]
    added = {kind: _run(code) for kind, (language, code) in examples.items() if language == "python"}

    image = gradient_image(120, 120)
    for name in ("happy_0001.jpg", "sad_0002.jpg"):
        (tmp_path / name).write_bytes(encoded(image, "JPEG"))
    reader = added["data set"]["FilmStills"](tmp_path, ReaderOptions())
    assert [sample.label for sample in reader.samples("train")] == ["happiness", "sadness"]
    assert reader.crop(reader.samples("train")[0]).shape == (112, 112, 3)

    (face,) = added["detector"]["create"](Settings(), "cpu").detect(image)
    assert np.abs(align(image, face.landmarks_px).astype(int) - fit(image)).mean() < 3

    logits, targets = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.eye(2)
    focal = added["loss"]["loss"]
    assert 0 < focal(logits, targets, LossConfig()) < focal(-logits, targets, LossConfig())

    network = added["backbone"]["create"](BackboneConfig(family="mixer", name="mixer_s16_224"), 7).eval()
    heads = heads_of(network, torch.zeros(2, 1, 112, 112))
    assert (heads.class_logits.shape, heads.distillation_logits) == ((2, 7), None)

    (tmp_path / "recipe.yaml").write_text(examples["recipe"][1], encoding="utf-8")
    recipe = read_as(Recipe, tmp_path / "recipe.yaml")
    assert (recipe.model.family, recipe.epochs) == ("mixer", 30)


def _run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)  # noqa: S102  # our own document
    return names
