"""Episodes of expressions: their times, by hysteresis, on faces with known probabilities."""

from dataclasses import replace

import pytest

from mien.app.inference.episodes import EpisodeRules, Episodes
from mien.app.inference.records import Face
from tests.support import labeled_face

STEP_S = 0.1


def face(person: int = 1, **shares: float) -> Face:
    votes = {"happiness": 0.5, "anger": 0.9}
    return replace(labeled_face(**shares), track=person, votes=votes)


def found(*happiness: float | None) -> list[tuple[float, float]]:
    """Onsets and offsets of happiness, with these probabilities every tenth of a second; None: the person is gone."""
    episodes = Episodes(EpisodeRules(gap_s=0.25))
    ended = []
    for number, probability in enumerate(happiness):
        faces = [] if probability is None else [face(happiness=probability)]
        ended += episodes.update(faces, number * STEP_S)
    ended += episodes.close()
    return [
        (round(episode.onset_s, 3), round(episode.offset_s, 3)) for episode in ended if episode.label == "happiness"
    ]


@pytest.mark.parametrize(
    ("happiness", "expected"),
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
    assert found(*happiness) == expected


def test_peak_agreement_and_shares_of_time_are_of_each_person() -> None:
    episodes = Episodes()
    ended = []
    for number, probability in enumerate((0.7, 0.9, 0.8, 0.1, 0.1)):
        faces = [face(1, happiness=probability), face(2, anger=0.95)]
        ended += episodes.update(faces, number * STEP_S)
    ended += episodes.close()
    first, second = ended
    assert (first.person, first.peak, first.peak_s, first.agreement) == (1, 0.9, 0.1, 0.5)
    assert (second.person, second.label, second.agreement) == (2, "anger", pytest.approx(0.9))
    assert episodes.seen_s == {1: pytest.approx(0.5), 2: pytest.approx(0.5)}
    assert episodes.shown_s == {(1, "happiness"): pytest.approx(0.3), (2, "anger"): pytest.approx(0.5)}


def test_the_time_of_a_person_has_the_missed_frames_and_the_last_one() -> None:
    episodes = Episodes(EpisodeRules(gap_s=0.25))
    for number, is_seen in enumerate((1, 1, 0, 1, 0, 0, 0, 1, 0)):
        episodes.update([face(happiness=0.9)] * is_seen, number * STEP_S)
    episodes.close()
    assert episodes.seen_s[1] == pytest.approx(0.5)
    assert episodes.shown_s[1, "happiness"] == pytest.approx(0.4)  # 0.1 s at the end is too short
