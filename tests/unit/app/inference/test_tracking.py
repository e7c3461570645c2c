"""Faces of a stream keep their number, and labels do not flicker."""

from itertools import pairwise

import numpy as np
import pytest

from mien.app.inference.detect import Box
from mien.app.inference.pipeline import LabeledFace
from mien.app.inference.tracking import Tracker, TrackingRules
from mien.data.contract import LABELS, label_index

FRAME_S = 1 / 15


def face(x: float = 100, y: float = 100, size: float = 80, **shares: float) -> LabeledFace:
    """A face with the given probabilities; the rest is spread evenly."""
    rest = (1 - sum(shares.values())) / (len(LABELS) - len(shares))
    probabilities = np.array([shares.get(label, rest) for label in LABELS], np.float32)
    box, points = Box(x, y, size, size), np.zeros((5, 2), np.float32)
    label = LABELS[int(probabilities.argmax())]
    return LabeledFace(box, points, 0.9, probabilities, label, float(probabilities.max()), False, 0.0)


def run(tracker: Tracker, frames: list[tuple[LabeledFace, ...]], frame_s: float = FRAME_S) -> list[list[str]]:
    shown = []
    for number, faces in enumerate(frames):
        tracked = tracker.update(faces, number * frame_s)
        shown.append(["uncertain" if one.uncertain else one.label for one in tracked])
    return shown


def test_moving_faces_keep_their_numbers_whatever_their_order() -> None:
    tracker = Tracker(threshold=0.3)
    for step in range(30):
        left, right = face(100 + 5 * step, 100), face(600 - 4 * step, 300)
        pair = (left, right) if step % 2 else (right, left)
        numbers = {one.box_px[1]: one.track for one in tracker.update(pair, step * FRAME_S)}
        assert (numbers[300.0], numbers[100.0]) == (1, 2)


def test_a_newcomer_gets_a_new_number_and_a_lost_face_is_forgotten() -> None:
    tracker = Tracker(threshold=0.3, rules=TrackingRules(lost_s=0.5))
    assert [one.track for one in tracker.update((face(),), 0.0)] == [1]
    assert [one.track for one in tracker.update((face(), face(400, 400)), 0.1)] == [1, 2]
    assert tracker.update((), 0.2) == []
    assert [one.track for one in tracker.update((face(),), 0.55)] == [1], "a short gap is bridged"
    tracker.update((), 0.7)
    assert [one.track for one in tracker.update((face(),), 1.2)] == [3], "a long one is not"


def test_a_slow_stream_keeps_its_numbers() -> None:
    tracker = Tracker(threshold=0.3)
    numbers = [tracker.update((face(100 + 5 * step),), 2.5 * step)[0].track for step in range(4)]
    assert numbers == [1, 1, 1, 1], "no frame came in between, so nobody was missed"
    assert tracker.update((face(120),), 30.0)[0].track == 2


def test_two_faces_never_share_a_track() -> None:
    tracker = Tracker(threshold=0.3)
    tracker.update((face(100),), 0.0)
    numbers = [one.track for one in tracker.update((face(105), face(101)), 0.1)]
    assert numbers == [2, 1], "the one that overlaps more keeps its number"


def test_a_label_does_not_flicker_between_two_near_expressions() -> None:
    random = np.random.default_rng(7)
    frames = []
    for _ in range(200):
        tilt = random.normal(scale=0.06)
        frames.append((face(happiness=0.42 + tilt, neutral=0.42 - tilt),))
    raw = [one[0].label for one in frames]
    shown = [labels[0] for labels in run(Tracker(threshold=0.2), frames)]
    assert sum(a != b for a, b in pairwise(raw)) > 60
    assert sum(a != b for a, b in pairwise(shown)) <= 2


def test_a_real_change_is_shown_within_half_a_second_at_any_frame_rate() -> None:
    for frame_s in (1 / 30, 1 / 10, 1 / 5):
        before, after = [(face(neutral=0.9),)] * 10, [(face(surprise=0.9),)] * round(1 / frame_s)
        shown = [labels[0] for labels in run(Tracker(threshold=0.3), before + after, frame_s)]
        assert shown[9] == "neutral"
        assert (shown.index("surprise") - 9) * frame_s <= 0.5
        assert shown[-1] == "surprise"


def test_uncertainty_is_sticky_on_both_sides() -> None:
    def hover(around: float) -> list[tuple[LabeledFace, ...]]:
        return [(face(anger=around + 0.02 * (-1) ** number),) for number in range(40)]

    from_above = run(Tracker(threshold=0.5), [(face(anger=0.8),)] * 2 + hover(0.5))
    from_below = run(Tracker(threshold=0.5), [(face(anger=0.3),)] * 2 + hover(0.5))
    assert {labels[0] for labels in from_above} == {"anger"}
    assert {labels[0] for labels in from_below} == {"uncertain"}


def test_smoothed_probabilities_stay_a_distribution() -> None:
    tracker = Tracker(threshold=0.3)
    for step in range(20):
        (one,) = tracker.update((face(**{LABELS[step % 7]: 0.8}),), step * FRAME_S)
        assert one.probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert one.confidence == pytest.approx(one.probabilities[label_index(one.label)], abs=1e-6)


def test_without_smoothing_each_frame_shows_its_own_probabilities() -> None:
    tracker = Tracker(threshold=0.3, rules=TrackingRules(settle_s=0))
    tracker.update((face(anger=0.8),), 0.0)
    (tracked,) = tracker.update((face(fear=0.7),), FRAME_S)
    assert tracked.probabilities[label_index("fear")] == pytest.approx(0.7)
    assert tracked.label == "fear"
