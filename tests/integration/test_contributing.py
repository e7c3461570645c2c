"""The worked examples of CONTRIBUTING.md: each is one file, put where it says, and is then found and runs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import encoded, picture

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    "data set": "data/readers/film_stills.py",
    "detector": "app/detect/whole_picture.py",
    "backbone": "models/backbones/mixer.py",
    "recipe": "training/recipes/ferplus_mixer.yaml",
}
TRIALS = {
    "data set": """
        from data.readers.base import open_reader
        samples = (reader := open_reader("film_stills", "stills")).samples("train")
        assert [sample.label for sample in samples] == ["happiness", "sadness"]
        assert reader.crop(samples[0]).shape == (112, 112, 3)
    """,
    "detector": """
        import numpy as np
        from app.detect import create_detector
        from app.settings import Settings
        from data.contract import align, decode, fit
        image = decode(open("stills/happy_0001.jpg", "rb").read())
        [face] = create_detector(Settings(detector="whole_picture")).detect(image)
        assert np.abs(align(image, face.landmarks_px).astype(int) - fit(image)).mean() < 3
    """,
    "backbone": """
        import torch
        from models.backbones import BackboneConfig, create_backbone
        config = BackboneConfig(name="mixer_s16_224", classes=7, channels=1, input_px=112)
        heads = create_backbone("mixer", config).eval()(torch.zeros(2, 1, 112, 112))
        assert heads.class_logits.shape == (2, 7) and heads.distillation_logits is None
    """,
    "recipe": """
        from pathlib import Path
        from training.config import read_recipe
        recipe = read_recipe(Path("training/recipes/ferplus_mixer.yaml"))
        assert (recipe.model.family, recipe.epochs) == ("mixer", 30)
    """,
}


def _examples() -> dict[str, str]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"^## Add an? ([\w ]+)\n.*?^```\w+ check\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with every example in its place, and two pictures to read."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in ("app", "data", "models", "training"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "artefacts"))
    for name, text in _examples().items():
        (folder / PLACES[name]).write_text(text, encoding="utf-8")
    (folder / "stills").mkdir()
    for number, name in enumerate(("happy_0001.jpg", "sad_0002.jpg")):
        (folder / "stills" / name).write_bytes(encoded(picture(120 + number, 120), "JPEG"))
    return folder


def test_every_kind_of_addition_has_an_example() -> None:
    assert _examples().keys() == PLACES.keys() == TRIALS.keys()


@pytest.mark.parametrize("name", TRIALS)
def test_example_is_found_and_runs(name: str, house: Path) -> None:
    trial = re.sub(r"^        ", "", TRIALS[name], flags=re.MULTILINE)
    command = [sys.executable, "-W", "error", "-c", trial]
    answer = subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=100, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_examples_meet_the_house_style(house: Path) -> None:
    files = [place for place in PLACES.values() if place.endswith(".py")]
    for command in (["check", "--no-cache"], ["format", "--no-cache", "--check"]):
        ruff = [Path(sys.executable).with_name("ruff"), *command, *files]
        answer = subprocess.run(ruff, cwd=house, capture_output=True, text=True, timeout=60, check=False)
        assert answer.returncode == 0, answer.stdout
