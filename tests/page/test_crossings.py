"""People who cross keep their numbers, and nobody else gets one: rendered scenes with real detections."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
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
Cast = list[tuple[int, float, float]]  # person and center, in front of those before
Scene = tuple[float, Callable[[float], Cast]]  # seconds, and who is where at a time


def crossing(seconds: float, y: float, *, front: int = 1, back_at: float = math.inf) -> Scene:
    """Two people pass each other in `seconds`; at the share `back_at` of the way, both turn back."""

    def cast(time_s: float) -> Cast:
        share = time_s / seconds
        share = share if share < back_at else 2 * back_at - share
        people = [(0, 110 + 420 * share, 240 - y), (1, 530 - 420 * share, 240 + y)]
        return people if front else people[::-1]

    return seconds, cast


SCENES = (
    crossing(4.0, 0),
    crossing(4.0, 0, front=0),
    crossing(2.0, 20),
    crossing(3.0, 60, front=0),
    crossing(4.0, 10, back_at=0.5),
)


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


def pictures(scene: Scene) -> Iterator[tuple[float, Array, Cast]]:
    """Time in seconds, (480, 640, 3) uint8 RGB with camera shake, flicker and noise, and who is where."""
    heads = [head(name) for name in HEADS]
    photo = decode((ROOT / "samples" / "photos" / "astronaut.jpg").read_bytes())
    room = cv2.GaussianBlur(cv2.resize(photo[300:, 300:], (900, 700)), (0, 0), 15)
    seconds, cast = scene
    for number in range(round(seconds * RATE)):
        time_s = number / RATE
        random = np.random.default_rng(number)
        shift = round(100 + 60 * math.sin(time_s))
        picture = room[100:580, shift : shift + 640].astype(np.float32)
        for person, x, y in cast(time_s):
            picture_of, mask = heads[person]
            side = picture_of.shape[0] / 2
            sway = 5 * math.sin(2 * time_s + person)
            turn = cv2.getRotationMatrix2D((side, side), sway, 1 + 0.03 * math.sin(3 * time_s + person))
            turn[:, 2] += (x - side, y - side)
            over = cv2.warpAffine(mask, turn, FRAME_PX)[..., None]
            picture += over * (cv2.warpAffine(picture_of, turn, FRAME_PX) - picture)
        noisy = picture * (1 + 0.05 * math.sin(5 * time_s)) + random.normal(0, 3, picture.shape)
        yield time_s, noisy.clip(0, 255).astype(np.uint8), cast(time_s)


def film(scene: Scene, labeler: Labeler) -> list[dict[str, Any]]:
    """What the service finds in each frame of a scene; `person` is who it is, null where two are mixed."""
    frames = []
    for time_s, picture, cast in pictures(scene):
        faces = []
        for face in labeler.label(picture).faces:
            x, y = face.box.x + face.box.width / 2, face.box.y + face.box.height / 2
            near = [person for person, *at in cast if math.dist((x, y), at) < 0.45 * FACE_PX]
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
