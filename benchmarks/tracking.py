"""Benchmark of tracking: do people keep their numbers when they cross, hide, leave, or when the picture cuts or stalls?

    python -m benchmarks.tracking

Two faces of the sample photos, 190 px wide, move over a background of 640x480; the pipeline detects them in each frame.
Each cell states how many numbers were given, how often a number moved to another person (a swap), and how many people
have the same number at the end as at the start. In the rows "by position", the tracker does not see the faces, as in
the timelines of videos.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from mien.app.inference.pipeline import LabeledFace, Pipeline, build_pipeline
from mien.app.inference.tracking import Tracker
from mien.app.settings import load_settings
from mien.data.contract import Array, decode

FRAME_PX: Final = (640, 480)
RATE: Final = 15
STEPS: Final = (4, 2, 1)  # every 4th frame, every 2nd, all
_PHOTOS: Final = Path(__file__).resolve().parents[1] / "samples" / "photos"
# Center and width of the head, and width of its detected face, in pixels of the photo.
_HEADS: Final = {"astronaut.jpg": (226, 108, 200, 93), "grace_hopper.jpg": (258, 205, 380, 192)}
_FACE_PX: Final = 190


@dataclass(frozen=True, slots=True)
class Actor:
    """A person of a frame, in front of those before: center in pixels of the frame."""

    person: int
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Scene:
    """People over time.

    Attributes:
        cast: who is where at a time in seconds, back to front.
        seconds: its duration; skipped_s: start and end of a time without frames.
        pillar: whether an object hides the middle of the picture.
    """

    kind: str
    seconds: float
    cast: Callable[[float], list[Actor]]
    skipped_s: tuple[float, float] = (math.inf, math.inf)
    pillar: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Detections of a frame and where its people are."""

    time_s: float
    faces: tuple[LabeledFace, ...]
    cast: list[Actor]


def _crossing(seconds: float, y: float, *, front: int = 1, back_at: float = math.inf) -> Callable[[float], list[Actor]]:
    """Two people pass each other in `seconds`; at the share `back_at` of the way, both turn back."""

    def cast(time_s: float) -> list[Actor]:
        share = time_s / seconds
        share = share if share < back_at else 2 * back_at - share
        people = [Actor(0, 110 + 420 * share, 240 - y), Actor(1, 530 - 420 * share, 240 + y)]
        return people if front else people[::-1]

    return cast


def _behind_pillar(time_s: float) -> list[Actor]:
    """One person walks behind an object and waits there; the other one stays."""
    x = np.interp(time_s, [0, 1.2, 3.2, 4.4], [60, 300, 340, 580])
    return [Actor(0, float(x), 130), Actor(1, 100, 350)] if time_s > 1.5 else [Actor(0, float(x), 130)]


def _return_elsewhere(time_s: float) -> list[Actor]:
    """Both leave one after the other and come back on the other side 8 s later."""
    people = []
    if time_s < 2 or time_s > 10:
        people.append(Actor(0, 160 if time_s < 2 else 480, 240))
    if time_s < 3 or time_s > 11:
        people.append(Actor(1, 480 if time_s < 3 else 160, 240))
    return people


