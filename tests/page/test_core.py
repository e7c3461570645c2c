"""Computations of the page: people, cuts and looks of faces are those of Python.

Python writes vectors, and node runs `core.test.mjs`, which computes the same with the page's modules.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from mien.app.inference.records import Face
from mien.app.inference.tracker import Tracker, descriptor
from mien.app.service.page import browser_pipeline
from mien.app.settings import Settings
from mien.app.video.reader import Cuts
from mien.data.contract import CROP_PX, LABELS, Array, align, similarity
from tests.support import ROOT, face_of, output_of, tiny_artifact

PHOTO = np.asarray(Image.open(ROOT / "samples/photos/astronaut.jpg").convert("RGB"))
EYES, TIP, MOUTH = ((196, 117), (247, 116)), (222, 148), ((205, 165), (245, 164))
LANDMARKS = np.array([*EYES, TIP, *MOUTH], np.float32)
CUT = 37  # frame


def test_node_computes_what_python_does(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's modules are not compared")
    vectors = tmp_path / "vectors.json"
    facts = browser_pipeline(tiny_artifact(tmp_path / "tiny.test"), Settings()).facts
    compared = {"facts": facts, "tracked": tracked(), "aligned": aligned(), "cuts": cuts()}
    vectors.write_text(json.dumps(compared), encoding="utf-8")
    script = Path(__file__).with_name("core.test.mjs")
    output_of(node, "--test", script, env={"VECTORS": str(vectors)}, timeout=120)


def tracked() -> dict[str, Any]:
    """People of a stream in which two pass each other, a third comes back half hidden, and a cut comes last."""
    tracker, frames = Tracker(threshold=0.5), []
    for number in [*range(18), *range(24, 40)]:  # and a stall
        faces = crossing(number)
        people = tracker.update(faces, number / 10, cut=number == CUT)
        names = ("label", "uncertain", "reasons", "probabilities")
        expected = [{"track": one.person} | {name: getattr(one, name) for name in names} for one in people]
        frame = {"at": 100 * number, "cut": number == CUT, "faces": [*map(streamed, faces)], "expected": expected}
        frames.append(frame)
    assert {person["track"] for frame in frames for person in frame["expected"]} == {1, 2, 3, 4, 5}
    assert [person["track"] for person in expected] == [5, 2, 3], "one person looks different after the cut"
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
    expected = [finder.is_cut(shown) for _ in frames]
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
    return shown | {"reasons": face.reasons, "descriptor": descriptor(face.crop_rgb).tolist()}


def aligned() -> list[dict[str, Any]]:
    """Transforms, crops and descriptors of rotated, small, large and cut-off faces of a photo."""
    center = LANDMARKS.mean(0)
    cases = []
    for degrees, size, shift in ((0, 1, 0), (35, 1, 0), (-120, 1.6, 0), (10, 4.1, 0), (0, 0.3, 0), (5, 1, -190)):
        turn = cv2.getRotationMatrix2D((0, 0), degrees, size)[:, :2]
        points = ((LANDMARKS - center) @ turn + center + (shift, 0)).astype(np.float32)
        crop = align(PHOTO, points)
        case = {"points": points.tolist(), "matrix": similarity(points).tolist()}
        cases.append(case | {"crop": rgba(crop), "descriptor": descriptor(crop).tolist()})
    return cases


def rgba(image: Array) -> dict[str, Any]:
    """An image as the page's modules take it."""
    pixels = np.dstack([image, np.full(image.shape[:2], 255, np.uint8)])
    return {"width": image.shape[1], "height": image.shape[0], "data": pixels.ravel().tolist()}
