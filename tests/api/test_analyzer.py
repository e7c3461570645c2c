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

from mien import Analyzer, BatchError, Face, Image, MienError
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
    bad = {1: tmp_path / "notes.txt", 17: None, 18: tmp_path / "gone"}
    photos: list[Any] = [sample_photo(), bad[1], *[gradient_image(64, 64)] * 15, bad[17], bad[18]]
    message = r"^3 of 19 images .* images\[1\]: .*notes\.txt: not an image.* images\[17\]: "
    with pytest.raises(BatchError, match=message) as caught:
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


def test_every_kind_of_input_gives_the_same_faces_and_drawing(analyzer: Analyzer, labeler: Labeler) -> None:
    photo = sample_photo().read_bytes()
    pixels = decode(photo)
    (entry,) = (entry for entry in os.scandir(bytes(sample_photo().parent)) if entry.name == b"astronaut.jpg")
    expected, drawn = labeler.label(pixels), annotate(pixels, labeler.label(pixels))
    assert len(expected.faces) == 1
    images: tuple[Image, ...] = (
        pixels,
        pixels[..., ::-1].copy()[..., ::-1],  # as with OpenCV: negative strides
        np.asfortranarray(pixels),
        PIL.Image.fromarray(pixels),
        str(sample_photo()),
        entry,
        *(kind(encoded(pixels)) for kind in (bytes, bytearray, memoryview, io.BytesIO, _Pipe)),
    )
    for image in images:
        faces = analyzer.analyze(image)
        assert (faces, faces.draw().mode) == (list(expected.faces), "RGB")
        assert np.array_equal(np.asarray(faces.draw()), drawn)
    large = encoded(np.asarray(faces.draw().resize((4096, 4096))), "JPEG")  # decoded at reduced size
    assert analyzer.analyze(large).draw().size == (4096, 4096)


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


def test_a_thermal_image_is_stretched_in_faces_and_drawing_and_says_so(analyzer: Analyzer) -> None:
    with PIL.Image.open(sample_photo()) as photo:
        thermal = PIL.Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) + 30_000)
    for image in (thermal, encoded(thermal, "TIFF")):
        faces = analyzer.analyze(image)
        assert (len(faces), faces.notes) == (1, ("stretched",))
        assert np.asarray(faces.draw().convert("L")).std() > 50


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


def test_copies_of_an_analyzer_and_its_results_are_equal_also_in_another_folder(
    analyzer: Analyzer, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (artifact.parent / "photo.jpg").write_bytes(sample_photo().read_bytes())
    monkeypatch.chdir(artifact.parent)
    relative = Analyzer(model=artifact.name, device="cpu", detector="builtin", models_dir=Path("missing"))
    faces = relative.analyze("photo.jpg")
    monkeypatch.chdir(tmp_path)
    for copy in (_received(relative), deepcopy(analyzer)):
        assert copy.analyze(sample_photo()) == faces
    copied = _received(faces)
    assert (copied, copied.width, copied.draw().size) == (faces, faces.width, faces.draw().size)


def test_a_variable_counts_unless_an_argument_is_given(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    if (reason := cuda_unavailable_reason()) is None:
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("MIEN_DEVICE", "cuda")
    monkeypatch.setenv("MIEN_MODEL", str(artifact))
    monkeypatch.setenv("MIEN_DETECTOR", "builtin")
    with pytest.raises(MienError, match=rf"^device cuda: {re.escape(reason)}\..*MIEN_DEVICE=auto or cpu"):
        Analyzer()
    assert len(Analyzer(device="cpu").analyze(sample_photo())) == 1


def test_a_limit_names_the_argument_that_raises_it(artifact: Path) -> None:
    small = Analyzer(model=artifact, device="cpu", detector="builtin", max_bytes=2000, max_pixels=2000)
    for image in (sample_photo(), io.BytesIO(sample_photo().read_bytes())):
        with pytest.raises(MienError, match=r"more than 2,000 bytes. Analyzer\(max_bytes=\.\.\.\)"):
            small.analyze(image)
    for image in (encoded(np.zeros((100, 100, 3), np.uint8)), PIL.Image.new("L", (100, 100))):
        with pytest.raises(ImageTooLarge, match=r"limit is 2,000 pixels. Analyzer\(max_pixels=\.\.\.\)"):
            small.analyze(image)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        *(
            (np.zeros(shape, np.uint8), MienError, r"expected .H, W, 3. uint8 in RGB")
            for shape in [(4, 5), (4, 5, 4), (2, 4, 5, 3), (0, 5, 3)]
        ),
        (np.zeros((4, 5, 3)), MienError, r"pixels .4, 5, 3. float64: expected"),
        ("notes.txt", UnsupportedImage, r"notes\.txt: not an image in a supported format"),
        (io.BytesIO(), DecodeError, r"no bytes\. If the file was read before, call file\.seek\(0\)"),
        (b"", DecodeError, "no bytes"),
        ("https://example.org/a.jpg", MienError, r"^https://example\.org/a\.jpg: URLs are not read\. Download the"),
        ("", FileNotFoundError, None),
        ("missing.jpg", FileNotFoundError, None),
        (".", (IsADirectoryError, PermissionError), None),  # Windows has the latter
        (None, TypeError, r"^NoneType \(cv2\.imread returns None if it cannot read a file\): expected a path, bytes"),
        (1.5, TypeError, "^float: expected a path"),
        ([[1, 2], [3, 4]], TypeError, "^list: expected a path"),
        (io.StringIO("text"), TypeError, "returned str, expected bytes: open the file in binary mode"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\xd8")), TypeError, "expected bytes: open the file in binary mode"),
    ],
)
def test_what_is_not_an_image_is_an_error_that_says_why(
    analyzer: Analyzer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: Any,
    error: type[Exception] | tuple[type[Exception], ...],
    message: str | None,
) -> None:
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        analyzer.analyze(image)


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
