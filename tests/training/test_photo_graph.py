"""The graph from a photo to its faces, against the Python path of serving."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image, ImageOps

from mien.app.inference.detector import iou
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box, Face
from mien.app.settings import InferenceSettings
from mien.data.contract import Array
from mien.models.detector.manifest import default_detector_dir, load_detector
from mien.models.manifest import artifact_dir, load_artifact
from mien.training.photo_graph import photo_graph
from tests.support import ROOT, folder_from_environment

NAMES = ("boxes", "landmarks", "detection_scores", "probabilities", "agreement", "quality", "uncertain")
Run = Callable[..., dict[str, Any]]


@cache
def released() -> onnx.ModelProto:
    folder, detector = artifact_dir("fast"), default_detector_dir()
    manifest, found_by = load_artifact(folder), load_detector(detector)
    networks = onnx.load(folder / manifest.graph("fp32").file), onnx.load(detector / found_by.graph.file)
    return photo_graph(manifest, *networks, score_threshold=found_by.score_threshold)


@pytest.fixture(scope="module")
def run() -> Run:
    session = onnxruntime.InferenceSession(released().SerializeToString(), providers=["CPUExecutionProvider"])

    def run(photo: Array, **options: Any) -> dict[str, Any]:
        return dict(zip(NAMES, session.run(NAMES, {"photo": photo} | options), strict=True))

    return run


@pytest.fixture(scope="module")
def labeler() -> Labeler:
    return Labeler.open(
        InferenceSettings(
            detector="builtin", precision="fp32", device="cpu", detect_rotated=False, detection_tiles="never", threads=1
        )
    )


def pixels(path: Path) -> Array:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def pairs(faces: tuple[Face, ...], found: dict[str, Any]) -> list[tuple[Face, int]]:
    """The faces of the reference that the graph finds, with their row."""
    overlaps = [[iou(face.box, Box(*map(float, box))) for box in found["boxes"]] for face in faces]
    return [(face, int(np.argmax(row))) for face, row in zip(faces, overlaps, strict=True) if max(row, default=0) > 0.9]


def test_all_outputs_are_those_of_serving(run: Run, labeler: Labeler) -> None:
    photo = pixels(ROOT / "samples/photos/grace_hopper.jpg")
    (face,) = labeler.label(photo).faces
    found = run(photo)
    assert found["boxes"] == pytest.approx(np.array([[*face.box]]), abs=3)
    assert found["landmarks"][0] == pytest.approx(face.landmarks_px, abs=2)
    assert found["detection_scores"] == pytest.approx([face.detection_score], abs=0.02)
    assert found["probabilities"][0] == pytest.approx(list(face.probabilities.values()), abs=0.02)
    assert found["agreement"] == pytest.approx([face.agreement], abs=0.02)
    assert found["uncertain"].tolist() == [face.uncertain]
    width_px, blur_px, yaw, brightness, _ = found["quality"][0]
    assert width_px == pytest.approx(face.box.width, rel=0.2)
    assert 0 <= blur_px < 2
    assert abs(yaw) < 30
    assert brightness == pytest.approx(face.crop_rgb.mean() / 255, abs=0.05)


def test_photos_have_the_faces_labels_and_probabilities_of_serving(run: Run, labeler: Labeler) -> None:
    faces, same, differences = 0, 0, list[float]()
    for path in sorted(folder_from_environment("MIEN_PHOTOS_DIR").glob("*.jpg")):
        photo = pixels(path)
        expected = labeler.label(photo).faces
        found = run(photo)
        faces += len(expected)
        for face, row in pairs(expected, found):
            rival = np.array(list(face.probabilities.values()))
            same += int(rival.argmax() == found["probabilities"][row].argmax())
            differences.append(float(np.abs(rival - found["probabilities"][row]).mean()))
    assert faces > 100
    assert len(differences) >= 0.98 * faces
    assert same >= 0.98 * len(differences)
    assert np.mean(differences) <= 0.01


@pytest.mark.parametrize("shape", [(1, 1, 3), (20, 3, 3), (64, 64, 3), (100, 20_000, 3)])
def test_image_without_a_face_has_no_rows(run: Run, shape: tuple[int, int, int]) -> None:
    found = run(np.full(shape, 128, np.uint8))
    assert [len(values) for values in found.values()] == [0] * 7
    assert found["landmarks"].shape == (0, 5, 2)
    assert found["probabilities"].shape == (0, 7)


def test_largest_faces_are_kept(run: Run) -> None:
    photo = pixels(ROOT / "samples/photos/astronaut.jpg")
    half = np.asarray(Image.fromarray(photo).resize((photo.shape[1] // 2, photo.shape[0] // 2)))
    both = np.zeros((photo.shape[0], photo.shape[1] + half.shape[1], 3), np.uint8)
    both[: half.shape[0], : half.shape[1]] = half
    both[:, half.shape[1] :] = photo
    left, right = run(both)["boxes"]
    assert left[2] > 1.5 * right[2]
    assert left[0] > half.shape[1] > right[0]
    (largest,) = run(both, max_faces=np.array(1))["boxes"]
    assert largest.tolist() == left.tolist()


def test_threshold_is_an_input(run: Run) -> None:
    photo = pixels(ROOT / "samples/photos/astronaut.jpg")
    score = run(photo)["detection_scores"][0]
    assert len(run(photo, score_threshold=np.array(score + 0.01, np.float32))["boxes"]) == 0
    assert len(run(photo, score_threshold=np.array(score - 0.01, np.float32))["boxes"]) == 1


def test_gray_photo_is_labeled_as_in_serving(run: Run, labeler: Labeler) -> None:
    gray = Image.fromarray(pixels(ROOT / "samples/photos/grace_hopper.jpg")).convert("L").convert("RGB")
    (face,) = labeler.label(np.asarray(gray)).faces
    assert run(np.asarray(gray))["probabilities"][0] == pytest.approx(list(face.probabilities.values()), abs=0.02)


def test_weights_of_three_passes_are_stored_once() -> None:
    folder, detector = artifact_dir("fast"), default_detector_dir()
    networks = folder / load_artifact(folder).graph("fp32").file, detector / load_detector(detector).graph.file
    assert released().ByteSize() < sum(path.stat().st_size for path in networks) + 400_000
    assert {value.key: value.value for value in released().metadata_props}["labels"].split(",")[3] == "happiness"
