"""The code and the numbers of docs/how-it-works.md."""

import ast
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mien.data.contract import LABELS
from mien.training.train import train
from tests.data_sets import make_folders
from tests.integration.training.conftest import Trained
from tests.support_training import TINY_DEIT, small_recipe
from tools.illustrate import FACES, MAX_BYTES, PHOTOS, PICTURES, main, sample_faces

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "how-it-works.md"
TEXT = GUIDE.read_text(encoding="utf-8")
PLAIN = {**TINY_DEIT, "name": "deit_tiny_patch16_224"}


@pytest.fixture(scope="module")
def place(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a teacher, a distilled student, and a plain student."""
    root = tmp_path_factory.mktemp("figures")
    for name, folder in {"folders": trained.faces, "teacher": trained.teacher, "student": trained.student}.items():
        (root / name).symlink_to(folder)
    train(small_recipe(trained.faces, model=PLAIN, epochs=1), root / "plain")
    return root


def test_every_function_that_the_guide_links_is_in_the_file_that_it_links() -> None:
    links = re.findall(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)\)", TEXT)
    assert len(links) >= 15
    for name, file in links:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}, name


def test_every_figure_is_shown_in_the_guide_and_is_small() -> None:
    shown = re.findall(r"\]\(images/how-it-works/(\w+)\.png\)", TEXT)
    assert sorted(shown) == sorted(PICTURES)
    for name in shown:
        assert (GUIDE.parent / "images" / "how-it-works" / f"{name}.png").stat().st_size < MAX_BYTES


@pytest.fixture(scope="module")
def drawn(place: Path) -> Path:
    """The figures of a student with two tokens."""
    out = place / "both"
    assert main([str(place / "student"), "--out", str(out)]) == 0
    return out


def test_all_figures_are_drawn_for_a_student_with_two_tokens(drawn: Path) -> None:
    assert {path.stem for path in drawn.iterdir()} == set(PICTURES)
    for path in drawn.iterdir():
        figure = cv2.imread(str(path))
        assert figure is not None
        assert figure.std() > 10
        with Image.open(path) as image:
            assert image.mode == "RGB", "a palette shows bands or noise"
        assert path.stat().st_size < MAX_BYTES


def test_a_plain_student_gives_the_figures_without_a_second_token(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = place / "one"
    assert main([str(place / "plain"), "--out", str(out)]) == 0
    assert {path.stem for path in out.iterdir()} == {"patches", "positions", "attention", "distance"}
    assert capsys.readouterr().out.count("KB") == 4


def test_an_artifact_gives_the_figures_without_its_run(trained: Trained, place: Path) -> None:
    data = ["--data", f"folders={place / 'folders'}"]
    assert main([str(trained.artifact), *data, "--out", str(place / "released")]) == 0
    assert {path.stem for path in (place / "released").iterdir()} == set(PICTURES)


def test_a_cnn_is_rejected_with_its_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(place / "teacher"), "--out", str(place / "none")]) == 1
    assert "test_resnet is not a transformer with a class token" in capsys.readouterr().err


def test_no_face_of_the_data_set_is_drawn(place: Path, drawn: Path) -> None:
    others = make_folders(place / "others", {"valid": dict.fromkeys(LABELS, 2)})
    assert main([str(place / "student"), "--data", f"folders={others}", "--out", str(place / "other_data")]) == 0
    for name in ("patches", "attention", "looks"):
        assert (drawn / f"{name}.png").read_bytes() == (place / "other_data" / f"{name}.png").read_bytes()


def test_the_displayed_faces_are_aligned_as_in_the_service() -> None:
    from mien.app.inference.detect import create_detector
    from mien.app.inference.detect.weights import find_yunet
    from mien.app.settings import Settings
    from mien.data.contract import align, decode

    settings = Settings()
    if find_yunet(settings.models_dir) is None:
        pytest.skip("YuNet's file is not here: name its folder in MIEN_MODELS_DIR")
    detector = create_detector(settings.model_copy(update={"detector": "yunet"}))
    for crop, name in zip(sample_faces(), FACES, strict=True):
        photo = decode((PHOTOS / name).read_bytes())
        found = align(photo, detector.detect(photo)[0].landmarks_px)
        assert np.abs(crop.astype(int) - found.astype(int)).mean() < 2
