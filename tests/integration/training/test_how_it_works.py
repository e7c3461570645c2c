"""The code and the numbers of docs/how-it-works.md."""

import ast
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mien.models.network import FaceNetwork
from tests.integration.training.conftest import Trained
from tests.support import ROOT
from tests.support_training import PLAIN_DEIT, TINY_DEIT, small_recipe
from tools.illustrate import FACES, PHOTOS, PICTURES, Subject, drawable, main, read_subject, sample_faces

GUIDE = ROOT / "docs" / "how-it-works.md"
TEXT = GUIDE.read_text(encoding="utf-8")
NO_FACES = np.empty((0, 112, 112, 3), np.uint8)


def test_every_function_that_the_guide_links_is_in_the_file_that_it_links() -> None:
    links = re.findall(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)\)", TEXT)
    assert len(links) >= 15
    for name, file in links:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}, name


def test_every_figure_is_shown_in_the_guide() -> None:
    assert sorted(re.findall(r"\]\(images/how-it-works/(\w+)\.png\)", TEXT)) == sorted(PICTURES)


def test_all_figures_are_drawn_for_a_student_with_two_tokens(trained: Trained, tmp_path: Path) -> None:
    assert main([str(trained.student), "--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == set(PICTURES)
    for path in tmp_path.iterdir():
        figure = cv2.imread(str(path))
        assert figure is not None
        assert figure.std() > 10
        with Image.open(path) as image:
            assert image.mode == "RGB", "a palette shows bands or noise"


def test_a_plain_student_gives_the_figures_without_a_second_token_and_no_face_of_the_data_set() -> None:
    plain = FaceNetwork(small_recipe(Path("faces"), model=PLAIN_DEIT).model).eval()
    assert drawable(Subject(plain, NO_FACES)) == ["patches", "positions", "attention", "distance"]
    both = Subject(FaceNetwork(small_recipe(Path("faces"), model=TINY_DEIT).model).eval(), NO_FACES)
    for name in ("patches", "attention", "looks"):
        assert PICTURES[name](both).axes


def test_an_artifact_gives_the_figures_without_its_run(trained: Trained) -> None:
    subject = read_subject(trained.artifact, data=("folders", trained.faces))
    assert (drawable(subject), len(subject.valid)) == (list(PICTURES), 28)


def test_a_cnn_is_rejected_with_its_name(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trained.teacher), "--out", str(tmp_path)]) == 1
    assert "test_resnet is not a transformer with a class token" in capsys.readouterr().err


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
