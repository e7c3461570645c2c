"""Python API: paths, bytes and pixels as input, typed faces as output."""

import io
import json
import os
import pickle
import re
import sys
import weakref
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import pytest

from mien import Analyzer, BatchError, Face, MienError
from mien.app.inference.classifier import Classifier
from mien.app.inference.drawing import annotate
from mien.app.inference.labeler import Labeler
from mien.app.inference.runtime.sessions import cuda_unavailable_reason
from mien.app.settings import load_settings
from mien.data.contract import LABELS, LANDMARKS, DecodeError, ImageTooLarge, UnsupportedImage, align, decode
from mien.data.contract.palette import COLORS
from tests.support import encoded, gradient_image, output_of, sample_photo

T = TypeVar("T")


@pytest.fixture(scope="module")
def analyzer(artifact: Path) -> Analyzer:
    return Analyzer(model=artifact, device="cpu", detector="builtin")


@pytest.fixture(scope="module")
def labeler(artifact: Path) -> Labeler:
    return Labeler.open(load_settings(model=artifact, device="cpu", detector="builtin"))


def test_faces_equal_those_of_the_labeler(analyzer: Analyzer, labeler: Labeler, artifact: Path) -> None:
    photo = decode(sample_photo().read_bytes())
    faces = analyzer.analyze(sample_photo())
    assert (faces.width, faces.height, faces.model, faces.detector) == (*photo.shape[1::-1], artifact.name, "builtin")
    assert faces == list(labeler.label(sample_photo().read_bytes()).faces)
    (face,) = faces
    assert (tuple(face.probabilities), tuple(face.landmarks)) == (LABELS, LANDMARKS)
    assert sum(face.probabilities.values()) == pytest.approx(1)
    assert isinstance(face, Face)
    assert np.array_equal(face.crop, align(photo, np.array(list(face.landmarks.values()), np.float32)))