def _cut(time_s: float) -> list[Actor]:
    """The picture cuts between two people at the same place."""
    return [Actor(int(time_s // 1.5) % 2, 320, 240)]


def _pan(time_s: float) -> list[Actor]:
    """The camera turns by 500 px in 0.5 s, and back."""
    shift = float(np.interp(time_s, [0, 1.0, 1.5, 2.5, 3.0], [0, 0, -330, -330, 0]))
    people = [Actor(0, 180 + shift, 240), Actor(1, 460 + shift, 240)]
    return [actor for actor in people if -100 < actor.x < 740]


SCENES: Final = (
    Scene("crossing", 4.0, _crossing(4.0, 0)),
    Scene("crossing", 4.0, _crossing(4.0, 0, front=0)),
    Scene("crossing", 2.0, _crossing(2.0, 20)),
    Scene("crossing", 3.0, _crossing(3.0, 60, front=0)),
    Scene("crossing", 4.0, _crossing(4.0, 10, back_at=0.5)),
    Scene("occlusion", 5.0, _behind_pillar, pillar=True),
    Scene("absence of 8 s", 13.0, _return_elsewhere),
    Scene("cuts", 7.5, _cut),
    Scene("pan", 4.0, _pan),
    Scene("stall of 0.6 s", 4.0, _crossing(4.0, 0), (1.6, 2.2)),
    Scene("stall of 2 s", 4.0, _crossing(4.0, 20), (1.0, 3.0)),
)


class Studio:
    """Renders scenes."""

    def __init__(self) -> None:
        self._heads = [_head(name) for name in _HEADS]
        photo = decode((_PHOTOS / "astronaut.jpg").read_bytes())
        self._room = cv2.GaussianBlur(cv2.resize(photo[300:, 300:], (900, 700)), (0, 0), 15)

    def render(self, scene: Scene, time_s: float) -> Array:
        """The picture at a time: (480, 640, 3) uint8 RGB, with camera shake, flicker, noise and JPEG artifacts."""
        random = np.random.default_rng(round(1000 * time_s))
        shift = 100 + 60 * math.sin(time_s)
        picture = self._room[100:580, round(shift) : round(shift) + 640].astype(np.float32)
        for actor in scene.cast(time_s):
            head, mask = self._heads[actor.person]
            sway, side = 5 * math.sin(2 * time_s + actor.person), head.shape[0] / 2
            turn = cv2.getRotationMatrix2D((side, side), sway, 1 + 0.03 * math.sin(3 * time_s + actor.person))
            turn[:, 2] += (actor.x - side, actor.y - side)
            over = cv2.warpAffine(mask, turn, FRAME_PX)[..., None]
            picture += over * (cv2.warpAffine(head, turn, FRAME_PX) - picture)
        if scene.pillar:
            picture[:, 240:400] = (90, 80, 70)
        noisy = picture * (1 + 0.05 * math.sin(5 * time_s)) + random.normal(0, 3, picture.shape)
        _, payload = cv2.imencode(
            ".jpg", noisy.clip(0, 255).astype(np.uint8)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80]
        )
        return decode(payload.tobytes())


def _head(name: str) -> tuple[Array, Array]:
    """A head, (S, S, 3) float32 RGB, and its opacity: an ellipse with a soft edge."""
    x, y, width, face_px = _HEADS[name]
    photo = decode((_PHOTOS / name).read_bytes())
    side = round(width * _FACE_PX / face_px)
    scale = side / width
    center = np.array([[scale, 0, side / 2 - x * scale], [0, scale, side / 2 - y * scale]])
    head = cv2.warpAffine(photo, center, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    mask = np.zeros((side, side), np.float32)
    cv2.ellipse(mask, (side // 2, side // 2), (round(0.40 * side), round(0.49 * side)), 0, 0, 360, 1.0, -1)
    return head.astype(np.float32), cv2.GaussianBlur(mask, (0, 0), 3)


def frames(scene: Scene, pipeline: Pipeline, studio: Studio) -> Iterator[Frame]:
    """The frames of a scene with what the pipeline finds in them."""
    for number in range(round(scene.seconds * RATE)):
        time_s = number / RATE
        if not scene.skipped_s[0] < time_s < scene.skipped_s[1]:
            faces = pipeline.analyze_pixels(studio.render(scene, time_s)).faces
            yield Frame(time_s, faces, scene.cast(time_s))


def follow(film: list[Frame]) -> Counter[str]:
    """Track the faces of a scene; count people, numbers given, swaps, and people who end with their first number."""
    tracker = Tracker(threshold=0.3)
    owner: dict[int, int] = {}  # of a number
    numbers: dict[int, list[int]] = {}  # of a person, in order
    swaps = 0
    for frame in film:
        for tracked in tracker.update(frame.faces, frame.time_s):
            person = _person(tracked, frame.cast)
            if person is None:
                continue
            swaps += owner.setdefault(tracked.track, person) != person
            owner[tracked.track] = person
            numbers.setdefault(person, []).append(tracked.track)
    kept = sum(tracks[0] == tracks[-1] for tracks in numbers.values())
    return Counter(people=len(numbers), numbers=len(owner), swaps=swaps, kept=kept)


def _person(face: LabeledFace, cast: list[Actor]) -> int | None:
    """The person of a face: the one in front whose head is there; None where two are mixed."""
    x, y, width, height = face.box_px
    distances = [(math.hypot(x + width / 2 - actor.x, y + height / 2 - actor.y), actor.person) for actor in cast]
    near = [person for distance, person in distances if distance < 0.45 * _FACE_PX]
    return near[0] if len(near) == 1 else None


def _without_crops(frame: Frame) -> Frame:
    return replace(frame, faces=tuple(replace(face, crop=face.crop[:0]) for face in frame.faces))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    pipeline, studio = build_pipeline(load_settings()), Studio()
    films = [(scene.kind, list(frames(scene, pipeline, studio))) for scene in SCENES]
    results: dict[str, dict[int, Counter[str]]] = {}  # by scene, then by step
    for suffix in ("", ", by position"):
        for kind, film in films:
            shown = [_without_crops(frame) for frame in film] if suffix else film
            row = results.setdefault(kind + suffix, {})
            for step in STEPS:
                row.setdefault(step, Counter()).update(follow(shown[::step]))
    print(f"| scene | people | {' | '.join(f'{RATE / step:.3g} frames/s' for step in STEPS)} |")
    for kind, row in results.items():
        cells = [f"{found['numbers']} / {found['swaps']} / {found['kept']}" for found in row.values()]
        print(f"| {kind} | {row[STEPS[0]]['people']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
