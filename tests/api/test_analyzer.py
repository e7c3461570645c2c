"""Python API: paths, bytes and pixels as input, typed faces as output."""

import io
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from mien import Analyzer, BatchError, Image, MienError
from mien.app.inference.classifier import CUDA, Classifier, _sessions
from mien.app.inference.drawing import annotate
from mien.data.contract import DecodeError, ImageTooLarge, UnsupportedImage, align, decode
from tests.support import encoded, gradient_image, output_of, sample_photo


@pytest.fixture(scope="module")
def analyzer(artifact: Path) -> Analyzer:
    return Analyzer(model=artifact, device="cpu", detector="builtin")


def test_a_batch_keeps_its_order_classifies_its_faces_together_and_names_the_images_that_fail(
    analyzer: Analyzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, classify = list[int](), Classifier.classify
    monkeypatch.setattr(Classifier, "classify", lambda self, crops: calls.append(len(crops)) or classify(self, crops))
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    bad = {1: tmp_path / "notes.txt", 17: None, 18: tmp_path / "gone"}
    photos: list[Any] = [sample_photo(), bad[1], gradient_image(64, 64), *[sample_photo()] * 14, bad[17], bad[18]]
    with pytest.raises(BatchError, match=r"^3 of 19 images .* images\[1\]: ") as caught:
        analyzer.analyze_batch(iter(photos))
    kinds = {1: UnsupportedImage, 17: TypeError, 18: FileNotFoundError}
    assert {index: type(error) for index, error in caught.value.errors.items()} == kinds
    lengths = [None if faces is None else len(faces) for faces in caught.value.results]
    assert lengths == [1, None, 0, *[1] * 14, None, None]
    assert calls == [14, 1]
    assert [len(faces) for faces in analyzer.analyze_batch(photos[2:4])] == [0, 1]


def test_faces_may_be_given_instead_of_detected(analyzer: Analyzer) -> None:
    (face,) = analyzer.analyze(sample_photo())
    for box in (face.box, np.array([*face.box]), face.landmarks_px, face.landmarks_px.tolist()):
        (boxed,) = analyzer.analyze(sample_photo(), boxes=[box])
        assert boxed.label == face.label
    assert boxed.probabilities == face.probabilities
    (whole,) = analyzer.analyze(face.crop_rgb, whole=True)
    assert np.array_equal(whole.crop_rgb, face.crop_rgb)
    for box in ((1, 2, 3), (float("nan"), 0, 9, 9), (900, 0, 9, 9)):
        with pytest.raises(MienError, match=r"boxes\[1\]: "):
            analyzer.analyze(sample_photo(), boxes=[face.box, box])


def test_every_kind_of_input_gives_the_same_faces_and_drawing(analyzer: Analyzer) -> None:
    pixels = decode(sample_photo().read_bytes())
    sideways = encoded(np.rot90(pixels), orientation=6)  # to be displayed after a quarter turn clockwise
    expected = analyzer._labeler().label(pixels)
    drawn = annotate(pixels, expected)
    assert len(expected.faces) == 1
    images: tuple[Image, ...] = (
        pixels,
        pixels[..., ::-1].copy()[..., ::-1],  # as with OpenCV: negative strides
        PIL.Image.fromarray(pixels).convert("RGBA"),
        PIL.Image.open(io.BytesIO(sideways)),
        str(sample_photo()),
        *(kind(sideways) for kind in (bytes, memoryview, io.BytesIO)),
    )
    for image in images:
        faces = analyzer.analyze(image)
        assert (faces, faces.width, faces.height) == (list(expected.faces), *pixels.shape[1::-1])
        assert np.array_equal(np.asarray(faces.draw()), drawn)
    assert np.array_equal(faces[0].crop_rgb, align(pixels, faces[0].landmarks_px))
    assert json.loads(json.dumps(faces[:1].to_dict())) == faces.to_dict()
    large = analyzer.analyze(encoded(faces.draw().resize((4096, 4096)), "JPEG"))  # decoded at reduced size
    assert (large.draw().size, large[:0].draw().size) == ((4096, 4096), (4096, 4096))
    assert PIL.Image.open(io.BytesIO(large._repr_png_() or b"")).size == (800, 800)


def test_a_relative_path_is_drawn_after_the_current_folder_changes_unless_its_photo_did(
    analyzer: Analyzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photo.png").write_bytes(encoded(gradient_image(64, 48)))
    monkeypatch.chdir(tmp_path)
    faces = analyzer.analyze("photo.png")
    monkeypatch.chdir("/")
    assert faces.draw().size == (64, 48)
    (tmp_path / "photo.png").write_bytes(encoded(gradient_image(60, 48)))
    assert faces._repr_png_() is None
    with pytest.raises(MienError, match="60x48 px: it had 64x48 px"):
        faces.draw()


def test_a_closed_analyzer_releases_its_model_and_a_forked_one_does_not_replace_a_gpu_by_the_cpu(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Analyzer(model=artifact, device="cpu", detector="builtin") as analyzer:
        model = weakref.ref(analyzer._labeler().classifier)
        for session in [*_sessions]:  # as in a forked process
            monkeypatch.setattr(session, "inference", None)
            monkeypatch.setattr(session, "provider", CUDA)
        with pytest.raises(MienError, match=r"CUDA does not work after a fork\. Create the Analyzer in each process"):
            analyzer.analyze(sample_photo())
        monkeypatch.undo()
        del session
    assert model() is None
    with pytest.raises(MienError, match="closed"):
        analyzer.analyze(sample_photo())


def test_a_limit_names_the_argument_that_raises_it(artifact: Path) -> None:
    small = Analyzer(model=artifact, device="cpu", detector="builtin", max_bytes=2000, max_pixels=2000)
    advice = r"\. Analyzer\(max_bytes=\.\.\., max_pixels=\.\.\.\) sets other limits\.$"
    with pytest.raises(ImageTooLarge, match=f"more than 2,000 bytes{advice}"):
        small.analyze(sample_photo())
    for image in (encoded(np.zeros((100, 100, 3), np.uint8)), PIL.Image.new("L", (100, 100))):
        with pytest.raises(ImageTooLarge, match=f"pixels.*{advice}"):
            small.analyze(image)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (np.zeros((4, 5, 4), np.uint8), MienError, r"expected .H, W, 3. uint8 in RGB"),
        (np.zeros((4, 5, 3)), MienError, r"pixels .4, 5, 3. float64: expected"),
        (b"text", UnsupportedImage, "not an image in a supported format"),
        (io.BytesIO(), DecodeError, r"no bytes\. If the file was read before, call file\.seek\(0\)"),
        ("https://example.org/a.jpg", MienError, r"^https://example\.org/a\.jpg: URLs are not read\. Download the"),
        ("missing.jpg", FileNotFoundError, None),
        (None, TypeError, r"^NoneType \(cv2\.imread returns None if it cannot read a file\): expected a path, bytes"),
        (io.StringIO("text"), TypeError, "returned str, expected bytes: open the file in binary mode"),
    ],
)
def test_what_is_not_an_image_is_an_error_that_says_why(
    analyzer: Analyzer, image: Any, error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        analyzer.analyze(image)


def test_the_package_loads_its_names_at_first_use_and_changes_no_limit_of_pillow() -> None:
    program = """
import sys, mien, PIL.Image
limit = PIL.Image.MAX_IMAGE_PIXELS
assert not {"numpy", "cv2", "onnxruntime"} & sys.modules.keys()
from mien import *
assert {Analyzer, Face, Faces, Box, MienError, LABELS, Image}
import mien.app.service.app
assert limit == PIL.Image.MAX_IMAGE_PIXELS  # the protection of other parts of the program
"""
    output_of(sys.executable, "-c", program, timeout=60)
