"""Episodes of expressions: their times, by hysteresis, on faces with known probabilities."""

from dataclasses import replace

from mien.app.inference.records import Face
from mien.app.video.episodes import Moment, episodes_of, values_of
from tests.support import labeled_face

STEP_S = 0.1


def face(person: int = 1, **shares: float) -> Face:
    face = labeled_face(**shares)
    return replace(face, person=person, agreement={"happiness": 0.5, "anger": 0.9}.get(face.label, 0.1))


def test_an_episode_lasts_from_its_onset_to_its_offset_and_counts_frames_with_the_face() -> None:
    cases: tuple[tuple[tuple[float | None, ...], list[tuple[float, float, float]]], ...] = (
        # every tenth of a second; None: the person is gone; 2: a cut before a face with 0.8
        ((0.59, 0.6, 0.5, 0.4, 0.39, 0.59), [(0.1, 0.4, 0.3)]),  # begins at the upper, ends below the lower threshold
        ((0.2, 0.8, 0.8), [(0.1, 0.3, 0.2)]),  # the last frame ends it
        ((0.8, 0.2, 0.8, 0.8, 0.2), [(0.2, 0.4, 0.2)]),  # a short one is left out
        ((0.8, 0.8, None, 0.8, 0.8), [(0.0, 0.5, 0.4)]),  # a missed frame does not end it, and does not count
        ((0.8, 0.8, None, None, None, None, 0.8, 0.8, 0.8), [(0.0, 0.2, 0.2), (0.6, 0.9, 0.3)]),
        ((0.8, 0.8, 0.8, 2, 0.8, 0.8), [(0.0, 0.3, 0.3), (0.3, 0.6, 0.3)]),
    )
    for happiness, expected in cases:
        moments, scene = [], 0
        for number, probability in enumerate(happiness):
            scene += probability == 2
            faces = [] if probability is None else [face(happiness=0.8 if probability == 2 else probability)]
            moments.append(Moment(number * STEP_S, (number + 1) * STEP_S, scene, faces))
        episodes = [each for each in episodes_of(moments, gap_s=0.25) if each.label == "happiness"]
        found = [
            tuple(round(value, 3) for value in (each.onset_s, each.offset_s, each.duration_s)) for each in episodes
        ]
        assert found == expected


def test_peak_and_agreement_are_of_each_person_and_the_peak_is_where_it_was_reached_first() -> None:
    moments = []
    for number, probability in enumerate((0.7, 0.9, None, 0.9, 0.1, 0.1)):
        faces = [face(2, anger=0.95)] + ([] if probability is None else [face(1, happiness=probability)])
        moments.append(Moment(number * STEP_S, (number + 1) * STEP_S, 0, faces))
    first, second = map(values_of, episodes_of(moments))
    expected = ("happiness", 0.0, 0.4, 0.3, 0.9, 0.1, 0.5)
    assert tuple(first.values()) == (1, *expected)
    assert (second["person"], second["label"], second["agreement"]) == (2, "anger", 0.9)