def test_a_batch_keeps_its_order_and_classifies_its_faces_together(
    analyzer: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, classify = list[int](), Classifier.classify
    monkeypatch.setattr(Classifier, "classify", lambda self, crops: calls.append(len(crops)) or classify(self, crops))
    empty = encoded(gradient_image(64, 64))
    photos = [empty, sample_photo(), gradient_image(64, 64), *[sample_photo()] * 15]
    results = analyzer.analyze_batch(photos)
    assert [len(faces) for faces in results] == [0, 1, 0] + [1] * 15
    assert calls == [14, 2]
    assert len({faces[0].label for faces in results if faces}) == 1
    assert results[1].draw() == analyzer.analyze(sample_photo()).draw()
    assert analyzer.analyze_batch([]) == []


def test_a_batch_names_the_images_that_fail_and_keeps_the_others(analyzer: Analyzer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    photos: list[Any] = [
        sample_photo(),
        tmp_path / "notes.txt",
        *[gradient_image(64, 64)] * 15,
        None,
        tmp_path / "gone",
    ]
    with pytest.raises(
        BatchError, match=r"^3 of 19 images .* images\[1\]: .*notes\.txt: not an image.* images\[17\]: "
    ):
        analyzer.analyze_batch([*photos])
    with pytest.raises(BatchError) as caught:
        analyzer.analyze_batch(iter(photos))
    kinds = {1: UnsupportedImage, 17: TypeError, 18: FileNotFoundError}
    assert {index: type(error) for index, error in caught.value.errors.items()} == kinds
    lengths = [None if faces is None else len(faces) for faces in caught.value.results]
    assert lengths == [1, None, *[0] * 15, None, None]


def test_faces_may_be_given_instead_of_detected(analyzer: Analyzer) -> None:
    (face,) = analyzer.analyze(sample_photo())
    for boxes in ([face.box], np.array([face.box]), [face.landmarks_px], [list(face.landmarks.values())]):
        faces = analyzer.analyze(sample_photo(), boxes=boxes)
        assert [(found.label, found.index) for found in faces] == [(face.label, 0)]
        assert faces.draw().size == (faces.width, faces.height)
    by_points = analyzer.analyze(sample_photo(), boxes=[face.landmarks_px])
    aligned, whole = analyzer.analyze(face.crop, aligned=True), analyzer.analyze_batch([face.crop], whole=True)[0]
    assert by_points[0].probabilities == face.probabilities
    assert aligned[0].probabilities.keys() == face.probabilities.keys()
    assert np.array_equal(aligned[0].crop, whole[0].crop)
    assert (aligned.detector, by_points.detector) == ("none", "builtin")
    for boxes in ([(1, 2, 3)], ["left"], [(float("nan"), 0, 9, 9)], [np.full((5, 2), np.inf)], [(900, 0, 9, 9)]):
        with pytest.raises(MienError, match=r"^.*astronaut\.jpg: boxes\[1\]: |^boxes\[1\]: "):
            analyzer.analyze(sample_photo(), boxes=[face.box, *boxes])


def test_results_are_lists_with_json_and_drawings(analyzer: Analyzer) -> None:
    photo = decode(sample_photo().read_bytes())
    faces = analyzer.analyze(np.hstack([photo, photo]))
    assert len(faces) == 2
    values = json.loads(json.dumps(faces.to_dict()))
    assert values.pop("faces") == [face.to_dict() for face in faces]
    assert values == {"width": 1024, "height": 512, "model": faces.model, "detector": "builtin", "notes": []}
    second = faces[1:]
    assert (list(second), second.to_dict()["faces"]) == ([faces[1]], [faces[1].to_dict()])
    drawn = [np.asarray(chosen.draw()) for chosen in (faces, second, faces[:0])]
    changed = [(pixels != np.hstack([photo, photo])).any(axis=2) for pixels in drawn]
    halves = [(np.any(half[:, :500]), np.any(half[:, 524:])) for half in changed]
    first_is_left = faces[0].box.x < 512
    assert halves == [(True, True), (not first_is_left, first_is_left), (False, False)]


def test_a_closed_analyzer_releases_its_model(artifact: Path) -> None:
    with Analyzer(model=artifact, device="cpu", detector="builtin") as analyzer:
        session = weakref.ref(analyzer._labeler().classifier)
        assert len(analyzer.analyze(sample_photo())) == 1
    assert session() is None
    for closed in (analyzer, _received(analyzer)):
        with pytest.raises(MienError, match="closed"):
            closed.analyze(sample_photo())


class _Pipe(io.BytesIO):
    """An unbuffered pipe, which returns the bytes that have arrived."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        return super().read(min(size, 1000))


def test_every_kind_of_input_gives_the_same_faces(analyzer: Analyzer) -> None:
    pixels = decode(sample_photo().read_bytes())
    expected = analyzer.analyze(pixels)
    assert len(expected) == 1
    assert analyzer.analyze(pixels[..., ::-1].copy()[..., ::-1]) == expected  # as with OpenCV: negative strides
    assert analyzer.analyze(np.asfortranarray(pixels)) == expected
    payload = encoded(pixels)
    for image in (payload, bytearray(payload), memoryview(payload), io.BytesIO(payload), _Pipe(payload)):
        assert analyzer.analyze(image) == expected
    assert analyzer.analyze(PIL.Image.open(io.BytesIO(payload))) == expected
    assert analyzer.analyze(str(sample_photo())) == analyzer.analyze(sample_photo())
    (entry,) = (entry for entry in os.scandir(bytes(sample_photo().parent)) if entry.name == b"astronaut.jpg")
    assert analyzer.analyze(entry).draw() == analyzer.analyze(sample_photo()).draw()


def test_an_image_of_pillow_is_upright_and_opaque(analyzer: Analyzer) -> None:
    pixels = decode(sample_photo().read_bytes())
    expected = analyzer.analyze(pixels)
    sideways = encoded(np.rot90(pixels), orientation=6)  # to be displayed after a quarter turn clockwise
    assert analyzer.analyze(PIL.Image.open(io.BytesIO(sideways))) == analyzer.analyze(sideways) == expected
    assert analyzer.analyze(PIL.Image.fromarray(pixels).convert("RGBA")) == expected
    with PIL.Image.open(io.BytesIO(encoded(pixels))) as closed:
        pass
    with pytest.raises(MienError, match="closed"):
        analyzer.analyze(closed)
    with pytest.raises(MienError, match="no pixels"):
        analyzer.analyze(PIL.Image.new("RGB", (0, 5)))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 4), (3, 4, 5), (2, 4, 5, 3), (0, 5, 3), ()])
def test_pixels_of_another_shape_or_type_are_rejected(analyzer: Analyzer, shape: tuple[int, ...]) -> None:
    with pytest.raises(MienError, match=r"expected .H, W, 3. uint8 in RGB"):
        analyzer.analyze(np.zeros(shape, np.uint8))
    with pytest.raises(MienError, match=r"pixels .4, 5, 3. float64: expected"):
        analyzer.analyze(np.zeros((4, 5, 3)))


def test_a_result_draws_itself_like_the_labeling(analyzer: Analyzer, labeler: Labeler) -> None:
    payload = sample_photo().read_bytes()
    expected = annotate(decode(payload), labeler.label(payload))
    for image in (sample_photo(), payload, io.BytesIO(payload), decode(payload), PIL.Image.open(io.BytesIO(payload))):
        drawn = analyzer.analyze(image).draw()
        assert drawn.mode == "RGB"
        assert np.array_equal(np.asarray(drawn), expected)
    large = encoded(np.asarray(drawn.resize((4096, 4096))), "JPEG")  # decoded at reduced size
    assert analyzer.analyze(large).draw().size == (4096, 4096)


def test_a_notebook_shows_the_annotated_photo(analyzer: Analyzer, tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    PIL.Image.open(io.BytesIO(sample_photo().read_bytes())).resize((2000, 1500)).save(photo)
    faces = analyzer.analyze(photo)
    shown = PIL.Image.open(io.BytesIO(faces._repr_png_() or b""))
    assert (shown.format, shown.size) == ("PNG", (800, 600))
    box = faces[0].box
    corner = np.asarray(shown)[round((box.y + box.height) * 0.4), round((box.x + box.width) * 0.4)]
    assert tuple(corner) == COLORS[faces[0].label]
    PIL.Image.new("RGB", (20, 20)).save(photo)
    with pytest.raises(MienError, match=r"20x20 px: it had 2000x1500 px"):
        faces.draw()
    assert faces._repr_png_() is None
    photo.unlink()
    assert faces._repr_png_() is None
    with pytest.raises(FileNotFoundError):
        faces.draw()


def _received(value: T) -> T:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # written here


def test_after_a_fork_a_gpu_is_an_error_and_not_silently_replaced_by_the_cpu(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = Analyzer(model=artifact, device="cpu", detector="builtin")
    monkeypatch.setattr(forked, "_on_gpu", True)
    monkeypatch.setattr(forked, "_opened", None)  # as in the new process
    with pytest.raises(MienError, match=r"CUDA does not work after a fork\. Create the Analyzer in each process"):
        forked.analyze(sample_photo())
    assert len(_received(forked).analyze(sample_photo())) == 1


def test_copies_of_an_analyzer_and_its_results_are_equal(analyzer: Analyzer) -> None:
    faces = analyzer.analyze(sample_photo())
    for copy in (_received(analyzer), deepcopy(analyzer)):
        assert copy.analyze(sample_photo()) == faces
    copy = _received(faces)
    assert (copy, copy.width, copy.draw().size) == (faces, faces.width, faces.draw().size)


def test_relative_paths_stay_valid_after_a_change_of_the_folder(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (artifact.parent / "photo.jpg").write_bytes(sample_photo().read_bytes())
    monkeypatch.chdir(artifact.parent)
    analyzer = Analyzer(model=artifact.name, device="cpu", detector="builtin", models_dir=Path("missing"))
    faces = analyzer.analyze("photo.jpg")
    monkeypatch.chdir(tmp_path)
    assert _received(analyzer).analyze(sample_photo()) == faces
    assert faces.draw().size == (faces.width, faces.height)


def test_a_variable_counts_unless_an_argument_is_given(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    if (reason := cuda_unavailable_reason()) is None:
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("MIEN_DEVICE", "cuda")
    monkeypatch.setenv("MIEN_MODEL", str(artifact))
    monkeypatch.setenv("MIEN_DETECTOR", "builtin")
    with pytest.raises(MienError, match=rf"^device cuda: {re.escape(reason)}\..*MIEN_DEVICE=auto or cpu"):
        Analyzer()
    assert len(Analyzer(device="cpu").analyze(sample_photo())) == 1


def test_an_image_that_cannot_be_read_is_named(analyzer: Analyzer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    with pytest.raises(UnsupportedImage, match=r"notes\.txt: not an image in a supported format"):
        analyzer.analyze(tmp_path / "notes.txt")
    with pytest.raises(DecodeError, match=r"no bytes\. If the file was read before, call file\.seek\(0\)"):
        analyzer.analyze(io.BytesIO())
    with pytest.raises(DecodeError, match="no bytes"):
        analyzer.analyze(b"")
    with pytest.raises(MienError, match=r"^https://example\.org/a\.jpg: URLs are not read\. Download the image"):
        analyzer.analyze("https://example.org/a.jpg")
    with pytest.raises(FileNotFoundError):
        analyzer.analyze("")
    with pytest.raises(FileNotFoundError):
        analyzer.analyze(tmp_path / "missing.jpg")
    with pytest.raises((IsADirectoryError, PermissionError)):  # Windows has the latter
        analyzer.analyze(tmp_path)


def test_a_limit_names_the_argument_that_raises_it(artifact: Path) -> None:
    small = Analyzer(model=artifact, device="cpu", detector="builtin", max_bytes=2000, max_pixels=2000)
    for image in (sample_photo(), io.BytesIO(sample_photo().read_bytes())):
        with pytest.raises(MienError, match=r"more than 2,000 bytes. Analyzer\(max_bytes=\.\.\.\)"):
            small.analyze(image)
    for image in (encoded(np.zeros((100, 100, 3), np.uint8)), PIL.Image.new("L", (100, 100))):
        with pytest.raises(ImageTooLarge, match=r"limit is 2,000 pixels. Analyzer\(max_pixels=\.\.\.\)"):
            small.analyze(image)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, r"^NoneType \(cv2\.imread returns None if it cannot read a file\): expected a path, bytes"),
        (1.5, "^float: expected a path"),
        ([[1, 2], [3, 4]], "^list: expected a path"),
        (io.StringIO("text"), "returned str, expected bytes: open the file in binary mode"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\xd8")), "expected bytes: open the file in binary mode"),
    ],
)
def test_an_input_of_another_type_is_a_type_error(analyzer: Analyzer, image: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        analyzer.analyze(image)  # type: ignore[arg-type]


def test_one_photo_is_not_a_batch(analyzer: Analyzer) -> None:
    images = (str(sample_photo()), sample_photo(), b"bytes", io.BytesIO(), PIL.Image.new("L", (9, 9)), gradient_image())
    for image in images:
        with pytest.raises(TypeError, match=r"expected several images. For one, call analyze\(\)"):
            analyzer.analyze_batch(image)  # type: ignore[arg-type]


def test_the_package_loads_its_names_at_first_use_and_changes_no_limit_of_pillow() -> None:
    program = """
import sys, mien, PIL.Image
limit = PIL.Image.MAX_IMAGE_PIXELS
assert {"__version__", *mien.__all__} <= set(dir(mien))
assert not {"numpy", "cv2", "onnxruntime"} & sys.modules.keys()
assert not hasattr(mien, "analyse")
from mien import *
assert {Analyzer, Face, Faces, Box, MienError, LABELS, Image}
assert mien.__version__ and "__version__" not in globals()
import mien.app.main
assert limit == PIL.Image.MAX_IMAGE_PIXELS  # the protection of other parts of the program
"""
    output_of(sys.executable, "-c", program, timeout=60)
