"""People in the videos of a run: their numbers, from 1, by tracking.

People keep their numbers from frame to frame as on the live page, by position and by face.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from mien.app.inference.tracking import Tracker, TrackingRules
from mien.app.labeling.journal import Journal
from mien.app.labeling.records import Result
from mien.data import contract

RULES: Final = TrackingRules(smoothing_s=0.5, confirmed_s=0)  # every face of a frame has its row
# With sparse sampling, a person may be missed in this many frames.
_MISSED_FRAMES: Final = 2.5


def people_of(journal: Journal, name: str) -> dict[tuple[int, int], int]:
    """The number of the person of each face of a video, by frame and number of the face."""
    tracked = ((image.input.frame, face) for image, _ in moments(journal, name) for face in image.faces)
    return {(frame, face.index): face.person or 0 for frame, face in tracked}


def moments(journal: Journal, name: str, rules: TrackingRules = RULES) -> Iterator[tuple[Result, float]]:
    """The frames of one video, with the numbers of people as tracks of their faces.

    Yields: also how long a person may be missed then, seconds.
    """
    tracker, last_s = Tracker(float(journal.facts.get("confidence_threshold", 0)), rules), 0.0
    scene = 0
    for image in journal.frames(name):
        time_s = image.input.time_s or 0.0
        gap_s = max(rules.lost_s, _MISSED_FRAMES * (time_s - last_s))
        tracker.rules = replace(rules, lost_s=gap_s, slow_s=gap_s)
        # thumbnails suffice to compare faces
        jpegs = [face.thumb or journal.thumb(image.input.row or 0, face.index) for face in image.faces]
        faces = [
            replace(face, crop_rgb=contract.decode(jpeg)) if jpeg else face
            for face, jpeg in zip(image.faces, jpegs, strict=True)
        ]
        tracked = tracker.update(tuple(faces), time_s, cut=image.input.scene != scene)
        yield replace(image, faces=tuple(tracked)), gap_s
        last_s, scene = time_s, image.input.scene
