"""Episodes of expressions: their times, by hysteresis, on faces with known probabilities."""

from dataclasses import replace

import pytest

from mien.app.inference.records import Face
from mien.app.video.episodes import Moment, episodes_of
from tests.support import labeled_face

STEP_S = 0.1
GAP_S = 0.25


def face(person: int = 1, **shares: float) -> Face:
    face = labeled_face(**shares)
    return replace(face, person=person, agreement={"happiness": 0.5, "anger": 0.9}.get(face.label, 0.1))


def moment(number: int, *faces: Face, scene: int = 0) -> Moment:
    return Moment(number * STEP_S, (number + 1) * STEP_S, scene, faces)


@pytest.mark.parametrize(
    ("happiness", "expected"),  # every tenth of a second; None: the person is gone
    [
        ((0.59, 0.6, 0.5, 0.4, 0.39, 0.59), [(0.1, 0.4, 0.3)]),  # begins at the upper, ends below the lower threshold
        ((0.2, 0.8, 0.8), [(0.1, 0.3, 0.2)]),  # the last frame ends it
        ((0.8, 0.2, 0.8, 0.8, 0.2), [(0.2, 0.4, 0.2)]),  # a short one is left out
        ((0.8, 0.8, None, 0.8, 0.8), [(0.0, 0.5, 0.4)]),  # a missed frame does not end it, and does not count
        ((0.8, 0.8, None, None, None, None, 0.8, 0.8, 0.8), [(0.0, 0.2, 0.2), (0.6, 0.9, 0.3)]),
    ],
)
def test_an_episode_lasts_from_its_onset_to_its_offset_and_counts_frames_with_the_face(
    happiness: tuple[float | None, ...], expected: list[tuple[float, float, float]]
) -> None:
    moments = [
        moment(number, *([] if probability is None else [face(happiness=probability)]))
        for number, probability in enumerate(happiness)
    ]
    episodes = [each for each in episodes_of(moments, gap_s=GAP_S) if each.label == "happiness"]
    found = [tuple(round(value, 3) for value in (each.onset_s, each.offset_s, each.duration_s)) for each in episodes]
    assert found == expected


def test_a_cut_ends_an_episode() -> None:
    moments = [moment(number, face(happiness=0.8), scene=number // 3) for number in range(6)]
    assert [round(each.onset_s, 3) for each in episodes_of(moments, gap_s=GAP_S)] == [0.0, 0.3]


def test_two_people_who_alternate_are_not_seen_longer_than_the_video() -> None:
    moments = [moment(number, face(1 + number // 15 % 2, happiness=0.8)) for number in range(240)]
    episodes = episodes_of(moments)
    assert sum(each.duration_s for each in episodes) == pytest.approx(24.0)


def test_peak_and_agreement_are_of_each_person_and_the_peak_is_where_it_was_reached_first() -> None:
    moments = []
    for number, probability in enumerate((0.7, 0.9, None, 0.9, 0.1, 0.1)):
        seen = [] if probability is None else [face(1, happiness=probability)]
        moments.append(moment(number, *seen, face(2, anger=0.95)))
    first, second = episodes_of(moments, gap_s=GAP_S)
    assert (first.person, first.peak, first.peak_s, first.agreement) == (1, 0.9, 0.1, 0.5)
    assert (second.person, second.label, second.agreement) == (2, "anger", pytest.approx(0.9))
