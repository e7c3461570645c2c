"""The released graph from a photo to its faces, against the Python path of serving."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from mien.app.inference.detector import iou
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box
from mien.app.settings import InferenceSettings
from mien.data.contract import Array
from mien.data.quality import REASONS
from mien.models.manifest import artifact_dir, default_detector_dir, load_artifact, load_detector
from mien.training.cli import main
from mien.training.evaluate import open_graph
from mien.training.graphs import ExportError, canvases, compare
from tests.support import ROOT, folder_from_environment
from tests.training.conftest import Own

NAMES = ("boxes", "landmarks", "detection_scores", "probabilities", "agreement", "quality", "uncertain", "reasons")
SETTINGS = InferenceSettings(
    detector="builtin", precision="fp32", device="cpu", detect_rotated=False, detection_tiles="never", threads=1
)
GRAPH = artifact_dir(None) / "photo.onnx"
PHOTOS = ROOT / "samples/photos"
ASTRONAUT, HOPPER = PHOTOS / "astronaut.jpg", PHOTOS / "grace_hopper.jpg"


opened = functools.cache(open_graph)


def run(photo: Array, graph: Path = GRAPH, **options: Any) -> dict[str, Any]:
    return dict(zip(NAMES, opened(graph).run(NAMES, {"photo": photo} | options), strict=True))


@pytest.fixture(scope="module")
def labeler() -> Labeler:
    return Labeler.open(SETTINGS)


def pixels(path: Path) -> Array:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


CHANGES: dict[str, Callable[[Array], Array]] = {
    "blurred": lambda photo: cv2.GaussianBlur(photo, (0, 0), 5),
    "dark": lambda photo: photo // 11,
    "covered": lambda photo: cv2.rectangle(photo.copy(), (185, 140), (264, 189), (120, 160, 200), -1),
    "small": lambda photo: cv2.resize(photo, (96, 96), interpolation=cv2.INTER_AREA),
}


@pytest.mark.parametrize("reason", ["none", *CHANGES])
def test_all_outputs_are_those_of_serving_with_the_reasons_of_poor_faces(labeler: Labeler, reason: str) -> None:
    photo = CHANGES[reason](pixels(ASTRONAUT)) if reason in CHANGES else pixels(HOPPER)
    (face,) = labeler.label(photo).faces
    found = run(photo)
    assert (reason in face.reasons) == (reason in CHANGES)
    assert [REASONS[place] for place in np.flatnonzero(found["reasons"][0])] == list(face.reasons)
    assert found["boxes"] == pytest.approx(np.array([[*face.box]]), abs=3)
    assert found["landmarks"][0] == pytest.approx(face.landmarks_px, abs=2)
    assert found["detection_scores"] == pytest.approx([face.detection_score], abs=0.02)
    assert found["probabilities"][0] == pytest.approx(list(face.probabilities.values()), abs=0.03)
    assert found["agreement"] == pytest.approx([face.agreement], abs=0.03)
    assert found["uncertain"].tolist() == [face.uncertain]
    width_px, _, yaw, brightness, _ = found["quality"][0]
    assert width_px == pytest.approx(face.box.width, rel=0.2)
    assert abs(yaw) < 30
    assert brightness == pytest.approx(face.crop_rgb.mean() / 255, abs=0.03)


@pytest.mark.parametrize("live", [False, True])
def test_photos_have_the_faces_labels_and_probabilities_of_serving(labeler: Labeler, live: bool) -> None:
    faces, same, differences = 0, 0, list[float]()
    for path in sorted(folder_from_environment("MIEN_PHOTOS_DIR").glob("*.jpg")):
        photo = pixels(path)
        if live:
            photo = cv2.resize(photo, (640, round(640 * photo.shape[0] / photo.shape[1])), interpolation=cv2.INTER_AREA)
        expected = labeler.label(photo, live=live).faces
        found = run(photo, live=np.array(live))
        faces += len(expected)
        for face in expected:
            overlaps = [iou(face.box, Box(*map(float, box))) for box in found["boxes"]]
            if max(overlaps, default=0) > 0.9:
                rival, row = np.array(list(face.probabilities.values())), found["probabilities"][np.argmax(overlaps)]
                same += int(rival.argmax() == row.argmax())
                differences.append(float(np.abs(rival - row).mean()))
    assert faces > (80 if live else 100)
    assert len(differences) >= 0.98 * faces
    assert same >= 0.98 * len(differences)
    assert np.mean(differences) <= 0.01


@pytest.mark.parametrize("shape", [(1, 1, 3), (20, 3, 3), (64, 64, 3), (100, 20_000, 3)])
def test_image_without_a_face_has_no_rows(shape: tuple[int, int, int]) -> None:
    found = run(np.full(shape, 128, np.uint8))
    assert [len(values) for values in found.values()] == [0] * len(NAMES)
    assert found["landmarks"].shape == (0, 5, 2)
    assert found["probabilities"].shape == (0, 7)


def test_largest_faces_are_kept() -> None:
    photo = pixels(ASTRONAUT)
    half = np.asarray(Image.fromarray(photo).resize((photo.shape[1] // 2, photo.shape[0] // 2)))
    both = np.zeros((photo.shape[0], photo.shape[1] + half.shape[1], 3), np.uint8)
    both[: half.shape[0], : half.shape[1]] = half
    both[:, half.shape[1] :] = photo
    left, right = run(both)["boxes"]
    assert left[2] > 1.5 * right[2]
    assert left[0] > half.shape[1] > right[0]
    (largest,) = run(both, max_faces=np.array(1))["boxes"]
    assert largest.tolist() == left.tolist()


def test_threshold_and_prior_are_inputs() -> None:
    photo = pixels(ASTRONAUT)
    natural = Labeler.open(SETTINGS.model_copy(update={"prior": "natural"})).label(photo).faces[0]
    found = run(photo, prior_correction=np.zeros(7, np.float32))
    assert found["probabilities"][0] == pytest.approx(list(natural.probabilities.values()), abs=0.02)
    assert found["agreement"] == pytest.approx([natural.agreement], abs=0.02)
    score = run(photo)["detection_scores"][0]
    higher = np.array(score + 0.01, np.float32)
    assert (run(photo, score_threshold=higher)["detection_scores"] >= higher).all(), "found at another size, if at all"
    assert len(run(photo, score_threshold=np.array(0.999, np.float32))["boxes"]) == 0
    assert len(run(photo, score_threshold=np.array(score - 0.01, np.float32))["boxes"]) == 1


def test_an_exported_run_has_a_photo_graph_for_its_own_classes(own: Own) -> None:
    manifest = load_artifact(own.artifact)
    assert [graph.file for graph in manifest.photo_graphs.values()] == ["photo.onnx"]
    found = run(pixels(HOPPER), own.artifact / "photo.onnx")
    assert found["probabilities"].shape == (1, 3)
    assert found["probabilities"].sum() == pytest.approx(1)


def test_a_graph_that_differs_from_python_is_not_released() -> None:
    folder = artifact_dir(None)
    manifest = load_artifact(folder)
    crops = np.stack([face.crop_rgb for face in Labeler.open(SETTINGS).label(pixels(ASTRONAUT)).faces] * 7)
    photos = list(canvases(crops))
    assert [photo.shape for photo in photos] == [(480, 660, 3)] * 2
    faces, difference = compare(folder, manifest, "fp32", photos)
    assert (faces, difference) == (7, pytest.approx(0, abs=0.01))
    assert compare(folder, manifest, "fp32", [np.zeros((64, 64, 3), np.uint8)]) == (0, 0)
    with pytest.raises(ExportError, match=r"photo\.onnx: of 7 faces, .* differ by"):
        compare(folder, manifest.model_copy(update={"prior_correction": (0, 0, 9, 0, 0, 0, 0)}), "fp32", photos)


def test_the_released_files_are_those_that_this_version_writes_and_store_the_weights_of_all_passes_once(
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(artifact_dir(None), tmp_path / artifact_dir(None).name))
    assert main(["export", str(folder), "--photos", str(PHOTOS)]) == 0
    detector = default_detector_dir()
    networks = folder / load_artifact(folder).graph("fp32").file, detector / load_detector(detector).graph.file
    assert (folder / "photo.onnx").stat().st_size < sum(path.stat().st_size for path in networks) + 400_000
    again = run(pixels(ASTRONAUT), folder / "photo.onnx")
    for name, values in run(pixels(ASTRONAUT)).items():
        assert again[name] == pytest.approx(values, abs=1e-5), name
