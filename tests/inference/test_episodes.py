"""Episodes of expressions: their times, by hysteresis, on faces with known probabilities."""

from dataclasses import replace

import pytest

from mien.app.inference.episodes import EpisodeRules, Episodes
from mien.app.inference.records import Face
from tests.support import labeled_face

STEP_S = 0.1


def face(person: int = 1, **shares: float) -> Face:
    face = labeled_face(**shares)
    return replace(face, person=person, agreement={"happiness": 0.5, "anger": 0.9}.get(face.label, 0.1))


@pytest.mark.parametrize(
    ("happiness", "expected"),  # every tenth of a second; None: the person is gone
    [
        ((0.59, 0.6, 0.5, 0.4, 0.39, 0.59), [(0.1, 0.4)]),  # begins at the upper and ends below the lower threshold
        ((0.2, 0.8, 0.8), [(0.1, 0.3)]),  # the last frame lasts as long as the one before
        ((0.8, 0.2, 0.8, 0.8, 0.2), [(0.2, 0.4)]),  # a short one is left out
        ((0.8, 0.8, None, 0.8, 0.8), [(0.0, 0.5)]),  # a missed frame does not end it, but a person who leaves does
        ((0.8, 0.8, None, None, None, None, 0.8, 0.8, 0.8), [(0.0, 0.2), (0.6, 0.9)]),
    ],
)
def test_an_episode_lasts_from_its_onset_to_its_offset(
    happiness: tuple[float | None, ...], expected: list[tuple[float, float]]
) -> None:
    episodes, ended = Episodes(EpisodeRules(gap_s=0.25)), []
    for number, probability in enumerate(happiness):
        ended += episodes.update([] if probability is None else [face(happiness=probability)], number * STEP_S)
    ended += episodes.close()
    found = [(round(each.onset_s, 3), round(each.offset_s, 3)) for each in ended if each.label == "happiness"]
    assert found == expected


def test_peak_and_agreement_are_of_each_person() -> None:
    episodes, ended = Episodes(EpisodeRules(gap_s=0.25)), []
    for number, probability in enumerate((0.7, 0.9, None, 0.8, 0.1, 0.1)):
        seen = [] if probability is None else [face(1, happiness=probability)]
        ended += episodes.update([*seen, face(2, anger=0.95)], number * STEP_S)
    first, second = ended + episodes.close()
    assert (first.person, first.peak, first.peak_s, first.agreement) == (1, 0.9, 0.1, 0.5)
    assert (second.person, second.label, second.agreement) == (2, "anger", pytest.approx(0.9))
