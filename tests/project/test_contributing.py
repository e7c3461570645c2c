"""The examples of CONTRIBUTING.md, each placed in the tree and run."""

import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import ROOT, encoded, gradient_image, output_of

PLACES = {
    "data set": "data/readers/film_stills.py",
    "detector": "app/inference/detect/whole_image.py",
    "backbone": "models/backbones/mixer.py",
    "recipe": "training/recipes/ferplus_mixer.yaml",
}
TRIALS = {
    "data set": """
        from mien.data.readers.base import open_reader
        samples = (reader := open_reader("film_stills", "stills")).samples("train")
        assert [sample.label for sample in samples] == ["happiness", "sadness"]
        assert reader.crop(samples[0]).shape == (112, 112, 3)
    """,
    "detector": """
        from pathlib import Path
        import numpy as np
        from mien.app.inference.detect import create_detector
        from mien.app.settings import Settings
        from mien.data.contract import align, decode, fit
        image = decode(Path("stills/happy_0001.jpg").read_bytes())
        [face] = create_detector(Settings(detector="whole_image")).detect(image)
        assert np.abs(align(image, face.landmarks_px).astype(int) - fit(image)).mean() < 3
    """,
    "backbone": """
        import torch
        from mien.models.backbones import BackboneConfig, create_backbone
        network = create_backbone(BackboneConfig(family="mixer", name="mixer_s16_224")).eval()
        heads = network(torch.zeros(2, 1, 112, 112))
        assert heads.class_logits.shape == (2, 7) and heads.distillation_logits is None
    """,
    "recipe": """
        from pathlib import Path
        from mien.training.config import Recipe, read_as
        recipe = read_as(Recipe, Path("training/recipes/ferplus_mixer.yaml"))
        assert (recipe.model.family, recipe.epochs) == ("mixer", 30)
    """,
}


def _examples() -> dict[str, str]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"^## Add an? ([\w ]+)\n.*?^```\w+ check\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with all examples, and two images."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", folder)
    ignored = shutil.ignore_patterns("__pycache__", "artifacts")
    for package in ("app", "data", "mien", "models", "training"):
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=ignored)
    for name, text in _examples().items():
        (folder / PLACES[name]).write_text(text, encoding="utf-8")
    (folder / "stills").mkdir()
    for number, name in enumerate(("happy_0001.jpg", "sad_0002.jpg")):
        (folder / "stills" / name).write_bytes(encoded(gradient_image(120 + number, 120), "JPEG"))
    return folder


def test_every_kind_of_addition_has_an_example_that_is_found_and_runs(tree: Path) -> None:
    assert _examples().keys() == PLACES.keys() == TRIALS.keys()
    command = [sys.executable, "-W", "error", "-c", "".join(map(textwrap.dedent, TRIALS.values()))]
    output_of(*command, cwd=tree, timeout=250)
