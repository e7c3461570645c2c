"""Tracking of faces across the frames of a stream, and smoothing of their probabilities over time.

Flow: faces of a frame -> matched to tracks by IoU -> probabilities smoothed over time -> a label that changes only when
another expression leads clearly, so that it does not flicker between two.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from mien.app.inference.detect.base import Box, iou
from mien.app.inference.pipeline import LabeledFace
from mien.data.contract import EIGHT_LABELS, Array


@dataclass(frozen=True, slots=True)
class TrackingRules:
    """Parameters of matching and smoothing.

    Attributes:
        min_iou: minimum intersection over union of a face and the last box of its track.
        lost_s: a track ends after this time without a matching face,
        slow_s: or after this time if there was no frame since it was last seen.
        settle_s: time constant of the exponential smoothing: after it, 63 % of a change is visible; 0 turns it off.
        lead: how much more probable another expression must be to replace the displayed one.
    """

    min_iou: float = 0.3
    lost_s: float = 1.0
    slow_s: float = 4.0
    settle_s: float = 0.35
    lead: float = 0.08


@dataclass(slots=True)
class _Track:
    number: int
    box_px: Box
    probabilities: Array  # (7,) float64, smoothed
    shown: int
    sure: bool
    seen_s: float


@dataclass(slots=True)
class Tracker:
    """Tracker for one stream; a label is uncertain if its probability is below `threshold`."""

    threshold: float
    rules: TrackingRules = field(default_factory=TrackingRules)
    _tracks: list[_Track] = field(default_factory=list)
    _next: int = 1
    _updated_s: float = -math.inf

    def update(self, faces: tuple[LabeledFace, ...], at_s: float) -> list[LabeledFace]:
        """Match the faces of the next frame to tracks.

        Args:
            faces: faces of the frame, from the pipeline.
            at_s: time of the frame in seconds, on a monotonic clock.
        Returns: the faces in the same order, with the number, the smoothed probabilities and the label of their track.
        """
        self._tracks = [track for track in self._tracks if self._is_held(track, at_s)]
        self._updated_s = at_s
        matches = self._match(faces)
        tracked = []
        for index, face in enumerate(faces):
            track = matches.get(index)
            if track is None:
                track = self._begin(face, at_s)
            else:
                self._follow(track, face, at_s)
            tracked.append(_smoothed(face, track))
        return tracked

    def _is_held(self, track: _Track, at_s: float) -> bool:
        in_last_frame = track.seen_s == self._updated_s
        return at_s - track.seen_s <= (self.rules.slow_s if in_last_frame else self.rules.lost_s)

    def _match(self, faces: tuple[LabeledFace, ...]) -> dict[int, _Track]:
        """Greedy matching, highest IoU first; each face and each track is used once."""
        pairs = [
            (iou(face.box_px, track.box_px), index, number)
            for index, face in enumerate(faces)
            for number, track in enumerate(self._tracks)
        ]
        matches: dict[int, _Track] = {}
        used: set[int] = set()
        for score, index, number in sorted(pairs, key=lambda pair: -pair[0]):
            if score >= self.rules.min_iou and index not in matches and number not in used:
                matches[index] = self._tracks[number]
                used.add(number)
        return matches

    def _begin(self, face: LabeledFace, at_s: float) -> _Track:
        probabilities = face.probabilities.astype(np.float64)
        shown = int(probabilities.argmax())
        sure = bool(probabilities[shown] >= self.threshold)
        track = _Track(self._next, face.box_px, probabilities, shown, sure, at_s)
        self._next += 1
        self._tracks.append(track)
        return track

    def _follow(self, track: _Track, face: LabeledFace, at_s: float) -> None:
        settle_s = self.rules.settle_s
        weight = 1.0 - math.exp(-max(0.0, at_s - track.seen_s) / settle_s) if settle_s else 1.0
        track.probabilities = track.probabilities + weight * (face.probabilities - track.probabilities)
        track.box_px, track.seen_s = face.box_px, at_s
        best = int(track.probabilities.argmax())
        if track.probabilities[best] - track.probabilities[track.shown] >= self.rules.lead:
            track.shown = best
        # hysteresis for `uncertain`, as for the label
        margin = self.rules.lead / 2
        threshold = self.threshold - margin if track.sure else self.threshold + margin
        track.sure = bool(track.probabilities[track.shown] >= threshold)


def _smoothed(face: LabeledFace, track: _Track) -> LabeledFace:
    return replace(
        face,
        track=track.number,
        probabilities=track.probabilities.astype(np.float32),
        label=EIGHT_LABELS[track.shown],
        confidence=float(track.probabilities[track.shown]),
        uncertain=not track.sure,
    )
