"""Faces of a stream keep their number, and labels do not flicker."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from mien.app.inference.records import Face
from mien.app.inference.tracking import Tracker, TrackingRules, assign, descriptor
from mien.data.contract import CROP_PX, Array
from tests.support import labeled_face

FRAME_S = 1 / 15


def face(x: float = 100, y: float = 100, size: float = 80, **shares: float) -> Face:
    return labeled_face((x, y, size, size), **shares)


def seen(who: int, x: float, y: float = 100, *, frame: int = 0) -> Face:
    """The face of a person, 80 px wide, with other noise and brightness in each frame."""
    cells = np.random.default_rng(who).uniform(40, 200, (7, 7, 3)).repeat(CROP_PX // 7, 0).repeat(CROP_PX // 7, 1)
    noise = np.random.default_rng(100 + frame)
    crop = cells * noise.uniform(0.8, 1.2) + noise.normal(0, 5, cells.shape)
    return replace(face(x, y), crop=crop.clip(0, 255).astype(np.uint8))


def numbers(tracker: Tracker, frames: Sequence[tuple[float, Sequence[Face]]]) -> list[list[int]]:
    return [[one.track for one in tracker.update(tuple(faces), at_s)] for at_s, faces in frames]


def run(tracker: Tracker, frames: list[tuple[Face, ...]], frame_s: float = FRAME_S) -> list[list[str]]:
    shown = []
    for number, faces in enumerate(frames):
        tracked = tracker.update(faces, number * frame_s)
        shown.append(["uncertain" if one.uncertain else one.label for one in tracked])
    return shown


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


@pytest.mark.parametrize("frames_per_s", [4, 8, 15])
@pytest.mark.parametrize("turn_back", [False, True])
def test_people_who_cross_keep_their_numbers(frames_per_s: int, turn_back: bool) -> None:
    frames = []
    for frame in range(3 * frames_per_s):
        share = frame / (3 * frames_per_s)
        share = min(share, 1 - share) if turn_back else share
        left, right = seen(1, 100 + 300 * share, frame=frame), seen(2, 400 - 300 * share, 110, frame=frame)
        hidden = abs(left.box.x - right.box.x) < 50  # the detector finds the one in front
        frames.append((frame / frames_per_s, (left,) if hidden else (left, right)))
    given = numbers(Tracker(threshold=0.3), frames)
    assert all(one == [1, 2][: len(one)] for one in given)


def test_a_person_who_returns_within_ten_seconds_keeps_the_number_wherever_that_is() -> None:
    both, nobody = (seen(1, 100), seen(2, 500)), [(0.2 + at / 4, ()) for at in range(36)]
    tracker = Tracker(threshold=0.3)
    assert numbers(tracker, [(0.0, both), *nobody, (9.0, (seen(2, 100), seen(3, 500)))])[-1] == [2, 3]
    assert numbers(tracker, [(9.2 + at / 4, ()) for at in range(45)] + [(20.6, (seen(2, 100),))])[-1] == [4]


def half_hidden(one: Face, width: int) -> Face:
    """The face with `width` columns of the crop behind an object."""
    return replace(one, crop=np.where(np.arange(CROP_PX)[None, :, None] < width, 80, one.crop).astype(np.uint8))


def test_a_person_who_comes_back_half_hidden_gets_the_number_back_when_the_face_is_free() -> None:
    before = [(0.0, (seen(1, 100), seen(2, 500, 300))), (0.1, (seen(2, 500, 300),))]
    free = [(3.1 + at / 10, (half_hidden(seen(1, 400), 48 - 16 * at),)) for at in range(3)]
    back = [*before, (3.0, (half_hidden(seen(1, 400), 64),)), *free]
    assert numbers(Tracker(threshold=0.3), back) == [[1, 2], [2], [3], [3], [3], [1]]
    waiting = [(1.9 + at / 4, (half_hidden(seen(1, 400), 64),)) for at in range(5)]
    assert numbers(Tracker(threshold=0.3), [*before, *waiting, *free])[-1] == [3], "by then it is a person of its own"


@pytest.mark.parametrize(("frames", "people"), [(3, [1]), (9, [1, 2])])
def test_a_face_that_begins_beside_another_is_a_person_only_if_it_stays(frames: int, people: list[int]) -> None:
    beside = [(at * FRAME_S, (face(100), face(150, happiness=0.9))) for at in range(1, 1 + frames)]
    given = numbers(Tracker(threshold=0.3), [(0.0, (face(100),)), *beside])
    assert given[:4] == [[1]] * 4
    assert given[-1] == people


def test_a_cut_to_another_person_at_the_same_place_gives_another_number() -> None:
    frames = [(frame * FRAME_S, (seen(1 + frame // 10 % 2, 100, frame=frame),)) for frame in range(40)]
    assert numbers(Tracker(threshold=0.3), frames) == [[1]] * 10 + [[2]] * 10 + [[1]] * 10 + [[2]] * 10


def test_a_cut_separates_people_unless_the_face_is_surely_the_same() -> None:
    person, other = seen(1, 100), seen(2, 100)
    mixed = 0.6 * person.crop.astype(np.float64) + 0.4 * other.crop  # who looks like the first
    alike = replace(person, crop=mixed.astype(np.uint8))
    one, two = (descriptor(face.crop) for face in (person, alike))
    assert one is not None
    assert two is not None
    assert TrackingRules().gone_face < one @ two < TrackingRules().cut_face
    for cut, expected in ((False, [1, 1, 1, 1]), (True, [1, 2, 2, 1])):
        tracker = Tracker(threshold=0.3)
        shown = [(0.0, person, False), (0.1, alike, cut), (0.2, alike, False), (0.3, person, cut)]
        assert [tracker.update((face,), at_s, cut=cut)[0].track for at_s, face, cut in shown] == expected


@pytest.mark.parametrize("pause_s", [0.6, 2.0, 60.0])
def test_a_stall_or_pause_hands_no_number_to_somebody_else(pause_s: float) -> None:
    before, after = (seen(1, 100), seen(2, 200)), (seen(2, 110, frame=1), seen(1, 190, frame=1))
    assert numbers(Tracker(threshold=0.3), [(0.0, before), (pause_s, after)]) == [[1, 2], [2, 1]]
    assert numbers(Tracker(threshold=0.3), [(0.0, before), (pause_s, (seen(3, 100),))]) == [[1, 2], [3]]


def test_a_face_without_contrast_is_matched_by_position() -> None:
    blank = replace(face(100), crop=np.full((CROP_PX, CROP_PX, 3), 90, np.uint8))
    assert descriptor(blank.crop) is None
    assert numbers(Tracker(threshold=0.3), [(0.0, (blank,)), (FRAME_S, (blank,))]) == [[1], [1]]


def test_the_assignment_is_the_cheapest_of_all() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        rows, columns = random.integers(0, 5, 2)
        costs: Array = random.uniform(0, 4, (rows, columns))
        costs[random.random(costs.shape) < 0.2] = np.inf
        matches = assign(costs, 3.0)
        used = [match for match in matches if match is not None]
        assert len(set(used)) == len(used)
        padded = np.hstack([costs, np.full((rows, rows), 3.0)])
        paid = sum(3.0 if match is None else costs[row, match] for row, match in enumerate(matches))
        assert paid == pytest.approx(padded[linear_sum_assignment(padded)].sum())


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


def test_a_real_change_is_shown_at_once_and_certain_soon_after_at_any_frame_rate() -> None:
    for frame_s in (1 / 30, 1 / 10, 1 / 5):
        before, after = [(face(neutral=0.95),)] * 10, [(face(surprise=0.95),)] * round(1 / frame_s)
        for threshold, limit_s in ((0.0, 0.25), (0.8, 0.65)):
            shown = [labels[0] for labels in run(Tracker(threshold=threshold), before + after, frame_s)]
            assert shown[9] == "neutral"
            assert (shown.index("surprise") - 9) * frame_s <= limit_s
            assert shown[-1] == "surprise"


def test_uncertainty_is_sticky_on_both_sides() -> None:
    def hover(around: float) -> list[tuple[Face, ...]]:
        return [(face(anger=around + 0.02 * (-1) ** number),) for number in range(40)]

    from_above = run(Tracker(threshold=0.5), [(face(anger=0.8),)] * 2 + hover(0.5))
    from_below = run(Tracker(threshold=0.5), [(face(anger=0.3),)] * 2 + hover(0.5))
    assert {labels[0] for labels in from_above} == {"anger"}
    assert {labels[0] for labels in from_below} == {"uncertain"}


def test_without_smoothing_each_frame_shows_its_own_probabilities() -> None:
    tracker = Tracker(threshold=0.3, rules=TrackingRules(smoothing_s=0))
    tracker.update((face(anger=0.8),), 0.0)
    (tracked,) = tracker.update((face(fear=0.7),), FRAME_S)
    assert tracked.probabilities["fear"] == pytest.approx(0.7)
    assert tracked.label == "fear"
