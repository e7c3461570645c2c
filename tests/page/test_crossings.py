"""People who cross keep their numbers, and nobody else gets one: rendered scenes with real detections."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mien.app.inference.labeler import Labeler
from mien.app.inference.tracker import descriptor
from mien.app.service.page import browser_pipeline
from mien.app.settings import Settings
from mien.data.contract import Array, align, decode
from mien.models.manifest import artifact_dir
from tests.support import ROOT, output_of

FRAME_PX = (640, 480)
RATE = 15
FACE_PX = 190
# Center and width of the head, and width of its detected face, in pixels of the photo.
HEADS = {"astronaut.jpg": (226, 108, 200, 93), "grace_hopper.jpg": (258, 205, 380, 192)}
# Seconds of the way, how far from the middle each person is, who is in front, and the share of the way at which both
# turn back
Scene = tuple[float, int, int, float]
SCENES: tuple[Scene, ...] = ((4, 0, 1, 1), (4, 0, 0, 1), (2, 20, 1, 1), (3, 60, 0, 1), (4, 10, 1, 0.5))


def cast_of(scene: Scene, time_s: float) -> list[tuple[int, float, float]]:
    """Person and center of each head, the one in front last."""
    seconds, off, front, back_at = scene
    share = min(time_s / seconds, 2 * back_at - time_s / seconds)
    people = [(0, 110 + 420 * share, 240.0 - off), (1, 530 - 420 * share, 240.0 + off)]
    return people if front else people[::-1]


def head(name: str) -> tuple[Array, Array]:
    """A head, (S, S, 3) float32 RGB, and its opacity: an ellipse with a soft edge."""
    x, y, width, face_px = HEADS[name]
    photo = decode((ROOT / "samples" / "photos" / name).read_bytes())
    side = round(width * FACE_PX / face_px)
    scale = side / width
    center = np.array([[scale, 0, side / 2 - x * scale], [0, scale, side / 2 - y * scale]])
    picture = cv2.warpAffine(photo, center, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    mask = np.zeros((side, side), np.float32)
    cv2.ellipse(mask, (side // 2, side // 2), (round(0.40 * side), round(0.49 * side)), 0, 0, 360, 1.0, -1)
    return picture.astype(np.float32), cv2.GaussianBlur(mask, (0, 0), 3)


def pictures(scene: Scene) -> Iterator[tuple[float, Array]]:
    """Time in seconds and (480, 640, 3) uint8 RGB with camera shake, flicker and noise."""
    heads = [head(name) for name in HEADS]
    photo = decode((ROOT / "samples" / "photos" / "astronaut.jpg").read_bytes())
    room = cv2.GaussianBlur(cv2.resize(photo[300:, 300:], (900, 700)), (0, 0), 15)
    for number in range(round(scene[0] * RATE)):
        time_s = number / RATE
        random = np.random.default_rng(number)
        shift = round(100 + 60 * math.sin(time_s))
        picture = room[100:580, shift : shift + 640].astype(np.float32)
        for person, x, y in cast_of(scene, time_s):
            picture_of, mask = heads[person]
            side = picture_of.shape[0] / 2
            sway = 5 * math.sin(2 * time_s + person)
            turn = cv2.getRotationMatrix2D((side, side), sway, 1 + 0.03 * math.sin(3 * time_s + person))
            turn[:, 2] += (x - side, y - side)
            over = cv2.warpAffine(mask, turn, FRAME_PX)[..., None]
            picture += over * (cv2.warpAffine(picture_of, turn, FRAME_PX) - picture)
        noisy = picture * (1 + 0.05 * math.sin(5 * time_s)) + random.normal(0, 3, picture.shape)
        yield time_s, noisy.clip(0, 255).astype(np.uint8)


def film(scene: Scene, labeler: Labeler) -> list[dict[str, Any]]:
    """What the service finds in each frame of a scene; `person` is who it is, null where two are mixed."""
    frames = []
    for time_s, picture in pictures(scene):
        faces = []
        for face in labeler.label(picture).faces:
            x, y = face.box.x + face.box.width / 2, face.box.y + face.box.height / 2
            near = [person for person, *at in cast_of(scene, time_s) if math.dist((x, y), at) < 0.45 * FACE_PX]
            values = descriptor(align(picture, face.landmarks_px))
            shown = {"box": {name: getattr(face.box, name) for name in ("x", "y", "width", "height")}}
            shown |= {"detection_score": face.detection_score, "probabilities": face.probabilities}
            shown |= {"descriptor": None if values is None else values.tolist(), "reasons": list(face.reasons)}
            faces.append(shown | {"person": near[0] if len(near) == 1 else None})
        frames.append({"at": 1000 * time_s, "faces": faces})
    return frames


def test_five_crossings_of_two_people_give_ten_numbers_without_a_swap(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's modules are not compared")
    settings = Settings(detector="builtin", detect_rotated=False)
    labeler = Labeler.open(settings)
    films = [film(scene, labeler) for scene in SCENES]
    facts = browser_pipeline(artifact_dir(None), settings).facts
    shown = [frames[::step] for step in (2, 1) for frames in films]  # 7.5 and 15 frames per second
    vectors = tmp_path / "vectors.json"
    vectors.write_text(json.dumps({"facts": facts, "films": shown}), encoding="utf-8")
    script = Path(__file__).with_name("crossings.mjs")
    found = json.loads(output_of(node, script, env={"VECTORS": str(vectors)}, timeout=120))
    assert found == [[2, 0]] * len(shown)
