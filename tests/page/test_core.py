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
from mien.data.contract import Array, align, similarity
from tests.inference.test_tracking import stream
from tests.support import ROOT, output_of, tiny_artifact

PHOTO = np.asarray(Image.open(ROOT / "samples/photos/astronaut.jpg").convert("RGB"))
EYES, TIP, MOUTH = ((196, 117), (247, 116)), (222, 148), ((205, 165), (245, 164))
LANDMARKS = np.array([*EYES, TIP, *MOUTH], np.float32)


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


def tracked() -> list[dict[str, Any]]:
    """Frames of a stream and the people that Python finds in them."""
    tracker, frames = Tracker(threshold=0.45), []
    for at_ms, cut, by_person in stream():
        faces = tuple(by_person.values())
        people = tracker.update(faces, at_ms / 1000, cut=cut)
        names = ("label", "uncertain", "reasons", "probabilities", "agreement")
        expected = [{"track": one.person} | {name: getattr(one, name) for name in names} for one in people]
        frames.append({"at": at_ms, "cut": cut, "faces": [*map(streamed, faces)], "expected": expected})
    return frames


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


def streamed(face: Face) -> dict[str, Any]:
    """A face as the page gets it; a person at once, as in the service."""
    shown = {name: getattr(face, name) for name in ("probabilities", "label", "agreement", "reasons")}
    look = None if face.crop_rgb is None else descriptor(face.crop_rgb).tolist()
    return shown | {"box": asdict(face.box), "detection_score": 1, "descriptor": look}


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
