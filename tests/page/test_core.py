"""Computations of the page: probabilities, reasons, people, crops and detections are those of Python.

Python writes vectors, and node runs `core.test.mjs`, which computes the same with the modules of `core/`.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from mien.app.inference.detector import decode_grids
from mien.app.inference.records import Face
from mien.app.inference.tracker import Tracker, descriptor
from mien.app.service.app import create_app
from mien.app.settings import Settings
from mien.app.video.reader import Cuts
from mien.data.contract import CROP_PX, LABELS, TEMPLATE_PX, Array, DegenerateLandmarks, align, similarity
from mien.data.quality import USUAL_SOFTNESS_PX, USUAL_YAW, measure, soften
from mien.models.detector.manifest import OUTPUTS, STRIDES
from tests.support import (
    ROOT,
    drawn_agreement,
    encoded,
    face_of,
    output_of,
    random_crops,
    tiny_artifact,
)

PRIOR = (0.6, 0.3, -0.2, -0.5, 0.1, 0.2, -0.5)
PHOTO = np.asarray(Image.open(ROOT / "samples/photos/astronaut.jpg").convert("RGB"))
EYES, TIP, MOUTH = ((196, 117), (247, 116)), (222, 148), ((205, 165), (245, 164))
LANDMARKS = np.array([*EYES, TIP, *MOUTH], np.float32)
THRESHOLD = 0.35
CUT = 37  # frame


def test_node_computes_what_python_does(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's modules are not compared")
    vectors = tmp_path / "vectors.json"
    facts, labeled = labels(tmp_path / "tiny.test")
    compared = {"facts": facts, "labeled": labeled, "softened": softened(), "tracked": tracked(), "aligned": aligned()}
    vectors.write_text(json.dumps(compared | {"cuts": cuts(), "decoded": decoded()}), encoding="utf-8")
    script = Path(__file__).with_name("core.test.mjs")
    output_of(node, "--test", script, env={"VECTORS": str(vectors)}, timeout=120)


def labels(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Facts of a service, and its responses to aligned faces with the logits of each."""
    changes = {"prior_correction": PRIOR, "confidence_threshold": THRESHOLD}
    tiny_artifact(folder, agreement=drawn_agreement(), **changes)
    session = onnxruntime.InferenceSession(folder / "model.fp32.onnx", providers=["CPUExecutionProvider"])
    face = align(PHOTO, LANDMARKS)
    covered = face.copy()
    covered[70:100, 30:84] = (120, 80, 60)
    crops = [face, cv2.GaussianBlur(face, (0, 0), 4), face // 24, covered, np.flip(face, 0), *random_crops(6)]
    settings = Settings(model=folder, detector="builtin", precision="fp32")
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        facts: dict[str, Any] = client.get("/page/facts.json").json()
        labeled = []
        for crop in map(np.ascontiguousarray, crops):
            headers = {"content-type": "image/png"}
            response = client.post("/v1/expressions?whole=true", content=encoded(crop), headers=headers)
            (expected,) = response.json()["images"][0]["faces"]
            (logits,) = session.run(["logits"], {session.get_inputs()[0].name: crop[None]})[0]
            labeled.append({"crop": rgba(crop), "logits": logits.tolist(), "expected": expected})
    found = [one["expected"] for one in labeled]
    assert {face["uncertain"] for face in found} == {True, False}
    assert {"blurred", "dark", "covered", "ambiguous"} <= {reason for face in found for reason in face["reasons"]}
    return facts, labeled


def softened() -> dict[str, Any]:
    """A blurred, turned and covered face, whose probabilities each of four slopes softens."""
    landmarks = LANDMARKS + np.array([(0, 0), (0, 0), (14, 0), (0, 0), (0, 0)], np.float32)
    photo = cv2.GaussianBlur(PHOTO, (0, 0), 4)
    cv2.rectangle(photo, (180, 132), (268, 160), (120, 80, 60), -1)
    crop = align(photo, landmarks)
    quality = measure(crop, landmarks)
    assert quality.softness_px > USUAL_SOFTNESS_PX
    assert quality.blur_px > 0
    assert abs(quality.yaw_degrees) > USUAL_YAW
    assert quality.covered > 0
    row = np.array([0.05, 0.1, 0.02, 0.6, 0.03, 0.15, 0.05])
    expected = soften(row, quality)
    assert expected.max() < 0.5
    case = {"crop": rgba(crop), "points": landmarks.tolist(), "row": row.tolist()}
    return case | {"expected": expected.tolist()}


def tracked() -> dict[str, Any]:
    """People of a stream in which two pass each other, a third comes back half hidden, and a cut comes last."""
    tracker, frames = Tracker(threshold=0.5), []
    for number in [*range(18), *range(24, 40)]:  # and a stall
        faces = crossing(number)
        people = tracker.update(faces, number / 10, cut=number == CUT)
        expected = [
            {"track": one.person, "label": one.label, "uncertain": one.uncertain, "reasons": one.reasons}
            | {"probabilities": one.probabilities}
            for one in people
        ]
        frames.append(
            {"at": 100 * number, "cut": number == CUT, "faces": list(map(streamed, faces)), "expected": expected}
        )
    assert {person["track"] for frame in frames for person in frame["expected"]} == {1, 2, 3, 4, 5}
    assert [person["track"] for person in frames[-1]["expected"]] == [5, 2, 3], (
        "one person looks different after the cut"
    )
    assert {person["uncertain"] for frame in frames for person in frame["expected"]} == {True, False}
    return {"threshold": 0.5, "frames": frames}


def cuts() -> list[dict[str, Any]]:
    """Small frames of slow and of sudden changes, and whether each is a cut."""
    base = cv2.resize(PHOTO, (64, 36), interpolation=cv2.INTER_AREA)
    noise = np.random.default_rng(4).integers(-9, 10, base.shape)
    tinted = base * np.array([0.5, 0.7, 1.0])
    pictures = [base, base + noise, base[:, ::-1], tinted, tinted * 0.9, np.zeros(base.shape), 255 - base, base]
    frames = [picture.clip(0, 255).astype(np.uint8) for picture in pictures]
    shown = SimpleNamespace(thumbnail=iter(frames).__next__)
    finder = Cuts()
    expected = [finder.is_cut(shown) for _ in frames]  # type: ignore[arg-type]
    assert expected == [False, False, True, True, False, True, True, True]
    return [{"picture": rgba(frame), "cut": cut} for frame, cut in zip(frames, expected, strict=True)]


def crossing(number: int) -> tuple[Face, ...]:
    """Two people who pass each other while their expressions change, and one who goes and comes back half hidden."""
    random = np.random.default_rng(number)
    places = {0: 50 + 12 * number, 1: 530 - 12 * number} | ({2: 60 if number < 20 else 540} if number % 20 > 8 else {})
    hidden = max(0, 96 - 16 * (number - 29)) if number > 20 else 0
    columns = {0: 32 * (number >= CUT), 1: 0, 2: hidden}
    return tuple(drawn(who, x + random.normal(0, 2), random, columns[who]) for who, x in places.items())


def drawn(who: int, x: float, random: np.random.Generator, hidden: int) -> Face:
    """A face of a person, whose look differs from that of others more than from one frame to the next."""
    cells: Array = np.random.default_rng(who).uniform(40, 200, (8, 8, 3))
    cells = cells.repeat(CROP_PX // 8, 0).repeat(CROP_PX // 8, 1)
    crop = (cells * random.uniform(0.8, 1.2) + random.normal(0, 5, cells.shape)).clip(0, 255).astype(np.uint8)
    crop[:, :hidden] = 80
    row = random.dirichlet([3.0 if place == who else 0.6 for place in range(len(LABELS))])
    return face_of(dict(zip(LABELS, row.tolist(), strict=True)), box=(x, 100 + 60.0 * who, 90.0, 90.0), crop_rgb=crop)


def streamed(face: Face) -> dict[str, Any]:
    """A face as the page gets it; a person at once, as in the service."""
    shown = {"box": asdict(face.box), "detection_score": 1, "probabilities": face.probabilities}
    values = descriptor(face.crop_rgb)
    assert values is not None
    return shown | {"reasons": face.reasons, "descriptor": values.tolist()}


def aligned() -> dict[str, Any]:
    """Crops of a photo from rotated, small, large and cut-off faces, their descriptors, and points without a crop."""
    center = LANDMARKS.mean(0)
    cases = []
    for degrees, size, shift in ((0, 1, 0), (35, 1, 0), (-120, 1.6, 0), (10, 4.1, 0), (0, 0.3, 0), (5, 1, -190)):
        turn = cv2.getRotationMatrix2D((0, 0), degrees, size)[:, :2]
        points = ((LANDMARKS - center) @ turn + center + (shift, 0)).astype(np.float32)
        crop = align(PHOTO, points)
        values = descriptor(crop)
        assert values is not None
        case = {"points": points.tolist(), "matrix": similarity(points).tolist()}
        cases.append(case | {"crop": crop.ravel().tolist(), "descriptor": values.tolist()})
    degenerate = [np.full((5, 2), 7.0), np.array(TEMPLATE_PX) * 0.001]
    for points in degenerate:
        with pytest.raises(DegenerateLandmarks):
            similarity(points)
    return {"photo": rgba(PHOTO), "cases": cases, "degenerate": [points.tolist() for points in degenerate]}


def decoded() -> dict[str, Any]:
    """Outputs of a detector in which neighboring cells find the same faces."""
    random = np.random.default_rng(5)
    across, down = 160, 96
    grids = {}
    for stride in STRIDES:
        cells = (across // stride) * (down // stride)
        for kind, values in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
            grids[f"{kind}_{stride}"] = random.normal(0.4, 0.5, (1, cells, values)).astype(np.float32)
        grids[f"bbox_{stride}"][..., 2:] += 0.5
    rows = decode_grids([grids[name][0] for name in OUTPUTS], width=across, threshold=0.7)
    assert 10 < len(rows) < 100
    flat = {name: values.ravel().tolist() for name, values in grids.items()}
    return {"across": across, "threshold": 0.7, "grids": flat, "rows": rows.tolist()}


def rgba(image: Array) -> dict[str, Any]:
    """An image as the page's modules take it."""
    pixels = np.dstack([image, np.full(image.shape[:2], 255, np.uint8)])
    return {"width": image.shape[1], "height": image.shape[0], "data": pixels.ravel().tolist()}
